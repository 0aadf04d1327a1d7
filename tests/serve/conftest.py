"""Shards of these tests are forks of a process that has imported the package; the command line's tests start them."""

from collections.abc import Iterator

import pytest

from sharpwave.serve import local_shards
from tests.support.forked import ForkedProgram


@pytest.fixture(autouse=True, scope="session")
def forked_shards() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_shards, "Program", ForkedProgram)
        yield
