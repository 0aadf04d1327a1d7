"""What a checkpoint keeps of a view, and the view that goes on from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sharpwave.format.segment import MOST_NUMBER
from sharpwave.sampling.descriptions import describe, differences, make
from sharpwave.sampling.limiters import Gate, Limiter
from sharpwave.sampling.samplers import Sampler, checked_array
from sharpwave.views.prefetch import checked
from sharpwave.views.transitions import Transitions

if TYPE_CHECKING:
    from sharpwave.log.step_log import StepLog


def saved(view: Transitions) -> dict[str, Any] | None:
    """Arrays (copies) and numbers of a view, its lock held; ``None`` where its sampler is of a kind of the user's."""
    described = describe(view.sampler)
    if described is None:
        return None
    log, steps = view._log, view._steps
    steps.follow()
    return {
        "n_step": view.n_step,
        "gamma": view.gamma,
        "max_times_sampled": view.max_times_sampled,
        "sampler": described,
        "remembered": view.sampler.state(),
        "uses": None if steps.uses is None else steps.uses.given(log.index.highest * log.stride),
        "rng": view._rng.bit_generator.state,
        "samples": steps.samples,
        "inserts": log.total_steps - view._steps_before,
        "ahead": [*(stream.ahead() for stream in view.streams()), *view._ahead],  # the latter not asked for yet
    }


def restored(log: StepLog, lock: Any, gate: Gate, state: dict[str, Any]) -> Transitions:
    """A view that goes on from ``state``, over the steps of ``log`` that are there.

    Raises:
        KeyError, TypeError, ValueError: not what :func:`saved` gives.
    """
    view = Transitions(
        log,
        lock,
        gate,
        n_step=state["n_step"],
        gamma=state["gamma"],
        sampler=make(state["sampler"]),
        max_times_sampled=state["max_times_sampled"],
        limiter=None,
        seed=0,
    )
    view._steps.follow()  # all that can be sampled comes in, as if new
    if view.max_times_sampled is not None:
        view._steps.recall_uses(checked_array(state, "uses", np.int32))
    view.sampler.recall(state["remembered"])
    view._rng.bit_generator.state = state["rng"]
    view._steps.samples = _count(state, "samples")
    view._steps_before = log.total_steps - _count(state, "inserts")
    view._ahead = [[checked(batch) for batch in batches] for batches in state["ahead"]]
    return view


def _count(state: dict[str, Any], name: str) -> int:
    """A number of steps or samples; ratios of them are floats.  Raises: ValueError."""
    if type(count := state.get(name)) is not int or not 0 <= count < MOST_NUMBER:
        raise ValueError(f"{name} of another kind, expected an integer from 0 below {MOST_NUMBER}")
    return count


def claim(view: Transitions, sampler: Sampler, limiter: Limiter | None, **settings: Any) -> list[str]:
    """Hand a restored view to who asks for one with these settings; or else what differs.

    Args:
        sampler: becomes the view's, and remembers what the view's own did.

    Raises:
        ValueError, TypeError: as for a new view.
    """
    wrong = [
        f"{name} was {getattr(view, name)}, is {value}"
        for name, value in settings.items()
        if getattr(view, name) != value
    ]
    own = describe(view.sampler)
    assert own is not None
    wrong += differences(own, describe(sampler))
    if not wrong:
        sampler.bind(1, 1)  # refused if it serves another view
        vars(sampler).update({name: value for name, value in vars(view.sampler).items() if name != "beta"})
        view._steps.sampler = sampler
        view.set_limiter(limiter)
    return wrong
