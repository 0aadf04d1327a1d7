"""Updates due by a ratio to the steps, counted without gain or loss, and what a run with such a ratio does."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpwave.training.actors.worker import ratio_limiter
from sharpwave.training.progress import Progress
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run

from .test_resume import assert_same, go, stopped_copy
from .trainer import Trained

CARTPOLE = load_recipe("cartpole").override(
    steps=1_200, warmup_steps=200, num_envs=4, checkpoint_every=400, report_every=200, hidden_units=8, batch_size=8,
    stop_reward=None, evaluate_every=0, capacity=1_200, seed=5,
)  # fmt: skip


def due(utd, steps):
    """Updates that are due after so many steps of learning."""
    progress = Progress(CARTPOLE.override(utd=utd, warmup_steps=0))
    progress.advance(steps)
    return progress.updates_due


@pytest.mark.parametrize(
    ("utd", "steps", "expected"),
    [(0.3, 1_000, 300), (20.0, 1_000, 20_000), (1.0, 7, 7), (1 / 3, 3_000, 1_000), (2 / 3, 3_000_000, 2_000_000),
     (0.1, 10**9, 10**8), (2.7, 10, 27), (1e-6, 2_999_999, 2)],
)  # fmt: skip
def test_updates_due_by_hand(utd, steps, expected):
    assert due(utd, steps) == expected
    assert due(utd, steps - 1) <= expected - (utd >= 1)


ratios = st.one_of(st.builds(Fraction, st.integers(1, 999), st.integers(1, 999)), st.integers(1, 99).map(Fraction))


@given(ratios, st.integers(0, 50), st.lists(st.tuples(st.integers(0, 40), st.sampled_from("----sw")), max_size=30))
def test_updates_due_are_those_of_an_integer_model(ratio, warmup, turns):
    """Steps arrive, every due update is made, the progress is saved and restored, and now and then it warms up anew."""
    recipe = CARTPOLE.override(utd=float(ratio), warmup_steps=warmup)
    progress = Progress(recipe)
    steps = made = before = 0
    begin = warmup
    for arrived, then in turns:
        progress.advance(arrived)
        steps += arrived
        expected = before + (max(0, steps - begin) * ratio.numerator) // ratio.denominator
        assert progress.updates_due == expected >= made
        for _ in range(expected - made):
            progress.learned({})
        made = expected
        if then == "s":
            progress = Progress.from_dict(recipe, progress.to_dict())
        elif then == "w":
            progress.warm_up_again()
            begin, before = steps + warmup, made
            assert progress.updates_due == made


def test_no_ratio_is_one_update_in_update_every():
    for every in (1, 3, 4):
        recipe = CARTPOLE.override(update_every=every)
        progress = Progress(recipe)
        for step in range(0, 1_000, 4):
            assert progress.updates_due == max(0, step - 200) // every
            progress.advance(4)
        assert progress.will_learn


def test_a_run_makes_the_updates_of_its_ratio():
    trained = Trained(CARTPOLE.override(utd=0.3))
    trained.close()
    assert trained.last["updates"] == 300 == trained.kept.updates


@pytest.mark.parametrize(
    "utd", [pytest.param(0.3, marks=pytest.mark.nightly), pytest.param(2.5, marks=pytest.mark.slow)]
)
def test_a_run_resumed_is_the_run_that_was_not_stopped(tmp_path, utd):
    recipe = CARTPOLE.override(utd=utd)
    whole, summary, _ = go(run, "cartpole", recipe, tmp_path / "whole")
    assert summary["updates"] == round(1_000 * utd)
    stopped = stopped_copy(whole, tmp_path / "stopped", 800)
    _, resumed, text = go(resume, stopped, {})
    assert f"800 steps, {round(600 * utd):,} updates" in text
    assert resumed["updates"] == summary["updates"]
    assert_same(whole, stopped, recipe, tmp_path)


def test_a_run_too_short_to_learn_says_its_ratio(tmp_path):
    _, summary, text = go(run, "cartpole", CARTPOLE.override(utd=0.25, steps=203, num_envs=1), tmp_path / "run")
    assert summary["updates"] == 0 and "then 0.25 times a step (--utd)" in text


@pytest.mark.parametrize("utd", [0.3, 20.0])
def test_actors_may_be_ahead_by_the_same_steps_at_any_ratio(utd):
    recipe = CARTPOLE.override(utd=utd, actors=1)
    limiter = ratio_limiter(recipe, recipe.agent.replay)
    assert limiter.ratio == pytest.approx(8 * utd, rel=1e-15)
    assert limiter.error_buffer == pytest.approx(2 * 4 * (34 + recipe.agent.replay.horizon) * 8 * utd + 8)


def test_settings_that_the_ratio_contradicts_are_refused():
    with pytest.raises(ValueError, match=r"--update-every: got 2, which has no effect here; it needs --set agent"):
        CARTPOLE.override(utd=0.5, update_every=2)
    with pytest.raises(ValueError, match=r"--utd: got 0\.0, expected above 0"):
        CARTPOLE.override(utd=0.0)
    with pytest.raises(ValueError, match=r"--utd: got 2\.0, expected none: an offline run"):
        load_recipe("cql").override(utd=2.0)
    assert CARTPOLE.override(utd=None, update_every=2).update_ratio == Fraction(1, 2)
