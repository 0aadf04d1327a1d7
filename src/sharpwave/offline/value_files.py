"""Values of columns added later, read from a store's folder or a checkpoint without opening it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bools, Ints
from sharpwave.disk.state_files import file_name, read_named
from sharpwave.disk.store_folder import COLUMNS
from sharpwave.errors import NO_STATE, DamagedError, NewerVersionError
from sharpwave.format.checkpoint_state import STATE, read_state
from sharpwave.log.late_columns import field_of, given
from sharpwave.memory.segment_index import LEAF_BITS, LEAF_MASK
from sharpwave.offline.scan import Described, mark_of
from sharpwave.persistence.column_files import NAMES, chunk_name, named_column
from sharpwave.spec import Field

MAX_CHUNKS = 32
"""Number of chunks of values that are kept in memory."""


class LateValues:
    """Columns added later of a store in ``folder``, with values as of when they are read.

    Attributes:
        fields: by name, of a step's value.
        damage: why they cannot be read; "" if they can.
    """

    def __init__(self, folder: Path, described: Described) -> None:
        self._folder, self._described = folder, described
        self.fields: dict[str, Field] = {}
        self.damage = ""
        self._saved: dict[str, dict[str, Any]] = {}  # the columns' states in a checkpoint, which has them as a whole
        self._named: dict[str, tuple[Field, int, str]] = {}  # of a store in use, whose chunks have files
        self._chunks: dict[tuple[Any, ...], tuple[Ints, npt.NDArray[Any]]] = {}
        try:
            if described.part != folder:
                self._saved = dict(read_state(described.part / STATE).get("log", {}).get("columns", {}))
                self.fields = {name: field_of(about) for name, about in self._saved.items()}
            else:
                columns: Any = read_named(self._path(NAMES)).get("columns")
                self._named = {name: named_column(about) for name, about in columns.items()}
                self.fields = {name: field for name, (field, _, _) in self._named.items()}
        except FileNotFoundError:
            pass
        except (OSError, NewerVersionError, *NO_STATE) as error:
            self.damage = f"columns added later: {error}"

    def read(self, name: str, ids: Ints) -> tuple[npt.NDArray[Any], Bools]:
        """Return the values of steps [n, *shape], 0 where there is none, and where there is one, bool [n].

        Args:
            ids: int64 [n], of the steps; negative: none.

        Raises: DamagedError: a file of values is damaged.
        """
        stride, field = self._described.segment_steps, self.fields[name]
        values, written = np.zeros((len(ids), *field.shape), field.np_dtype), np.zeros(len(ids), np.bool_)
        per_chunk = self._named[name][1] * stride if name in self._named else 0
        leaves = ids & LEAF_MASK
        chunks = leaves // per_chunk if per_chunk else np.zeros(len(ids), np.int64)
        for chunk in np.unique(chunks[ids >= 0]).tolist():
            known, rows = self._chunk(name, field, chunk, per_chunk // stride)
            if len(known):
                place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
                here = (chunks == chunk) & (known[place] == ids)
                values[here], written[here] = rows[place[here]], True
        return values, written

    def _chunk(self, name: str, field: Field, chunk: int, slots: int) -> tuple[Ints, npt.NDArray[Any]]:
        """Return the ids of the steps with values in a chunk, rising, and their values."""
        none = np.zeros(0, np.int64), np.zeros((0, *field.shape), field.np_dtype)
        try:
            path = self._path(chunk_name(name, chunk)) if name in self._named else None
            mark = None if path is None else mark_of(path)
            if (found := self._chunks.get((name, chunk, mark))) is None:
                state = self._saved[name] if path is None else read_named(path)
                if path is not None and state.get("key") != self._named[name][2]:
                    return none  # of an earlier column of this name
                leaves, generations, rows = given(state, field, self._described.segment_steps, chunk * slots)
                ids = generations << LEAF_BITS | leaves
                order = np.argsort(ids)
                found = ids[order], rows[order]
                if len(self._chunks) >= MAX_CHUNKS:
                    self._chunks.clear()
                self._chunks[name, chunk, mark] = found
            return found
        except FileNotFoundError:
            return none
        except (OSError, NewerVersionError, *NO_STATE) as error:
            raise DamagedError(f"column {name!r:.100}: {error}") from error

    def _path(self, name: str) -> Path:
        if (self._folder / COLUMNS).is_symlink():
            raise DamagedError(f"{self._folder / COLUMNS}: a link, expected a folder")
        return self._folder / COLUMNS / file_name(name, self._described.identity.store.hex())
