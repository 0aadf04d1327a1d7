"""Settings of a store: its arguments, checked, and as ``store.json`` keeps them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sharpwave.arguments import is_integer
from sharpwave.codecs.codec_registry import codec_choice, is_known, not_loaded
from sharpwave.disk.store_folder import MANIFEST_BYTES
from sharpwave.errors import DamagedError, UnknownCodecError
from sharpwave.format.annotations import MAX_STORE_BYTES, Annotations
from sharpwave.format.segment_header import required_names
from sharpwave.memory.segment_layout import default_stride, max_segment_bytes
from sharpwave.sampling.ordered import Fifo
from sharpwave.sampling.retention import LowestPriority, Reservoir
from sharpwave.spec import Spec
from sharpwave.validation import check_capacity, parse_bytes

MIN_RAM_BYTES = 4 << 20
MIN_DISK_BYTES = 16 << 20
LEAST = {"capacity": 2, "ram": MIN_RAM_BYTES, "disk_limit": MIN_DISK_BYTES}
"""The lowest limits that a store can have."""
ON_FULL = ("raise", "block", "drop_oldest", "drop_newest")
LIMITS = ("capacity", "ram", "disk_limit")
RETENTIONS: dict[str, Any] = {kind.__name__: kind for kind in (Fifo, LowestPriority, Reservoir)}
MAX_SEGMENT_STEPS = 65536
MAX_SEGMENT_BYTES = 1 << 30
"""Limit of a segment's rows, decoded."""
MAX_SETTINGS_BYTES = MANIFEST_BYTES - MAX_STORE_BYTES - (64 << 10)
"""Of the settings in ``store.json``, fields' names and metadata included: annotations have room beside them."""


@dataclass(frozen=True)
class Settings:
    """Settings of one store. ``retention`` is the caller's, and copied where it is used."""

    spec: Spec
    capacity: int | None
    ram: int | None
    on_disk: bool
    disk_limit: int | None
    on_full: str
    codecs: dict[str, str]
    retention: Fifo | Reservoir | LowestPriority
    seed: int
    segment_steps: int

    @classmethod
    def checked(
        cls,
        spec: Spec,
        *,
        capacity: Any,
        ram: Any = None,
        on_disk: bool = False,
        disk_limit: Any = None,
        on_full: Any = "raise",
        codec: str | Mapping[str, str],
        retention: Any = None,
        seed: Any = 0,
        segment_steps: Any,
    ) -> Settings:
        """Check arguments.  Raises: ValueError, TypeError: naming the argument."""
        if not isinstance(spec, Spec):
            raise TypeError(f"Store: spec is {spec!r}, expected a sharpwave.Spec")
        if on_full not in ON_FULL:
            raise ValueError(f"Store: on_full={on_full!r}, expected one of {', '.join(ON_FULL)}")
        if retention is not None and not isinstance(retention, (Fifo, Reservoir, LowestPriority)):
            raise TypeError(
                f"Store: retention is {retention!r}, expected sharpwave.Fifo(), Reservoir() or LowestPriority()"
            )
        if not is_integer(seed) or seed < 0:
            raise ValueError(f"Store: seed={seed!r}, expected an integer of at least 0")
        limits = checked_limits(capacity, ram, disk_limit, on_disk)
        settings = cls(
            spec,
            on_disk=on_disk,
            on_full=on_full,
            codecs=_codecs(spec, codec),
            retention=Fifo() if retention is None else copy.deepcopy(retention),
            seed=int(seed),
            segment_steps=_stride(spec, segment_steps, limits, on_disk),
            **limits,
        )
        nbytes = len(json.dumps(settings.manifest(), indent=1))
        if nbytes > MAX_SETTINGS_BYTES:
            raise ValueError(
                f"Store: its settings take {nbytes:,} bytes of store.json, expected at most {MAX_SETTINGS_BYTES:,}; "
                "shorten fields' names and metadata"
            )
        return settings

    @property
    def max_step_bytes(self) -> int | None:
        """Bytes of the steps that ``capacity`` allows, unencoded; ``None``: no limit."""
        return None if self.capacity is None else self.capacity * self.spec.step_bytes

    def limited(self, capacity: Any, ram: Any, disk_limit: Any) -> Settings:
        """Return these settings with other limits.  Raises: ValueError: naming the argument."""
        found: dict[str, Any] = {**checked_limits(capacity, ram, disk_limit, self.on_disk)}
        return replace(self, **found)

    def manifest(self) -> dict[str, Any]:
        """Return the JSON values that ``from_manifest`` reads."""
        return {
            "schema": self.spec.schema_hash,
            "spec": self.spec.description(),
            "codecs": self.codecs,
            "segment_steps": self.segment_steps,
            "capacity": self.capacity,
            "ram": self.ram,
            "disk_limit": self.disk_limit,
            "on_full": self.on_full,
            "retention": {"kind": type(self.retention).__name__, **self.retention.settings()},
            "seed": self.seed,
            **({"requires": names} if (names := required_names(self.spec, self.on_disk)) else {}),
        }

    @classmethod
    def from_manifest(cls, folder: Path, manifest: Mapping[str, Any], on_disk: bool, **given: Any) -> Settings:
        """Return the settings in ``store.json``, overridden by those ``given`` that are not ``None``.

        Raises:
            DamagedError: no store wrote it.  ValueError: a given setting is invalid.
        """
        said = cls.said(folder, manifest)
        now: dict[str, Any] = {name: getattr(said, name) for name in (*LIMITS, "on_full", "seed")}
        now |= {name: value for name, value in given.items() if value is not None}
        fixed: dict[str, Any] = {"codec": said.codecs, "segment_steps": said.segment_steps, "retention": said.retention}
        return cls.checked(said.spec, on_disk=on_disk, **now, **fixed)

    @classmethod
    def said(cls, folder: Path, manifest: Mapping[str, Any]) -> Settings:
        """Parse the settings in ``store.json``; every reader calls this.

        Raises:
            DamagedError: not as a store writes it.  UnknownCodecError.
        """
        _check_codecs(folder, manifest.get("codecs"))
        on_disk = bool(manifest.get("on_disk", not manifest.get("checkpoint")))
        try:
            if absent := {"spec", "schema", "codecs", "segment_steps", "retention", *LIMITS, "seed"} - manifest.keys():
                raise ValueError(f"{min(absent)!r} is missing")
            whole: dict[str, Any] = {name: manifest[name] for name in (*LIMITS, "segment_steps", "seed")}
            for name, value in whole.items():
                if type(value) is not int and not (value is None and name in LIMITS):
                    raise ValueError(f"{name} {value!r}, expected an integer")
            spec, codecs, retention = Spec.from_json(manifest["spec"]), manifest["codecs"], manifest["retention"]
            if spec.schema_hash != manifest["schema"]:
                raise ValueError(f"schema {manifest['schema']!r}, expected {spec.schema_hash}, that of its spec")
            if not isinstance(codecs, dict) or codecs.keys() != spec.fields.keys():
                raise ValueError(f"codecs {codecs!r}, expected one for each of {list(spec.fields)}")
            if not isinstance(retention, dict) or retention.get("kind") not in RETENTIONS:
                raise ValueError(f"retention {retention!r}, expected one of {', '.join(RETENTIONS)}")
            Annotations(manifest.get("annotations"))
            return cls.checked(
                spec,
                on_disk=on_disk,
                on_full=manifest.get("on_full"),
                codec=codecs,
                retention=RETENTIONS[retention["kind"]](**{k: v for k, v in retention.items() if k != "kind"}),
                **whole,
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise DamagedError(f"{folder}: store.json is not what a store writes ({error}); put back a copy") from error


def checked_limits(capacity: Any, ram: Any, disk_limit: Any, on_disk: bool) -> dict[str, int | None]:
    """Return limits by name.  Raises: ValueError: naming the argument, or because there is no limit."""
    found = {
        "capacity": check_capacity(capacity),
        "ram": None if ram is None else parse_bytes(ram),
        "disk_limit": None if disk_limit is None else parse_bytes(disk_limit, "disk_limit"),
    }
    if found["capacity"] is None and found["disk_limit" if on_disk else "ram"] is None:
        limit = "disk_limit=" if on_disk else "ram="
        raise ValueError(
            f"Store: give capacity= (steps), {limit} (bytes) or both; without either it would never be full"
        )
    if found["disk_limit"] is not None and (not on_disk or found["disk_limit"] < MIN_DISK_BYTES):
        raise ValueError(
            f"Store: disk_limit={disk_limit!r}, expected at least {MIN_DISK_BYTES >> 20} MiB, and a folder as disk="
        )
    if found["ram"] is not None and found["ram"] < MIN_RAM_BYTES:
        raise ValueError(f"Store: ram={ram!r}, expected at least {MIN_RAM_BYTES >> 20} MiB")
    return found


def _stride(spec: Spec, segment_steps: Any, limits: Mapping[str, int | None], on_disk: bool) -> int:
    if segment_steps is not None:
        if not is_integer(segment_steps) or not 1 <= segment_steps <= MAX_SEGMENT_STEPS:
            raise ValueError(
                f"Store: segment_steps={segment_steps!r}, expected an integer from 1 to {MAX_SEGMENT_STEPS}"
            )
        if max_segment_bytes(spec, int(segment_steps)) > MAX_SEGMENT_BYTES:
            raise ValueError(
                f"Store: segment_steps={segment_steps}, {spec.step_bytes:,} bytes each, exceed the limit of "
                f"{MAX_SEGMENT_BYTES >> 20:,} MiB a segment; lower it"
            )
        return int(segment_steps)
    stride = default_stride(spec.step_bytes, on_disk)
    if (capacity := limits["capacity"]) is not None:
        stride = min(stride, capacity // 16)
    if (ram := limits["ram"]) is not None:
        stride = min(stride, ram // 64 // spec.step_bytes)
    while stride > 1 and max_segment_bytes(spec, stride) > MAX_SEGMENT_BYTES:
        stride //= 2
    return max(1, stride)


def _codecs(spec: Spec, codec: str | Mapping[str, str]) -> dict[str, str]:
    given = codec if isinstance(codec, Mapping) else dict.fromkeys(spec.fields, codec)
    unknown = set(given) - set(spec.fields)
    if unknown:
        raise ValueError(f"Store: codec names unknown field {min(unknown)!r}; there are {list(spec.fields)}")
    apart = {name: "rows of any length have a codec of their own" for name in spec.ragged_names}
    apart |= {name: "shared values have no codec" for name in spec.shared_names}
    for name, why in apart.items():
        if isinstance(codec, Mapping) and given.get(name, "auto") != "auto":
            raise ValueError(f"Store: codec {given[name]!r} for {name!r}, whose {why}; leave it out")
    return {
        name: "auto" if name in apart else codec_choice(field.codec or given.get(name, "auto"), "Store")
        for name, field in spec.fields.items()
    }


def _check_codecs(folder: Path, codecs: Any) -> None:
    """Refuse fields packed with a codec that is not registered.  Raises: UnknownCodecError."""
    for name, codec in codecs.items() if isinstance(codecs, dict) else ():
        if isinstance(codec, str) and not is_known(codec):
            raise UnknownCodecError(f"{folder}: field {name!r} is packed with codec {codec!r}{not_loaded()}")
