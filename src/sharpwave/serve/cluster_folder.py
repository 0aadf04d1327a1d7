"""Folders of clusters: the file that names their shards, checkpoints of all shards at one moment, and their opening."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from sharpwave.disk.ownership import MARK
from sharpwave.disk.store_folder import LOCK, Hold, lock_if_possible
from sharpwave.errors import NO_STATE, DamagedError, NewerVersionError, StoreInUseError
from sharpwave.native.directory import Directory
from sharpwave.native.file_operations import Files
from sharpwave.persistence.settings import LIMITS
from sharpwave.serve.link import ShardLostError
from sharpwave.serve.members import Members
from sharpwave.serve.wire import Request
from sharpwave.spec import Spec
from sharpwave.validation import checked_folder

CLUSTER = "cluster.json"
FORMAT = 1
MAX_SHARDS_SAID = 1 << 16
STORE = "store"
"""Folder of the store, in a shard's."""
MERGING = "merging"
"""Folder of the checkpoints that a shard merges, in its own, until it has."""
LEASES = "writers.json"
"""File in a shard's folder: the lanes of each writer."""
END_S = 10.0
"""Time in which shards whose parent was killed must end."""


@dataclass(frozen=True)
class Manifest:
    """Content of a folder: the shards of a cluster in ``shard-K``, or of a checkpoint in ``cut-N/shard-K``.

    Attributes:
        spec: schema of a step. ``shards``: their number. ``on_disk``: whether their stores are on disk.
        cut: number of the valid checkpoint; 0: the folder is the cluster itself.
        replicas: copies of each shard, kept by its neighbor: 0 or 1. ``new``: limits and options of a shard's store.
        checkpoint: name, in hexadecimal digits, that the cuts of this folder bear; "": the cuts bear none.
        opening: checkpoint from which the shards are being copied, so that they are not valid yet; "": they are valid.
        parts: number of shards by which limits are divided, which is the first number of shards; 0: unknown.
    """

    spec: Spec
    shards: int
    on_disk: bool
    cut: int = 0
    replicas: int = 0
    new: dict[str, Any] = field(default_factory=dict)
    checkpoint: str = ""
    opening: str = ""
    parts: int = 0

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the manifest of a folder.

        Raises:
            FileNotFoundError: there is none.  DamagedError: no cluster wrote it.  NewerVersionError.
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
            limits = {
                "shards": (1, MAX_SHARDS_SAID),
                "cut": (0, math.inf),
                "replicas": (0, 1),
                "parts": (0, MAX_SHARDS_SAID),
            }
            for name, (least, most) in limits.items():
                if type(said[name]) is not int or not least <= said[name] <= most:
                    raise ValueError(f"{name} {said[name]!r}")
            return cls(
                Spec.from_json(said["spec"]),
                said["shards"],
                bool(said["on_disk"]),
                said["cut"],
                said["replicas"],
                dict(said["new"]),
                str(said["checkpoint"]),
                str(said["opening"]),
                said["parts"],
            )
        except NewerVersionError:
            raise
        except NO_STATE as error:
            raise DamagedError(f"{path}: not what a cluster writes ({error}); put back a copy") from error

    def write(self, folder: Path) -> None:
        """Write the file, or replace it, at once.  Raises: OSError."""
        said: dict[str, Any] = {"format": FORMAT, **vars(self), "spec": self.spec.description()}
        said["checksum"] = _checksum(said)
        write_whole(folder / CLUSTER, json.dumps(said, indent=1))

    def check_whole(self, folder: Path) -> None:
        """Refuse a folder in which shards, or shards of the first cut, are missing.

        Raises: ValueError, FileNotFoundError: naming the remedy.
        """
        if self.opening:
            raise ValueError(
                f"{folder} was being copied from the checkpoint {self.opening}, and not all is there; "
                f"sharpwave.Cluster.open({self.opening!r}, disk={str(folder)!r}) begins anew"
            )
        if self.checkpoint and not self.cut:
            raise FileNotFoundError(f"{folder}: the first checkpoint there was not finished; write it again")

    def merged_limits(self, shards: int, replicas: int) -> dict[str, Any]:
        """Return the limits of all shards together after a merge: each store gets the limits of the largest merge."""
        most = -(-self.shards // shards)
        limits = {name: self.new.get(name) for name in LIMITS}
        stores = {"capacity": shards, "ram": shards * (1 + replicas), "disk_limit": shards * (1 + replicas)}
        return {name: None if one is None else one * most * stores[name] for name, one in limits.items()}


def _checksum(said: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(said, sort_keys=True).encode())


def write_whole(path: Path, text: str) -> None:
    """Write a small file atomically: a crash leaves it whole or as before.  Raises: OSError."""
    files, content = Files(), text.encode()
    try:
        with Directory.open(path.parent) as directory:
            partial = f"{path.name}.partial"
            files.replace(directory, path.name, partial, lambda file: files.pwrite(file, content, 0))
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names no file
        raise


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


def cut(members: Members, path: str | os.PathLike[str], spec: Spec, manifest: Manifest | None) -> None:
    """Write a checkpoint of all shards at one moment, like ``Cluster.checkpoint``.

    Args:
        manifest: the shards' manifest; ``None``: only their number is known.
    """
    folder = checked_folder("checkpoint", path).absolute()  # shards may have another working directory
    Files().make_folder(folder).close()
    found = Manifest.read(folder) if (folder / CLUSTER).exists() else None
    before = 0 if found is None else found.cut
    name = (found.checkpoint if found is not None else "") or secrets.token_hex(16)
    own = [] if found is None else [one for one in folder.glob("cut-*") if _is_own(one, name, before)]
    others = [
        one.name for one in folder.iterdir() if one not in own and one.name not in (CLUSTER, f"{CLUSTER}.partial")
    ]
    other = found is not None and not before and not found.checkpoint
    if other or others:
        what = "a cluster that is no checkpoint" if other else others[0]
        way = ", or delete that, if a checkpoint that was killed left it" if what.startswith("cut-") else ""
        raise FileExistsError(f"checkpoint: {folder} holds {what}; give a new or empty folder{way}")
    links = list(members.now())
    alike = Manifest(spec, len(links), on_disk=False) if manifest is None else manifest
    if found is None or not found.checkpoint:  # before there is a cut that bears it
        replace(alike if found is None else found, cut=before, checkpoint=name).write(folder)
    for one in own:  # of an attempt that failed
        if one.name != f"cut-{before}":
            _remove(one)
    number = before + 1
    while (target := folder / f"cut-{number}").exists():  # there were others' files in it
        number += 1
    target.mkdir()
    write_whole(target / MARK, json.dumps({"cut": number, "checkpoint": name}))
    try:
        try:
            members.call(Request.PAUSE)  # where one shard is lost, the others are paused, and are to go on
            tickets = [
                (link, link.submit(Request.CHECKPOINT, {"path": str(target / f"shard-{number}")}))
                for number, link in enumerate(links)
            ]
            said = [link.wait(ticket).head for link, ticket in tickets]
        finally:
            members.call(Request.RESUME)  # which a shard answers once it has written
    except ShardLostError:  # it may be writing still; the next checkpoint removes that
        raise
    except Exception:
        _remove(target)
        raise
    on_disk = any(one["on_disk"] for one in said)
    new = alike.new or _largest([one.get("new", {}) for one in said])
    replace(alike, shards=len(said), on_disk=on_disk, cut=number, checkpoint=name, new=new).write(folder)
    for one in own:
        if one.name == f"cut-{before}":
            _remove(one)


def _largest(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of the first of several shards' stores, with the largest of each limit that all have."""
    limits: dict[str, list[Any]] = {name: [one.get(name) for one in each] for name in LIMITS}
    most = {name: max(values) for name, values in limits.items() if None not in values}
    return {name: value for name, value in each[0].items() if name not in LIMITS} | most


def _is_own(cut: Path, checkpoint: str, named: int) -> bool:
    """Return whether the checkpoint of that name made a folder.

    Such a folder bears its mark, or is named by the manifest, or holds only a partial mark of an interrupted write.
    """
    if cut.is_symlink() or not cut.is_dir() or not re.fullmatch("cut-[0-9]{1,9}", cut.name):
        return False
    if cut.name == f"cut-{named}" or all(one.name == f"{MARK}.partial" for one in cut.iterdir()):
        return True
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return bool(json.loads((cut / MARK).read_bytes()).get("checkpoint") == checkpoint)
    return False


def _remove(cut: Path) -> None:
    """Delete the shards' files in a cut, as far as possible; other files stay, and so does the folder then."""
    with contextlib.suppress(OSError):
        for one in cut.iterdir():
            if re.fullmatch("shard-[0-9]+", one.name) and not one.is_symlink():
                shutil.rmtree(one, ignore_errors=True)
            elif re.fullmatch(rf"shard-[0-9]+-{re.escape(LEASES)}(\.partial)?", one.name):
                one.unlink()
        left = {one.name for one in cut.iterdir()}
        if left <= {MARK, f"{MARK}.partial"}:
            for name in left:
                (cut / name).unlink()
            cut.rmdir()


@contextlib.contextmanager
def opening(
    path: str | os.PathLike[str], disk: str | os.PathLike[str] | None
) -> Iterator[tuple[Manifest, Path | None, Path | None]]:
    """Provide the manifest of a folder to open, the folder of the shards, and the folder of the cut they start from.

    The shards' folder is locked meanwhile; ``disk`` becomes valid once the shards' manifest is written to it.

    Raises: as ``Cluster.open``.
    """
    folder = checked_folder("open", path).absolute()
    found = Manifest.read(folder)
    found.check_whole(folder)
    if not found.cut:
        if disk is not None:
            raise ValueError(f"open: disk={os.fspath(disk)!r}, but {folder} is no checkpoint; leave disk= out")
        with alone(folder):
            yield Manifest.read(folder), folder, None
        return
    begins_from = folder / f"cut-{found.cut}"
    if disk is None:
        if found.on_disk:
            raise ValueError(f"open: {folder} is a checkpoint of a cluster on disk; give disk=, a new folder for it")
        yield found, None, begins_from
        return
    target = checked_folder("disk", disk).absolute()
    _unfinished(target)  # before anything is written there
    with Files().make_folder(target) as directory, Hold(directory, wait_s=END_S):
        left = _unfinished(target)
        for number in range(0 if left is None else left.shards):
            delete_when_free(target / f"shard-{number}")
        replace(found, cut=0, checkpoint="", on_disk=True, opening=str(folder)).write(target)
        yield found, target, begins_from


def _unfinished(target: Path) -> Manifest | None:
    """Return the manifest of a folder into which a checkpoint was copied in part; ``None``: it is new or empty.

    Raises: as ``empty_folder``.
    """
    if (target / CLUSTER).exists() and (left := Manifest.read(target)).opening:
        return left
    empty_folder(target)
    return None


def delete_when_free(shard: Path) -> None:
    """Delete a shard's store that may not be whole, once no process has it.

    Raises: StoreInUseError: a process has it.  OSError: it cannot be deleted.
    """
    if (shard / STORE).is_dir():
        with Directory.open(shard / STORE) as directory, Hold(directory, wait_s=END_S):
            pass  # the shard had already ended, since its parent was killed
    delete_shard(shard)
    if (shard / STORE).exists():
        raise FileExistsError(f"open: {shard / STORE} is not whole, and cannot be deleted; delete it")


def delete_shard(folder: Path) -> None:
    """Delete a shard's store, replicas and writers' lanes; other files in its folder stay."""
    for one in (folder / STORE, folder / MERGING, *folder.glob("replica-of-*")):
        if one.is_dir():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (folder / LEASES).unlink(missing_ok=True)
        folder.rmdir()
