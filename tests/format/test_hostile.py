"""Files of strangers, with checksums that hold and anything in them: bounded, named, and never the end of the rest."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.codecs.zstd import Zstd
from sharpwave.errors import DamagedError
from sharpwave.format import checkpoint_state, segment
from sharpwave.format import region as records
from sharpwave.format.checkpoint_state import read_state
from sharpwave.format.region import RECORD, RECORD_MAGIC, SEGMENT, read_region
from sharpwave.offline.folder_check import check
from sharpwave.offline.surveys import survey
from tests.format.small_store import LANES, OBS, SPEC, checkpoint, frame, play, regions_of
from tests.format.test_versions import WRITE
from tests.support import strangers
from tests.support.examples import examples


def undecodable(path: Path, number: int) -> int:
    """Break the zstd frames of a region's segment of that number, under a checksum that holds; returns its id."""
    region, records, damages = read_region(path)
    assert region is not None and not damages
    region.close()
    record = [one for one in records if one.kind == SEGMENT][number]
    content = bytearray(path.read_bytes())
    data = bytearray(content[record.offset : record.offset + record.nbytes])
    column = segment.parse(bytes(data), SPEC).placed[OBS]
    assert column.codec == Zstd.number
    begin = column.offset + 4 * (column.rows + 1)
    data[begin : column.offset + column.nbytes] = bytes(column.offset + column.nbytes - begin)
    data[-4:] = zlib.crc32(data[:-4]).to_bytes(4, "little")
    content[record.offset : record.offset + record.nbytes] = data
    path.write_bytes(content)
    return record.id


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("n_step", [1, 4])
def test_what_cannot_be_decoded_is_set_aside_once_and_sampling_goes_on(disk: bool, n_step: int, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    limits: dict[str, Any] = {"disk": folder} if disk else {}
    with sw.Store(SPEC, capacity=2000, segment_steps=8, codec="zstd", **limits) as store:
        play(store, 400)
        if disk:
            store.flush()
        else:
            store.checkpoint(folder)
    wrong = [undecodable(regions_of(folder)[0], number) for number in (3, 17)]
    with sw.Store.open(folder) as store:
        for sampler in (sw.Uniform(), sw.Prioritized(alpha=0.6, beta=0.4)):
            view = store.transitions(n_step=n_step, sampler=sampler)
            before = len(view)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                batches = [view.sample(64) for _ in range(30)]
            told = [str(one.message) for one in caught if "sampled no more" in str(one.message)]
            assert len(told) == len(caught) == 2 and all(any(f"segment {id_}:" in one for one in told) for id_ in wrong)
            ids = np.concatenate([np.array(batch.ids) for batch in batches])
            gone = np.concatenate([np.arange(id_, id_ + 8) for id_ in wrong])
            assert not np.isin(ids, gone).any()
            assert before - len(view) >= 16 and not np.isin(view.sampleable_ids(), gone).any()
            serials = batches[-1]["serial"]
            assert all(
                np.array_equal(obs[-1], frame(serial))
                for obs, serial in zip(batches[-1].obs, serials.tolist(), strict=True)
            )
            view.fetch(view.sampleable_ids())
        assert len(store.stats()["damaged"]) == 2
        play(store, 4000, 400)  # and what was set aside leaves like anything else
        assert store.stats()["damaged"] == [] and len(view.sample(64).ids) == 64


@pytest.mark.parametrize("what", list(strangers.ALTERATIONS))
def test_a_strangers_store_is_refused_by_name_or_works(what: str, tmp_path: Path) -> None:
    """Any part of it may be anything, under checksums that hold (``python -m tests.support.strangers`` tries more)."""
    specs = [WRITE["SPEC"], WRITE["SPEC_1"]]
    outcomes = set()
    for seed in range(examples(16)):
        folder = tmp_path / str(seed)
        strangers.make(folder, what, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what is set aside, named
            outcomes.add(strangers.use(folder, specs))
    assert len(outcomes) > 1


def test_opening_and_verify_agree_on_what_a_manifest_may_say(tmp_path: Path) -> None:
    for seed in range(examples(120)):
        folder = tmp_path / str(seed)
        strangers.make(folder, "store.json", seed)
        try:
            damaged = {one.path.name for one in check(folder).damages}
        except sw.NewerVersionError:
            damaged = {"store.json"}
        try:
            sw.Store.open(folder).close()
            assert "store.json" not in damaged, seed
        except (sw.DamagedError, sw.NewerVersionError):
            assert "store.json" in damaged, seed
        except FileNotFoundError:  # it names another checkpoint
            assert damaged, seed
        except MemoryError:  # a limit that no machine has room for is the reader's to change
            pass
        shutil.rmtree(folder)


# numbers at the end of their range


GENERATION, SEQUENCE, STEP = records.MAX_GENERATION, records.MAX_SEQUENCE, segment.MAX_NUMBER


@pytest.mark.parametrize(
    ("generation", "sequence", "step"),
    [
        *((GENERATION + by, 100, 0) for by in (-1100, -2, -1, 0, (1 << 20) - 1)),
        *((5, SEQUENCE + by, 0) for by in (-1100, -2, -1, 0, (1 << 20) - 1)),
        *((5, 100, STEP + by) for by in (-1100, -9, -8, 0, (1 << 20) - 8)),
    ],
)
def test_what_is_flushed_behind_the_highest_numbers_is_read_again(
    generation: int, sequence: int, step: int, tmp_path: Path
) -> None:
    """A number that leaves none to go on with is damage, or nothing can be appended; nothing flushed is refused."""
    folder = tmp_path / "s"
    with sw.Store(SPEC, capacity=4000, disk=folder, segment_steps=8, codec="raw") as store:
        play(store, 240)
    path = regions_of(folder)[0]
    content = bytearray(path.read_bytes())
    region, found, _ = read_region(path)
    assert region is not None
    region.close()
    last = [one for one in found if one.kind == SEGMENT][-1]
    data = bytearray(content[last.offset : last.offset + last.nbytes])
    if step:
        data[24:32] = step.to_bytes(8, "little")
    id_ = generation << 32 | last.id & 0xFFFFFFFF
    prefix = RECORD.pack(RECORD_MAGIC, SEGMENT, last.nbytes, id_, sequence, 0, 0)[:-4]
    content[last.offset - RECORD.size : last.offset] = prefix + zlib.crc32(prefix).to_bytes(4, "little")
    content[last.offset : last.offset + last.nbytes] = data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")
    path.write_bytes(content)
    flushed: set[int] = set()
    for life in range(2):
        try:
            store = sw.Store.open(folder)
        except sw.DamagedError as error:
            assert "used up" in str(error) and not flushed
            return
        try:
            assert flushed <= set(strangers.serials_of(store))
            begin = 1000 * (life + 1)
            play(store, 90, begin)
            for lane in range(LANES):
                store.append(lane=lane, obs=frame(0), action=0, reward=0, serial=0, terminated=True, truncated=False)
            store.flush()
            flushed |= set(range(begin, begin + 90))
        except OverflowError as error:
            assert "used up" in str(error)
        finally:
            with contextlib.suppress(OSError):
                store.close()


def test_other_files_have_no_part_in_numbering(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=4000, disk=tmp_path / "s") as store:
        play(store, 100)
        store.flush()
    for name in ("002147483647.txt", "002147483647.partial", "002147483646.region"):
        (tmp_path / "s" / "regions" / name).write_bytes(b"anything")
    with sw.Store.open(tmp_path / "s") as store:
        play(store, 100, 100)
        store.flush()
    with sw.Store.open(tmp_path / "s") as store:
        assert len(store) >= 190


@pytest.mark.parametrize("name", ["samples", "inserts"])
@pytest.mark.parametrize("number", [10**400, -1, 0.5, "7"], ids=["huge", "negative", "broken", "text"])
def test_counts_of_a_view_are_numbers_that_a_limiter_can_compare(tmp_path: Path, name: str, number: Any) -> None:
    memory = sw.Store(SPEC, capacity=2000, segment_steps=8)
    play(memory, 100)
    before = memory.transitions()
    before.sample(8)
    memory.checkpoint(tmp_path / "c")
    path = next((tmp_path / "c").rglob("state.npz"))
    state = read_state(path)
    state["views"]["0"][name] = number
    path.unlink()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    checkpoint_state.write_tree(descriptor, state)
    os.close(descriptor)
    store = sw.Store.open(tmp_path / "c")
    assert store.recovery is not None
    assert name in store.recovery.damages[0] and "starts without its checkpoint" in store.recovery.damages[0]
    view = store.transitions(limiter=sw.SamplesPerInsert(4.0, min_size=10, error_buffer=1e5))
    assert len(view.sample(8).ids) == 8


# one flipped bit


def test_a_flipped_bit_of_the_state_is_always_seen(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c")
    descriptor = os.open(path, os.O_RDWR)
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 5):
        os.pwrite(descriptor, bytes([content[bit // 8] ^ 1 << bit % 8]), bit // 8)
        with pytest.raises(DamagedError):
            checkpoint_state.read_tree(descriptor)
        os.pwrite(descriptor, content[bit // 8 : bit // 8 + 1], bit // 8)
    for bit in range(17, 8 * len(content), 8 * len(content) // 12):
        os.pwrite(descriptor, bytes([content[bit // 8] ^ 1 << bit % 8]), bit // 8)
        store = sw.Store.open(tmp_path / "c")
        assert store.recovery is not None and len(store) > 95
        assert any("state.npz" in one for one in store.recovery.damages)
        assert [one.path.name for one in check(tmp_path / "c").damages] == ["state.npz"]
        survey(tmp_path / "c")
        os.pwrite(descriptor, content[bit // 8 : bit // 8 + 1], bit // 8)
    os.close(descriptor)


def test_a_flipped_bit_of_a_state_of_version_1_is_seen_or_changes_nothing(tmp_path: Path) -> None:
    with zipfile.ZipFile(strangers.CORPUS / "v2" / "memory-checkpoint.zip") as file:
        file.extractall(tmp_path)
    (path,) = tmp_path.rglob("state.npz")
    content = path.read_bytes()
    descriptor = os.open(path, os.O_RDWR)
    sound = as_bytes(checkpoint_state.read_tree(descriptor))
    for bit in range(0, 8 * len(content), 29):
        os.pwrite(descriptor, bytes([content[bit // 8] ^ 1 << bit % 8]), bit // 8)
        with contextlib.suppress(DamagedError):
            assert as_bytes(checkpoint_state.read_tree(descriptor)) == sound
        os.pwrite(descriptor, content[bit // 8 : bit // 8 + 1], bit // 8)
    os.close(descriptor)


def as_bytes(tree: Any) -> Any:
    """The same with arrays as what can be compared."""
    if isinstance(tree, dict):
        return {key: as_bytes(one) for key, one in tree.items()}
    if isinstance(tree, list):
        return [as_bytes(one) for one in tree]
    return (tree.dtype, tree.shape, tree.tobytes()) if isinstance(tree, np.ndarray) else tree


def test_names_drive_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Field names and names of files may hold anything; what is printed of them is escaped, and no markup."""
    from sharpwave.cli import main

    wild = "[red]\x1b[2J\u202ename[/red]"
    spec = sw.Spec(obs={wild: sw.Field((4,), "uint8")}, action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=100, disk=tmp_path / "s", segment_steps=8) as store:
        for step in range(20):
            store.append(
                obs={wild: np.zeros(4, np.uint8)}, action=step, reward=0, terminated=step % 5 == 4, truncated=False
            )
        store.flush()
    (tmp_path / "s" / "regions" / "\x1b[31m[bold]9.region").write_bytes(b"x" * 100)
    (tmp_path / "s" / "\x1b]0;x\x07[b]note").write_bytes(b"x")
    for command in ("verify", "inspect"):
        with pytest.raises(SystemExit):
            main([command, str(tmp_path / "s")])
        out, err = capsys.readouterr()
        assert not set("\x1b\x07\u202e") & {*out, *err}
        assert ("[bold]" in out) == (command == "verify") and ("[red]" in out) == (command == "inspect")
    with sw.Store.open(tmp_path / "s") as store:
        assert store.recovery is not None
        assert store.recovery.damages and all(one.isprintable() for one in store.recovery.damages)
