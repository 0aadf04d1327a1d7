"""Stores where the system lacks what Windows and macOS lack: see ``tests/support/bare.py``. Locks and syncs there."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from sharpwave.native import descriptors
from tests.support.stand_ins import locking

ROOT = Path(__file__).parents[2]
BARE = [sys.executable, "-m", "pytest", "-p", "tests.support.bare", "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
PART = [
    "tests/persistence/test_checkpoint.py::test_every_sampler_goes_on_as_if_nothing_had_been[True-None-proportional]",
    "tests/persistence/test_checkpoint.py::test_in_other_limits",
    "tests/persistence/test_checkpoint.py::test_a_store_in_memory_goes_on_disk",
    "tests/persistence/test_checkpoint.py::test_a_checkpoint_of_a_store_on_disk_takes_no_second_copy_and_outlives_it",
    "tests/persistence/test_checkpoint.py::test_folders_that_are_none_or_in_use_are_refused",
    "tests/disk/test_segment_cache.py::test_each_segment_that_cannot_be_read_is_named_and_the_others_come",
    "tests/disk/test_segment_cache.py::test_many_threads_wait_for_the_same_reads",
    "tests/disk/test_store_folder.py::test_links_in_a_store_are_not_followed",
    "tests/memory/test_arena.py",
    "--deselect=tests/memory/test_arena.py::test_the_memory_begins_as_zeros",  # it reads what is not committed
]


def test_stores_live_without_the_functions_that_windows_lacks() -> None:
    names = [name for name in os.environ if name.startswith(("PYTEST_", "COV_"))]
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([*BARE, *PART], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and "[100%]" in done.stdout, done.stdout[-5000:] + done.stderr[-2000:]


def test_locks_of_bytes_are_those_of_one_writer_or_of_many_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``flock``'s: in each order, and free again once a file is closed."""
    monkeypatch.setattr(descriptors, "fcntl", None)
    monkeypatch.setattr(descriptors, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))

    def hold(*kinds: str) -> tuple[list[bool], list[int]]:
        files = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in kinds]
        return [descriptors.lock(file, shared=kind == "shared") for file, kind in zip(files, kinds, strict=True)], files

    for kinds, expected in (
        (("shared", "shared", "exclusive"), [True, True, False]),
        (("exclusive", "shared", "exclusive"), [True, False, False]),
    ):
        locked, files = hold(*kinds)
        assert locked == expected
        assert descriptors.pread(files[0], 10, 0) == b"", "content can be read"
        for file in files:
            os.close(file)


def test_macos_syncs_past_the_disk_s_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is the system's; where a file system refuses it, the usual sync is made."""
    asked: list[int | str] = []
    refused = False

    def ask(descriptor: int, order: int) -> None:
        asked.append(order)
        if refused:
            raise OSError(25, "not supported")

    monkeypatch.setattr(descriptors, "fcntl", types.SimpleNamespace(F_FULLFSYNC=51, fcntl=ask))
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: asked.append("fdatasync"))
    with open(tmp_path / "file", "wb") as file:
        descriptors.sync(file.fileno())
        assert asked == [51]
        refused = True
        descriptors.sync(file.fileno())
    assert asked == [51, 51, "fdatasync"]
