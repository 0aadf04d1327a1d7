"""Rows of numbers packed by the core, beside a plain reader of the format's description."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.codecs.codec_protocol import Packed
from sharpwave.codecs.packed import PackedNumbers
from sharpwave.errors import DamagedError
from tests.support.examples import examples

Array = np.ndarray[Any, Any]
EXAMPLES = settings(max_examples=examples(100), deadline=None)
CODEC = PackedNumbers()


def little(payload: bytes, at: int, count: int) -> int:
    return int.from_bytes(payload[at : at + count], "little")


def naive_rows(payload: bytes, count: int) -> list[list[int]]:
    """The numbers of every row, as docs/format.md describes them."""
    width, numbers, row_bits = payload[0], little(payload, 2, 2), little(payload, 4, 4)
    begin = 8 + 16 * numbers
    nbytes = (count * row_bits + 7) // 8
    stream = int.from_bytes(payload[begin : begin + nbytes], "little")
    rows = []
    for i in range(count):
        row, behind = [], i * row_bits
        for j in range(numbers):
            at = 8 + 16 * j
            base, entries, bits = little(payload, at, 8), little(payload, at + 12, 2), payload[at + 14]
            value = stream >> behind & (1 << bits) - 1
            behind += bits
            if entries:
                value = little(payload, little(payload, at + 8, 4) + width * value, width)
            else:
                slope = int.from_bytes(payload[at + 8 : at + 12], "little", signed=True)
                value = (base + slope * i + value) % (1 << 8 * width)
            row.append(value)
        rows.append(row)
    return rows


KINDS = {
    "anything": lambda rng, n: rng.integers(0, 1 << 63, n),
    "few values": lambda rng, n: rng.choice(rng.integers(0, 1 << 62, 5), n),
    "a small range": lambda rng, n: rng.integers(-100, 100, n),
    "a line": lambda rng, n: 7 + rng.integers(-9, 9) * np.arange(n) + rng.integers(-2, 3, n),
    "one value": lambda rng, n: np.full(n, rng.integers(-(1 << 62), 1 << 62)),
    "around the sign": lambda rng, n: (1 << 31) + rng.integers(-5, 5, n),
}


@st.composite
def columns(draw: st.DrawFn) -> Array:
    """Rows of one to five numbers of one to eight bytes, each number of a kind of its own."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    count, dtype = draw(st.integers(1, 200)), np.dtype(draw(st.sampled_from(["u1", "<u2", "<u4", "<u8"])))
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    numbers = [KINDS[kind](rng, count).astype(np.int64).view(np.uint64).astype(dtype) for kind in kinds]
    return np.stack(numbers, 1).view(np.uint8).reshape(count, -1)


@EXAMPLES
@given(columns())
def test_a_plain_reader_finds_the_same_rows(rows: Array) -> None:
    """The payload is smaller than the rows, and holds them as the format describes."""
    payload = CODEC.encode(rows)
    if payload is None:
        return
    assert len(payload) < rows.nbytes
    column = Packed(payload, len(rows), rows.shape[1])
    CODEC.check(column)
    np.testing.assert_array_equal(CODEC.decode(column), rows)
    np.testing.assert_array_equal(CODEC.decode_row(column, len(rows) // 2), rows[len(rows) // 2])
    width = payload[0]
    plain = b"".join(number.to_bytes(width, "little") for row in naive_rows(payload, len(rows)) for number in row)
    assert plain == rows.tobytes()


@EXAMPLES
@given(columns(), st.integers(0, 1 << 30), st.integers(1, 255), st.integers(-20, 20))
def test_damage_is_refused_or_read_within_the_payload(rows: Array, at: int, change: int, more: int) -> None:
    """A changed payload is refused, or decodes to other rows; one of another length is refused."""
    payload = CODEC.encode(rows)
    if payload is None:
        return
    changed = bytearray(payload)
    changed[at % len(changed)] ^= change
    column = Packed(bytes(changed), len(rows), rows.shape[1])
    try:
        CODEC.check(column)
    except DamagedError:
        pass
    else:
        assert CODEC.decode(column).shape == rows.shape
    if more:
        longer = payload + bytes(more) if more > 0 else payload[:more]
        with pytest.raises(DamagedError, match="do not hold"):
            CODEC.check(Packed(longer, len(rows), rows.shape[1]))


def test_bits_of_hand_worked_columns() -> None:
    """Two values take a table's bit or the range's; a counter none; a constant none."""
    two = np.array([[7], [9], [7], [7], [9], [7], [7], [7]] * 4, "<i8")
    # The difference of 9 and 7 needs two bits; a table would need one, and 16 bytes.
    assert len(CODEC.encode(two.view(np.uint8)) or b"") == 8 + 16 + 32 * 2 // 8
    counter = np.arange(1000, 1064).astype("<i4").reshape(-1, 1)
    assert len(CODEC.encode(counter.view(np.uint8)) or b"") == 8 + 16
    constant = np.full((64, 2), 2.5, "<f4")
    assert len(CODEC.encode(constant.view(np.uint8)) or b"") <= 8 + 2 * 16
    far = np.array([[1], [1 << 60]] * 40, "<i8")
    assert len(CODEC.encode(far.view(np.uint8)) or b"") == 8 + 16 + 80 // 8 + 2 * 8  # a table of two


def tokens(store: sw.Store, episodes: int) -> None:
    rng = np.random.default_rng(3)
    for k in range(episodes):
        length = int(rng.integers(5, 90))
        token = (50_000 * rng.random(length + 1) ** 4).astype(np.int32)
        store.add_episode(
            obs=token, action=token[1:], logprob=-rng.exponential(0.7, length).astype(np.float32),
            version=np.full(length, k // 8, np.int32), mask=rng.random(length) < 0.8,
            reward=rng.random(length).astype(np.float32), terminated=bool(k % 3),
        )  # fmt: skip


@pytest.mark.parametrize("disk", [False, True])
def test_a_store_packs_scalars_and_gives_the_same_batches(disk: bool, tmp_path: Any) -> None:
    """``auto`` takes fewer bytes than raw rows; batches and episodes are equal, also reopened."""
    stores = []
    for codec in ("raw", "auto"):
        names = {"action": "int32", "logprob": "float32", "version": "int32", "mask": "bool"}
        fields = {name: sw.Field((), dtype, codec=codec) for name, dtype in names.items()}
        spec = sw.Spec(obs=sw.Field((), "int32", stack=3, codec=codec), **fields)
        folder = {"disk": tmp_path / codec} if disk else {}
        stores.append(sw.Store(spec, capacity=2000, segment_steps=64, seed=1, **folder))
        tokens(stores[-1], 60)
    raw, packed = (store.stats()["encoded_bytes_per_step"] for store in stores)
    assert packed < 0.75 * raw
    if disk:
        for store in stores:
            store.close()
        stores = [sw.Store.open(tmp_path / codec) for codec in ("raw", "auto")]
    for make in (
        lambda store: store.transitions(n_step=3, gamma=0.9),
        lambda store: store.sequences(length=12, burn_in=4, n_step=2, gamma=0.9),
    ):
        batches = [view.sample(64) for view in map(make, stores)]
        for name in ("obs", "action", "reward", "logprob", "version", "mask"):
            np.testing.assert_array_equal(batches[0][name], batches[1][name], err_msg=name)
    for one, other in zip(stores[0].episodes(), stores[1].episodes(), strict=True):
        np.testing.assert_array_equal(one["logprob"], other["logprob"])
    for store in stores:
        store.close()
