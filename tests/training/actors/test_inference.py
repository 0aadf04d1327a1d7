"""Central inference: the same actions, bit for bit, as each actor's own networks give; whoever dies meanwhile."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from sharpwave.agents.dqn import DQN
from sharpwave.agents.registry import agent_settings
from sharpwave.serve.supervisor import ProcessDiedError
from sharpwave.training import setup
from sharpwave.training.actors.channels import Arrival, Counters, load, shared_weights
from sharpwave.training.actors.inference import (
    Asking,
    Inference,
    InferenceServer,
    Stopped,
    computes_rows_alike,
    layout_of,
)
from sharpwave.training.actors.pool import ActorPool, central_inference
from sharpwave.training.actors.worker import final_observations
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import run

from .test_pool import CARTPOLE, actors_of

SAME = {"threads": 1, "device": "cpu", "epsilon_start": 0.3, "epsilon_end": 0.3}
CART = CARTPOLE.override(num_envs=12, actors=3, **SAME)
MAZE = load_recipe("tmaze").override(num_envs=12, actors=3, **SAME)
PONG = load_recipe("atari").override(
    env="pong", frame="42x42", network="small", prioritized=True, num_envs=8, actors=2, **SAME
)


class Central:
    """A server in a thread, and a published policy."""

    def __init__(self, recipe, lanes, seed=1):
        env = recipe.env.make(1)
        self.recipe = recipe
        self.agent = setup.agent(recipe.override(seed=seed), env)
        env.close()
        self.counters, self.weights = Counters(len(lanes) + 1), shared_weights(self.agent)
        self.inference = Inference(layout_of(self.agent), lanes)
        self.version = self.weights.publish([*self.agent.policy_tensors(explore=True).values()])
        self.server = InferenceServer(recipe, len(lanes), self.counters, self.weights, self.inference)
        self.sizes: list[int] = []
        infer = self.server._agent.infer

        def counted(obs, *memory):
            results = infer(obs, *memory)
            self.sizes.append(len(results[0]))
            return results

        self.server._agent.infer = counted  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self.server.serve)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.counters.stop = True
        self.thread.join()

    def asking(self, actor):
        return Asking(self.inference, actor, lambda: not self.counters.stop)


def played(central, actor, lanes, steps, inferring):
    """Everything that an actor's agent makes of ``steps`` steps of its environments."""
    env = central.recipe.env.make(lanes.stop - lanes.start)
    agent = setup.agent(central.recipe, env, seed=[5, actor])
    if inferring is None:
        numbers = np.empty(central.weights.count, np.float32)
        assert central.weights.read(numbers) == central.version
        load(agent, numbers)
    else:  # its own weights are others
        agent.infer = inferring  # type: ignore[method-assign]
    errors = agent.initial_errors(env.num_envs, steps + 8) if agent.replay().prioritized else None
    obs, _ = env.reset(seed=100 + actor)
    state, made = agent.begin(env.num_envs, lanes.start, central.recipe.env.num_envs), []
    for step in range(steps):
        acted = agent.act(obs, state, step)
        made += [acted.action.copy(), *(np.array(field) for field in acted.fields.values())]
        obs, reward, terminated, truncated, infos = env.step(acted.action)
        ended = terminated | truncated
        if errors is not None:
            errors.add(
                acted,
                reward,
                terminated,
                truncated,
                final_observations(obs, infos["final_obs"], ended) if ended.any() else None,
            )
        state = agent.observe(acted.state, reward, ended)
    if errors is not None:
        made += [errors.of(lane, 0, errors.known) for lane in range(env.num_envs)]
    env.close()
    return made


@pytest.mark.parametrize(
    ("recipe", "sizes", "steps"),
    [
        pytest.param(CART, (4, 4, 4), 200, id="mlp"),
        pytest.param(CART, (3, 8, 1), 100, id="mlp-few-lanes"),
        pytest.param(MAZE, (4, 4, 4), 120, id="recurrent"),
        pytest.param(PONG, (4, 4), 40, id="frames", marks=pytest.mark.nightly),
    ],
)
def test_actions_are_those_of_local_inference_bit_for_bit(recipe, sizes, steps):
    """Actions, stored fields such as recurrent states, and first priorities, for every batch that comes about."""
    ends = np.cumsum(sizes).tolist()
    lanes = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    found = {}
    with setup.arithmetic(recipe), Central(recipe, lanes) as central:

        def play(actor):
            asking = central.asking(actor)
            found[actor] = played(central, actor, lanes[actor], steps, asking)
            assert asking.version == central.version

        threads = [threading.Thread(target=play, args=(actor,)) for actor in range(len(lanes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == len(lanes)
        for actor, part in enumerate(lanes):
            expected = played(central, actor, part, steps, None)
            assert len(expected) == len(found[actor]) >= steps
            for one, other in zip(expected, found[actor], strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)
        if central.server._joined:
            assert max(central.sizes) > max(sizes)  # several actors were answered together


class Summing(DQN):
    """Its values depend on how many rows there are, as a library's rounding may."""

    fewest = 2

    def infer(self, obs, *memory):
        (q,) = super().infer(obs)
        return (q + np.float32(1e-6) * (len(q) < self.fewest),)


def test_rows_are_computed_together_only_where_that_gives_the_same_bits():
    env = CART.env.make(1)
    agent = setup.agent(CART, env)
    env.close()
    assert isinstance(agent, DQN)
    summing = Summing(agent.spaces, agent.settings)
    lanes = [slice(0, 4), slice(4, 8)]
    assert computes_rows_alike(summing, layout_of(summing), lanes) == computes_rows_alike(
        agent, layout_of(agent), lanes
    )
    summing.fewest = 5
    assert not computes_rows_alike(summing, layout_of(summing), lanes)


def test_an_actor_that_waits_is_let_go_when_the_run_ends():
    central = Central(CART, [slice(0, 12)])  # nobody serves
    waiting = central.asking(0)
    timer = threading.Timer(0.3, lambda: setattr(central.counters, "stop", True))
    timer.start()
    with pytest.raises(Stopped):
        waiting(np.zeros((12, 4), np.float32))
    timer.join()


@pytest.mark.slow
def test_who_dies_is_replaced_and_stalls_nobody():
    """Processes: the one that computes is killed, then an actor, then again the first, too often."""
    recipe = CARTPOLE.override(num_envs=8, inference="central", warmup_steps=500_000, capacity=500_000)
    env = recipe.env.make(1)
    agent = setup.agent(recipe, env)
    env.close()
    counters, weights = Counters(recipe.actors.count + 1), shared_weights(agent)
    version = weights.publish([*agent.policy_tensors(explore=True).values()])
    inference = central_inference(recipe, agent)
    told: list[str] = []
    limit = time.monotonic() + 240

    def listen(until):
        while not until():
            assert time.monotonic() < limit, told
            for message in pool.receive(0.05):
                if isinstance(message, Arrival) and message.segment is not None:
                    assert message.version == version
                    steps[message.segment.lane // 4] += message.segment.steps

    with ActorPool(
        recipe, counters, weights, lambda lane, lanes: [0] * lanes, 0, 0, say=told.append, inference=inference
    ) as pool:
        steps = [0, 0]
        listen(lambda: min(steps) > 0)
        server, *actors = actors_of()
        server.kill()
        listen(lambda: pool.restarts == 1)
        before = list(steps)
        listen(lambda: steps[0] > before[0] and steps[1] > before[1])
        actors[1].kill()
        listen(lambda: pool.restarts == 2)  # not before its end was noticed, which on a busy machine comes later
        before = list(steps)
        listen(lambda: steps[0] > before[0] + 500)  # long before there is a successor
        pool.seats[0].restarts = recipe.actors.restarts
        pool.seats[0].process.kill()
        with pytest.raises(ProcessDiedError, match="the inference process died of: signal SIGKILL; restarts so far"):
            listen(lambda: False)
    assert [text.partition(" died")[0] for text in told] == ["The inference process", "Actor 1"]
    assert not actors_of()


def test_what_cannot_be_computed_for_many_is_refused(tmp_path):
    recipe = replace(CARTPOLE, agent=agent_settings("rainbow")(network="mlp", noisy=True))
    with pytest.raises(ValueError, match="agent 'rainbow' cannot be computed for many actors at once: its noise is"):
        run("noisy", recipe.override(inference="central"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="--inference: got 'central', expected local with --hub-listen or --ray"):
        CARTPOLE.override(inference="central", connect="127.0.0.1:1", hub_listen="127.0.0.1:2")
