"""Files of strangers: refused by a ValueError that names them; nothing is unpickled, followed or allocated."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import sharpwave as sw
from tests.data_sets.data import d4rl
from tests.support.examples import examples


class Pickled:
    def __reduce__(self) -> Any:
        return os.abort, ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rewards": np.zeros(9, np.float32)}, "rows, expected 9, as rewards"),
        ({"rewards": np.full(10, np.nan, np.float32)}, r"rewards\[0\] is nan, expected finite"),
        ({"rewards": np.full(10, 1e300)}, "expected finite float32"),
        ({"actions": None}, "expected observations, actions, rewards and terminals"),
        ({"terminals": None}, "expected terminals as well"),
        ({"infos/x": np.array([Pickled()] * 10, object)}, "pickled objects, which are not read"),
        ({"terminals": np.zeros((10, 2), np.bool_)}, "expected one number a step"),
        ({"terminals": np.full(10, 2)}, "terminals has 2, expected 0 and 1"),
        ({"observations": np.array(["a"] * 10)}, "next_observations is Field.*expected Field.*'str'"),
        ({"observations": np.array([["a"]] * 10)}, "cannot be stored"),
        ({"actions": np.zeros(10, np.complex64)}, "cannot be stored"),
        ({"next_observations": np.zeros((10, 4))}, "next_observations is"),
        ({"observations": np.asfortranarray(np.random.rand(10, 3))}, "Fortran order"),
        ({"obs": np.zeros((10, 3))}, "has both observations and obs"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    data = {name: values for name, values in (d4rl([4, 6]) | changed).items() if values is not None}
    np.savez(tmp_path / "data.npz", allow_pickle=True, **data)
    with pytest.raises(ValueError, match=message):
        sw.load(f"npz:{tmp_path / 'data.npz'}")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10, 1000000000000), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10, -3), }",
        "__import__('os').abort()",
        "",
    ],
)
def test_headers_of_arrays(tmp_path: Path, header: str) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for name, values in d4rl([4, 6]).items():
            content = io.BytesIO()
            np.save(content, values)
            text = header.encode() + b"\n"
            made = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
            archive.writestr(f"{name}.npy", made if name == "observations" else content.getvalue())
    with pytest.raises(ValueError, match="observations"):
        sw.load(f"npz:{tmp_path / 'data.npz'}")


def external_link(file: Any) -> None:
    file["observations"] = h5py.ExternalLink("other.hdf5", "/x")


def external_values(file: Any) -> None:
    file.create_dataset("observations", (10, 3), "f8", external=[("/etc/passwd", 0, 240)])


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((10, 3), "f8")
    layout[:] = h5py.VirtualSource("other.hdf5", "x", (10, 3))
    file.create_virtual_dataset("observations", layout)


def endless(file: Any) -> None:
    file["observations"] = np.zeros((10, 3))
    file["group"] = file["/"]


def huge(file: Any) -> None:
    file.create_dataset("observations", (10, 1 << 40), "f8", chunks=(1, 1 << 20))


def unwritten(file: Any) -> None:
    file.create_dataset("observations", (1 << 40, 3), "f8", chunks=(1 << 16, 3))


@pytest.mark.parametrize("make", [external_link, external_values, virtual, endless, huge, unwritten])
def test_hdf5_that_leads_elsewhere(tmp_path: Path, make: Callable[[Any], None]) -> None:
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, values in d4rl([4, 6], with_next=False).items():
            if name != "observations":
                file[name] = values
        make(file)
    with pytest.raises(ValueError, match=r"not followed|not read|nested in itself"):
        sw.load(f"hdf5:{tmp_path / 'data.hdf5'}")


@pytest.mark.parametrize("ending", ["npz", "hdf5", "parquet"])
def test_damaged_and_truncated_files(tmp_path: Path, ending: str) -> None:
    """Any byte may be wrong: the data is refused, or a value of it is another one."""
    np.savez(tmp_path / "data.npz", **d4rl([4, 6]))
    store = sw.load(f"npz:{tmp_path / 'data.npz'}")
    store.export(f"{ending}:{tmp_path / 'good'}.{ending}")
    good, rng = (tmp_path / f"good.{ending}").read_bytes(), np.random.default_rng(0)
    bad = tmp_path / f"bad.{ending}"
    refused, tries = 0, examples(60)
    for number in range(tries):
        content = bytearray(good)
        if number % 4:
            content[rng.integers(len(content))] ^= int(rng.integers(1, 256))
        else:
            content = content[: rng.integers(len(content))]
        bad.write_bytes(content)
        try:
            sw.load(f"{ending}:{bad}").close()
        except ValueError as error:
            refused += 1
            assert "bad" in str(error)
    assert refused >= tries / 4


def test_names_and_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    store = sw.Store(sw.Spec(obs=sw.Field((), "uint8"), action=sw.Field((), "uint8")), capacity=100)
    with pytest.raises(ValueError, match="no whole episodes"):
        store.export("npz:x.npz")
    store.add_episode(obs=np.zeros(3, np.uint8), action=np.zeros(2, np.uint8), reward=np.zeros(2), terminated=True)
    for name in ("../x-v0", "/etc/x-v0", "a/../../b-v0", "", "..", "a\0b-v0"):
        with pytest.raises(ValueError, match="expected a name such as"):
            sw.load(f"minari:{name}")
        with pytest.raises(ValueError, match="expected a name such as"):
            store.export(f"minari:{name}")
    with pytest.raises(FileNotFoundError, match=r"no data set .a/b-v0.*minari download"):
        sw.load("minari:a/b-v0")
    with pytest.raises(ValueError, match=r"expected one of minari:\.\.\., hdf5:"):
        sw.load("csv:x")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        sw.load("npz:missing.npz")
    with pytest.raises(FileNotFoundError, match="make it first"):
        store.export(f"npz:{tmp_path}/missing/x.npz")
    with pytest.raises(ValueError, match="expected a path after it"):
        sw.load("hdf5:")
    spec = sw.Spec(obs={"a/b": sw.Field((), "uint8"), "a": {"b": sw.Field((), "uint8")}}, action=sw.Field((), "uint8"))
    other = sw.Store(spec, capacity=10)
    zeros = np.zeros(3, np.uint8)
    other.add_episode(obs={"a/b": zeros, "a": {"b": zeros}}, action=zeros[:2], reward=zeros[:2], terminated=True)
    with pytest.raises(ValueError, match="'a/b' of obs has no name"):
        other.export(f"npz:{tmp_path}/x.npz")
    assert not list(tmp_path.glob("*.npz")) and not list(tmp_path.glob(".*"))


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("kind", ["plain", "latest", "userblock", "lengths of 4 bytes"])
def test_texts_of_hdf5_that_do_not_end(tmp_path: Path, kind: str) -> None:
    """HDF5 loops forever in a collection of values where one of 0 bytes follows, and takes no interrupt."""
    options: dict[str, dict[str, Any]] = {"latest": {"libver": "latest"}, "userblock": {"userblock_size": 512}}
    path = tmp_path / "data.hdf5"
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plist.set_sizes(8, 4)
    made = h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, plist) if kind.startswith("lengths") else path
    with h5py.File(made, "w", **options.get(kind, {})) as file:
        for name, values in d4rl([1, 2], with_next=False).items():
            if name != "observations":
                file[name] = values
        file["observations"] = [b"a", b"b", b"c" * 9000]
    content = path.read_bytes()
    assert sw.load(f"hdf5:{path}").episodes()[0]["obs"].strings()[0] == "a"
    size = content.index(b"GCOL\1") + 16 + 8  # of the first value, beside which another begins
    path.write_bytes(content[:size] + b"\x83" + content[size + 1 :])
    with pytest.raises(ValueError, match=r"data.hdf5.*of any length, at byte [\d,]+, takes 0 bytes, expected 1 to"):
        sw.load(f"hdf5:{path}")
