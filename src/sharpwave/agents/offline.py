"""Settings that offline agents share: they learn from data that are there before, and step no environment."""

from __future__ import annotations

from dataclasses import dataclass

from sharpwave.configuration import setting

DATA = "Data"


@dataclass(frozen=True)
class OfflineSettings:
    """Settings of an agent that learns offline. A run's steps are its updates, and so are all periods."""

    data: str = setting(
        "",
        "what is learned from: the folder of a store or of a run, a checkpoint's folder or .sharpwave file, or a data "
        "set: npz:FILE, hdf5:FILE, minari:NAME, parquet:FILE, lerobot:FOLDER, rlds:FOLDER",
        DATA,
    )
    best_share: float = setting(
        1.0, "share of the data's episodes that is learned from, those of the highest returns", DATA, above=0, at_most=1
    )
