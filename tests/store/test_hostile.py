"""Files of strangers, with checksums that hold and anything in them: bounded, named, and never the end of the rest."""

from __future__ import annotations

import shutil
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave import segment
from sharpwave.codecs import ZSTD
from sharpwave.tiers.check import check
from sharpwave.tiers.records import SEGMENT, read_region

from . import strangers
from .test_versions import WRITE

SPEC = sw.Spec(obs=sw.Field((16, 16), "uint8", stack=2), action=sw.Field((), "int64"), serial=sw.Field((), "int64"))
LANES, OBS = 3, 2
"""``OBS``: number of the first field's column."""


def frame(serial: int) -> np.ndarray[Any, Any]:
    """A picture that packs well, and is that of no other step."""
    return np.pad(np.array([[serial % 251, serial // 251]], np.uint8), ((3, 12), (7, 7)), constant_values=5)


def play(store: sw.Store, count: int, begin: int = 0) -> None:
    for serial in range(begin, begin + count):
        store.append(
            lane=serial % LANES, obs=frame(serial), action=serial, reward=serial, serial=serial,
            terminated=serial % 50 > 47, truncated=False,
        )  # fmt: skip


def regions_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.region"))


def undecodable(path: Path, number: int) -> int:
    """Break the zstd frames of a region's segment of that number, under a checksum that holds; returns its id."""
    region, records, damages = read_region(path)
    assert region is not None and not damages
    region.close()
    record = [one for one in records if one.kind == SEGMENT][number]
    content = bytearray(path.read_bytes())
    data = bytearray(content[record.offset : record.offset + record.nbytes])
    column = segment.parse(data, SPEC).placed[OBS]
    assert column.codec == ZSTD
    begin = column.offset + 4 * (column.rows + 1)
    data[begin : column.offset + column.nbytes] = bytes(column.offset + column.nbytes - begin)
    data[-4:] = zlib.crc32(data[:-4]).to_bytes(4, "little")
    content[record.offset : record.offset + record.nbytes] = data
    path.write_bytes(content)
    return record.id


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("n_step", [1, 4])
def test_what_cannot_be_decoded_is_set_aside_once_and_sampling_goes_on(disk: bool, n_step: int, tmp_path: Path) -> None:
    folder, limits = tmp_path / "s", {"disk": tmp_path / "s"} if disk else {}
    with sw.Store(SPEC, capacity=2000, segment_steps=8, codec="zstd", **limits) as store:
        play(store, 400)
        if disk:
            store.flush()
        else:
            store.checkpoint(folder)
    wrong = [undecodable(regions_of(folder)[0], number) for number in (3, 17)]
    with sw.Store.open(folder) as store:
        for sampler in (sw.Uniform(), sw.Prioritized(alpha=0.6, beta=0.4), sw.Fifo()):
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
    """Any part of it may be anything, under checksums that hold (``python -m tests.store.strangers`` tries more)."""
    spec = WRITE["SPEC"]
    outcomes = set()
    for seed in range(25):
        folder = tmp_path / str(seed)
        strangers.make(folder, what, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what is set aside, named
            outcomes.add(strangers.use(folder, spec))
    assert len(outcomes) > 1


def test_opening_and_verify_agree_on_what_a_manifest_may_say(tmp_path: Path) -> None:
    for seed in range(120):
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
