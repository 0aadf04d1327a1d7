"""Files of unknown origin: the only functions that open them, and bounds on the memory and time of reading them.

Importers open files here and hand them to the libraries as file objects, never as paths, so the checked bytes are
the ones that are read. ``tests/data_sets/test_one_opener.py`` asserts this.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sharpwave.escaping import escaped
from sharpwave.native.descriptors import data_bytes
from sharpwave.native.directory import Directory, IrregularError, open_file
from sharpwave.spec import Field

MAX_WHOLE_BYTES = 1 << 32
"""Limit of an array, or a record, of one episode, since it is read as a whole."""
FREE_BYTES, TIMES = 1 << 28, 256
"""Bound of one episode's decoded arrays: a fixed number of bytes, plus a factor times the bytes of the files."""
FREE_TOTAL, TIMES_TOTAL = 1 << 30, 2000
"""The same bound for all episodes together, decoded one after the other; deflate reaches a factor of 1,032."""
FREE_ROWS, ROWS_A_BYTE = 1 << 20, 8
"""Bound of the number of steps."""
FREE_EPISODES, EPISODES_A_BYTE = 1 << 16, 1
"""Bound of the number of episodes, arrays and groups."""
FREE_S, S_A_BYTE = 60.0, 1e-5
"""Bound of the processor time of reading: a minute, plus ten seconds for each megabyte."""
VIDEO_WEIGHT = 16
"""Weight of a video's bytes: a picture that hardly changes takes a few thousandths of a raw one."""
MAX_JSON_BYTES, MAX_LINE_BYTES, MAX_LINES_BYTES = 1 << 25, 1 << 20, 1 << 28
"""Limits of a JSON file, and of a line and the whole of a file of JSON lines. Values take some 20 times their text."""
MAX_NAME_BYTES = 255
"""Limit of a name in a folder, on most systems."""
REMEDY = "if you know who wrote it, lift the bounds by trust=True (sharpwave import --trust)"


class ReadBudget:
    """Bounds on the reading of a data set, in proportion to the bytes of its files without holes.

    Args:
        trust: set no bounds, and follow links.
        progress: show a bar while episodes are found; ``None``: in a terminal.
        skip_damaged: report an episode's damage only when it is read, not when episodes are found.

    Attributes:
        nbytes: bytes of the files opened so far; inf without bounds.
        closing: closes all that stays open while the data set is read, the last opened first.
    """

    def __init__(self, trust: bool = False, progress: bool | None = False, skip_damaged: bool = False) -> None:
        self.skip_damaged = skip_damaged
        self.trust, self.progress, self.nbytes = trust, progress, math.inf if trust else 0.0
        self._counted: set[tuple[int, int]] = set()
        self.closing = contextlib.ExitStack()
        self._spent_s, self._begun_s, self._thread = 0.0, 0.0, -1

    def count(self, descriptor: int, weight: int = 1) -> int:
        """Count an open file's bytes, once; return their number."""
        found, status = data_bytes(descriptor), os.fstat(descriptor)
        os.lseek(descriptor, 0, os.SEEK_SET)  # the search for holes moves the offset
        if (key := (status.st_dev, status.st_ino)) not in self._counted and not self.trust:
            self._counted.add(key)
            self.nbytes += found * weight
        return found

    @property
    def array_bytes(self) -> float:
        """Bound of one decoded episode."""
        return FREE_BYTES + TIMES * self.nbytes

    def check_bytes(self, what: str, nbytes: float) -> None:
        """Refuse to decode more than the bound at a time.  Raises: ValueError."""
        self._check(what, nbytes, self.array_bytes, "bytes at a time")

    def check_episode(self, what: str, rows: int, fields: Mapping[str, Field]) -> None:
        """Refuse an episode of ``rows`` rows that is too large to decode.  Raises: ValueError."""
        for name, field in fields.items():
            check_whole(f"{what}: {name}: {rows:,} x {field.shape} {field.dtype}", rows * field.row_bytes)
        self.check_bytes(f"{what}: {rows:,} rows of {len(fields)} fields", rows * _row_bytes(fields))

    def check_total(self, what: str, steps: int, fields: Mapping[str, Field]) -> None:
        """Refuse a data set, or a step, that is too large for the files' bytes.  Raises: ValueError."""
        self.check_episode(what, 2, fields)
        self.check_total_bytes(f"{what}: {steps:,} steps", steps * _row_bytes(fields))

    def check_total_bytes(self, what: str, nbytes: float) -> None:
        """Refuse to decode more than the bound in total.  Raises: ValueError."""
        self._check(what, nbytes, FREE_TOTAL + TIMES_TOTAL * self.nbytes, "bytes")

    def check_steps(self, what: str, count: int) -> None:
        """Refuse too many steps.  Raises: ValueError."""
        self._check(what, count, FREE_ROWS + ROWS_A_BYTE * self.nbytes, "steps")

    def check_count(self, what: str, count: int, unit: str) -> None:
        """Refuse too many episodes, arrays or groups.  Raises: ValueError."""
        self._check(what, count, FREE_EPISODES + EPISODES_A_BYTE * self.nbytes, unit)

    def _check(self, what: str, got: float, bound: float, unit: str) -> None:
        if got > bound:
            raise ValueError(
                f"{what}: makes {got:,.0f} {unit}, expected at most {bound:,.0f} of {self.nbytes:,.0f} bytes of files; "
                f"{REMEDY}"
            )

    def check_time(self) -> None:
        """Stop once reading has taken too long.  Raises: ValueError."""
        if self._thread == threading.get_ident():  # libraries read from threads of their own, too
            spent, bound = self._spent_s + time.thread_time() - self._begun_s, FREE_S + S_A_BYTE * self.nbytes
            if spent > bound:
                raise ValueError(
                    f"reading has taken {spent:,.0f} s of a processor, expected at most {bound:,.0f} for "
                    f"{self.nbytes:,.0f} bytes of files; {REMEDY}"
                )

    @contextlib.contextmanager
    def held(self, what: str, *names: str) -> Iterator[None]:
        """Apply the bound of time, and ``explained``, to a block that reads; make its errors printable."""
        self._thread, self._begun_s = threading.get_ident(), time.thread_time()
        try:
            with explained(what, *names):
                try:
                    yield
                except Exception as error:
                    if not isinstance(error, ValueError):
                        self.check_time()  # a library may have replaced the error
                    raise
                self.check_time()
        except (ValueError, FileNotFoundError) as error:
            if (said := escaped(error)) == str(error):
                raise
            raise (ValueError if isinstance(error, ValueError) else FileNotFoundError)(said) from error
        finally:
            self._spent_s += time.thread_time() - self._begun_s
            self._thread = -1


@contextlib.contextmanager
def explained(what: str, *names: str) -> Iterator[None]:
    """Turn any error of a parser in the block into a ValueError that begins with ``what``, which names the file.

    Parsers of damaged files raise KeyError, struct.error, ZeroDivisionError, zlib.error, ArrowException and others, and
    MemoryError for a size that a damaged byte declares. Errors that name the file (``what`` or one of ``names``),
    missing files and missing packages pass unchanged.
    """
    try:
        yield
    except (ModuleNotFoundError, FileNotFoundError, NameError):
        raise
    except Exception as error:
        said = str(error)
        if isinstance(error, ValueError) and any(one in said for one in (what, *names)):
            raise
        if isinstance(error, OSError) and error.filename is not None:  # of the file system, not of a parser
            raise
        if isinstance(error, ValueError) and said:
            raise ValueError(f"{what}: {said}") from error
        raise ValueError(
            f"{what}: cannot be read ({type(error).__name__}: {said[:200]}); expected an intact file of this format; "
            "write or fetch it anew"
        ) from error


def check_whole(what: str, nbytes: int) -> None:
    """Refuse a size that is too large to hold as a whole, even from a trusted file.  Raises: ValueError."""
    if nbytes > MAX_WHOLE_BYTES:
        raise ValueError(
            f"{what}: {nbytes:,} bytes in one episode, expected at most {MAX_WHOLE_BYTES >> 30} GiB; split it into "
            "episodes"
        )


def _row_bytes(fields: Mapping[str, Field]) -> int:
    return sum(field.row_bytes for field in fields.values())


class File(io.BufferedReader):
    """Regular file, read only and held open.

    Attributes:
        path: for messages only. ``size``: in bytes. ``nbytes``: size without holes, which cost their writer nothing.
    """

    def __init__(self, descriptor: int, path: Path, budget: ReadBudget, weight: int = 1) -> None:
        self.path, self.budget = path, budget
        self.nbytes, self.size = budget.count(descriptor, weight), os.fstat(descriptor).st_size
        super().__init__(io.FileIO(descriptor, "rb"), 1 << 16)

    def read(self, size: int | None = -1, /) -> bytes:
        self.budget.check_time()
        wanted = self.size if size is None or size < 0 else min(size, self.size)  # the requested size is allocated
        self.budget.check_bytes(f"{self.path}: a part", wanted)
        return super().read(wanted)

    def readinto(self, buffer: Any, /) -> int:
        self.budget.check_time()
        return super().readinto(buffer)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Read exactly ``nbytes``.  Raises: ValueError: the file is too short."""
        if not 0 <= offset <= offset + nbytes <= self.size:
            raise ValueError(f"{self.path}: {nbytes:,} bytes at byte {offset:,}, expected them in {self.size:,} bytes")
        self.seek(offset)
        content = self.read(nbytes)
        if len(content) < nbytes:
            raise ValueError(f"{self.path}: ends at byte {offset + len(content):,}, expected {offset + nbytes:,}")
        return content


def open_path(path: Path, budget: ReadBudget, weight: int = 1) -> File:
    """Open the regular file at a user's path, which may contain links; ``budget`` closes it.

    Raises: ValueError: a FIFO, a device, a folder.  OSError.
    """
    found = path.resolve()
    try:
        file = File(open_file(found), path, budget, weight)
    except IrregularError as error:
        raise ValueError(f"{path} is {error.what}; give the file itself") from error
    budget.closing.callback(file.close)
    return file


class Folder:
    """Folder of a data set, held open until ``budget`` closes it: files are found below it, never through a link.

    The user's path to it may contain links. Names are relative, with slashes.
    """

    def __init__(self, path: Path, budget: ReadBudget) -> None:
        self.path, self.budget = path, budget
        if not path.is_dir():
            raise ValueError(f"{path} is no folder, expected a data set's folder")
        self._top = Directory.open(path)
        budget.closing.callback(self._top.close)

    def open(self, name: str, weight: int = 1) -> File:
        """Open a regular file.

        Raises: FileNotFoundError; ValueError: a link, a FIFO, a device, or a name that leaves the folder; OSError.
        """
        parts = name.split("/")
        with self._refusing(name), contextlib.ExitStack() as stack:
            if self.budget.trust:
                return File(open_file((self.path / name).resolve()), self.path / name, self.budget, weight)
            place = self._enter(parts[:-1], stack)
            return File(place.open_file(parts[-1]), self.path / name, self.budget, weight)

    def names(self, name: str = "") -> list[str]:
        """Return the sorted names in a subfolder.  Raises: as ``open``."""
        with self._refusing(name), contextlib.ExitStack() as stack:
            if self.budget.trust:
                return sorted(os.listdir(self.path / name))
            found = self._enter(name.split("/") if name else [], stack).names()
        return found

    def is_folder(self, name: str) -> bool:
        """Return whether a name is a subfolder's.  Raises: ValueError: it is a link's."""
        parts = name.split("/")
        with self._refusing(name), contextlib.ExitStack() as stack:
            if self.budget.trust:
                return (self.path / name).is_dir()
            found = self._enter(parts[:-1], stack).status(parts[-1])
            if found is not None and stat.S_ISLNK(found.st_mode):
                raise IrregularError(self.path / name, found.st_mode)
            return found is not None and stat.S_ISDIR(found.st_mode)

    def count(self, name: str, weight: int = 1) -> None:
        """Count a file's bytes for the budget.  Raises: as ``open``."""
        self.open(name, weight).close()

    def json(self, name: str) -> Any:
        """Return the content of a JSON file.  Raises: as ``open``; ValueError: it is damaged, or too large."""
        with self.open(name) as file, explained(str(file.path)):
            content = file.read(MAX_JSON_BYTES + 1)
            if len(content) > MAX_JSON_BYTES:
                raise ValueError(f"{file.path}: is larger than {MAX_JSON_BYTES:,} bytes, the limit of a description")
            return parse_json(content)

    def json_lines(self, name: str) -> Iterator[Any]:
        """Yield the values of a file of JSON lines.  Raises: as ``json``."""
        with self.open(name) as file, explained(str(file.path)):
            if file.nbytes > MAX_LINES_BYTES:
                raise ValueError(f"{file.path}: {file.nbytes:,} bytes, expected at most {MAX_LINES_BYTES:,}")
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise ValueError(f"{file.path}: a line of more than {MAX_LINE_BYTES:,} bytes")
                if line.strip():
                    yield parse_json(line)

    def _enter(self, parts: list[str], stack: contextlib.ExitStack) -> Directory:
        place = self._top
        for part in parts:
            place = stack.enter_context(place.directory(part))
        return place

    @contextlib.contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        parts = name.split("/") if name else []
        if any(part in ("", ".", "..") or os.sep in part or "\0" in part for part in parts):
            raise ValueError(f"{self.path}: the path {name[:200]!r} leaves the folder, or is not a path")
        if any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in parts):
            raise ValueError(f"{self.path}: the path {name[:200]!r} has a name of more than {MAX_NAME_BYTES} bytes")
        try:
            yield
        except IrregularError as error:
            if "link" not in error.what:
                raise ValueError(f"{self.path / name}: its path leads through {error.what}; remove it") from error
            raise ValueError(
                f"{self.path / name}: its path leads through {error.what}; copy the data set as files (cp -rL), or, if "
                "you know who wrote it, follow links by trust=True (sharpwave import --trust)"
            ) from error


def parse_json(content: bytes | str) -> Any:
    """Parse JSON.  Raises: ValueError: it is no JSON, or nested too deep."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("JSON nested too deep") from error
