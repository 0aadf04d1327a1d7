"""Plugin for pytest that puts Sharpwave's buffers in the place of a library's, and writes what its tests came to.

``peer_suites.py`` starts it, with environment variables: ``PEER``, the library's name; ``PEER_OUTCOMES``, the file that
gets a line of JSON for each test; and ``PEER_ALONE``, the places of those tests, as in "3,17", that are run with the
library's own buffers, no others then.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sharpwave.store import Store

made = 0
"""Stores begun, or opened, so far."""


def tianshou() -> None:
    """Replace the names that users import; Tianshou's modules go on building upon its own classes."""
    theirs, ours = import_module("tianshou.data"), import_module("sharpwave.integrations.tianshou")
    for name in set(ours.__all__) & set(vars(theirs)):
        setattr(theirs, name, getattr(ours, name))


def torchrl() -> None:
    """Replace the storage in memory, which TorchRL's buffers, samplers and writers use."""
    theirs, ours = (
        import_module("torchrl.data.replay_buffers.storages"),
        import_module("sharpwave.integrations.torchrl"),
    )
    put_everywhere("torchrl", theirs.LazyTensorStorage, ours.SharpwaveStorage)


def sb3() -> None:
    """Replace the buffers in all modules, so that algorithms make ours where none is asked for."""
    ours, theirs = import_module("sharpwave.integrations.sb3"), import_module("stable_baselines3.common.buffers")
    her = import_module("stable_baselines3").HerReplayBuffer
    put_everywhere("stable_baselines3", her, ours.HerReplayBuffer)
    put_everywhere("stable_baselines3", theirs.NStepReplayBuffer, ours.NStepReplayBuffer)
    put_everywhere("stable_baselines3", theirs.DictReplayBuffer, ours.ReplayBuffer)
    put_everywhere("stable_baselines3", theirs.ReplayBuffer, ours.ReplayBuffer)


def put_everywhere(package: str, theirs: Any, ours: Any) -> None:
    """Replace an object in each module of a package that has imported it."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] == package:
            for key in [key for key, value in vars(module).items() if value is theirs]:
                setattr(module, key, ours)


PEERS = {"tianshou": tianshou, "sb3": sb3, "torchrl": torchrl}


def pytest_configure() -> None:
    """Count stores, and replace buffers before a test imports them."""
    begin = Store._begin

    def counted(self: Store, *args: Any) -> None:
        global made
        made += 1
        begin(self, *args)

    Store._begin = counted  # type: ignore[assignment, method-assign]
    if "PEER_ALONE" not in os.environ:
        PEERS[os.environ["PEER"]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that ``PEER_ALONE`` names: by place, as names of tests contain those of buffers."""
    if "PEER_ALONE" in os.environ:
        items[:] = [items[int(place)] for place in os.environ["PEER_ALONE"].split(",")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note how many stores there were before the test."""
    item.stash[BEFORE] = made
    yield
    with Path(os.environ["PEER_OUTCOMES"]).open("a") as out:
        out.write(json.dumps(item.stash[OUTCOME] | {"stores": made - item.stash[BEFORE]}) + "\n")


BEFORE, OUTCOME = pytest.StashKey[int](), pytest.StashKey[dict[str, Any]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the outcome of a test, and the error that it ended with."""
    report = yield
    if report.when == "setup" or not report.passed:
        found = {"test": item.nodeid, "outcome": report.outcome, "error": ""}
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            found["error"] = " ".join((crash.message if crash else str(report.longrepr)).split())[:2000]
        item.stash[OUTCOME] = found
    return report
