"""Late columns in a store's folder: one file names them, and each chunk of a column's values has its own.

A chunk is the values of some hundred slots, with the generations of their segments: values of a segment that was
evicted since count no more. Each file is replaced as a whole. The file of names is replaced first when a column is
dropped, so that a crash leaves files of values that no column has, and never half a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sharpwave.arrays import Ints
from sharpwave.disk.state_files import StateFiles
from sharpwave.disk.store_folder import COLUMNS
from sharpwave.errors import NO_STATE
from sharpwave.escaping import escaped
from sharpwave.format import marked_rows
from sharpwave.log.late_columns import LateColumn, LateColumns, described, field_of
from sharpwave.log.step_log import StepLog
from sharpwave.native.directory import IrregularError
from sharpwave.persistence.recovery import to_quarantine
from sharpwave.spec import Field

NAMES = ".columns"
"""Name of the state that names the columns; none of theirs has a dot."""
DELETED = ".deleted"
"""Name of the state that tells which steps were deleted."""
MAX_CHUNK_SLOTS = 1 << 32
RETURNED = "steps that were deleted are there again: delete them again, or put back the file"
"""Consequence of losing that state."""


class ColumnFiles:
    """Writer of the files of a log's late columns; the store's lock is held."""

    def __init__(self, log: StepLog, files: StateFiles) -> None:
        self._log, self._files = log, files
        self._late: LateColumns = log.late
        self._named: dict[str, LateColumn] = {}  # as in the file of names

    def open(self, deleted: DeletedFile, damages: list[str]) -> None:
        """Add the columns of earlier processes to the log, with the values of the steps that are held.

        Args:
            deleted: by ``read_deleted``.
            damages: files that cannot be used are added; their values are lost.
        """
        late = self._late
        if deleted.state is not None:
            late.restore_deleted(deleted.state)
        elif deleted.damage:
            damages.append(escaped(deleted.damage))
            if not deleted.whole:  # the next deletion writes another
                with self._files.disk.directory.directory(COLUMNS) as directory:
                    to_quarantine(self._files.disk, directory, self._files.path(DELETED).name)
        before = len(damages)
        known = self._files.read_one(NAMES, damages)
        whole, unnamed = known is not None, known is None and len(damages) == before
        for name, about in ({} if known is None else self._checked(known, damages)).items():
            try:
                kind, slots, key = named_column(about)
                late.check_new("columns", name, kind)
                column = late.add(name, kind)
                column.chunk_slots, column.key = slots, key
                self._named[name] = column
            except MemoryError:
                raise  # the files stay as they are
            except NO_STATE as error:
                damages.append(f"column {name!r:.100}: {error}; its values are lost")
                whole = False
        for state in self._files.read(damages, but=(NAMES, DELETED)):
            name, found = state["name"], self._named.get(str(state.get("column")))
            if found is None or state.get("key") != found.key:
                if whole:  # of a column that was dropped
                    self._files.delete(name)
                elif unnamed:
                    unnamed = False
                    damages.append("columns: the file that names the columns added later is not there; they are lost")
                continue
            try:
                if name != chunk_name(state["column"], state["chunk"]):
                    raise ValueError(f"chunk {state['chunk']!r}, expected the one of the file {name!r}")
                late.take(found, int(state["chunk"]) * found.chunk_slots, state)
            except NO_STATE as error:
                damages.append(f"column {state['column']!r:.100}: {error}; values of some steps are lost")

    def _checked(self, known: dict[str, Any], damages: list[str]) -> dict[str, Any]:
        columns = known.get("columns")
        if isinstance(columns, dict):
            return columns
        damages.append(f"columns: {type(columns).__name__}, expected a dict; their values are lost")
        return {}

    def begin(self) -> None:
        """Write all columns, restored from a checkpoint, in place of those in the folder.  Raises: OSError."""
        for state in self._files.read([]):
            self._files.remove(state["name"])
        for column in self._late.columns.values():
            self._late.change_all(column)
        self.write()
        if self._late.deleted is not None:
            self.write_deleted()

    def write_deleted(self, more: Ints | None = None) -> None:
        """Write which steps were deleted, and the steps ``more`` with them, in one file that is replaced as a whole.

        Raises: OSError: where it is in the folder but could not be synced, ``more`` may be deleted when the store is
            opened again.
        """
        self._files.write(DELETED, {"name": DELETED} | self._late.deleted_state(more))

    def write_names(self) -> None:
        """Write the columns' names, if they changed, and delete the files of dropped ones.  Raises: OSError."""
        late, index = self._late, self._log.index
        if self._named != late.columns:  # columns are compared by identity
            kept = {name: column for name, column in self._named.items() if late.columns.get(name) is column}
            if kept != self._named:
                self._write_names(kept)
                for name, column in self._named.items():
                    if name not in kept:
                        for chunk in range(-(-index.slots // column.chunk_slots)):
                            self._files.remove(chunk_name(name, chunk))
                self._named = kept
            self._write_names(late.columns)
            self._named = dict(late.columns)

    def write(self) -> None:
        """Write names and chunks that changed since the last call.  Raises: OSError; a later call repeats it.

        Cost: the bytes of the chunks with values given since.
        """
        late, index = self._late, self._log.index
        self.write_names()
        for name, column in late.columns.items():
            for chunk in sorted(column.changed):
                begin = chunk * column.chunk_slots
                end = min(begin + column.chunk_slots, index.highest)
                values = late.chunk(column, begin, end)
                key = chunk_name(name, chunk)
                if values["values"].size:
                    about = {"name": key, "column": name, "key": column.key, "chunk": chunk}
                    self._files.write(key, about | values)
                else:
                    self._files.remove(key)
                column.changed.discard(chunk)

    def _write_names(self, columns: dict[str, LateColumn]) -> None:
        about = {
            name: described(one.field) | {"chunk_slots": one.chunk_slots, "key": one.key}
            for name, one in columns.items()
        }
        self._files.write(NAMES, {"name": NAMES, "columns": about})


class DeletedFile(NamedTuple):
    """File of deleted steps, as ``read_deleted`` found it.

    Attributes:
        state: its content; ``None``: there is none, or it is damaged.
        damage: the error, as text; empty: the file is sound. ``whole``: False: the file is moved to ``quarantine``.
    """

    state: dict[str, Any] | None = None
    damage: str = ""
    whole: bool = True


def read_deleted(files: StateFiles, stride: int, required: bool) -> DeletedFile:
    """Read which steps were deleted, before anything in the store's folder is changed.

    Args:
        required: ``store.json`` says that steps were deleted.

    Raises: OSError, MemoryError, NewerVersionError: the file may be intact, and without it its steps would be back.
    """
    path = files.path(DELETED)
    try:
        state = files.read_whole(DELETED)
        if state is not None:
            marked_rows.unpacked(marked_rows.DELETED, state, stride)
        return DeletedFile(state, f"{path}: is missing; {RETURNED}" if state is None and required else "")
    except NO_STATE as error:
        what = str(error).removeprefix(f"{path}: ")
        return DeletedFile(damage=f"{path}: {what}; it was moved to quarantine; {RETURNED}", whole=False)
    except IrregularError as error:
        return DeletedFile(damage=f"{error}; {RETURNED}")
    except OSError as error:
        what = "it tells which steps were deleted, so the store was not opened, and nothing was changed; try again"
        raise OSError(error.errno, f"{path}: cannot be read ({error.strerror}); {what}") from error


def named_column(about: Mapping[str, Any]) -> tuple[Field, int, str]:
    """Return a column of the file of names: its field, the slots of a chunk, and its chunks' key.  Raises: NO_STATE."""
    slots, key = about["chunk_slots"], about["key"]
    if type(slots) is not int or not 1 <= slots <= MAX_CHUNK_SLOTS or not isinstance(key, str):
        raise ValueError(f"chunks of {slots!r:.30} slots, key {key!r:.30}")
    return field_of(about), slots, key


def chunk_name(column: str, chunk: int) -> str:
    """Return the name of the state of a column's chunk."""
    return f"{column}.{chunk}"
