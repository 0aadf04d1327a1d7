"""Description of the machine and the software that is measured."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "sharpwave", "numpy", "zstandard", "torch", "gymnasium", "ale-py", "stable-baselines3", "cpprb",
    "tianshou", "torchrl",
)  # fmt: skip
ASSUMED_BYTES = 4 << 30
"""Assumed available memory on systems that do not report it."""


def environment(packages: Iterable[str] = PACKAGES) -> dict[str, Any]:
    """Return the date, the machine, its load, and the versions of ``packages``."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def available_bytes() -> int:
    """Return the memory that is free or used only as file cache."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) << 10
    except (OSError, StopIteration):
        pages = getattr(os, "sysconf_names", {}).get("SC_PHYS_PAGES")
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if pages is not None else ASSUMED_BYTES


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
