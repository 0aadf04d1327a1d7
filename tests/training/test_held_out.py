"""What a run says of its policy was measured with fixed weights on episodes that training did not see."""

import io
import json
import shutil
from statistics import fmean

import numpy as np
import pytest
import torch
from rich.console import Console

from sharpwave.agents.protocol import Acted
from sharpwave.errors import NewerVersionError
from sharpwave.training import setup
from sharpwave.training.checkpoints import load_policy, save_policy
from sharpwave.training.evaluation import evaluate
from sharpwave.training.policies import Policy
from sharpwave.training.policy_files import POLICY
from sharpwave.training.progress import DivergedError, Evaluation, HeldOut, TrainingState, episode_seed, measure, played
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run
from sharpwave.training.scores import EPISODES, EPSILON, EVAL_SEED, LANES, Purpose, held_out_seed, play

from .trainer import Trained

SHORT = load_recipe("cartpole").override(
    steps=2_000, warmup_steps=500, checkpoint_every=1_000, report_every=500,
    stop_reward=None, evaluate_every=500, evaluate_from=None, seed=3,
)  # fmt: skip


def trained(recipe):
    found = Trained(recipe)
    found.close()
    return found.agent, found.last, found.kept


def quiet(how, *arguments):
    return how(*arguments, Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def solved_run(tmp_path_factory):
    """A run that ends by a low bar, its folder and its summary."""
    recipe = SHORT.override(steps=20_000, stop_reward=100.0, stop_worst=20.0)
    return quiet(run, "cartpole", recipe, tmp_path_factory.mktemp("solved") / "run")


@pytest.mark.slow
def test_evaluations_do_not_disturb_training():
    often, _, kept = trained(SHORT)
    never, _, alone = trained(SHORT.override(evaluate_every=0))
    assert len(kept.evaluations) >= 3 and not alone.evaluations
    one, two = often.state()["weights"], never.state()["weights"]
    assert all(torch.equal(one[name], two[name]) for name in one)
    times = {"minutes": 0}
    assert [{**line, **times} for line in kept.episodes] == [{**line, **times} for line in alone.episodes]


@pytest.mark.parametrize("recipe", ["gymnasium", "pqn", "ppo"])
@pytest.mark.parametrize("report_every", [50, 8_000])
def test_a_run_that_diverges_keeps_no_policy(recipe, report_every, tmp_path):
    """Observations are NaN from the 61st step of each environment on; reports come before an evaluation, or not."""
    broken = load_recipe(recipe).override(
        env="tests.training.made_up:Broken-v0", num_envs=4, steps=8_000, warmup_steps=120, evaluate_every=400,
        evaluate_from=None, report_every=report_every, checkpoint_every=8_000, threads=1, device="cpu",
    )  # fmt: skip
    with pytest.raises(DivergedError, match=r"loss: got nan at step [2-4]\d\d: training has diverged"):
        quiet(run, "broken", broken, tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.safetensors"))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line, parse_constant=pytest.fail) for line in lines)


def test_training_episodes_do_not_end_a_run():
    """They pass the bar of 10 from the start; no held-out score passes CartPole's 500."""
    _, summary, kept = trained(SHORT.override(stop_reward=10.0, stop_worst=501.0))
    assert summary["reason"] == "the limit of 2,000 steps" and summary["mean_reward"] > 10
    assert all(len(event["scores"]) == LANES for event in kept.evaluations)  # it was left at the first ones


@pytest.mark.slow
def test_it_ends_with_30_whole_episodes_of_fixed_weights_and_measures_them_again(solved_run):
    folder, summary = solved_run
    found, final = summary["held_out"], summary["final"]
    assert summary["reason"] == "a held-out mean of 100 or more, confirmed"
    assert len(found["scores"]) == len(final["scores"]) == EPISODES and found["fresh"] == final["scores"]
    assert final["mean"] == fmean(final["scores"]) >= 100 and min(final["scores"]) >= 20
    assert found["mean"] == fmean(found["scores"]) >= 100 and min(found["scores"]) >= 20
    weights, figures = load_policy(folder / "best.safetensors")
    assert figures == {**found, POLICY: figures[POLICY]} and found["steps"] == final["steps"]
    # An agent of its own, by what is on disk: the same scores.
    recipe = SHORT.override(seed=1)
    env = recipe.env.make(LANES)
    player = setup.player(recipe, env, weights)
    for evaluation, purpose in ((found, Purpose.CHOOSING), (final, Purpose.CONFIRMING)):
        seed = held_out_seed(SHORT.training.seed, evaluation["steps"], purpose)
        assert play(player, env, EPISODES, EPSILON, seed) == evaluation["scores"]
    env.close()
    assert found["scores"] != final["scores"]


@pytest.mark.nightly
def test_with_actors_too(tmp_path):
    recipe = SHORT.override(actors=1, steps=20_000, stop_reward=30.0, evaluate_from=15.0)
    folder, summary = quiet(run, "cartpole", recipe, tmp_path / "run")
    assert summary["reason"] == "a held-out mean of 30 or more, confirmed" and summary["final"]["mean"] > 20
    figures = load_policy(folder / "best.safetensors")[1]
    assert figures.pop(POLICY)["env"]["name"] == "CartPole-v1" and figures == summary["held_out"]
    assert load_policy(folder / "last.safetensors")[1]["steps"] == summary["steps"]


def test_eval_plays_the_best_or_the_last(solved_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(solved_run[0], folder)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in load_policy(folder / "last.safetensors")[0].items()}
    save_policy(folder / "last.safetensors", zeros, {"steps": 77})
    best = evaluate(folder, episodes=10)
    assert Policy.load(folder).checkpoint == "best" and best.mean > 60
    assert best == evaluate(Policy.load(folder, "best"), episodes=10)
    last = Policy.load(folder, "last")
    worst = evaluate(last, episodes=10)
    assert last.steps == 77 and max(worst.scores) < 15  # always to the left
    (folder / "best.safetensors").unlink()
    assert evaluate(folder, episodes=10) == worst
    with pytest.raises(ValueError, match="use --checkpoint last"):
        Policy.load(folder, "best")
    (folder / "last.safetensors").unlink()  # a run of a version that wrote neither
    newest = Policy.load(folder)
    assert newest.steps == solved_run[1]["steps"] and evaluate(newest, episodes=10).mean > 60


@pytest.mark.slow
def test_a_resumed_run_keeps_the_best_of_its_checkpoint(tmp_path):
    """Killed after a later evaluation was kept, and while the next one was written."""
    whole, _ = quiet(run, "cartpole", SHORT, tmp_path / "whole")
    killed = tmp_path / "killed"
    shutil.copytree(whole, killed)
    shutil.rmtree(killed / "checkpoints" / "000000002000")
    (killed / "summary.json").unlink()
    for name in ("best", "last"):
        (killed / f".{name}.safetensors.0123abcd.partial").write_bytes(b"half")
    _, half = quiet(resume, killed, {"steps": 1_004})
    evaluations = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    then = [event for event in evaluations if event["event"] == "evaluation" and event["steps"] <= 1_004]
    best = max(then, key=lambda event: event["mean"])
    figures = load_policy(killed / "best.safetensors")[1]
    assert (figures["steps"], figures["mean"]) == (best["steps"], best["mean"])
    assert {**half["held_out"], POLICY: figures[POLICY]} == figures
    quiet(resume, killed, {"steps": 2_000})
    # The checkpoint of 1,004 steps broke episodes off, so later ones are others; but whole they are.
    assert load_policy(killed / "best.safetensors")[1]["mean"] >= figures["mean"]
    assert load_policy(killed / "last.safetensors")[1]["steps"] == 2_000


def test_damage_to_a_policy_is_named(tmp_path):
    path = tmp_path / "best.safetensors"
    weights = {"policy.weight": torch.arange(6.0).view(2, 3)}
    save_policy(path, weights, {"steps": 5, "mean": 1.5})
    loaded, figures = load_policy(path)
    assert figures == {"steps": 5, "mean": 1.5} and torch.equal(loaded["policy.weight"], weights["policy.weight"])
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 7):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            loaded, figures = load_policy(path)
        except ValueError as error:
            assert "best.safetensors" in str(error) and "is damaged" in str(error)
        else:  # in the padding between header and numbers
            assert figures == {"steps": 5, "mean": 1.5} and torch.equal(
                loaded["policy.weight"], weights["policy.weight"]
            )
    for length in (0, 7, 40, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is damaged"):
            load_policy(path)


def test_a_policy_of_a_later_release_is_refused_and_left_alone(solved_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(solved_run[0], folder)
    weights, figures = load_policy(folder / "best.safetensors")
    save_policy(folder / "best.safetensors", weights, {**figures, "version": 3})
    before = (folder / "best.safetensors").read_bytes()
    with pytest.raises(NewerVersionError, match=r"best\.safetensors: version 3.*written by a newer sharpwave"):
        evaluate(folder)
    assert (folder / "best.safetensors").read_bytes() == before


def test_seeds_are_nobody_elses():
    training, deciding, final = set(), set(), set()
    for seed in range(20):
        for steps in range(0, 500_000, 10_000):
            training |= {episode_seed(seed, steps) + lane for lane in range(16)}
            deciding |= {held_out_seed(seed, steps) + lane for lane in range(LANES)}
            final |= {
                held_out_seed(seed, steps, purpose) + lane
                for purpose in (Purpose.CONFIRMING, Purpose.REPORTING)
                for lane in range(LANES)
            }
    usual = {EVAL_SEED + lane for lane in range(LANES)}
    for one, other in ((training, deciding), (training, final), (deciding, final), (deciding | final, usual)):
        assert not one & other
    assert max(deciding | final) < 2**31 and 2 * len(deciding) == len(final) == 2 * 20 * 50 * LANES


def test_the_best_is_one_that_solves_it_before_one_with_a_higher_mean():
    recipe = SHORT.override(stop_reward=18.0, stop_worst=1.0)
    held_out = HeldOut(recipe)
    lost_one, passed = Evaluation(10, [20.0] * 29 + [-1.0]), Evaluation(20, [18.5] * 30)
    few, solved = Evaluation(30, [21.0] * 10), Evaluation(40, [18.5] * 30, [18.0] * 30)
    assert [one.solves(recipe) for one in (lost_one, passed, few, solved)] == [False, False, False, True]
    assert held_out._rank(passed) < held_out._rank(lost_one) < held_out._rank(few) < held_out._rank(solved)
    assert lost_one.figures()["lost"] == 1 and lost_one.figures()["min"] == -1
    assert not solved.solves(recipe.override(stop_reward=None, stop_worst=None))


@pytest.mark.parametrize(
    ("fresh", "is_solved"),
    [
        ([18.0] * 30, True),
        ([17.0] * 15 + [18.9] * 15, False),  # a mean of 17.95
        ([20.0] * 29 + [0.0], False),  # one below stop_worst
        ([20.0] * 10, False),  # abandoned
    ],
)
def test_a_pass_that_fresh_episodes_do_not_confirm_solves_nothing(fresh, is_solved):
    """Of 14 policies that never lost a game in 30, one lost by 17 in its next 30."""
    recipe = SHORT.override(stop_reward=18.0, stop_worst=1.0)
    env = recipe.env.make(1)
    agent = setup.agent(recipe, env)
    env.close()
    state = TrainingState.fresh(recipe, agent)
    state.held_out.add(Evaluation(500, [19.0] * 30, fresh), agent.policy_tensors(), 0.0)
    state = TrainingState.from_dict(recipe, agent, state.to_dict())  # as after a resume
    assert state.held_out.solved == is_solved
    assert state.end_reached(recipe) == ("a held-out mean of 18 or more, confirmed" if is_solved else None)
    if is_solved:
        final = state.held_out.final()
        assert final is not None and final["scores"] == fresh and final["mean"] == 18.0  # not 19


@pytest.mark.slow
def test_confirming_episodes_are_others_and_are_played_for_a_pass_only(solved_run):
    weights, _ = load_policy(solved_run[0] / "best.safetensors")
    recipe = SHORT.override(stop_reward=50.0)
    passed = measure(recipe, weights, 500)
    assert len(passed.scores) == len(passed.fresh) == EPISODES and passed.scores != passed.fresh
    assert passed.scores == played(recipe, weights, 500, Purpose.CHOOSING)
    assert passed.fresh == played(recipe, weights, 500, Purpose.CONFIRMING)
    failed = measure(recipe.override(stop_reward=501.0), weights, 500)
    assert len(failed.scores) == LANES and failed.fresh == []


def test_an_episode_without_an_end_is_scored_as_it_is(monkeypatch):
    """In an environment without a time limit a policy may walk in circles for ever."""
    monkeypatch.setattr("sharpwave.training.scores.MAX_EPISODE_STEPS", 50)
    recipe = load_recipe("gymnasium").override(env="CliffWalking-v1")
    env = recipe.env.make(2)
    agent = setup.agent(recipe, env)
    up = np.zeros(2, np.int64)  # against the wall
    monkeypatch.setattr(agent, "act", lambda obs, state, step, explore: Acted(up, state))
    assert play(agent, env, 3, 0.0, 5) == [-50.0] * 3
    env.close()


def test_it_is_left_at_the_first_round_where_that_falls_short(solved_run):
    weights, _ = load_policy(solved_run[0] / "best.safetensors")
    env = SHORT.env.make(3)
    player = setup.player(SHORT, env, weights)
    asked = []
    whole = play(player, env, 9, 0.0, 5)

    def hopeless(scores):
        asked.append(scores)
        return len(scores) == 6

    scores = play(player, env, 9, 0.0, 5, hopeless=hopeless)
    env.close()
    by_lane = np.reshape(whole, (3, 3))
    assert [sorted(some) for some in asked] == [sorted(by_lane[:, :1].ravel()), sorted(by_lane[:, :2].ravel())]
    assert scores == by_lane[:, :2].ravel().tolist()


def test_a_run_ends_when_evaluations_are_no_better_or_its_time_is_over():
    recipe = SHORT.override(patience=2, max_minutes=1.0)
    env = recipe.env.make(1)
    agent = setup.agent(recipe, env)
    env.close()
    state = TrainingState.fresh(recipe, agent)
    ends = []
    for steps, mean in enumerate((3.0, 5.0, 5.0, 4.0), 1):
        state.held_out.add(Evaluation(steps, [mean]), agent.policy_tensors(), 0.0)
        state = TrainingState.from_dict(recipe, agent, state.to_dict())  # as after a resume
        ends.append(state.end_reached(recipe))
    assert ends[:3] == [None] * 3
    assert ends[3] == "2 evaluations in a row that were no better than the best before them"
    assert state.end_reached(recipe.override(patience=3)) is None
    state.progress._start_clock(1.5)
    assert state.end_reached(recipe.override(patience=3)) == "the limit of 1 minutes"
    with pytest.raises(ValueError, match="--patience needs it"):
        recipe.override(evaluate_every=0)
