"""Options of agents of continuous actions: whole updates against the papers' equations, and how each part behaves."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from sharpwave.agents.actor_networks import Critics
from sharpwave.agents.crossq import CrossQ
from sharpwave.agents.hidden_layers import EnsembleNorm, LayerStyle
from sharpwave.agents.networks import torso_for
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.sac import SAC, quantile_critic_losses, truncated_targets
from sharpwave.agents.td3 import TD3
from tests.agents.continuous_oracle import ACTIONS, BATCH, SIZE, UNITS
from tests.agents.critics_oracle import SACOptionsOracle, TD3OptionsOracle
from tests.agents.test_continuous_updates import HIGH, LOW, SPACES, batches, networks_of

ORACLES: dict[Any, Any] = {SAC: SACOptionsOracle, TD3: TD3OptionsOracle}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "layer norm": (SAC, {"layer_norm": True}),
    "critics of other units": (SAC, {"critic_units": 7, "critics": 1}),
    "normalized observations": (SAC, {"normalize_obs": True}),
    "simba": (SAC, {"blocks": "simba", "normalize_obs": True, "weight_decay": 0.01}),
    "redq": (SAC, {"critics": 5, "target_critics": 2, "policy_delay": 3}),
    "rlpd": (SAC, {"critics": 4, "target_critics": 1, "layer_norm": True, "policy_delay": 2, "temperature": 0.2}),
    "droq": (SAC, {"layer_norm": True, "dropout": 0.3, "policy_delay": 2}),
    "dropout of a subset": (SAC, {"critics": 3, "target_critics": 2, "dropout": 0.3}),
    "many critics, the smallest of all": (SAC, {"critics": 4, "policy_value": "smallest"}),
    "two critics, their mean": (SAC, {"policy_value": "mean"}),
    "tqc": (SAC, {"critics": 3, "quantiles": 5, "dropped_quantiles": 2}),
    "quantiles, none dropped": (SAC, {"quantiles": 4, "dropped_quantiles": 0, "layer_norm": True}),
    "td3 of a subset": (TD3, {"critics": 4, "target_critics": 2, "layer_norm": True}),
    "td3, simba": (TD3, {"blocks": "simba", "normalize_obs": True, "weight_decay": 0.1}),
    "td3, dropout": (TD3, {"dropout": 0.2, "policy_delay": 1}),
}


class Masks:
    """Masks of dropout, by a generator of their own, in place of torch's."""

    def __init__(self, monkeypatch):
        self.made: list[torch.Tensor] = []
        self.rng = np.random.default_rng(0)

        def masked(layer, x):
            mask = torch.from_numpy(self.rng.random(tuple(x.shape)) >= layer.p) / (1 - layer.p)
            self.made.append(mask)
            return x * mask.to(x.dtype)

        monkeypatch.setattr(torch.nn.Dropout, "forward", masked)


def tensors(batch):
    return SimpleNamespace(**{name: torch.from_numpy(one) for name, one in batch.items()})


def wide(batch):
    """A batch in float64, its actions scaled."""
    scaled = {**batch, "action": 2 * (batch["action"] - LOW) / (HIGH - LOW) - 1}
    return {name: torch.from_numpy(np.asarray(one)).double() for name, one in scaled.items()}


def assert_equal_networks(agent, expected, what):
    for network, own in networks_of(agent).items():
        if network != "inputs":
            for name, found in own.items():
                wanted = expected.nets[network][name].numpy()
                np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-5, err_msg=f"{what} {network} {name}")


def learn_both(agent, expected, batch, update, masks):
    """One update of the agent and of its oracle, by the same draws; check the errors and all weights."""
    masks.made.clear()
    torch.manual_seed(100 + update)
    learned = agent.learn(tensors(batch), update)
    expected.masks = [mask.double() for mask in masks.made]
    torch.manual_seed(100 + update)
    errors = expected.learn(wide(batch))
    np.testing.assert_allclose(learned.td_error, errors, rtol=0, atol=3e-5)
    assert not expected.masks


@pytest.mark.parametrize("case", CASES)
def test_updates_are_those_of_the_equations(case, monkeypatch):
    kind, changes = CASES[case]
    masks = Masks(monkeypatch)
    torch.manual_seed(1)
    agent = kind(SPACES, kind.Settings(**{"hidden_units": UNITS, "lr": 1e-2, "target_tau": 0.1} | changes))
    expected = ORACLES[kind](networks_of(agent), agent.settings)
    begun = networks_of(agent)
    assert agent.first_look == (4096 if agent.settings.normalize_obs else 0)
    first, *rest = batches(7, seed=3)
    if agent.first_look:
        agent.prepare(tensors(first))
        expected.measure(wide(first)["obs"])
    for update, batch in enumerate(rest):
        learn_both(agent, expected, batch, update, masks)
        assert_equal_networks(agent, expected, update)
    for network in ("critics", "actor"):
        for name, found in networks_of(agent)[network].items():
            assert np.abs(found - begun[network][name]).max() > 1e-4, (network, name)


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_a_reset_begins_networks_and_optimizer_anew(kind, monkeypatch):
    """Observations' statistics, the count of updates and the generators go on."""
    masks = Masks(monkeypatch)
    torch.manual_seed(1)
    changes = {"reset_every": 3, "policy_delay": 2, "normalize_obs": True, "weight_decay": 0.1}
    agent = kind(SPACES, kind.Settings(hidden_units=UNITS, lr=1e-2, target_tau=0.1, **changes))
    expected = ORACLES[kind](networks_of(agent), agent.settings)
    for update, batch in enumerate(batches(8, seed=3)):
        learn_both(agent, expected, batch, update, masks)
        if (update + 1) % 3 == 0:
            before, after = expected.nets, networks_of(agent)
            matrices = [n for n in after["critics"] if n.endswith("weight")]
            assert all(np.abs(after["critics"][n] - before["critics"][n].numpy()).mean() > 0.05 for n in matrices)
            target = "target" if kind is SAC else "target_critics"
            assert all(np.array_equal(after[target][n], after["critics"][n]) for n in after["critics"])
            if kind is SAC:
                assert after["log_temperature"]["0"] == 0
            expected = ORACLES[kind](after, agent.settings, update + 1, expected.seen)
        else:
            assert_equal_networks(agent, expected, update)
    assert agent.updates == 8


@pytest.mark.parametrize("moment", range(2, 8))
def test_a_state_saved_between_resets_is_resumed_exactly(moment):
    def fresh():
        torch.manual_seed(1)
        settings = SAC.Settings(
            hidden_units=UNITS, reset_every=3, normalize_obs=True, policy_delay=2, weight_decay=0.1, critics=3,
            target_critics=2, dropout=0.1, layer_norm=True,
        )  # fmt: skip
        return SAC(SPACES, settings)

    one, other = fresh(), fresh()
    every = list(batches(9, seed=3))
    for update, batch in enumerate(every):
        if update == moment:
            other.load(one.state())
        for agent in (one, other) if update >= moment else (one,):
            torch.manual_seed(update)
            agent.learn(tensors(batch), update)
    for network, own in networks_of(one).items():
        for name, found in own.items():
            assert np.array_equal(found, networks_of(other)[network][name]), (network, name)


# Parts


def test_truncated_targets_by_hand():
    """Two critics of three quantiles; one dropped for each: of six quantiles the four smallest."""
    z = torch.tensor([[[1.0, 4.0, 9.0], [0.0, 0.0, 0.0]], [[2.0, 3.0, 5.0], [1.0, -1.0, 7.0]]])
    reward, discount, bonus = torch.tensor([10.0, 1.0]), torch.tensor([0.5, 0.0]), torch.tensor([2.0, 5.0])
    # (1, 2, 3, 4) + 2, halved, plus 10; the second item is terminal
    expected = torch.tensor([[11.5, 12.0, 12.5, 13.0], [1.0, 1.0, 1.0, 1.0]])
    torch.testing.assert_close(truncated_targets(z, 1, bonus, reward, discount), expected)
    assert truncated_targets(z, 0, bonus, reward, discount).shape == (2, 6)


def test_quantile_losses_by_hand():
    """Quantiles .25 and .75 at 0 and 4, targets 1 and 7.

    Errors of the first: 1 and 7, Huber .5 and 6.5, times .25: mean .875. Of the second: -3 and 3, Huber 2.5 each,
    times .25 (above its target) and .75: mean 1.25. Their mean is 1.0625.
    """
    found = quantile_critic_losses(torch.tensor([[[0.0, 4.0]]]), torch.tensor([[1.0, 7.0]]))
    torch.testing.assert_close(found, torch.tensor([[1.0625]]))


@pytest.mark.parametrize("quantiles", [0, 3])
@pytest.mark.parametrize("style", [LayerStyle(), LayerStyle(normalized="layer"), LayerStyle("simba")], ids=str)
def test_an_ensemble_is_its_critics_one_by_one(style, quantiles):
    """Those of the first ones, or of any chosen ones, are the same numbers; each begins by weights of its own."""
    torch.manual_seed(0)
    torso = torso_for(SPACES.observation, "auto", 0)
    critics = Critics(torso, ACTIONS, 6, style, members=5, quantiles=quantiles)
    features, action = torch.randn(BATCH, SIZE), torch.randn(BATCH, ACTIONS)
    whole = critics(features, action)
    assert whole.shape == (5, BATCH, *((3,) if quantiles else ()))
    torch.testing.assert_close(critics(features, action, 2), whole[:2])
    chosen = torch.tensor([4, 0, 3])
    torch.testing.assert_close(critics.some(features, action, chosen), whole[chosen])
    assert all(not torch.allclose(whole[i], whole[j]) for i in range(5) for j in range(i))


def test_the_subset_is_drawn_anew_and_every_pair_is_as_likely():
    agent = SAC(SPACES, SAC.Settings(hidden_units=UNITS, critics=4, target_critics=2))
    torch.manual_seed(0)
    drawn = [agent.chosen_critics() for _ in range(6_000)]
    pairs = [sorted(one.tolist()) for one in drawn if one is not None]
    counts = np.unique(pairs, axis=0, return_counts=True)[1]
    assert len(counts) == 6 and np.abs(counts - 1_000).max() < 4 * 29  # four standard deviations


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        (SAC, 3),  # the critics', the targets' and the policy's value
        (CrossQ, 2),  # the targets are in the critics' pass
    ],
)
def test_dropout_is_of_every_pass_of_learning_and_keeps_the_mean(kind, passes):
    torch.manual_seed(0)
    agent = kind(SPACES, kind.Settings(critic_units=400, dropout=0.25, policy_delay=1))
    seen = []
    for network in agent.critics, getattr(agent, "target", None) or torch.nn.Module():
        for layer in network.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.register_forward_hook(lambda module, given, out: seen.append((given[0], out.clone())))
    agent.learn(tensors(next(iter(batches(1, seed=3)))), 0)
    assert len(seen) == 2 * passes  # each of two layers
    for given, out in seen:
        kept = out != 0
        assert kept.float().mean() == pytest.approx(0.75, abs=0.02)
        torch.testing.assert_close(out[kept], given[kept] / 0.75)
    masks = seen[0][1] != 0
    assert (masks[0] == masks[1]).float().mean() == pytest.approx(0.75**2 + 0.25**2, abs=0.03)  # each critic its own


def test_norms_of_an_ensemble_are_torch_s():
    torch.manual_seed(0)
    norm, x = EnsembleNorm(3, 6), torch.randn(3, 5, 6)
    with torch.no_grad():
        norm.scale.normal_()
        norm.shift.normal_()
    for k in range(3):
        own = torch.nn.LayerNorm(6)
        own.load_state_dict({"weight": norm.scale[k, 0], "bias": norm.shift[k, 0]})
        torch.testing.assert_close(norm(x)[k], own(x[k]))


def test_residual_blocks_begin_as_the_paper_says():
    torch.manual_seed(0)
    agent = SAC(SPACES, SAC.Settings(hidden_units=64, blocks="simba"))
    critics, actor = networks_of(agent)["critics"], networks_of(agent)["actor"]
    for matrix in (*critics["hidden.0.weight"], actor["hidden.1.weight"].T, actor["output.weight"].T):
        small = matrix @ matrix.T if len(matrix) < len(matrix.T) else matrix.T @ matrix
        np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(critics["output"], axis=2), 1.0, atol=1e-5)
    for one in (critics["hidden.1.layers.1.weight"], critics["hidden.2.layers.1.weight"]):
        assert one.shape == (2, 64, 256) and one.std() == pytest.approx((2 / 64) ** 0.5, rel=0.03)
    assert critics["hidden.1.layers.3.weight"].std() == pytest.approx((2 / 256) ** 0.5, rel=0.03)
    assert {name.split(".layers")[0] for name in actor if "layers" in name} == {"hidden.2"}  # one block
    assert {name.split(".layers")[0] for name in critics if "layers" in name} == {"hidden.1", "hidden.2"}


# Observations


def test_actors_normalize_as_the_learner_and_evaluation_measures_nothing():
    settings = SAC.Settings(hidden_units=UNITS, normalize_obs=True, random_steps=0)
    learner, actor = SAC(SPACES, settings, seed=1), SAC(SPACES, settings, seed=1)
    for update, batch in enumerate(batches(4, seed=3)):
        learner.learn(tensors({**batch, "obs": batch["obs"] * 5 + 100}), update)
    assert "inputs.mean" in learner.policy_tensors() and abs(learner.inputs.mean.mean() - 100) < 3
    actor.load_policy(learner.policy_tensors(explore=True))
    obs = np.random.default_rng(0).normal(100, 5, (9, SIZE)).astype(np.float32)
    for explore in (False, True):
        assert np.array_equal(actor.act(obs, None, 0, explore).action, learner.act(obs, None, 0, explore).action)
    for name, one in learner.policy_tensors().items():
        assert torch.equal(one, actor.policy_tensors()[name])
    plain = SAC(SPACES, SAC.Settings(hidden_units=UNITS, random_steps=0))
    assert not any("mean" in name for name in plain.policy_tensors())


def test_what_has_no_vector_of_numbers_is_not_normalized():
    spaces = Spaces(Discrete(4), SPACES.action)
    with pytest.raises(ValueError, match="--normalize-obs: got True, expected False: no observation is a vector"):
        SAC(spaces, SAC.Settings(normalize_obs=True))
    mixed = Spaces(Dict(speed=Box(-1, 1, (2,), np.float32), gear=Discrete(3)), SPACES.action)
    SAC(mixed, SAC.Settings(normalize_obs=True))


# Settings


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (SAC, {"target_critics": 3}, "--target-critics: got 3, expected at most --critics 2"),
        (SAC, {"layer_norm": True, "blocks": "simba"}, "--layer-norm: got True, expected False, or True with --blocks"),
        (SAC, {"dropout": 0.1, "blocks": "simba"}, "--dropout: got 0.1, expected 0, or more with --blocks plain"),
        (SAC, {"quantiles": 2}, "--dropped-quantiles: got 2, expected less than --quantiles 2"),
        (SAC, {"quantiles": 5, "critics": 3, "target_critics": 2}, "--target-critics: got 2, expected none with"),
        (SAC, {"quantiles": 5, "policy_value": "smallest"}, "--policy-value: got 'smallest', expected auto or mean"),
        (CrossQ, {"layer_norm": True}, "--layer-norm: got True, expected False: CrossQ's layers are normalized"),
        (CrossQ, {"blocks": "simba"}, "--blocks: got 'simba', expected plain: CrossQ's layers are normalized"),
        (TD3, {"blocks": "other"}, "--blocks: got 'other', expected one of plain, simba"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(kind, changes, message):
    with pytest.raises(ValueError) as raised:
        kind.Settings(**changes)
    assert str(raised.value).startswith(message)
