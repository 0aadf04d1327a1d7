"""Callbacks of users: when their hooks are called, where, and what becomes of a run in which one raises."""

import io
import json
import sys
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from sharpwave.training.callbacks import ActorCallback, ActorHooks, Callback, CallbackError, check_actor_callbacks
from sharpwave.training.folder import checkpoints
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run
from sharpwave.training.scores import EpisodeScore

from .trainer import Trained

SHORT = load_recipe("cartpole").override(
    steps=240, warmup_steps=100, update_every=8, report_every=80, checkpoint_every=120, evaluate_every=0,
    stop_reward=None, hidden_units=8, num_envs=4,
)  # fmt: skip


class Noting(Callback):
    """Notes the names of its hooks."""

    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        if name.startswith("on_") or name == "close":
            object.__getattribute__(self, "calls").append(name)
        return object.__getattribute__(self, name)


class Lengths(ActorCallback):
    """Counts the steps of episodes, and returns twice their number as a figure."""

    def on_actor_begin(self, actor):
        self.lengths, self.begun, self.seen = {}, 0, None

    def on_episode_begin(self, lane):
        if self.lengths.get(lane):  # broken off: all lanes begin anew
            self.seen = None
        self.lengths[lane] = 0

    def on_actor_step_begin(self, obs):
        assert len(obs) == len(self.lengths) and (self.seen is None or (obs == self.seen).all())
        self.begun += 1

    def on_actor_step(self, stepped):
        self.seen, self.begun = stepped.obs.copy(), self.begun - 1
        assert self.begun == 0  # a step has begun, and only one
        self.lengths = {lane: steps + 1 for lane, steps in self.lengths.items()}

    def on_episode(self, episode):
        assert self.lengths[episode.lane] == episode.steps
        return {"twice": 2 * episode.steps}


class FailingAtOnce(ActorCallback):
    def on_actor_step_begin(self, obs):
        raise KeyError("no such key")


class Failing(ActorCallback):
    def on_actor_step(self, stepped):
        raise KeyError("no such key")


class FailingToBeMade(ActorCallback):
    def __init__(self):
        sys.exit(1)


class FailingAtTheEnd(ActorCallback):
    def on_actor_end(self):
        raise KeyError("no such key")


def quietly(how, *arguments, **options):
    return how(*arguments, Console(file=io.StringIO()), **options)


def test_hooks_come_in_pairs():
    noting = Noting()
    Trained(SHORT, noting).close()
    calls = noting.calls
    assert calls[:3] == ["on_begin", "on_step_begin", "on_step"] and calls[-1] == "on_end"
    assert calls[-2] == "on_learner_end" and calls[calls.index("on_update_begin") - 1] == "on_learner_begin"
    assert calls.count("on_learner_begin") == calls.count("on_learner_end") == 1
    for begin, end in (("on_step_begin", "on_step"), ("on_update_begin", "on_update")):
        paired = [call for call in calls if call in (begin, end)]
        assert paired == [begin, end] * (len(paired) // 2) and len(paired) > 20
    noting = Noting()
    Trained(SHORT.override(steps=80), noting).close()  # it ends in the warm-up
    assert not {"on_learner_begin", "on_learner_end", "on_update"} & set(noting.calls)


@pytest.mark.parametrize("hook", ["on_begin", "on_report", "on_end", "close"])
def test_a_callback_that_raises_ends_the_run_with_a_checkpoint(tmp_path, hook):
    class Broken(Noting):
        pass

    def broken(self, *arguments):
        raise ZeroDivisionError("division by zero")

    setattr(Broken, hook, broken)
    callback = Broken()
    ended = "had reached its end, the limit of 240 steps, and " if hook in ("on_end", "close") else ""
    expected = rf"Broken failed in {hook}: ZeroDivisionError: division by zero\nThe run {ended}ended with a checkpoint"
    with pytest.raises(CallbackError, match=expected) as raised:
        quietly(run, "cartpole", SHORT, tmp_path / "run", callbacks=[callback])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert callback.calls.count(hook) == 1 and callback.calls[-1] == "close"
    assert hook == "close" or callback.calls[-2] == hook
    assert (tmp_path / "run" / "summary.json").is_file()
    assert checkpoints(tmp_path / "run")
    _, summary = quietly(resume, tmp_path / "run", {})
    assert summary["reason"] == "the limit of 240 steps"


def test_a_callback_that_exits_ends_the_run_with_a_checkpoint(tmp_path):
    class Exiting(Callback):
        def on_update(self, training, learned):
            sys.exit("enough")

    with pytest.raises(CallbackError, match=r"Exiting failed in on_update: SystemExit: enough"):
        quietly(run, "cartpole", SHORT, tmp_path / "run", callbacks=[Exiting()])
    assert checkpoints(tmp_path / "run")


def test_classes_and_objects_that_are_mistaken_for_each_other_leave_no_folder(tmp_path):
    wrong: Any = [Noting]
    with pytest.raises(ValueError, match=r"callbacks: got <class .*Noting'>, expected an object"):
        quietly(run, "cartpole", SHORT, tmp_path / "run", callbacks=wrong)
    wrong = [Lengths()]
    with pytest.raises(ValueError, match=r"actor_callbacks: got <.*Lengths object.*>, expected a class"):
        quietly(run, "cartpole", SHORT, tmp_path / "run", actor_callbacks=wrong)
    assert not (tmp_path / "run").exists()


def test_a_callback_may_end_a_run_from_any_hook(tmp_path):
    class Stop(Callback):
        def on_begin(self, training):
            training.stop("enough")

    _, summary = quietly(run, "cartpole", SHORT, tmp_path / "run", callbacks=[Stop()])
    assert (summary["reason"], summary["steps"]) == ("enough", 4) and checkpoints(tmp_path / "run")


@pytest.mark.parametrize("actors", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_figures_of_actor_callbacks_reach_the_log(tmp_path, actors):
    recipe = SHORT.override(actors=actors, **({"segment_steps": 4} if actors else {}))
    folder, _ = quietly(run, "cartpole", recipe, tmp_path / "run", actor_callbacks=[Lengths])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    episodes = [line for line in lines if line["event"] == "episode"]
    assert episodes and all(line["figures"] == {"twice": 2 * line["episode_steps"]} for line in episodes)


@pytest.mark.parametrize(
    ("callback", "hook", "actors"),
    [
        (Failing, "on_actor_step: KeyError", 0),
        pytest.param(Failing, "on_actor_step: KeyError", 1, marks=pytest.mark.slow),
        (FailingAtOnce, "on_actor_step_begin: KeyError", 0),
        pytest.param(FailingAtOnce, "on_actor_step_begin: KeyError", 1, marks=pytest.mark.nightly),
        (FailingToBeMade, "__init__: SystemExit", 0),
        (FailingAtTheEnd, "on_actor_end: KeyError", 0),
        pytest.param(FailingAtTheEnd, "on_actor_end: KeyError", 1, marks=pytest.mark.nightly),
    ],
)
def test_an_actor_callback_that_raises_ends_the_run(tmp_path, callback, hook, actors):
    recipe = SHORT.override(actors=actors, steps=40, warmup_steps=20, checkpoint_every=20)
    recipe = recipe.override(segment_steps=4) if actors else recipe
    text = io.StringIO()
    ended = "had reached its end, the limit of 40 steps, and " if callback is FailingAtTheEnd else ""
    expected = rf"callback {callback.__name__} failed in {hook}(.*\n)*The run {ended}ended with a check"
    with pytest.raises(CallbackError, match=expected) as raised:
        run("cartpole", recipe, tmp_path / "run", Console(file=text), actor_callbacks=[callback])
    assert str(raised.value).startswith("actor 0: " if actors else "callback") and "restarted" not in text.getvalue()
    assert checkpoints(tmp_path / "run") and (tmp_path / "run" / "summary.json").is_file()


def test_figures_that_are_no_numbers_name_their_callback():
    class Words(ActorCallback):
        def on_episode(self, episode):
            return {"word": "seven"}

    hooks = ActorHooks([Words, ActorCallback])
    nothing: Any = None
    hooks.begin(nothing)
    assert hooks.stepped(nothing, [EpisodeScore(1.0, 2, 0)]) == [EpisodeScore(1.0, 2, 0)]
    assert "Words failed in on_episode: ValueError" in str(hooks.failure)


def test_actor_callbacks_that_cannot_be_sent_to_actors_leave_no_folder(tmp_path):
    with pytest.raises(ValueError, match=r"actor_callbacks: .* cannot be sent to actor processes: .*top level"):
        quietly(run, "cartpole", SHORT.override(actors=1), tmp_path / "run", actor_callbacks=[lambda: Lengths()])
    assert not (tmp_path / "run").exists()


class Unwilling(ActorCallback):
    def __call__(self):
        return self

    def __reduce__(self):
        raise RuntimeError("not without its graph")


def test_whatever_pickling_raises_is_the_reason_given(monkeypatch):
    with pytest.raises(ValueError, match=r"cannot be sent to actor processes: not without its graph; expected"):
        check_actor_callbacks([Unwilling()], 1)
    monkeypatch.setattr(Lengths, "__module__", "__main__")
    notebook = ModuleType("__main__")
    notebook.Lengths = Lengths  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(ValueError, match=r"cannot import what a notebook or an interactive session defines"):
        check_actor_callbacks([Lengths], 1)
    check_actor_callbacks([Lengths], 0)
