"""Time of an update of recipe `pong-dqn` with one change, as a ratio to the recipe's.

    python benchmarks/updates.py [--rounds 7] [--compile] [--out FOLDER]

Variants take turns in one process, each round begins with another one; a ratio is the median over rounds of a variant's
milliseconds to the recipe's in the same round. Nothing else runs meanwhile: environments, which share the processors
with the update in training, do not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import runner
import torch
from torch import nn
from training_runs import PACKAGES

from sharpwave.agents.dqn import DQN, double_q_targets
from sharpwave.agents.losses import huber
from sharpwave.bench.machine import environment
from sharpwave.training import setup
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Atari, Recipe

RECIPE = load_recipe("pong-dqn")
BATCH = RECIPE.agent.replay.batch_size
REPEATS = 12
"""Updates of a variant in a round; the first two are not timed."""

Variant = tuple[Recipe, Callable[[DQN], Callable[[Any], Any]]]


def batch(recipe: Recipe, size: int) -> Any:
    """Make a batch of random transitions of the recipe's shape."""
    draw = torch.Generator().manual_seed(0)
    assert isinstance(recipe.env, Atari)
    height, width = (int(part) for part in recipe.env.frame.split("x"))
    frames = [
        torch.randint(0, 255, (size, recipe.env.stack, height, width), dtype=torch.uint8, generator=draw) for _ in "ab"
    ]
    return SimpleNamespace(
        obs=frames[0],
        next_obs=frames[1],
        action=torch.randint(0, 3, (size,), generator=draw),
        reward=torch.randn(size, generator=draw),
        discount=torch.full((size,), 0.95),
        weights=torch.ones(size),
    )


def as_it_is(agent: DQN) -> Callable[[Any], Any]:
    """Make the agent's own update."""
    return lambda batch: agent.learn(batch, 0)


def rows_first(agent: DQN) -> Callable[[Any], Any]:
    """Use torch's default layout, channels before rows."""
    for network in (agent.online, agent.target):
        network.to(memory_format=torch.contiguous_format)
    inputs = agent.inputs
    agent.inputs = nn.Sequential(inputs, _Contiguous())
    return as_it_is(agent)


class _Contiguous(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Make [B, C, H, W] contiguous, rows last in memory."""
        return x.contiguous()


def plain_adam(agent: DQN) -> Callable[[Any], Any]:
    """Use Adam by torch's foreach functions instead of one fused kernel."""
    settings = RECIPE.agent
    agent.__dict__["optimizer"] = torch.optim.Adam(agent.online.parameters(), settings.lr, eps=settings.adam_eps)
    return as_it_is(agent)


def compiled(agent: DQN) -> Callable[[Any], Any]:
    """Compile both networks by torch.compile."""
    agent.online, agent.target = torch.compile(agent.online), torch.compile(agent.target)
    return as_it_is(agent)


def one_forward(agent: DQN) -> Callable[[Any], Any]:
    """Join the online network's passes over s and s', both in the graph."""

    def learn(batch: Any) -> None:
        with agent.autocast():
            inputs = agent.inputs(torch.cat([batch.obs, batch.next_obs]))
            q, next_q_online = agent.online(inputs).float().chunk(2)
            with torch.no_grad():
                next_q = agent.target(inputs.chunk(2)[1]).float()
        targets = double_q_targets(next_q, next_q_online.detach(), batch.reward, batch.discount)
        td_errors = targets - q.gather(1, batch.action.view(-1, 1)).squeeze(1)
        loss = (batch.weights * huber(td_errors, RECIPE.agent.huber_delta)).mean()
        agent.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(agent.online.parameters(), RECIPE.agent.max_grad_norm)
        agent.optimizer.step()

    return learn


def two_halves(agent: DQN) -> Callable[[Any], Any]:
    """Split the batch between two threads, each with one torch thread, and add the gradients."""
    parameters = list(agent.online.parameters())
    pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))

    def gradients(half: Any, size: int) -> tuple[torch.Tensor, ...]:
        with agent.autocast():
            q = agent.online(agent.inputs(half.obs)).float()
            with torch.no_grad():
                inputs = agent.inputs(half.next_obs)
                next_q_online, next_q = agent.online(inputs).float(), agent.target(inputs).float()
        targets = double_q_targets(next_q, next_q_online, half.reward, half.discount)
        td_errors = targets - q.gather(1, half.action.view(-1, 1)).squeeze(1)
        return torch.autograd.grad((half.weights * huber(td_errors, RECIPE.agent.huber_delta)).sum() / size, parameters)

    def learn(batch: Any) -> None:
        size = len(batch.action)
        first, second = (
            SimpleNamespace(**{name: value[part] for name, value in vars(batch).items()})
            for part in (slice(0, size // 2), slice(size // 2, size))
        )
        other = pool.submit(gradients, second, size)
        mine = gradients(first, size)
        torch._foreach_add_(mine, other.result())
        for parameter, gradient in zip(parameters, mine, strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(parameters, RECIPE.agent.max_grad_norm)
        agent.optimizer.step()

    return learn


def change(**settings: Any) -> Variant:
    """Change settings of the recipe."""
    return RECIPE.override(**settings), as_it_is


VARIANTS: dict[str, Variant] = {
    "recipe pong-dqn": (RECIPE, as_it_is),
    "one thread": change(threads=1),
    "float32": change(precision="float32"),
    "rows first, not channels last": (RECIPE, rows_first),
    "Adam not fused": (RECIPE, plain_adam),
    "one forward over s and s'": (RECIPE, one_forward),
    "two halves in two threads": (RECIPE.override(threads=1), two_halves),
    "no double": change(double=False),
    "no dueling": change(dueling=False),
    "2 frames": change(stack=2),
    "batch 32 (per transition)": change(batch_size=32),
    "batch 64 (per transition)": change(batch_size=64),
    "batch 256 (per transition)": change(batch_size=256),
    "84x84, efficient net": change(frame="84x84", network="efficient"),
    "84x84, Nature net": change(frame="84x84", network="nature", hidden_units=512),
}


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which needs a C++ compiler")
    parser.add_argument("--out", type=Path, default=runner.RESULTS, help="folder for updates.json")
    arguments = parser.parse_args()
    variants = {**VARIANTS, **({"torch.compile": (RECIPE, compiled)} if arguments.compile else {})}

    ready: dict[str, tuple[Recipe, Callable[[Any], Any], Any]] = {}
    first: dict[str, float] = {}
    for name, (recipe, make) in variants.items():
        env = setup.environments(recipe)
        agent: Any = setup.agent(recipe, env)
        data, learn = batch(recipe, recipe.agent.replay.batch_size), make(agent)
        with setup.arithmetic(recipe):
            begun = time.perf_counter()
            learn(data)
            first[name] = time.perf_counter() - begun
        ready[name] = recipe, learn, data

    times: dict[str, list[float]] = {name: [] for name in ready}
    names = list(ready)
    for turn in range(arguments.rounds):
        for name in runner.in_turn(names, turn):
            recipe, learn, data = ready[name]
            taken = []
            with setup.arithmetic(recipe):
                for _ in range(REPEATS):
                    begun = time.perf_counter()
                    learn(data)
                    taken.append(time.perf_counter() - begun)
            times[name].append(1000 * statistics.median(taken[2:]) * BATCH / recipe.agent.replay.batch_size)

    shown = runner.table(f"An update of {BATCH} transitions", "", "ms", "ratio", "first call, s")
    results = {}
    for name in names:
        ratios = [mine / recipe for mine, recipe in zip(times[name], times["recipe pong-dqn"], strict=True)]
        results[name] = {
            "milliseconds": statistics.median(times[name]),
            "ratio": statistics.median(ratios),
            "first_call_seconds": first[name],
        }
        one = results[name]
        shown.add_row(name, f"{one['milliseconds']:.1f}", f"{one['ratio']:.2f}", f"{first[name]:.1f}")
    runner.console(100).print(shown)
    runner.write(arguments.out / "updates.json", {"environment": environment(PACKAGES), "updates": results})


if __name__ == "__main__":
    main()
