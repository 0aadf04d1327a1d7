"""Clusters of these tests fork their shards."""

import pytest


@pytest.fixture(autouse=True)
def quick_shards(forked_shards: None) -> None:
    """Shards take no time to import the package."""
