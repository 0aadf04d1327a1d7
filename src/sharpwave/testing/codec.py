"""Conformance suite for codecs.

    class TestMine(CodecSuite):
        def make_codec(self) -> Codec:
            return Mine()

Under pytest, it checks that any rows are restored, that arbitrary payloads do no harm, that all ways to read a row
agree, and that a store with the codec is complete after it was closed and reopened.
"""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.arrays import Bytes
from sharpwave.codecs import codec_registry
from sharpwave.codecs.codec_protocol import Codec, Packed, as_bytes
from sharpwave.errors import DamagedError
from sharpwave.offline.folder_check import check
from sharpwave.testing.columns_in_memory import ColumnsInMemory, naive_window, pictures
from sharpwave.views.gather import DECODED

SETTINGS = settings(
    max_examples=min(60, 2 * settings().max_examples),  # fewer only where the profile asks for few
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SLACK_BYTES = 256 << 10
"""Memory that decoding may take beyond its rows and three times its payload."""


class CodecSuite:
    """Tests that every codec passes. Subclasses make the codec."""

    def make_codec(self) -> Codec:
        """Make the codec under test."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _registered(self) -> Iterator[None]:
        codec = self.make_codec()
        if codec_registry.is_known(codec.name):
            yield
            return
        codec_registry.register(codec)
        yield
        codec_registry.unregister(codec.name)

    # results of encode()

    @SETTINGS
    @given(picture=pictures(), trained=st.booleans())
    def test_rows_come_back(self, picture: tuple[Bytes, int], trained: bool) -> None:
        """Rows are restored from a payload that is smaller than the rows and passes its checks."""
        codec, column, rows = self._encoded(picture, trained)
        if column is None:
            return
        assert len(column.payload) < rows.nbytes or codec.name == "raw"
        assert len(column.dictionary) <= codec.max_dictionary_bytes(column.size)
        codec.check(column)
        codec.verify(column)
        np.testing.assert_array_equal(codec.decode(column), rows)

    @SETTINGS
    @given(
        shape=st.sampled_from([(), (16,), (5, 7), (4, 4, 3)]),
        dtype=st.sampled_from(["bool", "uint8", "int16", "int64", "float16", "float32", "float64"]),
        count=st.integers(1, 40),
        seed=st.integers(0, 1000),
    )
    def test_rows_of_any_shape_and_dtype_come_back(
        self, shape: tuple[int, ...], dtype: str, count: int, seed: int
    ) -> None:
        """Values of any dtype are restored bit by bit."""
        field = sw.Field(shape, dtype)
        values = np.random.default_rng(seed).integers(0, 3, (count, *shape)).astype(dtype)
        codec, rows = self.make_codec(), values.reshape(count, -1).view(np.uint8)
        payload = codec.encode(rows, codec.train(rows), field.line_bytes)
        if payload is None:
            return
        column = Packed(payload, count, field.row_bytes, codec.train(rows), field.line_bytes)
        assert codec.decode(column).tobytes() == values.tobytes()

    @SETTINGS
    @given(picture=pictures(), trained=st.booleans())
    def test_a_row_alone_is_that_row(self, picture: tuple[Bytes, int], trained: bool) -> None:
        codec, column, rows = self._encoded(picture, trained)
        if column is None:
            return
        for row in range(column.count):
            np.testing.assert_array_equal(as_bytes(codec.decode_row(column, row)), rows[row])

    @SETTINGS
    @given(columns=st.lists(pictures(sizes=(60,)), min_size=1, max_size=5))
    def test_an_encoder_that_keeps_memory_makes_the_same_payloads(self, columns: list[tuple[Bytes, int]]) -> None:
        """An encoder's state between columns does not change its payloads."""
        codec, dictionaries = self.make_codec(), [b""]
        encoder = codec.encoder(60, 12, 12)
        for rows, _ in columns:
            dictionaries.append(codec.train(rows))
            for dictionary in dictionaries:
                assert encoder.encode(rows, dictionary) == codec.encode(rows, dictionary, 12)
            encoder.keep_only(dictionaries[-1:])
        assert encoder.nbytes >= 0

    # untrusted payloads

    @SETTINGS
    @given(
        payload=st.binary(max_size=300),
        count=st.sampled_from([0, 1, 3, 1000]),
        size=st.sampled_from([1, 24, 96]),
        dictionary=st.sampled_from([b"", bytes(24), bytes(range(96)), b"\x37\xa4\x30\xec" + bytes(60)]),
    )
    def test_any_bytes_are_refused_or_read(self, payload: bytes, count: int, size: int, dictionary: bytes) -> None:
        """Bytes of other origin do no harm."""
        self._no_harm(Packed(payload, count, size, dictionary, 12))

    @SETTINGS
    @given(picture=pictures(), trained=st.booleans(), data=st.data())
    def test_a_damaged_payload_is_refused_or_read(
        self, picture: tuple[Bytes, int], trained: bool, data: st.DataObject
    ) -> None:
        """A payload with changed, missing or inserted bytes does no harm."""
        _, column, _ = self._encoded(picture, trained)
        if column is None:
            return
        payload = bytearray(bytes(column.payload))
        for _ in range(data.draw(st.integers(1, 3), "changes")):
            at = data.draw(st.integers(0, len(payload) - 1), "at")
            how = data.draw(st.sampled_from(["byte", "number", "cut", "insert"]), "how")
            if how == "byte":
                payload[at] ^= data.draw(st.integers(1, 255), "by")
            elif how == "number":
                number = data.draw(st.sampled_from([0, 1, 2**16, 2**31 - 1, 2**32 - 1]), "number")
                payload[at // 4 * 4 : at // 4 * 4 + 4] = number.to_bytes(4, "little")
            elif how == "cut" and len(payload) > 1:
                del payload[at]
            else:
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=8), "bytes")
        self._no_harm(Packed(bytes(payload), column.count, column.size, column.dictionary, column.line_bytes))

    def _no_harm(self, column: Packed) -> None:
        codec = self.make_codec()
        checked, verified, decoded = (_tried(act, column) for act in (codec.check, codec.verify, codec.decode))
        assert (verified is None) == (decoded is None), "verify() finds the damage that decode() finds"
        if decoded is None:
            assert not DECODED[codec.number] or checked is None, "check() accepted a payload that the core cannot read"
            return
        assert checked is not None, "check() refused a payload that can be decoded"
        rows = decoded[0]
        assert rows.shape == (column.count, column.size)
        if column.count:
            self._compare(codec, column, rows, zeros=False)

    # batches

    @SETTINGS
    @given(picture=pictures(), trained=st.booleans(), zeros=st.booleans(), window=st.integers(1, 4))
    def test_a_window_is_a_slice_of_the_rows(
        self, picture: tuple[Bytes, int], trained: bool, zeros: bool, window: int
    ) -> None:
        """The core, the decoding of single rows, and that of cut rows put the same windows into a batch."""
        codec, column, rows = self._encoded(picture, trained)
        if column is not None:
            self._compare(codec, column, rows, zeros, window)

    def _compare(self, codec: Codec, column: Packed, rows: Bytes, zeros: bool, window: int = 2) -> None:
        size, line = column.size, column.line_bytes
        field = sw.Field((size // line, line) if line and line < size else (size,), "uint8")
        if field.row_bytes != size or field.line_bytes != line:
            return  # no field has lines of this size
        field = replace(field, pad="zeros" if zeros else "repeat")
        memory = ColumnsInMemory(field, 1, column.count, 1 << 18)
        memory.put(0, codec, column.count, bytes(column.payload), column.dictionary)
        newest = np.arange(column.count)
        first = newest // 3
        expected = [
            naive_window(rows, n, f, window, zeros) for n, f in zip(newest.tolist(), first.tolist(), strict=True)
        ]
        slot = np.zeros(column.count, np.int64)
        for in_core in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                if not in_core:
                    patch.setattr("sharpwave.views.gather.DECODED", np.zeros(codec_registry.NUMBERS, np.uint8))
                np.testing.assert_array_equal(memory.read(slot, newest, first, window), expected)
        np.testing.assert_array_equal(memory.cut(slot, newest, first, window), expected, "cut rows")

    # stores

    @pytest.mark.parametrize("on_disk", [False, True])
    def test_a_store_gives_back_what_was_written(self, on_disk: bool, tmp_path: Path) -> None:
        """Batches, a reopened checkpoint or folder, and `sharpwave verify` agree with the appended steps."""
        codec, folder = self.make_codec(), tmp_path / "store"
        spec = sw.Spec(
            obs=sw.Field((12, 8), "uint8", stack=2, codec=codec.name), action=sw.Field((), "int64"),
            core=sw.Field((16,), "float32"),
        )  # fmt: skip
        frames = np.zeros((301, 12, 8), np.uint8)
        frames[np.arange(301), np.arange(301) % 12] = np.arange(301)[:, None] % 13
        cores = np.repeat(np.arange(301, dtype=np.float32)[:, None], 16, 1)
        where: dict[str, Any] = {"disk": folder} if on_disk else {}
        with sw.Store(spec, capacity=1000, segment_steps=16, codec={"core": codec.name}, **where) as store:
            for k in range(300):
                store.append(
                    obs=frames[k], action=k, reward=k, core=cores[k], terminated=k % 30 == 29, truncated=False,
                    final_obs=frames[k + 1] if k % 30 == 29 else None,
                )  # fmt: skip
            self._agrees(store, frames, cores)
            if codec.number:
                assert store.stats()["codecs"]["obs"].get(codec.name, 0) > 10, "the codec must pack these rows"
            if on_disk:
                store.flush()
            else:
                store.checkpoint(folder)
        assert not check(folder).damages
        with sw.Store.open(folder) as store:
            assert store.recovery is None or not store.recovery.damages
            self._agrees(store, frames, cores)

    def _agrees(self, store: sw.Store, frames: Bytes, cores: npt.NDArray[np.float32]) -> None:
        replay = store.transitions()
        batch = replay.fetch(replay.sampleable_ids())
        assert len(batch.action) >= 290
        for i, k in enumerate(batch.action.tolist()):
            before = k if k % 30 == 0 else k - 1
            np.testing.assert_array_equal(batch.obs[i], frames[[before, k]])
            np.testing.assert_array_equal(batch.next_obs[i], frames[[k, k + 1]])
            np.testing.assert_array_equal(batch["core"][i], cores[k])

    def _encoded(self, picture: tuple[Bytes, int], trained: bool) -> tuple[Codec, Packed | None, Bytes]:
        """Encode rows; return no column if the codec leaves them raw."""
        (rows, line), codec = picture, self.make_codec()
        dictionary = codec.train(rows) if trained else b""
        payload = codec.encode(rows, dictionary, line)
        column = None if payload is None else Packed(payload, len(rows), rows.shape[1], dictionary, line)
        return codec, column, rows


def _tried(act: Any, column: Packed) -> tuple[Any] | None:
    """Return the result, or ``None`` for a DamagedError; fail for another error or too much memory."""
    with contextlib.suppress(DamagedError):
        act(column)  # the first call compiles; that memory does not count
    tracemalloc.start()
    try:
        answer = (act(column),)
    except DamagedError as error:
        assert str(error)
        answer = None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    rows = column.count * column.size if act.__name__ == "decode" else column.size
    nbytes = len(column.payload) + len(column.dictionary)
    assert peak <= rows + 16 * nbytes + SLACK_BYTES, f"{act.__name__} took {peak:,} bytes for {nbytes:,}"
    return answer
