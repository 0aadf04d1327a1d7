"""Weights in shared memory: whatever the other process does at that moment, a reader gets a whole version or none."""

import time

import numpy as np
import pytest
import torch

from sharpwave.agents.dqn import DQN
from sharpwave.agents.inputs import FrameInputs
from sharpwave.serve.supervisor import CONTEXT
from sharpwave.training import setup
from sharpwave.training.actors import channels as shared
from sharpwave.training.actors.channels import SharedWeights, load, shared_weights
from sharpwave.training.recipes import load_recipe
from tests.support.examples import examples

COUNT = 20_000


def hammer(weights, end):
    """Publish as fast as possible: version v is COUNT numbers v."""
    numbers = torch.empty(COUNT)
    while not end.value:
        weights.publish([numbers.fill_(weights.latest + 1)])


def test_no_read_is_torn_while_another_process_publishes_as_fast_as_it_can(monkeypatch):
    slow = np.random.default_rng(0)

    def copy(into, numbers):
        """Every other copy is interrupted in the middle, for long enough to be overtaken."""
        np.copyto(into[: COUNT // 2], numbers[: COUNT // 2])
        if slow.random() < 0.5:
            time.sleep(0.002)
        np.copyto(into[COUNT // 2 :], numbers[COUNT // 2 :])

    monkeypatch.setattr(shared, "_copy", copy)
    weights, end = SharedWeights(COUNT), CONTEXT.RawValue("b", 0)
    writer = CONTEXT.Process(target=hammer, args=(weights, end), daemon=True)
    writer.start()
    into, versions = np.empty(COUNT, np.float32), [0]
    limit = time.monotonic() + 240
    try:
        while len(versions) < examples(150) and writer.is_alive():
            assert time.monotonic() < limit, f"{len(versions)} versions read in 240 s"
            version = weights.read(into)
            if version is not None and version != versions[-1]:
                assert (into == version).all(), f"version {version} holds {np.unique(into)}"
                versions.append(version)
    finally:
        end.value = 1
        writer.join(20)
    assert writer.exitcode == 0 and versions == sorted(versions)


def test_a_writer_that_dies_in_the_middle_leaves_the_version_before():
    weights = SharedWeights(4)
    into = np.zeros(4, np.float32)
    assert weights.latest == 0 and weights.read(into) is None
    weights.publish([torch.ones(4)])
    assert weights.publish([torch.tensor([[1.0, 2.0]]), torch.tensor([3.0, 4.0])]) == 2

    class DyingError(Exception):
        pass

    class Dying(torch.Tensor):
        def numel(self):
            raise DyingError

    with pytest.raises(DyingError):
        weights.publish([torch.full((2,), 9.0), torch.ones(2).as_subclass(Dying)])
    assert weights.read(into) == 2 and into.tolist() == [1, 2, 3, 4]
    assert weights.publish([torch.zeros(4)]) == 3
    weights._slots[1][2] = 5.0  # as if a core saw the version before the numbers
    assert weights.read(into) is None


@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_an_agent_with_the_weights_of_another_acts_alike(name):
    recipe = load_recipe(name).override(num_envs=2, precision="float32")
    env = setup.environments(recipe)
    obs, _ = env.reset(seed=1)
    one, two = setup.agent(recipe, env), setup.agent(recipe.override(seed=7), env)
    assert isinstance(one, DQN) and isinstance(two, DQN)
    if recipe.agent.standardize:
        assert isinstance(one.inputs, FrameInputs)
        one.inputs.standardize(torch.from_numpy(np.ascontiguousarray(obs)))
    assert not np.array_equal(one.values(obs), two.values(obs))
    weights = shared_weights(one)
    weights.publish([*one.policy_tensors(explore=True).values()])
    numbers = np.empty(weights.count, np.float32)
    assert weights.read(numbers) == 1
    load(two, numbers)
    np.testing.assert_array_equal(one.values(obs), two.values(obs))
    acted = two.act(obs, two.begin(2), 0, explore=False)
    np.testing.assert_array_equal(one.values(obs).argmax(axis=1), acted.action)
    env.close()
