"""Whole updates of R2D2, DRQN and R2D3 against a derivation of their own: numpy, float64, gradients by hand, Adam
included; and the priorities that follow from them."""

from typing import Any

import numpy as np
import pytest
import torch

import sharpwave as sw
from sharpwave.agents.r2d2 import SequencesSettings
from sharpwave.agents.r2d3 import R2D3
from tests.agents.recurrent_oracle import Oracle
from tests.agents.test_r2d2 import ACTIONS, CORE_UNITS, FIRST, SIZE, SPACES, UNITS, WINDOWS, make, online, played

DRQN: dict[str, Any] = {
    "stored_state": False, "n_step": 1, "double": False, "dueling": False, "rescale": False,
    "replay": SequencesSettings(batch_size=16, length=5, burn_in=0, stride=5, prioritized=False),
}  # fmt: skip


def assert_equal(agent: Any, oracle: Oracle, begun: dict[str, Any]) -> None:
    """All parameters of all networks to 1e-6, and none of them stayed where it was."""
    for network, weights in (("online.", oracle.online), ("target.", oracle.target), ("average.", oracle.mean)):
        found = online(agent, network)
        assert found.keys() == weights.keys()
        for name, value in found.items():
            np.testing.assert_allclose(value, weights[name], rtol=0, atol=1e-6, err_msg=network + name)
    assert all(np.abs(oracle.online[name] - begun[name]).max() > 1e-3 for name in begun)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"double": False},
        {"dueling": False},
        {"dueling_baseline": "max"},
        {"dueling_baseline": "naive"},
        {"rescale": False},
        {"stored_state": False},
        {"core": "gru"},
        {"core": "gru", "stored_state": False, "lr_end": 5e-4, "lr_steps": 90},
        {"max_grad_norm": 0.05},
        {"max_grad_norm": 0.0, "n_step": 1},
        {"n_step": 9, "adam_eps": 1e-4},
        {"replay": SequencesSettings(batch_size=16, length=5, burn_in=0, stride=5, prioritized=False)},
        DRQN,
        DRQN | {"core": "gru"},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items() if name != "replay"),
)
def test_updates_are_those_of_the_equations(changes: dict[str, Any]) -> None:
    agent = make(1, average_decay=0.8, **changes)
    view, _ = played(agent)
    oracle = Oracle(online(agent), agent.settings, ACTIONS, FIRST)
    begun, padded, uneven = dict(oracle.online), np.zeros(3, bool), False
    for update in range(10):
        batch = view.sample(16).copy()
        uneven |= bool(batch.weights.std() > 0.05)
        burn_in, steps = batch.burn_in, batch.mask.shape[1]
        trained = batch.mask[:, burn_in:].sum(axis=1)
        padded |= [not batch.mask[:, :burn_in].all(), trained.min() < steps - burn_in, batch.discount.min() == 0]
        expected = oracle.learn(batch, 12 * update)
        learned = agent.learn(batch.torch(), 12 * update)
        assert learned.td_error is not None
        np.testing.assert_allclose(learned.td_error, expected, rtol=0, atol=5e-6)
        view.update_priorities(batch, learned.td_error.numpy())
    assert padded.tolist() == [burn_in > 0, True, True], "batches with padding at both ends, and terminations"
    assert uneven == agent.settings.replay.prioritized
    assert_equal(agent, oracle, begun)
    assert oracle.copied == 2  # 108 steps, periods of 40


def demonstrated(folder: Any, episodes: int = 12) -> str:
    """Episodes of 2 to 15 steps, every third truncated."""
    rng, spec = np.random.default_rng(5), sw.Spec(obs=sw.Field((SIZE,), "float32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=1_000) as store:
        for episode in range(episodes):
            length = int(rng.integers(2, 16))
            for step in range(length):
                end = step == length - 1
                store.append(
                    obs=rng.normal(size=SIZE), action=rng.integers(FIRST, FIRST + ACTIONS), reward=2 * rng.normal(),
                    terminated=end and episode % 3 != 0, truncated=end and episode % 3 == 0,
                    final_obs=rng.normal(size=SIZE),
                )  # fmt: skip
        store.checkpoint(folder)
    return str(folder)


class Priorities:
    """Priorities of one view's windows: |error| mixed by eta, and one that was never learned from has the largest."""

    def __init__(self, view: Any) -> None:
        self.of = dict.fromkeys(view.sampleable_ids().tolist(), 1.0)

    def probabilities(self, ids: Any) -> Any:
        """By Schaul et al. (2016), eq. 1."""
        total = sum(priority**WINDOWS.priority_alpha for priority in self.of.values())
        return np.array([self.of[int(one)] ** WINDOWS.priority_alpha / total for one in ids])

    def learn(self, ids: Any, errors: Any, masks: Any) -> None:
        """By Kapturowski et al. (2019), section 2.3, over real steps; of an id that is there twice the last counts."""
        for one, error, mask in zip(ids.tolist(), np.abs(errors), masks, strict=True):
            self.of[one] = 0.9 * error[mask].max() + 0.1 * error[mask].mean() + 1e-6


@pytest.mark.parametrize("changes", [{}, {"core": "gru", "stored_state": False}], ids=["lstm", "gru-zero-state"])
def test_blended_updates_are_those_of_the_equations_and_both_stores_get_their_priorities(
    changes: dict[str, Any], tmp_path: Any
) -> None:
    torch.manual_seed(1)
    settings: dict[str, Any] = {
        "network": "mlp", "hidden_units": UNITS, "core_units": CORE_UNITS, "replay": WINDOWS, "n_step": 3,
        "target_every": 40, "lr": 2e-3, "demonstrations": demonstrated(tmp_path), "demonstration_share": 0.3,
        "average_decay": 0.8,
    }  # fmt: skip
    agent = R2D3(SPACES, R2D3.Settings(**settings | changes), seed=0)
    blend, _ = played(agent)
    assert isinstance(blend, sw.Blend)
    priorities = [Priorities(view) for view in blend.views]
    oracle = Oracle(online(agent), agent.settings, ACTIONS, FIRST)
    begun, sources = dict(oracle.online), []
    for update in range(10):
        batch = blend.sample(16).copy()
        sources += batch.source.tolist()
        demonstrations = batch.source == 0
        assert not batch["core"][demonstrations, : agent.online.state_size].any()
        expected = oracle.learn(batch, 12 * update)
        for k, share in enumerate((0.3, 0.7)):
            of = batch.source == k
            probabilities = priorities[k].probabilities(batch.ids[of])
            np.testing.assert_allclose(batch.probabilities[of], share * probabilities, rtol=1e-5)
            weights = probabilities**-WINDOWS.priority_beta
            np.testing.assert_allclose(batch.weights[of], weights / weights.max(initial=0), rtol=1e-5)
            priorities[k].learn(batch.ids[of], expected[of], batch.mask[of, batch.burn_in :])
        learned = agent.learn(batch.torch(), 12 * update)
        assert learned.td_error is not None
        np.testing.assert_allclose(learned.td_error, expected, rtol=0, atol=5e-6)
        assert blend.update_priorities(batch, learned.td_error.numpy()) == 0
        for view, of_view in zip(blend.views, priorities, strict=True):
            ids = view.sampleable_ids()
            found = view.sampler.probabilities(ids & 0xFFFFFFFF)
            np.testing.assert_allclose(found, of_view.probabilities(ids), rtol=1e-4)
    assert 20 < sources.count(0) < 76  # of 160: 48, four standard deviations
    assert all(len(set(of_view.of.values())) > 10 for of_view in priorities)
    assert_equal(agent, oracle, begun)
    assert oracle.copied == 2
