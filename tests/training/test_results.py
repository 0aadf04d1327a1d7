"""A run as a notebook shows it: what run() returns, and the same opened from its folder."""

import io
import json
import shutil

import pytest
from rich.console import Console

from sharpwave.training.folder import Config, write_config
from sharpwave.training.recipes import load_recipe
from sharpwave.training.results import TrainingRun
from sharpwave.training.run import run
from tests.store.test_showing import Texts

CARTPOLE = load_recipe("cartpole").override(
    steps=1_200, checkpoint_every=600, warmup_steps=400, report_every=200, capacity=2_000, evaluate_every=0,
    stop_reward=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    return run("cartpole", CARTPOLE, folder, Console(file=io.StringIO(), width=200, _environ={}))


def test_a_run_shows_its_score_its_curve_and_its_changes(made):
    folder, summary = made
    assert repr(made).startswith(f"<TrainingRun {str(folder)!r}: recipe cartpole: CartPole-v1, seed 0, training mean")
    assert "steps 1,200" in repr(made) and "ended the limit of 1,200 steps" in repr(made)
    page = made._repr_html_()
    texts = Texts(page).texts
    assert page.count("<polyline") == 1 and any("environment steps" in text for text in texts)
    assert f"{summary['mean_reward']:,.2f}" in texts and str(folder) in texts
    at = texts.index("training.steps")
    changed = dict(zip(texts[at::2], texts[at + 1 :: 2], strict=False))
    assert changed["training.steps"] == "1200" and changed["evaluation.stop_reward"] == "None"
    assert set(made.changes) == {
        "replay.capacity", "training.steps", "training.report_every", "training.checkpoint_every",
        "training.warmup_steps", "evaluation.stop_reward", "evaluation.evaluate_every",
    }  # fmt: skip


def test_a_run_opened_from_its_folder_is_the_same(made):
    opened = TrainingRun.open(str(made.folder))
    assert opened == made and opened._repr_html_() == made._repr_html_()


def test_a_run_that_goes_on_shows_its_last_report(made, tmp_path):
    folder = shutil.copytree(made.folder, tmp_path / "live")
    (folder / "summary.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "report", "steps": NaN}\nno line\n{"event": "episode", "steps": 13')
    opened = TrainingRun.open(folder)
    assert opened.summary["steps"] == 1_200 and "state not ended" in repr(opened)
    assert opened._repr_html_().count("<polyline") == 1


def test_a_run_without_a_report_shows_that_it_began(tmp_path):
    write_config(tmp_path, Config("mine<b>", CARTPOLE, "ab" * 16))
    opened = TrainingRun.open(tmp_path)
    assert "state begun" in repr(opened)
    assert "<b>: " not in opened._repr_html_() and "mine<b>: CartPole-v1, seed 0" in Texts(opened._repr_html_()).texts
    assert "agent.lr" in opened.changes, "a recipe of this name is unknown: the algorithm's own defaults count"


def test_a_folder_that_is_gone_still_shows_figures(made, tmp_path):
    gone = TrainingRun(tmp_path / "gone", made.summary)
    assert "steps 1,200" in repr(gone) and "<polyline" not in gone._repr_html_()
    with pytest.raises(ValueError, match="is not the config of a run"):
        TrainingRun.open(tmp_path / "gone")


@pytest.mark.parametrize("value", ["x", [1], True, 10**400, None])
def test_figures_of_another_kind_leave_the_curve_out(made, tmp_path, value):
    folder = shutil.copytree(made.folder, tmp_path / "run")
    lines = [json.dumps({"event": "episode", "steps": step, "mean_reward": value}) for step in range(9)]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    assert "<polyline" not in TrainingRun.open(folder)._repr_html_()


def test_a_damaged_memory_is_told_of(made, tmp_path):
    folder = shutil.copytree(made.folder, tmp_path / "run")
    regions = [*max((folder / "checkpoints").iterdir()).glob("replay/**/*.region")]
    largest = max(regions, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 255
    largest.write_bytes(content)
    whole = len(made.store)
    with pytest.warns(UserWarning, match="replay memory in .* is damaged, and lacks steps: "):
        assert len(TrainingRun.open(folder).store) < whole
