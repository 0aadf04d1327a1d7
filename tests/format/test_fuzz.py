"""Any bytes whatever, as a segment or in a store: refused by name and in bounded memory, or else sound."""

from __future__ import annotations

import tracemalloc
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.codecs.codec_protocol import Packed
from sharpwave.codecs.codec_registry import by_number
from sharpwave.codecs.delta import Delta
from sharpwave.codecs.dictionaries import key_of
from sharpwave.codecs.raw import RAW
from sharpwave.codecs.zstd import Zstd
from sharpwave.disk import region_files as regions_module
from sharpwave.disk.region_files import RegionFiles
from sharpwave.disk.store_folder import read_manifest
from sharpwave.errors import DamagedError, UnknownCodecError
from sharpwave.format import segment
from sharpwave.format.annotations import pack_metadata
from sharpwave.format.region import SEGMENT, TAIL, Identity
from sharpwave.native import core
from sharpwave.native.file_operations import Files
from sharpwave.offline.folder_check import check
from tests.support.examples import examples
from tests.support.faults import LANES, SPEC, frame, serials_of

DELTA, ZSTD = Delta.number, Zstd.number
SIZE, LINE = 96, 12
PICTURES = np.stack([frame(i) for i in range(6)]).reshape(6, SIZE)
REFERENCE = PICTURES[0].tobytes()
ZSTD_DICTIONARY = bytes(range(200)) * 3


def sound(codec: int) -> tuple[bytes, int]:
    """A small segment that can be sampled, and its dictionary's key."""
    spec = SPEC
    key = {RAW: 0, ZSTD: 3, DELTA: key_of(REFERENCE)}[codec]
    rows = {"obs": PICTURES, "action": np.arange(5).reshape(5, 1), "serial": np.arange(5).reshape(5, 1)}
    columns = [
        segment.SegmentColumn(RAW, 5, bytes([4, 0, 0, 0, 0])),
        segment.SegmentColumn(RAW, 5, np.zeros(5, np.float32).tobytes()),
    ]
    for name in spec.fields:
        data = np.ascontiguousarray(rows[name]).view(np.uint8).reshape(len(rows[name]), -1)
        mine = codec if name == "obs" else RAW
        payload = by_number(mine).encode(data, dictionary(key), LINE) if mine != RAW else data.tobytes()
        assert payload is not None
        columns.append(segment.SegmentColumn(mine, len(data), payload, key if name == "obs" else 0))
    metadata = pack_metadata([(0, {"policy": 7, "notes": ["a", {"b": None}]})])
    return segment.pack(spec.schema_hash, 1, 40, 5, 6, 0, columns, episode_step=0, metadata=metadata)[0], key


def dictionary(key: int) -> bytes:
    return {0: b"", 3: ZSTD_DICTIONARY, key_of(REFERENCE): REFERENCE}[key]


SOUND = {codec: sound(codec)[0] for codec in (RAW, ZSTD, DELTA)}


segment.unpack(SOUND[DELTA], SPEC, dictionary)  # compiling takes memory of its own
segment.check(SOUND[DELTA], SPEC, dictionary)


def with_checksum(data: bytes) -> bytes:
    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")


edges = st.sampled_from([0, 1, 2, 5, 6, 7, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1])


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A sound segment, of which anything was changed, with a checksum that holds."""
    data = bytearray(SOUND[draw(st.sampled_from([RAW, ZSTD, DELTA]))])
    for _ in range(draw(st.integers(1, 4))):
        how = draw(st.sampled_from(["byte", "byte", "number", "length", "cut", "insert"]))
        at = draw(st.integers(0, len(data) - 1))
        if draw(st.booleans()):
            at = draw(st.integers(0, min(len(data) - 1, 72 + 32 * 5 + 90)))  # the header, the table, the offsets
        if how == "byte":
            data[at] = draw(st.integers(0, 255))
        elif how == "number":
            data[at // 4 * 4 : at // 4 * 4 + 4] = draw(edges).to_bytes(4, "little")
        elif how == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif how == "insert":
            data[at:at] = draw(st.binary(max_size=40))
        if len(data) < 80:
            break
        if how != "length":
            data[48:56] = len(data).to_bytes(8, "little")
        if segment.version_of(bytes(data)) > segment.VERSION:
            data[4:6] = bytes(2)  # else it is another release's, and refused as that
        if segment.version_of(bytes(data)) == segment.VERSION:
            data[56:60] = bytes(4)  # the same holds for a feature that is not known
    return with_checksum(bytes(data))


LIMIT = 1 << 16


def tried(data: bytes) -> tuple[bool, bool]:
    """Whether ``data`` could be unpacked, and whether it may be sampled in place; anything else is a failure."""
    outcome = []
    tracemalloc.start()
    for attempt in (
        lambda: segment.unpack(data, SPEC, dictionary, limit=LIMIT),
        lambda: segment.check(data, SPEC, dictionary),
    ):
        try:
            attempt()
            outcome.append(True)
        except (DamagedError, UnknownCodecError) as error:
            assert str(error)
            outcome.append(False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= LIMIT + 3 * (len(data) + 2 * len(ZSTD_DICTIONARY)) + (1 << 20), "it took more than the limit"
    return outcome[0], outcome[1]


@pytest.mark.parametrize("codec", [RAW, ZSTD, DELTA])
def test_a_sound_segment_passes(codec: int) -> None:
    assert tried(SOUND[codec]) == (True, True)
    _, arrays = segment.unpack(SOUND[codec], SPEC, dictionary)
    assert np.array_equal(arrays["obs"].reshape(6, SIZE), PICTURES)


@given(data=st.one_of(st.binary(max_size=400), st.binary(max_size=300).map(lambda b: SOUND[DELTA][:60] + b)))
def test_any_bytes(data: bytes) -> None:
    assert tried(data) == (False, False) or data in SOUND.values()


@settings(max_examples=examples(300))
@given(data=hostile())
def test_a_segment_with_a_checksum_that_holds_and_anything_in_it(data: bytes) -> None:
    unpacked, sampleable = tried(data)
    codec = int.from_bytes(data[72 + 64 : 72 + 68], "little") if sampleable else RAW
    assert unpacked or not sampleable or codec == ZSTD, "what may be sampled in place can be decoded"


@settings(max_examples=examples(300))
@given(patches=st.lists(st.binary(max_size=40), min_size=1, max_size=4), line=st.sampled_from([0, 1, 12]))
def test_patches_that_are_let_in_stay_in_their_row(patches: list[bytes], line: int) -> None:
    """The check that walks over patches agrees with the painting of them, which keeps within the row's bytes."""
    offsets = np.cumsum([0, 0, *map(len, patches)]).astype("<u4")  # of a background without patches, too
    payload = np.frombuffer(offsets.tobytes() + b"".join(patches), np.uint8)
    expected = core.SOUND
    for row in range(len(patches)):
        memory = np.full(SIZE + 2 * 200, 170, np.uint8)
        out = memory[200:-200].reshape(1, -1)
        damaged = core.decode_patches(payload, len(patches), np.empty(0, np.uint8), line, False, row, out)
        assert (memory[:200] == 170).all() and (memory[-200:] == 170).all()
        assert damaged in (core.SOUND, 1 + row)
        if expected == core.SOUND:
            expected = damaged
    assert core.check_patches(payload, len(patches), SIZE, line, False) == expected


@given(
    codec=st.sampled_from([RAW, ZSTD, DELTA, 3, 2**32 - 1]),
    payload=st.binary(max_size=300),
    count=st.sampled_from([0, 1, 3, 65536]),
    shared=st.sampled_from([b"", REFERENCE, ZSTD_DICTIONARY, b"\x37\xa4\x30\xec" + bytes(60)]),
)
def test_a_payload_of_any_bytes(codec: int, payload: bytes, count: int, shared: bytes) -> None:
    for act in ("decode", "check", "verify"):
        try:
            getattr(by_number(codec), act)(Packed(payload, count, SIZE, shared, LINE))
        except DamagedError as error:
            assert str(error)
        except UnknownCodecError as error:
            assert codec > 2 and str(codec) in str(error)


def test_a_zstd_frame_that_says_it_is_huge_takes_no_memory() -> None:
    """What a frame says of its size is otherwise allocated before a byte of it is decoded."""
    frame = bytes.fromhex("28b52ffde0") + (1 << 34).to_bytes(8, "little") + bytes([1, 0, 0])
    payload = np.array([0, len(frame)], np.uint32).tobytes() + frame
    tracemalloc.start()
    with pytest.raises(DamagedError, match="row 0: a frame of another size, expected 96"):
        Zstd().decode(Packed(payload, 1, SIZE))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


# whole stores


def store_with(folder: Path, kind: int, id_: int, payload: bytes, sequence: int = 9) -> Path:
    """A small store, to which a record was added by hand that is as it should be but for its content."""
    with sw.Store(SPEC, capacity=400, disk=folder, segment_steps=8, codec="delta") as store:
        for serial in range(60):
            store.append(
                lane=serial % LANES, obs=frame(serial), action=serial, reward=0, serial=serial,
                terminated=False, truncated=False,
            )  # fmt: skip
        store.flush()
    manifest = read_manifest(folder)
    identity = Identity(bytes.fromhex(manifest["store"]), manifest["schema"])
    regions = RegionFiles(Files().make_folder(folder / "regions"), identity, 1 << 16, Files())
    regions.find()
    regions.sequence = sequence
    with mock.patch.multiple(regions_module, MAX_SEQUENCE=1 << 64, MAX_ID=1 << 64):  # no store writes beyond these
        regions.append(kind, id_, payload, 0, {(2, key_of(REFERENCE)): REFERENCE})
    regions.close()
    return folder


@settings(max_examples=examples(60))
@given(data=hostile(), kind=st.sampled_from([SEGMENT, TAIL]), slot=st.sampled_from([50, 3]))
def test_a_store_with_any_segment_in_it(data: bytes, kind: int, slot: int, tmp_path_factory: Any) -> None:
    """It opens, gives out what was written, and what it makes of the segment can be sampled without harm; a codec that
    is not registered is refused by name."""
    folder = store_with(tmp_path_factory.mktemp("store") / "s", kind, slot * 8, data, sequence=1000)
    try:
        opened = sw.Store.open(folder)
    except UnknownCodecError as error:
        assert "expected one of 0 (raw), 1 (zstd), 2 (delta)" in str(error)
        return
    with opened as store:
        replay = store.transitions(n_step=2)
        ids = replay.sampleable_ids()
        try:
            batch = replay.fetch(ids)
        except DamagedError:
            return
        if store.recovery is not None and store.recovery.damages and slot == 50:
            # The last return may reach into steps that only the damaged segment's header tells of.
            assert set(range(57)) <= set(batch["serial"].tolist()) <= set(range(58))
    try:
        check(folder)  # of an unflushed tail that an open store had no need of, too
    except UnknownCodecError as error:
        assert "expected one of 0 (raw), 1 (zstd), 2 (delta)" in str(error)


@pytest.mark.parametrize(("id_", "sequence"), [(2**63, 9), (2**62 - 8, 9), (2**32 - 8, 9), (7, 9), (8, 2**63)])
def test_numbers_that_no_store_counts_to(id_: int, sequence: int, tmp_path: Path) -> None:
    folder = store_with(tmp_path / "s", SEGMENT, id_, SOUND[RAW], sequence)
    with sw.Store.open(folder) as store:
        assert store.recovery is not None
        assert store.recovery.damages or id_ == 2**62 - 8
        assert set(serials_of(store)) >= set(range(58))
        store.append(obs=frame(1), action=1, reward=0, serial=77, terminated=True, truncated=False)
        store.flush()
        assert (store.transitions().sampleable_ids() >= 0).all()
