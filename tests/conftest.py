"""Fixtures of the tests, their order, and how long hypothesis looks.

By default it looks at the same examples each time. ``SHARPWAVE_HYPOTHESIS_EXAMPLES=25 pytest`` looks at random ones, as
many as GitHub's jobs do, and 2000 as many as the nightly run; both hold also where a test has a number of examples of
its own (``tests/support/examples.py``).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Before anything imports torch, and for all processes that tests start: there are as many pytest workers as processors,
# and with a team of threads in each they would spin waiting for threads that have no processor.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # runs that ask for two threads

import hypothesis
import pytest

from tests.support.examples import ASKED, DEFAULT

LONGEST = [
    "cli/test_train.py", "training/test_front.py", "training/test_offline.py", "training/test_resume.py",
    "docs/test_code.py", "agents/test_conformance.py", "training/actors/test_nodes.py", "serve/test_late_values.py",
    "cli/test_bench.py", "training/test_seeds.py", "training/test_policies.py", "training/test_teams.py",
    "torture/test_torture.py", "examples/test_running.py", "training/test_held_out.py", "serve/test_folders.py",
    "cli/test_evaluate.py", "cli/test_record.py", "envs/test_atari_options.py", "training/actors/test_pool.py",
    "integrations/test_resets.py", "training/test_action_masks.py", "persistence/test_many_lives.py",
    "store/test_annotations.py", "training/test_loop.py", "persistence/test_crash.py",
    "training/test_continuous_actions.py", "sampling/test_retention.py", "benchmarks/test_imports.py",
    "training/test_resume_demonstrations.py", "disk/test_columns_apart.py", "views/test_conditions.py",
    "training/test_environments.py", "disk/test_compaction.py",
    "training/test_evaluate_beside.py", "training/actors/test_inference.py", "training/test_update_ratio.py",
    "training/test_rainbow_recipes.py", "training/test_own_parts.py", "data_sets/test_bounds.py",
    "views/test_at_once.py", "format/test_hostile.py", "training/test_hooks.py",
    "serve/test_merging.py", "store/test_recorder.py", "training/test_saving.py", "views/test_sequences.py",
    "cli/test_serve.py", "integrations/test_sb3.py", "integrations/test_tianshou.py",
    "views/test_conditions_machine.py", "store/test_late_columns.py", "offline/test_damage.py", "store/test_delete.py",
    "native/test_interrupts.py", "integrations/test_torchrl.py", "store/test_ragged_steps_machine.py",
    "agents/test_recurrent_updates.py", "store/test_shared.py",
]  # fmt: skip
"""Files whose tests, the slow ones included, take seven seconds of a processor or more, which begin first: workers are
given a file at a time, and none is to wait at the end for another's."""

# Until the tests are collected: what they import lives to the end, and would be looked through again and again.
gc.disable()

# Asking sets Python's own start method. Else torchrl sets "spawn" when it is imported, for all tests of the worker, and
# each environment in a process of its own imports what its test imports: 16 s of a processor in all.
multiprocessing.get_start_method()

# A shell starts what runs in its background with Ctrl-C ignored; tests interrupt themselves, and processes of theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "sharpwave",
    deadline=None,
    derandomize=ASKED is None,  # a change is not refused for what another one broke; GitHub's jobs look further
    max_examples=int(ASKED or DEFAULT),
    stateful_step_count=40,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    print_blob=True,
)
hypothesis.settings.load_profile("sharpwave")


@pytest.fixture(autouse=True, scope="session")
def quick_syncs() -> Iterator[None]:
    """No test waits for the disk: none cuts the power. (``faults.py`` plays power cuts on a disk of its own making.)"""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, os.fstat, raising=False)  # a descriptor that is none is still an error
        yield


@pytest.fixture(scope="session")
def forked_shards() -> Iterator[None]:
    """Shards that this process starts are forks. (The command line's tests start real ones, as do scripts of tests.)"""
    from sharpwave.serve import local_shards
    from tests.support.forked import ForkedProgram

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_shards, "Program", ForkedProgram)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    begin = {root / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: begin.get(item.path, len(LONGEST)))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # 800,000 objects that each `gc.collect()` of a test would look through
