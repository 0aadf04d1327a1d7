"""Training with actors in processes of their own, and with a served replay memory: speed, or scores when solved.

    python benchmarks/actors.py --rounds 3
    python benchmarks/actors.py --inference --networks mlp conv --actors 1 2 4 8
    python benchmarks/actors.py --solve                                    # CartPole: local, served and hub, 3 seeds
    python benchmarks/actors.py --solve --ways ray                         # needs the extra ray
    python benchmarks/actors.py --solve --env pong --ways served --seeds 601 --minutes 25
    python benchmarks/actors.py --report                                   # the table of runs that were made

The first trains recipe `apex` (Pong) for some thousand steps in this process alone, with 1 and 2 actors, and with these
and a replay memory that ``sharpwave serve`` serves, in turn. Every way makes the same updates for each step. Prints,
after the warm-up, steps and updates a second (median, lowest and highest of the rounds), their ratio to no actors, the
age of the weights that actors play with, in steps, and the milliseconds of processors that a step took of the learner,
of all actors and of the shard.

``--inference``: central inference beside local: actors whose networks one process computes, or each its own. Printed
are, for actors of 4 environments each, inferences a second (rows of observations through the network, no environments)
and environment steps a second (environments, recording and first priorities included; nobody learns), central over
local. Both ways are started, and take turns of ``--seconds`` while the other one is halted. Networks: mlp, recipe
cartpole (CartPole); conv, recipe atari (Pong, 4 frames of 84x84, the Nature network).

``--solve``: recipe `apex` trained by every way that steps can take, each with two actors: ``local``, the learner's
process keeps the replay memory; ``served``, two shards of ``sharpwave serve`` do; ``hub``, so do they, and the actors
are those of a node that has joined by ``--hub-listen``; ``ray``, two shards and two nodes' actors on a Ray of two
simulated nodes that listens at 127.0.0.1 only. CartPole is recipe ``cartpole`` with what recipe ``apex`` changes in
Pong's: priorities, and a ladder of epsilons; and with one-step returns, since five steps of a lane that acts at random
with probability .4 end in a fall that the policy has not.

A run ends as its recipe says, by held-out episodes, or after ``--minutes``. Then the policy that it kept (the best by
its own evaluations, else the last) plays 30 fresh episodes with fixed weights. Beside the score stand steps, minutes,
the replay ratio (transitions sampled for each step after the warm-up), the age of the weights that chose a step when
that arrived in the replay memory, in steps and in updates, and the largest resident memory (VmHWM) of the learner, a
shard and an actor. CPU is in minutes, of the processes that end with the run; processes that Ray starts are not
counted. Each run is a line of FILE; runs that are there are not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import runner
from runner import memory, processor_s

from sharpwave.agents.protocol import Agent
from sharpwave.serve.addresses import Address, Security
from sharpwave.serve.service import Service
from sharpwave.serve.supervisor import CONTEXT
from sharpwave.training import setup
from sharpwave.training.actors.channels import LINE, Counters, SharedWeights, load, shared_memory, shared_weights
from sharpwave.training.actors.inference import Asking, Inference
from sharpwave.training.actors.pool import ActorPool, central_inference
from sharpwave.training.actors.worker import Task, infer
from sharpwave.training.evaluation import evaluate
from sharpwave.training.policies import Policy
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.scores import EPISODES

HERE = Path(__file__).parent
TRAIN = [sys.executable, "-m", "sharpwave.cli", "train"]
WAYS = ("local", "served", "hub", "ray")
APEX = "--prioritized --beta-end=.4 --epsilon-start=.4 --epsilon-end=.4 --epsilon-ladder=7 --capacity=100000 --n-step=1"
RECIPES = {"cartpole": ["cartpole", "--actors=2", *APEX.split()], "pong": ["apex"]}
CAPACITY = 100_000
LOOK_S = 0.5
PROCESSES = {  # by their command lines
    "sharpwave.serve.shard_process": "shard", "ray::RayShard": "shard", "multiprocessing.spawn": "actor",
    "sharpwave.cli train": "learner", "--on-ray": "learner",
}  # fmt: skip


def descendants(process: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that they have."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        children: list[str] = []
        with contextlib.suppress(OSError):  # it has ended
            children = task.read_text().split()
        for child in map(int, children):
            yield child
            yield from descendants(child)


def of_kinds() -> Iterator[tuple[int, str]]:
    """Yield the learners, actors and shards that this process has started, each with its kind."""
    for process in descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended
            line = Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
            kind = next((kind for part, kind in PROCESSES.items() if part in line), None)
            if kind is not None:
                yield process, kind


class Peaks:
    """Largest resident memory of the processes that this one started, by kind, in bytes. A context manager."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[str, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def of(self, kind: str) -> int:
        """Return the largest of a kind; 0: there was none."""
        return max((peak for name, peak in self.found.values() if name == kind), default=0)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            for process, kind in of_kinds():
                peak = max(memory(process, "VmHWM"), self.found.get(process, ("", 0))[1])
                self.found[process] = kind, peak


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def beside(command: Sequence[str], log: Path) -> Iterator[None]:
    """Run another command of sharpwave meanwhile; SIGTERM ends it."""
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "sharpwave.cli", *command], stdout=said, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@contextmanager
def service(log: Path) -> Iterator[str]:
    """Run ``sharpwave serve`` meanwhile, and yield its address."""
    with tempfile.TemporaryDirectory() as made:
        address = f"unix:{made}/directory.sock"
        with beside(["serve", "--shards=2", f"--capacity={CAPACITY}", "--listen", address], log):
            while not Path(made, "directory.sock").exists():
                time.sleep(0.1)
            yield address


def trained(way: str, env: str, seed: int, minutes: float, folder: Path, more: Sequence[str]) -> dict[str, Any]:
    """Train by a way, and return the run's figures."""
    run = folder / f"{env}-{way}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    options = [*RECIPES[env], "--seed", str(seed), "--max-minutes", str(minutes), "--out", str(run), *more]
    log = run.with_suffix(".log")
    begun = os.times()
    with Peaks() as peaks, log.open("w") as said:
        if way == "local":
            subprocess.run([*TRAIN, *options], check=True, stdout=said)
        elif way == "ray":
            subprocess.run([sys.executable, __file__, "--on-ray", *options], check=True, stdout=said)
        else:
            with service(run.with_suffix(".serve.log")) as address:
                options += ["--connect", address]
                if way == "served":
                    subprocess.run([*TRAIN, *options], check=True, stdout=said)
                else:
                    hub = f"127.0.0.1:{free_port()}"
                    with beside(["actors", "--hub", hub, "--actors=2"], run.with_suffix(".actors.log")):
                        subprocess.run([*TRAIN, *options, "--hub-listen", hub], check=True, stdout=said)
    ended = os.times()
    spent = ended.children_user + ended.children_system - begun.children_user - begun.children_system
    names = ("learner", "shard", "actor")
    return {
        "env": env,
        "way": way,
        "seed": seed,
        **figures(run),
        "cpu_minutes": spent / 60,
        "peak_bytes": {name: peaks.of(name) for name in names},
    }


def figures(run: Path) -> dict[str, Any]:
    """Return what a run's files say of it, and the scores of its policy in fresh episodes."""
    summary = json.loads((run / "summary.json").read_text())
    recipe = Recipe.from_table(json.loads((run / "config.json").read_text())["settings"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    reports = [one for one in lines if one["event"] == "report" and one["updates"]]
    ages = [(one["stale_steps"], one["stale_versions"]) for one in reports if one["stale_steps"] is not None]
    scores = evaluate(Policy.load(run, device="cpu"), episodes=EPISODES).scores
    stale_steps = statistics.median(age for age, _ in ages)
    learned = summary["steps"] - recipe.training.warmup_steps
    return {
        **{key: summary[key] for key in ("reason", "steps", "updates", "minutes", "mean_reward")},
        "held_out": [one["mean"] for one in lines if one["event"] == "evaluation"],
        "fresh": scores,
        "replay_ratio": summary["updates"] * recipe.agent.replay.batch_size / learned,
        "wanted_ratio": recipe.agent.replay.batch_size / recipe.training.update_every,
        "stale_steps": stale_steps,
        "stale_updates": stale_steps / recipe.training.update_every,
        "stale_versions": statistics.median(versions for _, versions in ages),
    }


def on_ray(options: Sequence[str]) -> None:
    """Train on a Ray of two simulated nodes."""
    sys.path.insert(0, str(HERE.parent))
    import pytest

    from sharpwave.cli.commands import app
    from tests.serve.on_ray import simulated

    with pytest.MonkeyPatch.context() as patch, simulated(2, patch):
        app(["train", *options, "--ray", "ray", "--shards", "2"], standalone_mode=False)


def report(runs: Sequence[dict[str, Any]]) -> None:
    """Print a row for each run."""
    print("| env | way | seed | fresh mean | lowest | solved | steps | min | CPU | ratio | age | in updates | MiB |")
    print("| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for one in sorted(runs, key=lambda one: (one["env"], WAYS.index(one["way"]), one["seed"])):
        sizes = ", ".join(f"{size / 2**20:.0f}" for size in one["peak_bytes"].values())
        solved = "yes" if one["reason"].startswith("a held-out mean") else "no"
        print(
            f"| {one['env']} | {one['way']} | {one['seed']} | {statistics.fmean(one['fresh']):.1f} "
            f"| {min(one['fresh']):g} | {solved} | {one['steps'] / 1000:.0f}K | {one['minutes']:.1f} "
            f"| {one['cpu_minutes']:.1f} | {one['replay_ratio']:.2f} of {one['wanted_ratio']:g} "
            f"| {one['stale_steps']:.0f} | {one['stale_updates']:.0f} | {sizes} |"
        )


# speed

WARM_UP = 2_000
KINDS = ("learner", "actor", "shard")
SPEED_WAYS = (("no actors", 0, False), ("1 actor", 1, False), ("2 actors", 2, False), ("2 actors, served", 2, True))


def sped(actors: int, served: bool, steps: int, seed: int) -> dict[str, Any]:
    """Train, and return figures of the part after the warm-up."""
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "run"
        options = {
            "--steps": steps,
            "--warmup-steps": WARM_UP,
            "--report-every": 1_000,
            "--evaluate-every": 10 * steps,
            "--checkpoint-every": 10 * steps,
            "--actors": actors,
            "--seed": seed,
            "--out": out,
        }
        command = [sys.executable, "-m", "sharpwave.cli", "train", "apex"]
        command += [str(word) for pair in options.items() for word in pair]
        if served:
            listen = Address.parse("127.0.0.1:0")
            with Service(listen, 1, None, Security(), capacity=100_000) as service:
                spent = watched([*command, "--connect", str(service.address)], out)
        else:
            spent = watched(command, out)
        reports = reports_of(out)
    first, last = reports[0], reports[-1]
    seconds = 60 * (last["minutes"] - first["minutes"])
    return {
        "steps": (last["steps"] - first["steps"]) / seconds,
        "updates": (last["updates"] - first["updates"]) / seconds,
        "stale": last.get("stale_steps"),
        "processor_ms": spent,
    }


def reports_of(run: Path) -> list[dict[str, Any]]:
    """Return a run's reports after the warm-up."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [one for one in lines if "updates" in one and one["steps"] >= 2 * WARM_UP]


def watched(command: list[str], run: Path) -> dict[str, float]:
    """Run a training; return the milliseconds of processors that a step after the warm-up took, by kind of process."""
    marks: list[tuple[int, dict[str, float]]] = []  # steps, and seconds by kind until then
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        reports = reports_of(run)
        if reports and (not marks or reports[-1]["steps"] > marks[-1][0]):
            seconds = dict.fromkeys(KINDS, 0.0)
            for one, kind in of_kinds():
                seconds[kind] += processor_s(one)
            marks.append((reports[-1]["steps"], seconds))
        time.sleep(0.1)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: ended with {process.returncode}")
    (begin, before), (end, after) = marks[0], marks[-2]  # at the last report processes may have ended
    return {kind: 1000 * (after[kind] - before[kind]) / (end - begin) for kind in KINDS}


def show_speed(arguments: argparse.Namespace) -> None:
    """Run the ways in turn, and print the table."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, *_ in SPEED_WAYS}
    for seed in range(arguments.rounds):
        for name, actors, served in SPEED_WAYS:
            found[name].append(sped(actors, served, arguments.steps, seed))
            print(name, found[name][-1], flush=True)
    none = statistics.median(one["steps"] for one in found[SPEED_WAYS[0][0]])
    print(
        f"{'':18} {'steps/s':>22} {'updates/s':>10} {'ratio':>6} {'age of weights':>15} {'ms of processor a step':>27}"
    )
    for name, rounds in found.items():
        speeds = sorted(one["steps"] for one in rounds)
        updates = statistics.median(one["updates"] for one in rounds)
        stale = [one["stale"] for one in rounds if one["stale"] is not None]
        age = f"{statistics.median(stale):.0f} steps" if stale else "-"
        middle = statistics.median(speeds)
        spread = f"{middle:.0f} ({speeds[0]:.0f} to {speeds[-1]:.0f})"
        spent = [statistics.median(one["processor_ms"][kind] for one in rounds) for kind in KINDS]
        cost = " + ".join(f"{one:.2f}" for one in spent) + f" = {sum(spent):.2f}"
        print(f"{name:18} {spread:>22} {updates:>10.0f} {middle / none:>6.2f} {age:>15} {cost:>27}")


# central inference

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
    env = recipe.env.make(1)
    agent = setup.agent(recipe, env)
    env.close()
    return agent


class Shared:
    """Counters and weights that the processes of one way share, and the agent that publishes its weights there."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.agent = recipe, agent_of(recipe)
        self.counters = Counters(recipe.actors.count + recipe.actors.central)
        self.counters.steps, self.counters.samples = 1_000_000, 1 << 60  # no actor waits, schedules have ended
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


def show_inference(networks: list[str], actors: list[int], rounds: int, seconds: float) -> None:
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
    """Measure speeds; or make the runs that are missing, and print their table."""
    if sys.argv[1:2] == ["--on-ray"]:
        on_ray(sys.argv[2:])
        return
    parser = runner.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--inference", action="store_true", help="measure inference, central and local")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--actors", nargs="+", type=int, default=[1, 2, 4, 8], help="of inference")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn of inference")
    parser.add_argument("--solve", action="store_true", help="train until solved")
    parser.add_argument("--env", choices=sorted(RECIPES), default="cartpole")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS[:3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[621, 622, 623])
    parser.add_argument("--minutes", type=float, default=10.0, help="of training at most")
    parser.add_argument("--runs", type=Path, default=Path("runs/served"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "served_training.jsonl", metavar="FILE")
    parser.add_argument("--report", action="store_true", help="only print the table")
    arguments, more = parser.parse_known_args()
    if arguments.inference:
        return show_inference(arguments.networks, arguments.actors, arguments.rounds, arguments.seconds)
    if not arguments.solve and not arguments.report:
        return show_speed(arguments)
    made = runner.read_lines(arguments.out)
    there = {(one["env"], one["way"], one["seed"]) for one in made}
    for seed in () if arguments.report else arguments.seeds:
        for way in arguments.ways:
            if (arguments.env, way, seed) not in there:
                made.append(trained(way, arguments.env, seed, arguments.minutes, arguments.runs, more))
                with arguments.out.open("a") as file:
                    file.write(json.dumps(made[-1]) + "\n")
                print(f"{arguments.env}, {way}, seed {seed}: {statistics.fmean(made[-1]['fresh']):.1f}", flush=True)
    report(made)


if __name__ == "__main__":
    main()
