"""Every codec passes the suite for codecs; so does one that was never heard of, in one class and one registration."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import sharpwave as sw
from sharpwave.cli import main
from sharpwave.codecs import codec_registry
from sharpwave.codecs.codec_protocol import Codec, Competition, Packed
from sharpwave.codecs.delta import Delta, Patches
from sharpwave.codecs.packed import PackedNumbers
from sharpwave.codecs.predict import Predict
from sharpwave.codecs.raw import Raw
from sharpwave.codecs.zstd import Zstd
from sharpwave.errors import DamagedError, UnknownCodecError
from sharpwave.testing.codec import CodecSuite

Bytes = npt.NDArray[np.uint8]


class Toy(Codec):
    """All rows in one zlib stream."""

    name, number = "toy", 200
    competition = Competition(max_share=0.1, preference=100.0)

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        payload = zlib.compress(rows.tobytes(), 1)
        return payload if len(payload) < rows.nbytes else None

    def check(self, column: Packed) -> None:
        self._unpacked(column)

    def decode_row(self, column: Packed, row: int) -> bytes:
        return self._unpacked(column)[row * column.size : (row + 1) * column.size]

    def _unpacked(self, column: Packed) -> bytes:
        nbytes, stream = column.count * column.size, zlib.decompressobj()
        try:
            rows = stream.decompress(bytes(column.payload), nbytes + 1)
        except zlib.error as error:
            raise DamagedError(f"toy column: {error}") from error
        if len(rows) != nbytes or not stream.eof or stream.unused_data:
            raise DamagedError(f"toy column: {len(rows)} bytes, expected {nbytes}")
        return rows


class Nibbles(Codec):
    """Rows of bytes below 16, two to a byte."""

    name, number = "nibbles", 201

    def encode(self, rows: Bytes, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        if rows.shape[1] < 2 or rows.max() > 15:
            return None
        even = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2)))
        return (even[:, ::2] | even[:, 1::2] << 4).tobytes()

    def check(self, column: Packed) -> None:
        if len(column.payload) != column.count * ((column.size + 1) // 2):
            raise DamagedError(f"nibbles column: {len(column.payload)} bytes for {column.count} rows")

    def decode_row(self, column: Packed, row: int) -> Bytes:
        nbytes = (column.size + 1) // 2
        packed = np.frombuffer(column.payload, np.uint8, nbytes, row * nbytes)
        return np.stack([packed & 15, packed >> 4], 1).reshape(-1)[: column.size]


class TestRaw(CodecSuite):
    def make_codec(self) -> Codec:
        return Raw()


class TestZstd(CodecSuite):
    def make_codec(self) -> Codec:
        return Zstd()


class TestDelta(CodecSuite):
    def make_codec(self) -> Codec:
        return Delta()


class TestPatches(CodecSuite):
    def make_codec(self) -> Codec:
        return Patches()


class TestPredict(CodecSuite):
    def make_codec(self) -> Codec:
        return Predict()


class TestPackedNumbers(CodecSuite):
    def make_codec(self) -> Codec:
        return PackedNumbers()


class TestToy(CodecSuite):
    def make_codec(self) -> Codec:
        return Toy()


class TestNibbles(CodecSuite):
    def make_codec(self) -> Codec:
        return Nibbles()


@pytest.fixture
def toy() -> Iterator[None]:
    codec_registry.register(Toy())
    yield
    if codec_registry.is_known("toy"):
        codec_registry.unregister("toy")


def write(folder: Path, codec: str) -> None:
    spec = sw.Spec(obs=sw.Field((400,), "uint8"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=1000, segment_steps=16, disk=folder, codec=codec) as store:
        for k in range(200):
            store.append(obs=np.full(400, k, np.uint8), action=k, reward=0, terminated=False, truncated=False)


def exit_code(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("codec", ["toy", "auto"])
def test_a_store_whose_codec_is_not_registered_is_refused_and_left_as_it_is(
    codec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name where it was asked for, by number where "auto" chose it. Once registered, nothing is amiss."""
    folder = tmp_path / "s"
    write(folder, codec)
    before = {path: path.read_bytes() for path in folder.rglob("*.region")}
    codec_registry.unregister("toy")
    said = r"field 'obs' is packed with codec 'toy'" if codec == "toy" else r"obs: codec number 200, expected one of 0"
    with pytest.raises(UnknownCodecError, match=rf"{said}.*sharpwave\.codecs\.codec_registry\.register"):
        sw.Store.open(folder)
    assert exit_code("verify", folder) == 2
    assert "codec_registry.register" in "".join(capsys.readouterr())
    codec_registry.register(Toy())
    assert {path: path.read_bytes() for path in folder.rglob("*.region")} == before
    with sw.Store.open(folder) as store:
        assert store.stats()["codecs"]["obs"]["toy"] > 8
        batch = store.transitions().sample(64)
        np.testing.assert_array_equal(batch.obs[:, 0], batch.action)
    assert exit_code("verify", folder) == 0


def test_names_and_numbers_are_taken_once() -> None:
    class Other(Toy):
        pass

    for name, number, why in (
        ("zstd", 150, "taken by 'zstd', number 1"),
        ("mine", 2, "taken by 'delta', number 2"),
        ("auto", 150, "expected an identifier other than 'auto'"),
        ("mine", 256, "0 to 255"),
    ):
        Other.name, Other.number = name, number
        with pytest.raises(ValueError, match=why):
            codec_registry.register(Other())
    assert not codec_registry.is_known("mine")
    with pytest.raises(ValueError, match="'mine'"):
        codec_registry.unregister("mine")
