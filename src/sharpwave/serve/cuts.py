"""Cuts: checkpoints of a cluster at one moment, and what a cluster is opened from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sharpwave.serve.link import Link
from sharpwave.serve.manifest import CLUSTER, Manifest, is_ours, new_folder
from sharpwave.serve.requests import Request
from sharpwave.spec import Spec
from sharpwave.validation import checked_folder


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
    """
    folder = checked_folder("checkpoint", path)
    folder.mkdir(parents=True, exist_ok=True)
    before = Manifest.read(folder).cut if (folder / CLUSTER).exists() else 0
    others = [one.name for one in folder.iterdir() if not is_ours(one.name)]
    if others or (not before and (folder / CLUSTER).exists()):
        what = others[0] if others else "a cluster that is no checkpoint"
        raise FileExistsError(f"checkpoint: {folder} holds {what}; give a new or empty folder")
    target = folder / f"cut-{before + 1}"
    if target.exists():  # of an attempt that failed
        shutil.rmtree(target)
    try:
        call(Request.PAUSE)  # where one shard is lost, the others are paused, and are to go on
        tickets = [
            (link, link.submit(Request.CHECKPOINT, {"path": str(target / f"shard-{number}")}))
            for number, link in enumerate(links)
        ]
        said = [link.wait(ticket).head for link, ticket in tickets]
    finally:
        call(Request.RESUME)
    on_disk = any(one["on_disk"] for one in said)
    alike = Manifest(spec, len(said), on_disk) if manifest is None else manifest
    replace(alike, shards=len(said), on_disk=on_disk, cut=before + 1).write(folder)
    for old in folder.glob("cut-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def plan_of(
    path: str | os.PathLike[str], disk: str | os.PathLike[str] | None
) -> tuple[Manifest, Path | None, Path | None]:
    """Return what a folder holds that is opened, the folder of the shards, and that of the cut that they begin with.

    Raises: as ``Cluster.open``.
    """
    folder = checked_folder("open", path)
    found = Manifest.read(folder)
    if found.cut:
        if found.on_disk and disk is None:
            raise ValueError(f"open: {folder} is a checkpoint of a cluster on disk; give disk=, a new folder for it")
        return found, None if disk is None else new_folder(disk, found), folder / f"cut-{found.cut}"
    if disk is not None:
        raise ValueError(f"open: disk={os.fspath(disk)!r}, but {folder} is no checkpoint; leave disk= out")
    return found, folder, None
