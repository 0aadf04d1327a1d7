"""Central inference: one process computes the networks of all actors, which send requests through shared memory.

An actor still draws its own random numbers and keeps its own acting state, recurrent ones included; only
``Agent.infer`` is computed elsewhere. So the process has no state but the weights, and can be replaced at any time.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sharpwave.agents.protocol import Agent, Obs, Rows
from sharpwave.serve.supervisor import CONTEXT
from sharpwave.training import setup
from sharpwave.training.actors.channels import LINE, Counters, SharedWeights, load, shared_memory
from sharpwave.training.recipes.recipe import Recipe

ASKED, ANSWERED, VERSION, GENERATION = 0, 1, 2, 3
"""Words of an actor's cache line: numbers of its last request and of the last answer, and the answer's version of the
weights. Of the first line: how many processes have answered so far."""
WAIT_S = 0.1
"""Longest wait for a request or an answer; in between it is checked whether the run goes on."""
NAP_S = 0.001
ALIGNMENT = 64


class RowPart(NamedTuple):
    """Rows of an argument or a result of ``Agent.infer``; ``name``: key of an observation in a dict, else ""."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class InferenceLayout(NamedTuple):
    """Arrays of a lane's request and answer."""

    obs: tuple[RowPart, ...]
    memory: tuple[RowPart, ...]
    results: tuple[RowPart, ...]


class Stopped(Exception):
    """Raised in an actor that waits for an answer when the learner stops the actors."""


def layout_of(agent: Agent) -> InferenceLayout:
    """Return the layout of the requests by which ``agent`` acts.

    Raises:
        ValueError: its networks cannot be computed for many actors at once.
    """
    asked: list[InferenceLayout] = []

    def infer(obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        results = type(agent).infer(agent, obs, *memory)
        named = obs.items() if isinstance(obs, dict) else [("", obs)]
        unnamed = ([("", one) for one in arrays] for arrays in (memory, results))
        parts = (tuple(RowPart(n, a.shape[1:], str(a.dtype)) for n, a in arrays) for arrays in (named, *unnamed))
        asked.append(InferenceLayout(*parts))
        return results

    if agent.inference_space is not None:
        agent.infer = infer  # type: ignore[method-assign]
        try:
            agent.act(_sampled(agent, 1), agent.begin(1), 0, explore=False)
        finally:
            del agent.infer
    if not asked:
        noisy = ": its noise is each actor's own" if getattr(agent.settings, "noisy", False) else ""
        raise ValueError(
            f"--inference central: the networks of agent {agent.settings.kind!r} cannot be computed for many actors at "
            f"once{noisy}; expected --inference local"
        )
    return asked[0]


def _sampled(agent: Agent, rows: int) -> Obs:
    """Return sample observations of so many lanes; real numbers are normal: bounds may be the dtype's."""
    assert agent.inference_space is not None
    space, rng = copy.deepcopy(agent.inference_space), np.random.default_rng(0)
    space.seed(0)
    drawn = [space.sample() for _ in range(rows)]

    def stacked(values: list[Any]) -> Rows:
        rows = np.stack(values)
        return rng.standard_normal(rows.shape).astype(rows.dtype) if rows.dtype.kind == "f" else rows

    if isinstance(drawn[0], dict):
        return {name: stacked([one[name] for one in drawn]) for name in drawn[0]}
    return stacked(drawn)


class Inference:
    """Shared memory of a run's actors and the process that computes their networks.

    Of every argument and result there is one array with a row for each of the run's lanes; an actor's are neighbors.
    A request is written there, then its number, then two semaphores are raised: the actor's and the server's.

    Args:
        lanes: numbers of each actor's lanes.
        shared: memory and semaphores of an existing instance, passed on to a child process; None: make them.
    """

    def __init__(self, layout: InferenceLayout, lanes: Sequence[slice], shared: tuple[Any, ...] | None = None) -> None:
        self.layout, self.lanes = layout, tuple(lanes)
        rows, actors = self.lanes[-1].stop, len(self.lanes)
        words = (1 + actors) * LINE * 8
        parts = [*layout.obs, *layout.memory, *layout.results]
        sizes = [rows * math.prod(part.shape) * np.dtype(part.dtype).itemsize for part in parts]
        begins = np.cumsum([words, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]).tolist()
        if shared is None:
            memory, wake = shared_memory(begins[-1]), CONTEXT.Semaphore(0)
            shared = memory, wake, [CONTEXT.Semaphore(0) for _ in lanes], [CONTEXT.Semaphore(0) for _ in lanes]
        self._shared = shared
        memory, self.wake, self.asked, self.answered = shared
        self.words = np.frombuffer(memory, np.int64, words // 8).reshape(1 + actors, LINE)
        arrays = [
            np.frombuffer(memory, part.dtype, rows * math.prod(part.shape), begin).reshape(rows, *part.shape)
            for part, begin in zip(parts, begins, strict=False)
        ]
        first, last = len(layout.obs), len(layout.obs) + len(layout.memory)
        self.obs, self.memory, self.results = arrays[:first], arrays[first:last], arrays[last:]

    def __reduce__(self) -> tuple[Any, ...]:
        return Inference, (self.layout, self.lanes, self._shared)

    @property
    def generation(self) -> int:
        """Processes that have answered so far, this one included."""
        return int(self.words[0, GENERATION])

    def arguments(self, rows: Any) -> tuple[Obs, list[Rows]]:
        """Return the arguments of ``Agent.infer`` of some lanes: views, if ``rows`` is a slice."""
        obs = {part.name: array[rows] for part, array in zip(self.layout.obs, self.obs, strict=True)}
        return obs.get("", obs), [array[rows] for array in self.memory]


class Asking:
    """``Agent.infer`` of an actor: requests it from the process that computes all networks.

    Args:
        goes_on: called while waiting; returns whether the run goes on.
    Attributes:
        version: version of the weights that computed the last answer.
    """

    def __init__(self, inference: Inference, actor: int, goes_on: Callable[[], bool]) -> None:
        self._inference, self._actor, self._goes_on = inference, actor, goes_on
        self._rows, self._words = inference.lanes[actor], inference.words[1 + actor]
        self.version = 0

    def __call__(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        shared, rows, words = self._inference, self._rows, self._words
        given = obs if isinstance(obs, dict) else {"": obs}
        for part, array in zip(shared.layout.obs, shared.obs, strict=True):
            array[rows] = np.reshape(given[part.name], array[rows].shape)
        for array, one in zip(shared.memory, memory, strict=True):
            array[rows] = one
        generation = shared.generation
        words[ASKED] += 1
        self._ask()
        answered = shared.answered[self._actor]
        while not answered.acquire(timeout=WAIT_S) or words[ANSWERED] != words[ASKED]:
            if not self._goes_on():
                raise Stopped
            if generation != shared.generation:  # the process that was asked has been replaced
                generation = shared.generation
                self._ask()
        self.version = int(words[VERSION])
        return tuple(array[rows].copy() for array in shared.results)

    def _ask(self) -> None:
        self._inference.asked[self._actor].release()
        self._inference.wake.release()


class InferenceServer:
    """Computation of all actors' networks. It waits for no actor: pending requests are answered together."""

    def __init__(
        self, recipe: Recipe, number: int, counters: Counters, weights: SharedWeights, inference: Inference
    ) -> None:
        self._number, self._counters, self._weights, self._inference = number, counters, weights, inference
        env = recipe.env.make(1)
        self._agent = setup.agent(recipe, env)
        env.close()
        self._numbers = np.empty(weights.count, np.float32)
        self._version = 0
        self._joined = False

    def serve(self) -> None:
        shared, counters = self._inference, self._counters
        self._joined = computes_rows_alike(self._agent, shared.layout, shared.lanes, self._beat)
        while not counters.stop and not self._take_weights():
            self._beat()
            time.sleep(NAP_S)
        for semaphore in shared.asked:  # drop requests to the previous process: actors repeat them
            while semaphore.acquire(False):
                pass
        shared.words[0, GENERATION] += 1
        while not counters.stop:
            self._beat()
            if shared.wake.acquire(timeout=WAIT_S):
                while shared.wake.acquire(False):  # before the semaphores are looked at, so that none is missed
                    pass
                self._answer_all()

    def _beat(self) -> None:
        self._counters.beat(self._number)

    def _take_weights(self) -> bool:
        version = self._weights.read(self._numbers)
        if version is not None:
            load(self._agent, self._numbers)
            self._version = version
        return version is not None

    def _answer_all(self) -> None:
        if self._weights.latest != self._version:
            self._take_weights()
        words, raised = self._inference.words[1:], self._inference.asked
        asking = [i for i, asked in enumerate(raised) if asked.acquire(False) and words[i, ASKED] != words[i, ANSWERED]]
        for actors in [asking] if self._joined and asking else [[actor] for actor in asking]:
            self._answer(actors)

    def _answer(self, actors: list[int]) -> None:
        shared = self._inference
        lanes, numbers = [shared.lanes[actor] for actor in actors], [shared.words[1 + a, ASKED] for a in actors]
        obs, memory = shared.arguments(_rows(lanes))
        results = self._agent.infer(obs, *memory)
        for array, result in zip(shared.results, results, strict=True):
            array[_rows(lanes)] = result
        for actor, number in zip(actors, numbers, strict=True):
            words = shared.words[1 + actor]
            words[VERSION] = self._version
            words[ANSWERED] = number
            shared.answered[actor].release()


def _rows(lanes: Sequence[slice]) -> slice | npt.NDArray[np.int64]:
    """Return the rows of several actors, in one piece if they are neighbors."""
    if all(one.stop == after.start for one, after in pairwise(lanes)):
        return slice(lanes[0].start, lanes[-1].stop)
    return np.concatenate([np.arange(one.start, one.stop) for one in lanes])


def computes_rows_alike(
    agent: Agent, layout: InferenceLayout, lanes: Sequence[slice], beat: Callable[[], None] = lambda: None
) -> bool:
    """Return whether a lane's results are bit-identical for an actor's own lanes and among lanes of any actors.

    Libraries add up in another order for matrices of few rows than of many: with torch 2.13 on x86, fewer than 4. So
    this is tested, with noise on the weights, since a fresh policy's may be zero. The agent's own weights are lost.
    """
    rng = np.random.default_rng(0)
    tensors = agent.policy_tensors(explore=True)
    for one in tensors.values():
        if one.is_floating_point() and one.dim() > 1:
            one += torch.from_numpy(rng.standard_normal(one.shape).astype(np.float32)) / math.sqrt(one[0].numel())
    agent.load_policy(tensors)
    rows = lanes[-1].stop
    obs = _sampled(agent, rows)
    memory = [rng.standard_normal((rows, *part.shape)).astype(part.dtype) for part in layout.memory]

    def computed(begin: int, end: int) -> list[bytes]:
        beat()
        part = {name: a[begin:end] for name, a in obs.items()} if isinstance(obs, dict) else obs[begin:end]
        results = agent.infer(part, *(array[begin:end] for array in memory))
        return [b"".join(result[row].tobytes() for result in results) for row in range(end - begin)]

    whole = computed(0, rows)
    sizes = {one.stop - one.start for one in lanes}
    alone = all(computed(b, b + size) == whole[b : b + size] for size in sizes for b in range(rows - size + 1))
    counts = {0}
    for part in lanes:
        counts |= {count + part.stop - part.start for count in counts}
    return alone and all(computed(0, count) == whole[:count] for count in counts - {0})
