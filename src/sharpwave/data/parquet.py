"""Parquet files: one row a step, and one for each episode's final observation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import SourceEpisode, Totals, existing, needed
from sharpwave.data.opened_files import ReadBudget, explained, open_path, parse_json
from sharpwave.data.parquet_files import ParquetFile
from sharpwave.data.tables import arrow_type, arrow_values
from sharpwave.json_values import encode
from sharpwave.ragged import Ragged
from sharpwave.spec import Field, Spec

KEY = b"sharpwave"
"""Key of the file's metadata whose value is the spec, as JSON."""
FIXED = ("episode", "step", "is_last", "reward", "terminated", "truncated", "info")
NUMBERS = ("episode", "step", "is_last")
MAX_INFO_BYTES = 1 << 26
"""Limit of an episode's description."""


class ParquetTarget:
    """Writer of a file with one row group an episode.

    Columns are ``episode``, ``step``, ``is_last``, ``reward``, ``terminated``, ``truncated``, ``info`` (JSON), and one
    for each field: flat lists, lists of any length, strings or bytes. An episode's last row (``is_last``) has its final
    observation; all other columns of that row are null.
    """

    def __init__(self, path: Path, spec: Spec) -> None:
        self._arrow = pa = needed("pyarrow", "data")
        self._path, self._spec, self._count = path, spec, 0
        columns = [pa.field("episode", pa.int64()), pa.field("step", pa.int64()), pa.field("is_last", pa.bool_())]
        columns += [pa.field("reward", pa.float32()), pa.field("terminated", pa.bool_())]
        columns += [pa.field("truncated", pa.bool_()), pa.field("info", pa.string())]
        columns += [pa.field(name, arrow_type(pa, field)) for name, field in spec.fields.items()]
        self._schema = pa.schema(columns, {KEY: json.dumps(spec.description()).encode()})
        self._writer: Any = needed("pyarrow.parquet", "data").ParquetWriter(path, self._schema, compression="zstd")

    def add(self, episode: SourceEpisode) -> None:
        """Write an episode."""
        pa, spec, steps = self._arrow, self._spec, len(episode.reward)
        ends = np.zeros((2, steps), np.bool_)
        ends[:, -1] = episode.terminated, episode.truncated
        values: dict[str, Any] = {
            "episode": pa.array(np.full(steps + 1, self._count)),
            "step": pa.array(np.arange(steps + 1)),
            "is_last": pa.array(np.arange(steps + 1) == steps),
            "reward": self._column(episode.reward, pa.float32(), steps + 1),
            "terminated": self._column(ends[0], pa.bool_(), steps + 1),
            "truncated": self._column(ends[1], pa.bool_(), steps + 1),
            "info": pa.array([json.dumps(encode(episode.info, "info"))] + [None] * steps, pa.string()),
        }
        arrays = spec.split_obs(episode.obs) | spec.split_action(episode.action) | dict(episode.fields)
        for name in spec.fields:
            values[name] = self._column(arrays[name], self._schema.field(name).type, steps + 1)
        self._writer.write_table(
            pa.table([values[name] for name in self._schema.names], schema=self._schema), row_group_size=steps + 1
        )
        self._count += 1

    def _column(self, array: npt.NDArray[Any] | Ragged, kind: Any, rows: int) -> Any:
        """Return an array as a column of ``rows`` rows; with fewer values, the last row is null."""
        pa = self._arrow
        column = arrow_values(pa, array, kind)
        if len(column) == rows:
            return column
        return pa.concat_arrays([column, pa.nulls(rows - len(column), kind)])

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()

    discard = close  # the caller removes the file


class ParquetSource:
    """Episodes of a file that ``ParquetTarget`` wrote."""

    def __init__(self, path: str, budget: ReadBudget) -> None:
        found = existing(path, "parquet")
        self.name, self.left_out, self.notes, self._budget = f"parquet:{found}", list[str](), list[str](), budget
        self.left = Totals()
        self._arrow: Any = needed("pyarrow", "data")
        with explained(f"{self.name}: is damaged, or no export of a store"):
            self._file = ParquetFile(open_path(found, budget), budget)
            budget.closing.callback(self._file.close)
            self.spec = self._read_spec(found)
        self._rows = self._file.rows
        self.steps = sum(self._rows) - len(self._rows)
        numbers = self._file.least("episode")
        if (again := len(numbers) - len(set(numbers))) > 0:
            self.notes.append(f"{again:,} of its episode numbers occur twice")
        if numbers and (missing := max(numbers) + 1 - len(set(numbers))) > 0:
            self.notes.append(f"{missing:,} of the episodes 0 to {max(numbers)} are missing")

    def _read_spec(self, path: Path) -> Spec:
        """Return the file's spec, after comparing columns and row groups with it.  Raises: ValueError."""
        said = (self._file.schema.metadata or {}).get(KEY)
        if said is None:
            raise ValueError(f"{path}: no export of Sharpwave: its metadata has no key 'sharpwave'")
        spec = Spec.from_json(parse_json(said))
        schema, names = self._file.schema, [*FIXED, *spec.fields]
        if schema.names != names:
            raise ValueError(f"{path}: columns {schema.names[:12]}, expected {names[:12]}")
        for name, field in spec.fields.items():
            if not schema.field(name).type.equals(expected := arrow_type(self._arrow, field)):
                raise ValueError(f"{path}: {name} is {schema.field(name).type}, expected {expected}")
        if self._arrow.types.is_nested(schema.field("info").type):  # a nested row may hold any number of values
            raise ValueError(f"{path}: info is {schema.field('info').type}, expected string")
        if any(count < 2 for count in self._file.rows):
            raise ValueError(f"{path}: row groups of {self._file.rows[:8]} rows, expected an episode in each")
        return spec

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, number: int) -> SourceEpisode:
        what = self.place(number)
        spec, steps = self.spec, self._rows[number] - 1
        self._budget.check_episode(what, steps + 1, spec.fields)
        with explained(f"{what} is damaged"):
            table = self._file.read(number, [*NUMBERS, "reward", "terminated", "truncated", *spec.fields])
            self._check_numbers(table, steps + 1)
            arrays = {
                name: self._values(table.column(name), field, steps + (name in spec.obs_names))
                for name, field in spec.fields.items()
            }
            reward = self._values(table.column("reward"), Field((), "float32"), steps)
            ends = [self._values(table.column(name), Field((), "bool"), steps) for name in ("terminated", "truncated")]
            said = self._file.read(number, ["info"], MAX_INFO_BYTES).column("info")
            info = parse_json(said[0].as_py() or "{}")
            if not isinstance(info, dict):
                raise ValueError(f"info: {type(info).__name__}, expected an object")
        if (ends[0] | ends[1])[:-1].any():
            raise ValueError(f"{what} ends before its last step")
        further = {name: arrays[name] for name in spec.extra_names}
        return SourceEpisode(
            spec.join_obs(arrays), spec.join_action(arrays), reward, bool(ends[0][-1]), bool(ends[1][-1]), further, info
        )

    def _check_numbers(self, table: Any, rows: int) -> None:
        """Check that the rows are one episode's, in order.  Raises: ValueError."""
        for name, expected in (("step", np.arange(rows)), ("is_last", np.arange(rows) == rows - 1)):
            found = self._values(table.column(name), Field((), expected.dtype.name), rows)
            if (differ := found != expected).any():
                row = int(np.argmax(differ))
                raise ValueError(f"row {row} has {name} {found[row]}, expected {expected[row]}; are rows missing?")
        episode = self._values(table.column("episode"), Field((), "int64"), rows)
        if (episode != episode[0]).any():
            raise ValueError(f"has rows of episodes {np.unique(episode)[:4].tolist()}, expected one episode's")

    def _values(self, column: Any, field: Field, rows: int) -> Any:
        """Return the first rows: an array, or a list of rows of any length.  Raises: ValueError."""
        one = column.slice(0, rows).combine_chunks()
        if one.null_count:
            raise ValueError("a null where a value is expected")
        if field.text is not None:
            return one.to_pylist()
        if field.ragged:
            ends = np.cumsum(one.value_lengths().to_numpy(zero_copy_only=False))
            return np.split(_array(one.flatten(), field, field.inner), ends[:-1])
        return _array(one, field, field.shape)

    def length(self, number: int) -> int:
        return self._rows[number] - 1

    def place(self, number: int) -> str:
        return f"{self.name}: episode {number}"


def _array(column: Any, field: Field, inner: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return values as an array [rows, *inner]; with axes they are flat lists.  Raises: ValueError."""
    flat = column.flatten() if inner else column
    if column.null_count or flat.null_count:
        raise ValueError("a null where a value is expected")
    array = np.asarray(flat.to_numpy(zero_copy_only=False))
    if array.dtype != field.np_dtype:
        raise ValueError(f"values of {array.dtype}, expected {field.dtype}")
    return array.reshape(len(column), *inner)
