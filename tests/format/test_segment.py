"""The one byte format: what is packed comes back, and any other bytes are refused by name."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.codecs.codec_registry import by_name
from sharpwave.codecs.delta import Delta
from sharpwave.codecs.raw import RAW
from sharpwave.errors import DamagedError, UnknownCodecError
from sharpwave.format import segment
from sharpwave.format.segment_header import PACKED_STEPS
from tests.support.examples import examples

Array = np.ndarray[Any, Any]

SHAPES: list[tuple[int, ...]] = [(), (3,), (3, 8), (2, 4, 3)]
DTYPES = ["uint8", "bool", "int16", "int64", "float32", "float64"]


@st.composite
def segments(draw: st.DrawFn) -> tuple[sw.Spec, dict[str, Array], bytes, dict[int, bytes], tuple[int, ...]]:
    """(spec, arrays, packed bytes, dictionaries by key, (lane, first step, steps, frames, context)), each column by a
    codec and a dictionary of its own."""
    field = st.builds(sw.Field, st.sampled_from(SHAPES), st.sampled_from(DTYPES))
    obs = {f"f{i}": draw(field) for i in range(draw(st.integers(1, 2)))}
    extra = {f"x{i}": draw(field) for i in range(draw(st.integers(0, 2)))}
    spec = sw.Spec(obs=next(iter(obs.values())) if len(obs) == 1 else obs, action=draw(field), **extra)
    steps = draw(st.one_of(st.integers(1, 9), st.integers(30, 90)))
    context = draw(st.integers(0, 3))
    frames = context + steps + draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrays: dict[str, Array] = {
        "flags": rng.integers(0, 8, steps).astype(np.uint8),
        "reward": draw(st.sampled_from([rng.normal(size=steps), rng.integers(-1, 2, steps)])).astype(np.float32),
    }
    for name, one in spec.fields.items():
        rows = frames if name in spec.obs_names else steps
        arrays[name] = rng.integers(0, draw(st.sampled_from([2, 200])), (rows, *one.shape)).astype(one.dtype)
    columns: list[segment.SegmentColumn] = []
    dictionaries: dict[int, bytes] = {}
    for name, array in arrays.items():
        packed = array.reshape(len(array), -1).view(np.uint8)
        codecs = ["raw", "packed"] if name in ("flags", "reward") else ["delta", "raw", "zstd"]
        codec = by_name(draw(st.sampled_from(codecs)))
        shared = codec.train(packed) if draw(st.booleans()) else b""
        line = spec.fields[name].line_bytes if name in spec.fields else 0
        payload = codec.encode(packed, shared, line)
        if payload is None:
            codec, payload, shared = by_name("raw"), packed.tobytes(), b""
        key = len(dictionaries) + 7 if shared else 0
        if shared:
            dictionaries[key] = shared
        columns.append(segment.SegmentColumn(codec.number, len(packed), payload, key))
    head = (draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40)), steps, frames, context)
    made: Any = segment.pack(spec.schema_hash, *head, columns, episode_step=0)
    return spec, arrays, bytes(made[0] if isinstance(made, tuple) else made), dictionaries, head


@settings(max_examples=examples(80))
@given(made=segments())
def test_a_segment_unpacks_to_what_was_packed(
    made: tuple[sw.Spec, dict[str, Array], bytes, dict[int, bytes], tuple[int, ...]],
) -> None:
    spec, arrays, data, dictionaries, head = made
    header, unpacked = segment.unpack(data, spec, dictionaries.__getitem__)
    assert (header.lane, header.first_step, header.steps, header.frames, header.context) == head
    assert header.nbytes == len(data) and header.schema == spec.schema_hash
    assert header == segment.parse(np.frombuffer(data, np.uint8), spec)
    assert unpacked.keys() == arrays.keys()
    for name, array in arrays.items():
        assert unpacked[name].dtype == array.dtype and unpacked[name].shape == array.shape
        assert unpacked[name].tobytes() == array.tobytes(), name


@settings(max_examples=examples(80))
@given(made=segments(), packs=st.booleans())
def test_flags_and_rewards_are_packed_and_raw_again(
    made: tuple[sw.Spec, dict[str, Array], bytes, dict[int, bytes], tuple[int, ...]], packs: bool
) -> None:
    spec, arrays, data, dictionaries, head = made
    other, header = segment.with_steps(data, segment.parse(data, spec), spec, packs)
    assert (header.lane, header.first_step, header.steps, header.frames, header.context) == head
    assert header == segment.parse(other, spec) and (packs or len(other) >= len(data))
    is_packed = [column.codec != RAW for column in header.placed[: segment.FIRST_FIELD]]
    assert bool(header.features & PACKED_STEPS) == any(is_packed) and (packs or not any(is_packed))
    _, unpacked = segment.unpack(other, spec, dictionaries.__getitem__)
    for name, array in arrays.items():
        assert unpacked[name].tobytes() == array.tobytes(), name
    for column, name in enumerate(("flags", "reward")):
        assert segment.step_rows(other, header, column).tobytes() == arrays[name].tobytes()


@pytest.mark.parametrize("codec", ["packed", "zstd"])
def test_flags_of_another_codec_than_the_features_say_are_refused(codec: str) -> None:
    flags, rewards = np.zeros((64, 1), np.uint8), np.zeros((64, 4), np.uint8)
    packed = by_name(codec).encode(flags) or b""
    columns = [
        segment.SegmentColumn(by_name(codec).number, 64, packed),
        segment.SegmentColumn(RAW, 64, rewards.tobytes()),
        segment.SegmentColumn(RAW, 66, bytes(24 * 66)),
        segment.SegmentColumn(RAW, 64, bytes(8 * 64)),
    ]
    data = segment.pack(SPEC.schema_hash, 3, 40, 64, 66, 1, columns, episode_step=0)[0]
    if codec == "packed":
        assert segment.check(data, SPEC, no_dictionary).features == PACKED_STEPS
        data = data[:56] + bytes(8) + data[64:]
        data = data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")
    with pytest.raises(DamagedError, match="flags is packed with codec"):
        segment.check(data, SPEC, no_dictionary)


SPEC = sw.Spec(obs=sw.Field((3, 8), "uint8", stack=2), action=sw.Field((), "int64"))


def small_segment() -> bytes:
    frames = np.eye(7, 24, dtype=np.uint8)
    payload = Delta().encode(frames, b"", 8)
    assert payload is not None
    columns = [
        segment.SegmentColumn(RAW, 6, bytes(6)),
        segment.SegmentColumn(RAW, 6, bytes(24)),
        segment.SegmentColumn(Delta.number, 7, payload),
        segment.SegmentColumn(RAW, 6, bytes(48)),
    ]
    made: Any = segment.pack(SPEC.schema_hash, 3, 40, 6, 7, 1, columns, episode_step=0)
    return bytes(made[0] if isinstance(made, tuple) else made)


def no_dictionary(key: int) -> bytes:
    raise KeyError(key)


def test_every_flipped_bit_and_every_missing_end_is_noticed() -> None:
    data = small_segment()
    header, arrays = segment.unpack(data, SPEC, no_dictionary)
    assert header.steps == 6 and np.array_equal(arrays["obs"].reshape(7, 24), np.eye(7, 24))
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            with pytest.raises(DamagedError):
                segment.unpack(bytes(broken), SPEC, no_dictionary)
        with pytest.raises(DamagedError):
            segment.unpack(data[:at], SPEC, no_dictionary)
    for more in (b"\0", data):
        with pytest.raises(DamagedError):
            segment.unpack(data + more, SPEC, no_dictionary)


@settings(max_examples=examples(100))
@given(data=st.binary(max_size=300))
def test_bytes_that_are_no_segment_are_refused(data: bytes) -> None:
    for bytes_ in (data, small_segment()[:20] + data):
        with pytest.raises(DamagedError):
            segment.unpack(bytes_, SPEC, no_dictionary)


def test_a_segment_of_another_spec_is_refused() -> None:
    other = sw.Spec(obs=sw.Field((3, 8), "uint8", stack=3), action=sw.Field((), "int64"))
    with pytest.raises(DamagedError, match=r"schema.*Spec"):
        segment.unpack(small_segment(), other, no_dictionary)


def test_a_dictionary_that_is_not_known_is_named() -> None:
    rows = np.ones((6, 8), np.uint8)
    payload = Delta().encode(rows, rows[0].tobytes(), 0)
    assert payload is not None
    columns = [
        segment.SegmentColumn(RAW, 6, bytes(6)),
        segment.SegmentColumn(RAW, 6, bytes(24)),
        segment.SegmentColumn(RAW, 6, bytes(144)),
        segment.SegmentColumn(Delta.number, 6, payload, 0xABCDEF),
    ]
    made: Any = segment.pack(SPEC.schema_hash, 0, 0, 6, 6, 0, columns, episode_step=0)
    data = bytes(made[0] if isinstance(made, tuple) else made)
    with pytest.raises(DamagedError, match=r"action.*abcdef"):
        segment.unpack(data, SPEC, no_dictionary)


def test_a_codec_that_is_not_registered_is_refused_with_the_remedy() -> None:
    columns = [
        segment.SegmentColumn(number, 6, bytes(size)) for number, size in ((RAW, 6), (RAW, 24), (201, 144), (RAW, 48))
    ]
    data = segment.pack(SPEC.schema_hash, 0, 0, 6, 6, 0, columns, episode_step=0)[0]
    for read in (segment.unpack, segment.check, functools.partial(segment.check, decode=True)):
        with pytest.raises(UnknownCodecError, match=r"obs: codec number 201, expected one of 0 \(raw\).*register"):
            read(data, SPEC, no_dictionary)
