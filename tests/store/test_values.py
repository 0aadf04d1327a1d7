"""Values that numpy would change without a word are refused by every door, and returns are finite."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import sharpwave as sw

SPEC = sw.Spec(
    obs=sw.Field((2,), "float32"),
    action=sw.Field((), "int64"),
    cost=sw.Field((), "float32"),
    fine=sw.Field((), "float64"),
)
MAX = np.finfo(np.float32).max


def store(**settings: Any) -> sw.Store:
    return sw.Store(SPEC, **{"capacity": 100} | settings)


def step(**changes: Any) -> dict[str, Any]:
    good = dict(obs=np.zeros(2), action=0, cost=0.0, fine=0.0, reward=0.0, terminated=False, truncated=False)
    return good | changes


def stacked(given: dict[str, Any], *axes: int) -> dict[str, Any]:
    def one(value: Any) -> Any:
        whole = np.ma.stack if isinstance(value, np.ma.MaskedArray) else np.stack
        for axis in axes:
            value = whole([value] * axis)
        return value

    return {name: one(value) for name, value in given.items()}


def by_append(given: dict[str, Any]) -> None:
    store().append(**given)


def by_extend(given: dict[str, Any]) -> None:
    store().extend(**stacked(given, 3))


def by_rollout(given: dict[str, Any]) -> None:
    store().extend(**stacked(given, 3, 4))


def by_episode(given: dict[str, Any]) -> None:
    whole = stacked(given, 3)
    whole["obs"] = stacked(given, 4)["obs"]
    store().add_episode(**whole | {"terminated": True, "truncated": None})


def by_segment_writer(given: dict[str, Any]) -> None:
    sw.SegmentWriter(SPEC, 3, lambda sealed: None).extend(**stacked(given, 3))


def by_recorder(given: dict[str, Any]) -> None:
    """A vector of environments, one that observes and rewards what is given."""

    class Env(gym.Env[Any, Any]):
        observation_space, action_space = gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Discrete(2)

        def reset(self, **settings: Any) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            return given["obs"], given["reward"], False, False, {}

    recorder = sw.Recorder(Env(), store())
    recorder.reset()
    recorder.step(given["action"], cost=given["cost"], fine=given["fine"])


DOORS: list[Callable[[dict[str, Any]], None]] = [
    by_append, by_extend, by_rollout, by_episode, by_segment_writer, by_recorder
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["cost", "reward"])
@pytest.mark.parametrize("value", [np.int64(16777217), np.int64(2**63 - 1), np.uint64(2**64 - 1), 16777217])
def test_integers_that_floats_would_round_are_refused(door: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name}: integer {int(value)} is not exact in float32.*pass floats"):
        door(step(**{name: value}))


@pytest.mark.parametrize("door", DOORS)
def test_others_are_taken(door: Any) -> None:
    door(step(cost=np.int64(16777216), fine=16777217, reward=np.uint8(200)))
    door(step(cost=16777217.0, fine=-(2**53), reward=np.float64(16777217)))
    with pytest.raises(ValueError, match="fine: integer 9007199254740993 is not exact in float64"):
        door(step(fine=2**53 + 1))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["obs", "action", "cost", "reward"])
def test_masked_arrays_are_refused(door: Any, name: str) -> None:
    hidden = np.full(2 if name == "obs" else (), 0 if name == "action" else 0.5)
    masked: Any = np.ma.MaskedArray(hidden.astype(np.int64) if name == "action" else hidden, mask=True)
    with pytest.raises(TypeError, match=rf"{name}: got a masked array .*pass {name}.filled"):
        door(step(**{name: masked}))


def test_a_thread_that_imports_masked_arrays_hinders_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy.ma", ModuleType("numpy.ma"))  # as while it is being imported
    kept = store()
    kept.append(**step())
    assert len(kept) == 1


def test_masked_flags_lanes_and_errors_are_refused() -> None:
    kept = store()
    for name in ("terminated", "truncated", "lanes"):
        masked: Any = np.ma.MaskedArray(np.zeros(2, np.int64 if name == "lanes" else np.bool_), mask=True)
        with pytest.raises(TypeError, match=f"{name}: got a masked array"):
            kept.extend(**stacked(step(), 2) | {name: masked})
    assert not len(kept) and not kept.lanes


def played(rewards: list[float], **ends: Any) -> sw.Store:
    kept = store()
    for k, reward in enumerate(rewards):
        over = k == len(rewards) - 1
        kept.append(**step(reward=reward, terminated=over))
    return kept


@pytest.mark.parametrize("gamma", [1.0, 0.99])
@pytest.mark.parametrize("sign", [1, -1])
def test_returns_beyond_float32_are_its_largest(gamma: float, sign: int) -> None:
    kept = played([sign * float(MAX)] * 6)
    view = kept.transitions(n_step=3, gamma=gamma)
    batch = view.fetch(view.sampleable_ids())
    assert batch.reward.tolist() == [sign * MAX] * 6
    windows = kept.sequences(length=4, stride=4, n_step=3, gamma=gamma)
    sequences = windows.fetch(windows.sampleable_ids())
    assert np.unique(sequences.reward[sequences.mask]).tolist() == [sign * MAX]
    assert np.isfinite(sequences.step_reward).all()


def test_large_rewards_that_cancel_out_are_summed() -> None:
    """However large the sum is on its way."""
    kept = played([float(MAX), float(MAX), -float(MAX), -float(MAX)])
    view = kept.transitions(n_step=4, gamma=1.0)
    assert view.fetch(kept.ids(0, [0])).reward.tolist() == [0.0]


@pytest.mark.parametrize(
    "errors",
    [
        np.array([1 + 2j, 3]),
        [1 + 2j, 3],
        np.array([1.0, 2.0], object),
        ["1", "2"],
        np.array([b"1", b"2"]),
        np.zeros(2, [("a", "f8")]),
        np.array([True, False]),
        torch.tensor([1 + 2j, 3]),
        [[1.0], [1.0, 2.0]],
    ],
)
def test_errors_that_are_no_real_numbers_are_refused(errors: Any) -> None:
    kept = played([0.0] * 3)
    view = kept.transitions(sampler=sw.Prioritized())
    with pytest.raises(ValueError, match="update_priorities: td_error cannot be read as numbers"):
        view.update_priorities(kept.ids(0, [0, 1]), errors)
    with pytest.raises(TypeError, match="update_priorities: td_error: got a masked array"):
        view.update_priorities(kept.ids(0, [0, 1]), np.ma.MaskedArray([1.0, 2.0], mask=[True, False]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_loss_with_its_gradient_is_read(dtype: torch.dtype) -> None:
    kept = played([0.0] * 3)
    view = kept.transitions(sampler=sw.Prioritized(alpha=1.0, eps=1e-6))
    errors = torch.tensor([3.0, -1.0, 0.0], dtype=dtype, requires_grad=True)
    assert view.update_priorities(kept.ids(0, [0, 1, 2]), errors) == 0
    batch = view.sample(64)
    odds = dict(zip(batch.step.tolist(), batch.probabilities.tolist(), strict=True))
    assert odds[0] == pytest.approx(3 * odds[1], rel=1e-3)


ENV = gym.make("CartPole-v1")


@pytest.mark.parametrize(
    "call",
    [
        lambda: sw.Field(True, "uint8"),
        lambda: sw.Field((True,), "uint8"),
        lambda: sw.Field((2,), "uint8", stack=True),
        lambda: sw.Field((2,), "uint8", every=True),
        lambda: store(capacity=True),
        lambda: store(ram=True),
        lambda: store(seed=True),
        lambda: store(segment_steps=True),
        lambda: store().resize(capacity=True),
        lambda: played([0.0]).transitions().sample(True),
        lambda: played([0.0]).transitions().draw(True),
        lambda: played([0.0]).transitions().wait(True),
        lambda: played([0.0]).transitions().stream(True),
        lambda: played([0.0]).transitions().stream(1, lookahead=True),
        lambda: played([0.0]).transitions().sample(1, timeout=True),
        lambda: played([0.0]).transitions().sample(1, beta=True),
        lambda: store().transitions(n_step=True),
        lambda: store().transitions(gamma=True),
        lambda: store().transitions(seed=True),
        lambda: store().transitions(max_times_sampled=True),
        lambda: store().sequences(length=True),
        lambda: store().sequences(length=4, burn_in=True),
        lambda: store().sequences(length=4, stride=True),
        lambda: store().sequences(length=4, n_step=True),
        lambda: store().sequences(length=4, eta=True),
        lambda: store().append(**step(lane=True)),
        lambda: store().append(**step(timeout=True)),
        lambda: store().extend(**stacked(step(), 2), lanes=[True, False]),
        lambda: store().add_episode(lane=True, **step()),
        lambda: played([0.0]).end_episode(False, np.zeros(2)),
        lambda: played([0.0]).break_episode(False),
        lambda: played([0.0]).drop_steps(False, 0, 1),
        lambda: played([0.0]).drop_steps(0, False, True),
        lambda: played([0.0]).annotate(True, {}),
        lambda: played([0.0]).ids(True, 0),
        lambda: sw.SegmentWriter(SPEC, True, lambda sealed: None),
        lambda: sw.SegmentWriter(SPEC, 1, lambda sealed: None, first_lane=True),
        lambda: sw.SegmentWriter(SPEC, 1, lambda sealed: None, segment_steps=True),
        lambda: sw.Recorder(ENV, store(), first_lane=True),
        lambda: sw.Reservoir(True),
        lambda: store().transitions(sampler=sw.Prioritized(alpha=True)),
        lambda: store().transitions(sampler=sw.Prioritized(eps=True)),
        lambda: sw.Mixture([(True, sw.Uniform())]),
        lambda: sw.MinSize(True),
        lambda: sw.Blend([(1, store().transitions())], seed=True),
        lambda: sw.Blend([(1, played([0.0]).transitions())]).sample(True),
    ],
)
def test_truth_values_are_no_numbers(call: Callable[[], object]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"True|False|bool"):
        call()
