"""Speed of central inference beside local inference: actors whose networks one process computes, or each its own.

    python benchmarks/inference.py --networks mlp --actors 1 2 4 8
    python benchmarks/inference.py --networks conv --actors 1 2 4 8

Printed are, for actors of 4 environments each, inferences a second (rows of observations through the network,
no environments) and environment steps a second (environments, recording and first priorities included; nobody
learns), central over local. Both ways are started, and take turns of ``--seconds`` while the other one is halted.
Networks: mlp, recipe cartpole (CartPole); conv, recipe atari (Pong, 4 frames of 84x84, the Nature network).
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import psutil
import runner

from sharpwave.agents.protocol import Agent
from sharpwave.serve.supervisor import CONTEXT
from sharpwave.training import setup
from sharpwave.training.actors.inference import Asking, Inference
from sharpwave.training.actors.pool import ActorPool, central_inference
from sharpwave.training.actors.shared import LINE, Counters, SharedWeights, load, shared_memory, shared_weights
from sharpwave.training.actors.worker import Task, infer
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Recipe

LANES = 4
SAME = {"device": "cpu", "prioritized": True, "epsilon_start": 0.1, "epsilon_end": 0.1}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("cartpole", {}),
    "conv": ("atari", {"env": "pong", "frame": "84x84", "network": "nature"}),
}


def recipe_of(network: str, actors: int, way: str) -> Recipe:
    """Return the recipe of a network, for so many actors."""
    name, own = NETWORKS[network]
    return load_recipe(name).override(**SAME, **own, num_envs=LANES * actors, actors=actors, inference=way)


def agent_of(recipe: Recipe) -> Agent:
    """Make the recipe's agent."""
    env = setup.environments(recipe, 1)
    agent = setup.agent(recipe, env)
    env.close()
    return agent


class Shared:
    """What the processes of one way share, and an agent whose weights are published there."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.agent = recipe, agent_of(recipe)
        self.counters = Counters(recipe.actors.count + recipe.actors.central)
        self.counters.tell(1_000_000, 1 << 60)  # no actor waits for a learner, and schedules have ended
        self.weights = shared_weights(self.agent)
        self.weights.publish([*self.agent.policy_tensors(explore=True).values()])
        self.inference = central_inference(recipe, self.agent)

    def pool(self) -> ActorPool:
        """Make the actors, which are not started."""
        return ActorPool(
            self.recipe, self.counters, self.weights, lambda lane, lanes: [0] * lanes, 0, 0, hung_s=1e9,
            inference=self.inference,
        )  # fmt: skip


def asks(
    task: Task, counters: Counters, weights: SharedWeights, inference: Inference | None, memory: Any, lanes: int
) -> None:
    """Infer without end, as an actor without environments. The target of a process."""
    recipe = task.recipe.override(threads=1)
    counted = np.frombuffer(memory, np.int64)
    with setup.arithmetic(recipe):
        agent = agent_of(recipe)
        space = agent.inference_space
        assert space is not None
        obs = np.stack([space.sample() for _ in range(lanes)])
        obs = obs.clip(-1, 1) if obs.dtype.kind == "f" else obs
        numbers = np.empty(weights.count, np.float32)
        weights.read(numbers)
        load(agent, numbers)
        if inference is not None:
            agent.infer = Asking(inference, task.actor, lambda: True)  # type: ignore[method-assign]
        while not counters.stop:
            agent.infer(obs)
            counted[task.actor * LINE] += lanes


class Inferring:
    """Processes that infer without environments."""

    def __init__(self, shared: Shared) -> None:
        recipe, actors = shared.recipe, shared.recipe.actors.count
        self._shared = shared  # its semaphores are there as long as it is
        self._memory = shared_memory(actors * LINE * 8)
        common = shared.counters, shared.weights, shared.inference
        self.processes = []
        for actor in range(actors):
            args = (Task(recipe, actor, 0, (), 0, 0), *common, self._memory, LANES)
            self.processes.append(CONTEXT.Process(target=asks, args=args, daemon=True))
        if shared.inference is not None:
            self._ends = socket.socketpair()
            task = Task(recipe, actors, 0, (), 0, 0)
            self.processes.append(CONTEXT.Process(target=infer, args=(self._ends[1], task, *common), daemon=True))

    def __enter__(self) -> Inferring:
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    @property
    def made(self) -> int:
        return int(np.frombuffer(self._memory, np.int64).sum())

    def busy(self) -> None:
        """Wait a little.  Raises: RuntimeError: a process has ended."""
        if not all(process.is_alive() for process in self.processes):
            raise RuntimeError("a process has ended")
        time.sleep(0.01)


class Stepping:
    """Actors as runs have them."""

    def __init__(self, shared: Shared) -> None:
        self._counters, self._pool = shared.counters, shared.pool()

    def __enter__(self) -> Stepping:
        self._pool.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    @property
    def processes(self) -> list[Any]:
        return [seat.process for seat in self._pool.seats]

    @property
    def made(self) -> int:
        return self._counters.made

    def busy(self) -> None:
        """Take in what the actors send."""
        for _ in self._pool.receive(0.01):
            pass


@contextmanager
def halted(ways: Sequence[Any]) -> Iterator[None]:
    """Halt the processes of some ways."""
    processes = [psutil.Process(process.pid) for way in ways for process in way.processes]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def speeds(kind: type[Any], network: str, actors: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return rows a second, local and central in turn, of each round."""
    found: dict[str, list[float]] = {"local": [], "central": []}
    with ExitStack() as stack:
        ways = {way: stack.enter_context(kind(Shared(recipe_of(network, actors, way)))) for way in found}
        for one in ways.values():  # all are there, and warm
            begin = one.made
            while one.made < begin + 200 * actors:
                for way in ways.values():
                    way.busy()
        for _ in range(rounds):
            for name, one in ways.items():
                with halted([other for other in ways.values() if other is not one]):
                    settled = time.perf_counter() + 0.2
                    while time.perf_counter() < settled:
                        one.busy()
                    begin, made = time.perf_counter(), one.made
                    while time.perf_counter() < begin + seconds:
                        one.busy()
                    found[name].append((one.made - made) / (time.perf_counter() - begin))
    return found


def compare(networks: list[str], actors: list[int], rounds: int, seconds: float) -> None:
    """Print the table of central and local inference."""
    ratio = "ratio (lowest to highest of the rounds)"
    print(f"{'network':8} {'actors':>6} {'':16} {'local':>8} {'central':>8} {ratio:>40}")
    for network in networks:
        for count in actors:
            for what, kind in (("inferences/s", Inferring), ("env steps/s", Stepping)):
                found = speeds(kind, network, count, rounds, seconds)
                local, central = (statistics.median(found[way]) for way in ("local", "central"))
                each = sorted(c / one for one, c in zip(found["local"], found["central"], strict=True))
                ratio = f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"
                print(f"{network:8} {count:>6} {what:16} {local:>8.0f} {central:>8.0f} {ratio:>40}", flush=True)


def main() -> None:
    """Measure, and print the table."""
    parser = runner.parser(__doc__)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--actors", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    compare(arguments.networks, arguments.actors, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
