"""Cuts: checkpoints of a cluster at one moment, and what a cluster is opened from."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sharpwave.disk.ownership import MARK
from sharpwave.disk.store_folder import Hold
from sharpwave.native.directory import Directory
from sharpwave.native.files import Files
from sharpwave.serve.intake import LEASES
from sharpwave.serve.link import Link, ShardLostError
from sharpwave.serve.manifest import CLUSTER, Manifest, alone, empty_folder, write_whole
from sharpwave.serve.process import STORE, delete_shard
from sharpwave.serve.requests import Request
from sharpwave.spec import Spec
from sharpwave.validation import checked_folder

END_S = 10.0
"""How long shards whose parent was killed may take to end."""


def cut(
    links: Sequence[Link],
    call: Callable[[Request], Any],
    path: str | os.PathLike[str],
    spec: Spec,
    manifest: Manifest | None,
) -> None:
    """Write a checkpoint of all shards at one moment: as ``Cluster.checkpoint``.

    Args:
        call: sends a request to every shard. ``manifest``: what is known of the shards; ``None``: their number.

    Raises:
        OSError: a shard cannot write; an earlier checkpoint there is unchanged.
        FileExistsError: the folder holds something else than checkpoints of clusters.
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
            call(Request.PAUSE)  # where one shard is lost, the others are paused, and are to go on
            tickets = [
                (link, link.submit(Request.CHECKPOINT, {"path": str(target / f"shard-{number}")}))
                for number, link in enumerate(links)
            ]
            said = [link.wait(ticket).head for link, ticket in tickets]
        finally:
            call(Request.RESUME)  # which a shard answers once it has written
    except ShardLostError:  # it may be writing still; the next checkpoint removes that
        raise
    except Exception:
        _remove(target)
        raise
    on_disk = any(one["on_disk"] for one in said)
    replace(alike, shards=len(said), on_disk=on_disk, cut=number, checkpoint=name).write(folder)
    for one in own:
        if one.name == f"cut-{before}":
            _remove(one)


def _is_own(cut: Path, checkpoint: str, named: int) -> bool:
    """Return whether a checkpoint of that name made a folder: it bears a mark, or is the one that the folder names, or
    has nothing else than a part of its mark, as it could not be marked any more."""
    if cut.is_symlink() or not cut.is_dir() or not re.fullmatch("cut-[0-9]{1,9}", cut.name):
        return False
    if cut.name == f"cut-{named}" or all(one.name == f"{MARK}.partial" for one in cut.iterdir()):
        return True
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return bool(json.loads((cut / MARK).read_bytes()).get("checkpoint") == checkpoint)
    return False


def _remove(cut: Path) -> None:
    """Delete what shards wrote to a cut, as far as possible; what else is in it stays, and so does the folder."""
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
    """Provide what a folder holds that is opened, the folder of the shards, and that of the cut that they begin with.

    The shards' folder is locked meanwhile; ``disk`` counts once the manifest is written to it that these shards have
    then.

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
    """Return what a folder says into which a checkpoint was not copied to the end; ``None``: it is new or empty.

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
            pass  # a shard whose parent was killed has ended
    delete_shard(shard)
    if (shard / STORE).exists():
        raise FileExistsError(f"open: {shard / STORE} is not whole, and cannot be deleted; delete it")
