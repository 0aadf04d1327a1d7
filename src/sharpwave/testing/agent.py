"""Conformance suite for agents.

    class TestMine(AgentSuite):
        def make_agent(self, spaces: Spaces, seed: int) -> Agent:
            return Mine(spaces, Mine.Settings(), seed=seed)

Run by pytest, it checks that the agent's actions and fields are as declared, that lanes are independent, that the same
seed gives the same actions, that its state and its policy survive a file, and that it learns from its own view.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Space
from gymnasium.vector.utils import batch_space
from safetensors.torch import load, save

import sharpwave as sw
from sharpwave.agents.learner import NetworkAgent, to_tensors
from sharpwave.agents.protocol import Acted, Agent, Spaces
from sharpwave.configuration import from_table, leaves, to_table
from sharpwave.training.checkpoints import is_tensors

LANES, STEPS = 3, 60
ACTING_STEPS = 30
"""Steps of tests that only look at what an agent does; twice as many are stored to learn from."""


class AgentSuite:
    """Tests that every agent passes. Subclasses make the agent and choose spaces in which it can learn.

    Attributes:
        spaces: spaces of the observations and actions that the tests generate.
    """

    spaces = Spaces(Box(-1.0, 1.0, (3,), np.float32), Discrete(4), "the suite's environment")

    def make_agent(self, spaces: Spaces, seed: int) -> Agent:
        """Make a fresh agent on the CPU."""
        raise NotImplementedError

    def fresh(self, seed: int = 0) -> Agent:
        """Make an agent whose initial weights also come from the seed."""
        torch.manual_seed(seed)
        return self.make_agent(self.spaces, seed)

    def observations(self, seed: int, lanes: int = LANES) -> Any:
        """Sample observations of several lanes, as a vector of environments returns them."""
        if lanes not in self._batched:
            self._batched[lanes] = batch_space(self.spaces.observation, lanes)
        self._batched[lanes].seed(seed)
        return self._batched[lanes].sample()

    @functools.cached_property
    def _batched(self) -> dict[int, Space[Any]]:
        """Spaces of several lanes' observations by the number of lanes: making one takes as long as a small network."""
        return {}

    def played(
        self, agent: Agent, lanes: int = LANES, steps: int = ACTING_STEPS
    ) -> Iterator[tuple[Any, Acted, Any, Any, Any]]:
        """Yield observations, actions, rewards, terminated and truncated of steps in a synthetic environment."""
        rng, state = np.random.default_rng(7), agent.begin(lanes)
        for step in range(steps):
            obs = self.observations(step, lanes)
            acted = agent.act(obs, state, step * lanes)
            reward = rng.normal(size=lanes).astype(np.float32)
            terminated, truncated = rng.random(lanes) < 0.1, rng.random(lanes) < 0.1
            yield obs, acted, reward, terminated, truncated
            state = agent.observe(acted.state, reward, terminated | truncated)

    def batches(self, agent: Agent, count: int) -> list[Any]:
        """Sample batches of tensors from the agent's view on a store of its own steps."""
        space = self.spaces.observation
        parts = dict(space.spaces) if isinstance(space, Dict) else {"": space}
        fields = {key: sw.Field(part.shape or (), str(part.dtype)) for key, part in parts.items()}
        action = self.spaces.action
        spec = sw.Spec(
            obs=fields if isinstance(space, Dict) else fields[""],
            action=sw.Field(action.shape or (), str(action.dtype)),
            **agent.step_fields(),
        )
        with sw.Store(spec, capacity=10 * STEPS * LANES, seed=0) as store:
            view = agent.replay().open(store, "learner", 0)
            for obs, acted, reward, terminated, truncated in self.played(agent, steps=STEPS):
                store.extend(
                    obs=obs, action=acted.action, reward=reward, terminated=terminated, truncated=truncated,
                    final_obs=obs, **acted.fields,
                )  # fmt: skip
            if agent.first_look:
                agent.prepare(view.sample(agent.first_look).torch(agent.device))
            size = agent.replay().batch_size
            return [view.sample(size).copy().torch(agent.device) for _ in range(count)]

    # settings

    def test_settings_are_frozen_and_survive_a_table_and_a_pipe(self) -> None:
        """Runs keep settings in config.json, and send them to actor processes."""
        agent = self.fresh()
        settings = agent.settings
        assert isinstance(settings, type(agent).Settings) and isinstance(type(settings).kind, str)
        assert dataclasses.is_dataclass(settings) and hash(settings) == hash(pickle.loads(pickle.dumps(settings)))
        table = json.loads(json.dumps(to_table(settings)))
        defaults: Any = type(agent).Settings()
        assert from_table(defaults, table) == settings
        for leaf in leaves(settings):
            assert leaf.field.metadata.get("help"), f"{leaf.key}: declare it with sharpwave.configuration.setting(...)"

    # acting

    def test_actions_and_fields_are_what_is_declared(self) -> None:
        """Each lane has an action of the space and every field of ``step_fields``."""
        agent = self.fresh()
        declared, valid = agent.step_fields(), self.spaces.action
        for _, acted, *_ in self.played(agent):
            assert len(acted.action) == LANES
            for action in acted.action:
                assert valid.contains(np.asarray(action, valid.dtype)[()]), f"{action} is not in {valid}"
            assert acted.fields.keys() == declared.keys()
            for name, field in declared.items():
                field.rows(name, acted.fields[name], LANES)

    def test_the_same_seed_explores_alike(self) -> None:
        """An agent with the same seed acts alike; one with another seed does not, unless it never explores."""

        def actions(seed: int) -> list[Any]:
            return [acted.action for _, acted, *_ in self.played(self.fresh(seed))]

        np.testing.assert_array_equal(actions(1), actions(1))

    def test_without_exploration_nothing_is_drawn(self) -> None:
        """Evaluations must not affect training."""
        agent = self.fresh()
        obs, before = self.observations(0), plain(agent.state())
        one = agent.act(obs, agent.begin(LANES), 0, explore=False)
        two = agent.act(obs, agent.begin(LANES), 10**9, explore=False)
        np.testing.assert_array_equal(one.action, two.action)
        assert plain(agent.state()) == before

    def test_values_along_an_episode_are_those_that_it_acts_by(self) -> None:
        """In parts or at once, for any taken actions; the greedy action has the largest Q."""
        agent = self.fresh()
        count, rng = 6, np.random.default_rng(3)
        obs, reward = self.observations(1, count), rng.normal(size=count).astype(np.float32)
        space = batch_space(self.spaces.action, count)
        space.seed(5)
        action = np.asarray(space.sample())

        def part(begin: int, end: int) -> Any:
            return {key: one[begin:end] for key, one in obs.items()} if isinstance(obs, dict) else obs[begin:end]

        whole = agent.values_along(obs, action, reward, agent.begin(1))
        if whole is None:
            return
        first = agent.values_along(part(0, 2), action[:2], reward[:2], agent.begin(1))
        assert first is not None
        second = agent.values_along(part(2, count), action[2:], reward[2:], first.state)
        assert second is not None
        np.testing.assert_allclose(np.concatenate([first.values, second.values]), whole.values, rtol=1e-4, atol=1e-5)
        assert whole.values.dtype == np.float32 and whole.taken.tolist() == [*first.taken, *second.taken]
        state = agent.begin(1)
        for t in range(count):
            acted = agent.act(part(t, t + 1), state, 0, explore=False)
            best = agent.values_along(part(t, t + 1), acted.action, reward[t : t + 1], state)
            assert best is not None and best.taken[0] == best.values[0].argmax()
            np.testing.assert_allclose(best.values[0], whole.values[t], rtol=1e-4, atol=1e-5)
            state = agent.replaced(acted.state, action[t : t + 1])
            state = agent.observe(state, reward[t : t + 1], np.zeros(1, np.bool_))

    def test_lanes_do_not_disturb_each_other(self) -> None:
        agent = self.fresh()
        together, alone = agent.begin(LANES), [agent.begin(1) for _ in range(LANES)]
        for step in range(5):
            obs = self.observations(step)
            acted = agent.act(obs, together, 0, explore=False)
            together = agent.observe(acted.state, np.ones(LANES, np.float32), np.zeros(LANES, np.bool_))
            for lane in range(LANES):
                single = agent.act(of_lane(obs, lane), alone[lane], 0, explore=False)
                # Continuous actions may differ by rounding: the order of a matrix product's sum depends on its shape.
                np.testing.assert_allclose(single.action[0], acted.action[lane], rtol=1e-5, atol=1e-6)
                alone[lane] = agent.observe(single.state, np.ones(1, np.float32), np.zeros(1, np.bool_))

    def test_an_episode_s_end_begins_its_lane_anew_and_no_other(self) -> None:
        """After its episode's end lane 0 acts as a fresh lane; lane 1 is not affected."""
        agent = self.fresh()

        def after(ended: list[bool]) -> Acted:
            state = agent.begin(LANES)
            for step in range(4):
                acted = agent.act(self.observations(step), state, 0, explore=False)
                last = step == 3
                state = agent.observe(
                    acted.state, np.ones(LANES, np.float32), np.array(ended if last else [False] * LANES)
                )
            return agent.act(self.observations(9), state, 0, explore=False)

        fresh = agent.act(self.observations(9), agent.begin(LANES), 0, explore=False)
        reset, going_on = after([True, False, False]), after([False] * LANES)
        for name, value in (("action", reset.action), *reset.fields.items()):
            expected = [fresh, going_on, going_on]
            for lane, acted in enumerate(expected):
                other = acted.action if name == "action" else acted.fields[name]
                np.testing.assert_array_equal(np.asarray(value)[lane], np.asarray(other)[lane], err_msg=name)

    def test_its_tensors_act_alike(self) -> None:
        """The form that is exported makes the actions of ``act`` without exploring, and carries the same memory."""
        agent = self.fresh()
        if not isinstance(agent, NetworkAgent):
            pytest.skip("agents of other bases are not exported")
        state, kind = agent.begin(LANES), agent.settings.kind
        memory = {name: torch.zeros(LANES, *shape) for name, shape in agent.memory().items()}
        rng = np.random.default_rng(5)
        for step in range(ACTING_STEPS):
            obs = self.observations(step)
            acted = agent.act(obs, state, 0, explore=False)
            try:
                with torch.inference_mode():
                    action, known = agent.decide(to_tensors(obs, agent.device), memory)
            except NotImplementedError as error:
                assert kind in str(error)
                pytest.skip(str(error))
            assert action.numpy().dtype == self.spaces.action.dtype
            np.testing.assert_allclose(action.numpy(), acted.action, rtol=1e-5, atol=1e-6)
            reward, ended = rng.normal(size=LANES).astype(np.float32), rng.random(LANES) < 0.2
            state = agent.observe(acted.state, reward, ended)
            outcome = {**known, "reward": torch.from_numpy(reward)}
            begun = torch.from_numpy(ended)
            memory = {
                name: torch.where(begun.view(-1, *[1] * len(shape)), 0.0, outcome[name])
                for name, shape in agent.memory().items()
            }

    def test_it_says_whether_it_remembers(self) -> None:
        """An agent that says it does not acts in every state as in a fresh one."""
        agent = self.fresh()
        if agent.remembers:
            return
        state = agent.begin(LANES)
        for step in range(ACTING_STEPS):
            obs = self.observations(step)
            acted = agent.act(obs, state, 0, explore=False)
            np.testing.assert_array_equal(acted.action, agent.act(obs, agent.begin(LANES), 0, explore=False).action)
            state = agent.observe(acted.state, np.ones(LANES, np.float32), np.zeros(LANES, np.bool_))

    def test_scored_lanes_and_schedules(self) -> None:
        agent = self.fresh()
        for lanes in (1, 8):
            scored = agent.scored_lanes(lanes)
            assert scored.shape == (lanes,) and scored.dtype == np.bool_ and scored.any()
        assert all(np.isfinite(value) for step in (0, 10**6, 10**12) for value in agent.schedules(step).values())

    def test_initial_errors_are_known_in_time(self) -> None:
        """Every step's error is known when the step can be sampled."""
        agent = self.fresh()
        errors = agent.initial_errors(LANES, STEPS) if agent.replay().prioritized else None
        if errors is None:
            pytest.skip("steps begin with the largest priority")
        for made, (obs, acted, reward, terminated, truncated) in enumerate(self.played(agent), 1):
            ended = terminated | truncated
            errors.add(acted, reward, terminated, truncated, obs if ended.any() else None)
            assert made - agent.replay().horizon <= errors.known <= made
        for lane in range(LANES):
            found = errors.of(lane, 0, errors.known)
            assert found.shape == (errors.known,) and found.dtype == np.float32 and np.isfinite(found).all()

    def test_another_can_compute_its_networks(self) -> None:
        """With the ``infer`` of an agent with other weights it acts by those weights alone, as in central inference."""
        other, agent = self.fresh(1), self.fresh(1)
        if agent.inference_space is None:
            pytest.skip("the agent computes its networks itself")
        torch.manual_seed(2)
        agent.load_policy(self.make_agent(self.spaces, 1).policy_tensors(explore=True))
        assert agent.inference_space == self.spaces.observation
        agent.infer = other.infer  # type: ignore[method-assign]
        expected, found = self.outcomes(other), self.outcomes(agent)
        for name, values in expected.items():
            np.testing.assert_array_equal(values, found[name], err_msg=name)

    def outcomes(self, agent: Agent) -> dict[str, Any]:
        """Return actions and fields of steps in a synthetic environment, and their initial errors, by name."""
        errors = agent.initial_errors(LANES, STEPS) if agent.replay().prioritized else None
        found: dict[str, Any] = {"action": [], **{name: [] for name in agent.step_fields()}}
        for obs, acted, reward, terminated, truncated in self.played(agent):
            found["action"].append(acted.action)
            for name in agent.step_fields():
                found[name].append(acted.fields[name])
            if errors is not None:
                errors.add(acted, reward, terminated, truncated, obs if truncated.any() else None)
        if errors is not None:
            found["errors"] = [errors.of(lane, 0, errors.known) for lane in range(LANES)]
        return found

    # learning

    def test_it_learns_from_its_own_view(self) -> None:
        """Updates give finite figures, change the policy, and do not modify their batch."""
        agent = self.fresh()
        batches = self.batches(agent, 20)
        before = agent.policy_tensors(explore=True)
        for step, batch in enumerate(batches):
            given = batch.map(lambda tensor: tensor.clone())
            learned = agent.learn(batch, step)
            assert same(vars(batch), vars(given)), "learn changed its batch"
            for name, value in learned.metrics.items():
                assert value.numel() == 1 and not value.requires_grad and value.isfinite(), name
            if agent.replay().prioritized:
                assert learned.td_error is not None, "a prioritized view needs td_error"
            if learned.td_error is not None:
                assert len(learned.td_error) == len(batch) and not learned.td_error.requires_grad
                assert learned.td_error.isfinite().all()
        assert not same(agent.policy_tensors(explore=True), before), "20 updates changed nothing"

    def test_the_same_updates_give_the_same_agent(self) -> None:
        one, two = self.fresh(3), self.fresh(3)
        for agent in (one, two):
            torch.manual_seed(5)
            for step, batch in enumerate(self.batches(agent, 5)):
                agent.learn(batch, 100 * step)
        assert same(one.state(), two.state())

    # saving

    def test_its_state_survives_a_file(self) -> None:
        """An agent restored from the file acts, explores and learns as the original."""
        agent, other = self.fresh(1), self.fresh(2)
        batches = self.batches(agent, 6)
        self.batches(other, 0)
        for step, batch in enumerate(batches[:3]):
            agent.learn(batch, 100 * step)
        other.load(through_a_file(agent.state()))
        assert same(agent.state(), other.state())
        actions: list[list[Any]] = []
        for one in (agent, other):
            torch.manual_seed(5)
            actions.append([acted.action for _, acted, *_ in self.played(one)])
            for step, batch in enumerate(batches[3:]):
                one.learn(batch, 1_000 + step)
        np.testing.assert_array_equal(actions[0], actions[1])
        assert same(agent.state(), other.state())

    @pytest.mark.parametrize("explore", [False, True])
    def test_its_policy_can_be_carried_to_another(self, explore: bool) -> None:
        """Actors and evaluations act by it; later updates do not change the returned tensors."""
        agent, player = self.fresh(1), self.fresh(2)
        batches = self.batches(agent, 4)
        for step, batch in enumerate(batches[:2]):
            agent.learn(batch, step)
        tensors = agent.policy_tensors(explore)
        assert all(tensor.device.type == "cpu" and not tensor.requires_grad for tensor in tensors.values())
        kept = {name: tensor.clone() for name, tensor in tensors.items()}
        player.load_policy(through_a_file({"policy": tensors})["policy"])
        assert same(player.policy_tensors(explore=True), kept)
        for step, batch in enumerate(batches[2:]):
            agent.learn(batch, step)
        assert same(tensors, kept), "policy_tensors gave out the agent's own memory"
        with pytest.raises((ValueError, KeyError)):
            player.load_policy({})


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if not is_tensors(value)}


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """Save and load a state as checkpoints do: groups of tensors as safetensors, other values as JSON."""
    groups = {name: value for name, value in state.items() if name not in plain(state)}
    tensors = {
        name: load(save({key: one.contiguous() for key, one in group.items()})) for name, group in groups.items()
    }
    return {**json.loads(json.dumps(plain(state))), **tensors}


def same(one: Any, other: Any) -> bool:
    """Return whether two nested structures of tensors and plain values are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return bool(one == other)


def of_lane(obs: Any, lane: int) -> Any:
    """Return the observations [1, ...] of one lane."""
    return (
        {name: part[lane : lane + 1] for name, part in obs.items()} if isinstance(obs, dict) else obs[lane : lane + 1]
    )
