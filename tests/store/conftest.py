"""Fixtures of the store's tests."""

from __future__ import annotations

from typing import Any

import pytest

import sharpwave as sw
from tests.store.refusals import spec
from tests.support.oracle import play_all


@pytest.fixture
def store() -> Any:
    with sw.Store(spec(), capacity=60, segment_steps=4, seed=1) as one:
        play_all(one, "abc|F de.G fg", lane=0)
        play_all(one, "uvw", lane=1)
        yield one
