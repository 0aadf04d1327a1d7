"""The benchmark of learners: its arms can be made, peers play what ours play, and ratios are to the best of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import learners
from learner_arms import CLASSIC, DEFAULTS, GROUPS, ROBOTS, TASKS


def line(task, agent, seed, score, minutes=2.0):
    return {"task": task, "agent": agent, "seed": seed, "score": score, "steps": 100_000, "minutes": minutes}


@pytest.mark.parametrize("task", [*ROBOTS, *CLASSIC])
def test_peers_play_the_environment_of_our_recipe_for_as_many_steps(task, tmp_path):
    for agent, arm in TASKS[task].items():
        recipe = learners.recipe_of(task, agent, 201, tmp_path)
        assert recipe.evaluation.evaluate_every == 0  # the last policy is measured
        if arm.peer is None:
            continue
        asked = learners.asked_of_peer(task, agent, 201, tmp_path)
        assert (asked["env"], asked["steps"], asked["seed"]) == (recipe.env.name, recipe.training.steps, 201)
        assert asked.get("num_envs", 1) == recipe.env.num_envs
        if "gamma" in asked["settings"]:
            assert asked["settings"]["gamma"] == recipe.agent.replay.gamma


@pytest.mark.parametrize("task", DEFAULTS)
def test_short_runs_learn_by_defaults_that_suit_their_length(task, tmp_path):
    for agent, arm in TASKS[task].items():
        recipe = learners.recipe_of(task, agent, 101, tmp_path)
        steps = recipe.training.steps
        assert (recipe.training.seed, steps) == (101, arm.changes["steps"])
        assert recipe.training.warmup_steps == (0 if "ppo" in agent else steps // 20)
        if arm.peer is not None:
            asked = learners.asked_of_peer(task, agent, 101, tmp_path)
            assert "settings" not in asked and (asked["env"], asked["steps"]) == (recipe.env.name, steps)


@pytest.mark.parametrize("group", GROUPS)
def test_every_task_of_a_group_is_known(group):
    assert GROUPS[group] and set(GROUPS[group]) <= set(TASKS)


def test_ratios_are_to_the_best_peer_by_score_and_by_score_a_minute(capsys):
    task = "Hopper-100k"
    learners.print_table(
        [
            line(task, "sac", 201, 3000.0, minutes=10.0),
            line(task, "sbx sac", 201, 2000.0, minutes=10.0),  # 200 a minute
            line(task, "sbx crossq", 201, 1000.0, minutes=2.0),  # 500 a minute
        ]
    )
    rows = [
        [cell.strip() for cell in row.split("│")[1:-1]] for row in capsys.readouterr().out.splitlines() if "│" in row
    ]
    ratios = {row[1]: row[-2:] for row in rows}
    assert ratios["sac"] == ["1.50", "0.60"]
    assert ratios["sbx sac"] == ratios["sbx crossq"] == ["", ""]


def test_scores_below_zero_have_no_ratio():
    assert learners.ratio(-150.0, -300.0) == "-" and learners.ratio(2.0, 4.0) == "0.50"
