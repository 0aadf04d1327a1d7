"""The file that says of which shards a cluster's folder is, or a checkpoint of one."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from sharpwave.disk.store_folder import LOCK, lock_if_possible
from sharpwave.errors import DamagedError, NewerVersionError, StoreInUseError
from sharpwave.native.files import Files
from sharpwave.spec import Spec
from sharpwave.validation import checked_folder

CLUSTER = "cluster.json"
FORMAT = 1
MAX_SHARDS_SAID = 1 << 16


@dataclass(frozen=True)
class Manifest:
    """What a folder holds: the shards of a cluster in ``shard-K``, or those of a checkpoint in ``cut-N/shard-K``.

    Attributes:
        spec: of a step. ``shards``: their number. ``on_disk``: whether their stores are on disk.
        cut: number of the checkpoint that counts; 0: the cluster itself.
        replicas: of each shard, kept by its neighbour: 0 or 1. ``new``: limits and options of a shard's store.
        draining: the drain under way, as ``Drain.state``; empty: none.
        checkpoint: name, in hexadecimal digits, that the cuts of this folder bear; "": none bears it.
        opening: folder of the checkpoint that the shards are being copied from: they do not count yet; "": they do.
        leaving: whether the shard after the last is being removed: what its folder still has does not count.
        parts: how many shards limits are divided by: as many as there were at the beginning; 0: that is not known.
    """

    spec: Spec
    shards: int
    on_disk: bool
    cut: int = 0
    replicas: int = 0
    new: dict[str, Any] = field(default_factory=dict)
    draining: dict[str, Any] = field(default_factory=dict)
    checkpoint: str = ""
    opening: str = ""
    leaving: bool = False
    parts: int = 0

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return what a folder's file says.

        Raises:
            FileNotFoundError: there is none.  DamagedError: it is not what a cluster writes.  NewerVersionError.
        """
        path = folder / CLUSTER
        try:
            text = path.read_text()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"{folder}: no cluster there: {CLUSTER} is missing") from error
        try:
            said = json.loads(text)
            checksum = said.pop("checksum")
            if type(said["format"]) is int and said["format"] > FORMAT:
                raise NewerVersionError(str(path))
            if checksum != _checksum(said):
                raise ValueError("its checksum does not match")
            shards, cut = said["shards"], said["cut"]
            if type(shards) is not int or type(cut) is not int or not 0 < shards <= MAX_SHARDS_SAID or cut < 0:
                raise ValueError(f"shards {shards!r}, cut {cut!r}")
            replicas, new = said.get("replicas", 0), dict(said.get("new", {}))
            if replicas not in (0, 1):
                raise ValueError(f"replicas {replicas!r}")
            draining = dict(said.get("draining", {}))
            spec, leaving = Spec.from_json(said["spec"]), bool(said.get("leaving", False))
            checkpoint, opening = (str(said.get(name, "")) for name in ("checkpoint", "opening"))
            parts = said.get("parts", 0)
            if type(parts) is not int or not 0 <= parts <= MAX_SHARDS_SAID:
                raise ValueError(f"parts {parts!r}")
            on_disk = bool(said["on_disk"])
            return cls(spec, shards, on_disk, cut, replicas, new, draining, checkpoint, opening, leaving, parts)
        except NewerVersionError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path}: not what a cluster writes ({error}); put back a copy") from error

    def write(self, folder: Path) -> None:
        """Write the file, or replace it, at once.  Raises: OSError."""
        said: dict[str, Any] = {
            "format": FORMAT,
            "spec": self.spec.description(),
            "shards": self.shards,
            "on_disk": self.on_disk,
            "cut": self.cut,
            "replicas": self.replicas,
            "new": self.new,
            "draining": self.draining,
            "checkpoint": self.checkpoint,
            "opening": self.opening,
            "leaving": self.leaving,
            "parts": self.parts,
        }
        said["checksum"] = _checksum(said)
        write_whole(folder / CLUSTER, json.dumps(said, indent=1))

    def check_whole(self, folder: Path) -> None:
        """Refuse a folder whose shards, or whose first cut, are not all there.

        Raises: ValueError, FileNotFoundError: naming the remedy.
        """
        if self.opening:
            raise ValueError(
                f"{folder} was being copied from the checkpoint {self.opening}, and not all is there; "
                f"sharpwave.Cluster.open({self.opening!r}, disk={str(folder)!r}) begins anew"
            )
        if self.checkpoint and not self.cut:
            raise FileNotFoundError(f"{folder}: the first checkpoint there was not finished; write it again")

    def merged_limits(self, shards: int) -> dict[str, Any]:
        """Return limits of all shards together where so many merge these: each gets those of as many as one merges."""
        most = -(-self.shards // shards)
        limits = {name: self.new.get(name) for name in ("capacity", "ram", "disk_limit")}
        stores = {"capacity": shards, "ram": shards * (1 + self.replicas), "disk_limit": shards * (1 + self.replicas)}
        return {name: None if one is None else one * most * stores[name] for name, one in limits.items()}


def _checksum(said: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(said, sort_keys=True).encode())


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or as before, whatever happens.  Raises: OSError."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        error.filename = error.filename or str(path)  # a full disk does not say which
        raise
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def empty_folder(disk: str | os.PathLike[str]) -> Path:
    """Make the folder of a cluster on disk, or find it empty.

    Raises:
        FileExistsError: it is not empty.  OSError: it cannot be made.
    """
    folder = checked_folder("disk", disk)
    if (folder / CLUSTER).exists():
        try:
            Manifest.read(folder).check_whole(folder)
        except (ValueError, FileNotFoundError) as error:
            raise FileExistsError(f"disk: {error}; or give another folder") from error
        raise FileExistsError(
            f"disk: {folder} holds a cluster already; open it with sharpwave.Cluster.open({str(folder)!r})"
        )
    begun = (LOCK, f"{CLUSTER}.partial")  # by one that was killed before it was there
    if folder.is_dir() and any(one.name not in begun for one in folder.iterdir()):
        raise FileExistsError(f"disk: {folder} is not empty; give a new or empty folder")
    Files().make_folder(folder).close()
    return folder


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a cluster's folder while its shards begin: of two processes one gets all, or none is there yet.

    Raises: StoreInUseError: another process makes or opens a cluster there.
    """
    with Files().make_folder(folder) as directory:
        if not lock_if_possible(directory.descriptor, shared=False):
            raise StoreInUseError(
                f"disk: another process is making or opening a cluster in {folder}; wait for it, or give another folder"
            )
        yield


@contextlib.contextmanager
def new_folder(disk: str | os.PathLike[str], manifest: Manifest) -> Iterator[None]:
    """Make the folder of a new cluster on disk, and hold it while its shards begin.

    Raises: as ``empty_folder``, ``alone``.
    """
    folder = empty_folder(disk)
    with alone(folder):
        empty_folder(disk)
        replace(manifest, on_disk=True, cut=0).write(folder)
        yield
