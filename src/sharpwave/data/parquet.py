"""Parquet files: a row a step, and one for each episode's final observation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import Episode, check_bytes, existing
from sharpwave.data.packages import needed
from sharpwave.json_values import encode
from sharpwave.spec import Field, Spec

KEY = b"sharpwave"
"""Key of the file's metadata whose value is the spec, as JSON."""
FIXED = ("episode", "step", "is_last", "reward", "terminated", "truncated", "info")


def _type(pyarrow: Any, field: Field) -> Any:
    one = pyarrow.from_numpy_dtype(field.np_dtype)
    return pyarrow.list_(one, int(np.prod(field.shape))) if field.shape else one


class ParquetTarget:
    """Writer of a file: a row group an episode.

    Columns are ``episode``, ``step``, ``is_last``, ``reward``, ``terminated``, ``truncated``, ``info`` (JSON), and a
    column a field, of flat lists. An episode's last row (``is_last``) has its final observation; of it, all else is
    null.
    """

    def __init__(self, path: Path, spec: Spec) -> None:
        self._arrow = pa = needed("pyarrow", "data")
        self._path, self._spec, self._count = path, spec, 0
        columns = [pa.field("episode", pa.int64()), pa.field("step", pa.int64()), pa.field("is_last", pa.bool_())]
        columns += [pa.field("reward", pa.float32()), pa.field("terminated", pa.bool_())]
        columns += [pa.field("truncated", pa.bool_()), pa.field("info", pa.string())]
        columns += [pa.field(name, _type(pa, field)) for name, field in spec.fields.items()]
        self._schema = pa.schema(columns, {KEY: json.dumps(spec.description()).encode()})
        self._writer: Any = needed("pyarrow.parquet", "data").ParquetWriter(path, self._schema, compression="zstd")

    def add(self, episode: Episode) -> None:
        """Write an episode."""
        pa, spec, steps = self._arrow, self._spec, len(episode.reward)
        ends = np.zeros((2, steps), np.bool_)
        ends[:, -1] = episode.terminated, episode.truncated
        values: dict[str, Any] = {
            "episode": pa.array(np.full(steps + 1, self._count)),
            "step": pa.array(np.arange(steps + 1)),
            "is_last": pa.array(np.arange(steps + 1) == steps),
            "reward": self._column(episode.reward, Field((), "float32"), pa.float32(), steps + 1),
            "terminated": self._column(ends[0], Field((), "bool"), pa.bool_(), steps + 1),
            "truncated": self._column(ends[1], Field((), "bool"), pa.bool_(), steps + 1),
            "info": pa.array([json.dumps(encode(episode.info, "info"))] + [None] * steps, pa.string()),
        }
        arrays = spec.split_obs(episode.obs) | spec.split_action(episode.action) | dict(episode.fields)
        for name, field in spec.fields.items():
            values[name] = self._column(arrays[name], field, self._schema.field(name).type, steps + 1)
        self._writer.write_table(
            pa.table([values[name] for name in self._schema.names], schema=self._schema), row_group_size=steps + 1
        )
        self._count += 1

    def _column(self, array: npt.NDArray[Any], field: Field, kind: Any, rows: int) -> Any:
        """Return an array as a column of ``rows`` rows, the last of which is null if there are fewer values."""
        pa = self._arrow
        flat = pa.array(np.ascontiguousarray(array).reshape(-1), pa.from_numpy_dtype(field.np_dtype))
        column = pa.FixedSizeListArray.from_arrays(flat, type=kind) if field.shape else flat
        if len(column) == rows:
            return column
        return pa.concat_arrays([column, pa.nulls(rows - len(column), kind)])

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()

    def discard(self) -> None:
        """Close the file, which the caller removes."""
        self._writer.close()


class ParquetSource:
    """Episodes of a file that ``ParquetTarget`` wrote."""

    def __init__(self, path: str) -> None:
        found = existing(path, "parquet")
        self.name, self.left_out = f"parquet:{found}", list[str]()
        self._arrow: Any = needed("pyarrow", "data")
        reader = needed("pyarrow.parquet", "data")
        try:
            self._file = reader.ParquetFile(found)
            said = (self._file.schema_arrow.metadata or {}).get(KEY)
            if said is None:
                raise ValueError("no export of Sharpwave: its metadata has no key 'sharpwave'")
            self.spec = Spec.from_json(json.loads(said))
            names = [*FIXED, *self.spec.fields]
            if self._file.schema_arrow.names != names:
                raise ValueError(f"columns {self._file.schema_arrow.names[:12]}, expected {names[:12]}")
            rows = [self._file.metadata.row_group(n).num_rows for n in range(self._file.num_row_groups)]
            if any(count < 2 for count in rows):
                raise ValueError(f"row groups of {rows[:8]} rows, expected an episode in each")
        except (ValueError, TypeError, KeyError, OSError, RecursionError, self._arrow.ArrowException) as error:
            raise ValueError(f"{self.name}: is damaged, or no export of a store ({error})") from error
        self._rows = rows
        self.steps = sum(rows) - len(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, number: int) -> Episode:
        """Read an episode.  Raises: ValueError: the file is damaged."""
        spec, steps = self.spec, self._rows[number] - 1
        for name, field in spec.fields.items():
            check_bytes(f"{self.name}: {name}", steps + 1, field)
        try:
            table = self._file.read_row_group(number)
            arrays = {
                name: self._values(table.column(name), field, steps + (name in spec.obs_names))
                for name, field in spec.fields.items()
            }
            reward = self._values(table.column("reward"), Field((), "float32"), steps)
            ends = [self._values(table.column(name), Field((), "bool"), steps) for name in ("terminated", "truncated")]
            info = json.loads(table.column("info")[0].as_py() or "{}")
            if not isinstance(info, dict):
                raise ValueError("info: expected an object")
        except (ValueError, TypeError, KeyError, OSError, RecursionError, self._arrow.ArrowException) as error:
            raise ValueError(f"{self.name}: episode {number} is damaged ({error})") from error
        if (ends[0] | ends[1])[:-1].any():
            raise ValueError(f"{self.name}: episode {number} ends before its last step")
        further = {name: arrays[name] for name in spec.extra_names}
        return Episode(
            spec.join_obs(arrays), spec.join_action(arrays), reward, bool(ends[0][-1]), bool(ends[1][-1]), further, info
        )

    def _values(self, column: Any, field: Field, rows: int) -> npt.NDArray[Any]:
        one = column.slice(0, rows).combine_chunks()
        if one.null_count:
            raise ValueError("a null where a value is expected")
        flat = one.flatten() if field.shape else one
        array = np.asarray(flat.to_numpy(zero_copy_only=False))
        if array.dtype != field.np_dtype:
            raise ValueError(f"values of {array.dtype}, expected {field.dtype}")
        return array.reshape(rows, *field.shape)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_parquet(path: str) -> ParquetSource:
    """Open a file that ``Store.export`` wrote.  Raises: FileNotFoundError, ValueError, ModuleNotFoundError."""
    return ParquetSource(path)
