"""Offline runs: which data they take, what they leave of them, and that they resume."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

import sharpwave as sw
from sharpwave.cli import main
from sharpwave.training.beside_data import behavior_of, cloning_beside, note_behavior
from sharpwave.training.folder import checkpoints, new_folder, read_config
from sharpwave.training.offline_data import about
from sharpwave.training.recipes import default_recipe, load_recipe
from sharpwave.training.recipes.recipe import Atari, Gymnasium, Recipe
from sharpwave.training.results import TrainingRun
from sharpwave.training.run import resume, run

EPISODES, UPDATES = 6, 40


def quiet():
    return Console(file=io.StringIO(), width=200, _environ={})


def command(capfd, monkeypatch, *arguments):
    """The exit code and the output of ``sharpwave``."""
    for name, value in {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code, "".join(capfd.readouterr())


def played(store, annotated=True):
    """CartPole by a policy that leans with the pole, in every other episode with one angle only; the last episode is
    unfinished."""
    if annotated:
        store.annotate(None, about(Gymnasium("CartPole-v1")))
    recorder = sw.Recorder(gymnasium.make("CartPole-v1", max_episode_steps=60), store)
    for seed in range(EPISODES + 1):
        obs, _ = recorder.reset(seed=seed)
        ended, steps = False, 0
        while not ended and (seed < EPISODES or steps < 5):
            obs, _, terminated, truncated, _ = recorder.step(int(obs[2] + (seed % 2) * obs[3] > 0))
            ended, steps = terminated or truncated, steps + 1
    return store


def spec():
    return sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The same steps in every form; how many whole episodes have, and how many each of them has."""
    folder = tmp_path_factory.mktemp("data")
    with played(sw.Store(spec(), disk=folder / "disk", capacity=2_000)) as store:
        store.checkpoint(folder / "checkpoint")
        store.export(f"npz:{folder / 'set.npz'}")
        lengths = [len(one.reward) for one in store.episodes() if one.whole]
    with played(sw.Store(spec(), capacity=2_000)) as store:
        store.checkpoint(folder / "file.sharpwave")
    with played(sw.Store(spec(), capacity=2_000), annotated=False) as store:
        store.checkpoint(folder / "unsaid")
    return folder, sum(lengths), lengths


def content(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_run_from_the_command_line_learns_plays_and_resumes(kept, tmp_path, capfd, monkeypatch):
    data, steps, _ = kept
    before, out = content(data), tmp_path / "run"
    code, text = command(
        capfd, monkeypatch, "train", "offline", "--data", data / "disk", "--algorithm", "bc", "--updates", UPDATES,
        "--evaluate-every", 20, "--out", out,
    )  # fmt: skip
    assert code == 0, text
    assert f"Ended by the limit of {UPDATES} updates" in text and "fresh held-out mean" in text
    assert "training mean" not in text and "epsilon" not in text
    summary = json.loads((out / "summary.json").read_text())
    assert summary["updates"] == UPDATES and summary["replay_steps"] == steps and summary["episodes"] == 0
    assert summary["env"] == "CartPole-v1" and summary["data"] == str(data / "disk")
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [event["steps"] for event in events if event["event"] == "evaluation"] == [20, 40]
    assert content(data) == before
    code, text = command(capfd, monkeypatch, "eval", out, "--episodes", 2)
    assert code == 0 and "of 2 episodes" in text
    code, text = command(capfd, monkeypatch, "train", "--resume", out, "--steps", UPDATES + 10)
    assert code == 0 and f"Ended by the limit of {UPDATES + 10} updates" in text and "new episodes" not in text


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_every_form_of_the_same_data_teaches_the_same(kept, tmp_path, monkeypatch, share):
    """All episodes, or the better half: of CartPole, the longer ones."""
    data, lengths = kept[0], sorted(kept[2], reverse=True)
    assert lengths[2] > lengths[3]
    steps = sum(lengths if share == 1 else lengths[:3])
    before = content(data)
    monkeypatch.chdir(data)
    policies = set()
    for number, source in enumerate(["disk", "checkpoint", "file.sharpwave", "npz:set.npz", "set.npz"]):
        recipe = default_recipe("cql").override(
            data=source, env="CartPole-v1", steps=5, evaluate_every=0, best_share=share
        )
        folder, summary = run("offline", recipe, tmp_path / str(number), quiet())
        assert summary["replay_steps"] == steps and content(data) == before
        tensors = load_file(folder / "last.safetensors")  # whose metadata name the source
        policies.add(tuple((name, tensors[name].tobytes()) for name in sorted(tensors)))
    assert len(policies) == 1


@pytest.mark.slow
def test_a_run_records_the_version_it_learned_from(kept, tmp_path, capfd, monkeypatch):
    """A version's name and hash stay while the store goes on, whose own hash changes; a data set has a hash only."""
    folder = shutil.copytree(kept[0] / "disk", tmp_path / "store")
    bc = default_recipe("bc").override(env="CartPole-v1", steps=2, evaluate_every=0)
    with sw.Store.open(folder) as store:
        store.snapshot("paper-v1")
        steps = len(store)
        version = folder / "versions" / "paper-v1"
        out = tmp_path / "run"
        code, text = command(
            capfd, monkeypatch, "train", "offline", "--data", version, "--algorithm", "bc", "--updates", 2,
            "--evaluate-every", 0, "--out", out,
        )  # fmt: skip
        summary = json.loads((out / "summary.json").read_text())
        said = summary["learned_from"]
        assert json.loads((out / "config.json").read_text())["learned_from"] == said
        assert (said["path"], said["version"], said["steps"]) == (str(folder), "paper-v1", steps)
        line = (
            f"{folder}, version paper-v1: {steps:,} steps in {said['segments']} segments, sha256 {said['sha256'][:12]}"
        )
        assert code == 0 and text.count(line) == 2  # when it begins, and in the table of its end
        _, live = run("offline", bc.override(data=str(folder)), tmp_path / "live", quiet())
        assert live["learned_from"] == said | {"version": None}
        store.delete(episodes=store.episodes()[:1])
        _, less = run("offline", bc.override(data=str(folder)), tmp_path / "less", quiet())
        played(store)
        store.flush()
        _, more = run("offline", bc.override(data=str(folder)), tmp_path / "more", quiet())
        assert len({one["learned_from"]["sha256"] for one in (live, less, more)}) == 3
        assert less["learned_from"]["steps"] < steps < more["learned_from"]["steps"]
        _, again = run("offline", bc.override(data=str(version)), tmp_path / "again", quiet())
        assert again["learned_from"] == said
    copied = shutil.copytree(version, tmp_path / "copied")
    _, summary = run("offline", bc.override(data=str(copied)), tmp_path / "of copy", quiet())
    assert summary["learned_from"] == said | {"path": str(copied)}
    console = quiet()
    _, summary = run("offline", bc.override(data=f"npz:{kept[0] / 'set.npz'}"), tmp_path / "set", console)
    said = summary["learned_from"]
    assert said == {"path": f"npz:{kept[0] / 'set.npz'}", "version": None, "steps": kept[1], "sha256": said["sha256"]}
    assert f", no version: {kept[1]:,} steps" in console.file.getvalue()
    monkeypatch.chdir(tmp_path)
    for added in (0, 1):
        arrays = dict(np.load(kept[0] / "set.npz"))
        name = "reward" if "reward" in arrays else "rewards"
        np.savez("set.npz", **arrays | {name: arrays[name] + added})
        _, summary = run("offline", bc.override(data="set.npz"), tmp_path / f"set {added}", quiet())
        assert (summary["learned_from"]["sha256"] == said["sha256"]) == (added == 0)


def test_a_resumed_run_says_that_data_that_it_reads_again_have_changed(kept, tmp_path):
    folder = shutil.copytree(kept[0] / "disk", tmp_path / "store")
    recipe = default_recipe("bc").override(data=str(folder), steps=4, evaluate_every=0, save_replay=False)
    made, first = run("offline", recipe, tmp_path / "run", quiet())
    console = quiet()
    _, same = resume(made, {"steps": 6}, console)
    assert same["learned_from"] == first["learned_from"]
    assert "have changed" not in console.file.getvalue()
    with sw.Store.open(folder) as store:
        store.delete(episodes=store.episodes()[:1])
    _, other = resume(made, {"steps": 8}, console)
    assert other["learned_from"]["sha256"] != first["learned_from"]["sha256"]
    assert "The data have changed since they were read" in console.file.getvalue()


@pytest.mark.parametrize("kind", ["bc", "cql", "iql"])
def test_a_resumed_run_repeats_the_one_that_was_not_stopped(kept, tmp_path, kind):
    data, *_ = kept
    copied = shutil.copytree(data / "checkpoint", tmp_path / "data")
    recipe = default_recipe(kind).override(data=str(copied), steps=30, checkpoint_every=15, evaluate_every=0)
    whole, _ = run("offline", recipe, tmp_path / "whole", quiet())
    half, _ = run("offline", recipe.override(steps=15), tmp_path / "half", quiet())
    shutil.rmtree(copied)  # the checkpoint holds what was read
    resume(half, {"steps": 30}, quiet())
    last = [checkpoints(one)[-1] for one in (whole, half)]
    for name in ("weights.safetensors", "optimizer.safetensors"):
        assert (last[0] / name).read_bytes() == (last[1] / name).read_bytes()


def test_without_its_memory_a_resumed_run_reads_the_data_again(kept, tmp_path):
    data, steps, _ = kept
    recipe = default_recipe("bc").override(data=str(data / "checkpoint"), steps=10, evaluate_every=0, save_replay=False)
    folder, _ = run("offline", recipe, tmp_path / "run", quiet())
    console = quiet()
    _, summary = resume(folder, {"steps": 20}, console)
    assert f"{steps:,} steps were read again" in console.file.getvalue()
    assert summary["updates"] == 20 and summary["replay_steps"] == steps


def test_a_run_is_data_and_says_its_environment(tmp_path):
    online, _ = run(
        "cartpole", load_recipe("cartpole").override(steps=400, warmup_steps=400, seed=1), tmp_path / "online", quiet()
    )
    recipe = default_recipe("cql").override(data=str(online), steps=5, evaluate_every=0)
    folder, summary = run("offline", recipe, tmp_path / "offline", quiet())
    assert summary["env"] == "CartPole-v1" and 0 < summary["replay_steps"] <= 400
    # An offline run is data, too.
    _, of_it = run("offline", recipe.override(data=str(folder)), tmp_path / "again", quiet())
    assert of_it["env"] == "CartPole-v1" and of_it["replay_steps"] == summary["replay_steps"]


def test_episodes_that_a_run_broke_off_are_no_returns_of_its_data(tmp_path):
    """They are learned from, but neither are they in the mean, nor chosen as the best, nor are their returns known."""
    online = load_recipe("cartpole").override(steps=320, warmup_steps=320, num_envs=4, checkpoint_every=80)
    source, _ = run("cartpole", online, tmp_path / "online", quiet())
    lines = map(json.loads, (source / "metrics.jsonl").read_text().splitlines())
    returns = [line["reward"] for line in lines if line["event"] == "episode"]
    assert len(returns) > 1
    for number in range(2):  # an offline run's data say it as well
        recipe = default_recipe("iql").override(data=str(source), steps=1, evaluate_every=0)
        source, summary = run("offline", recipe, tmp_path / f"all {number}", quiet())
        assert summary["replay_steps"] > sum(returns)
        with sw.Store.open(checkpoints(source)[-1] / "replay") as store:
            assert behavior_of(store) == {"mean": float(np.mean(returns)), "episodes": len(returns)}
            known = [np.isfinite(store.read_column("episode_return", one.ids)[0]).all() for one in store.episodes()]
            assert known == [one.ended == "terminated" for one in store.episodes()] and not all(known)
    _, best = run("offline", recipe.override(best_share=0.5), tmp_path / "best", quiet())
    assert best["replay_steps"] == sum(sorted(returns, reverse=True)[: len(returns) // 2])
    origin = best["learned_from"]
    assert origin["learned"] == best["replay_steps"] < origin["steps"]
    assert f", of which {origin['learned']:,} are learned from" in repr(TrainingRun.open(tmp_path / "best"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date:DeprecationWarning")
def test_a_run_is_set_beside_its_data_and_cloning(kept, tmp_path):
    """Cloning of other data, or of some of their episodes, does not count; of a store, any copy of its content does."""
    data, _, lengths = kept
    evaluated: dict[str, Any] = {"steps": 4, "evaluate_every": 4, "data": str(data / "disk")}
    others: list[tuple[str, dict[str, Any]]] = [
        ("other", {"data": str(data / "unsaid"), "env": "CartPole-v1"}),
        ("share", {"best_share": 0.5}),
        ("elsewhere", {"env": "CartPole-v0"}),
        ("unplayed", {"evaluate_every": 0}),
    ]
    for name, changes in others:
        run("offline", default_recipe("bc").override(**evaluated | changes), tmp_path / name, quiet())
    _, alone = run("offline", default_recipe("iql").override(**evaluated), tmp_path / "iql", quiet())
    assert alone["behavior"]["cloning"] is None and alone["behavior"]["last"]["episodes"] == 30
    assert alone["behavior"]["data"] == {"mean": float(np.mean(lengths)), "episodes": EPISODES}
    recipe = default_recipe("bc").override(**evaluated | {"steps": 300, "evaluate_every": 100})
    _, clone = run("offline", recipe, tmp_path / "bc", quiet())
    assert clone["behavior"]["cloning"] is None
    console, copied = quiet(), shutil.copytree(data / "disk", tmp_path / "copy")
    iql = default_recipe("iql").override(**evaluated | {"data": str(copied)})
    made, summary = run("offline", iql, tmp_path / "again", console)
    found, text = summary["behavior"], console.file.getvalue()
    assert found["cloning"] == clone["behavior"]["last"] | {"run": str(tmp_path / "bc")}
    scores = found["last"]["mean"], found["data"]["mean"], found["cloning"]["mean"]
    assert found["below"] == [
        name for name, one in zip(("data", "cloning"), scores[1:], strict=True) if scores[0] < one
    ]
    assert "cloning" in found["below"]  # four updates teach less than 300
    assert text.count("Warning: ") == len(found["below"])
    assert f"is below {scores[2]:,.2f} of cloning of the same data ({tmp_path / 'bc'})" in text
    assert TrainingRun.open(made).summary["behavior"] == found
    assert "BELOW cloning" in repr(TrainingRun.open(made))


@pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date:DeprecationWarning")
def test_data_of_another_environment_are_not_compared(kept, tmp_path):
    for env, comparable in (("CartPole-v1", True), ("CartPole-v0", False)):
        recipe = default_recipe("bc").override(data=str(kept[0] / "disk"), env=env, steps=1, evaluate_every=0)
        folder, _ = run("offline", recipe, tmp_path / env, quiet())
        with sw.Store.open(checkpoints(folder)[-1] / "replay") as store:
            assert (behavior_of(store) is not None) == comparable


def test_folders_that_cannot_be_entered_are_passed_over(kept, tmp_path, monkeypatch):
    recipe = default_recipe("bc").override(data=str(kept[0] / "disk"), steps=1, evaluate_every=0)
    folder, _ = run("offline", recipe, tmp_path / "runs" / "own", quiet())
    config = read_config(folder)
    (tmp_path / "runs" / "others").mkdir()
    real = Path.stat

    def stat(path, **settings):
        if "others" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **settings)

    def iterdir(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(PermissionError):
        (tmp_path / "runs" / "others" / "summary.json").is_file()
    assert cloning_beside(folder, config) is None
    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert cloning_beside(folder, config) is None


def test_clipped_rewards_are_no_scores():
    with sw.Store(spec(), capacity=10) as store:
        for env, said in ((Atari(), None), (Atari(clip_rewards=False), 2.0), (Gymnasium(), 3.0)):
            note_behavior(store, Recipe(env=env), [said or 1.0] * 3)
            assert behavior_of(store) == (None if said is None else {"mean": said, "episodes": 3})


PENDULUM_STEPS = 200


@pytest.fixture(scope="module")
def swung(tmp_path_factory):
    """Two episodes of the pendulum, by chance."""
    folder = tmp_path_factory.mktemp("swung") / "store"
    pendulum = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((1,), "float32"))
    with sw.Store(pendulum, disk=folder, capacity=1_000) as store:
        store.annotate(None, about(Gymnasium("Pendulum-v1")))
        env = gymnasium.make("Pendulum-v1")
        env.action_space.seed(0)
        recorder = sw.Recorder(env, store)
        for seed in range(2):
            recorder.reset(seed=seed)
            while not recorder.step(env.action_space.sample())[3]:
                pass
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["td3bc", "calql"])
def test_a_run_goes_on_in_the_environment(swung, tmp_path, kind):
    """After its updates from data alone each step plays one; a resumed run repeats, before and after."""
    first, steps = 10, 10 + PENDULUM_STEPS + 30
    recipe = default_recipe(kind).override(
        data=str(swung), steps=steps, online_after=first, evaluate_every=0, checkpoint_every=PENDULUM_STEPS + 20,
        hidden_units=16, batch_size=8,
    )  # fmt: skip
    folder, summary = run("offline", recipe, tmp_path / "whole", quiet())
    assert summary["replay_steps"] == 2 * PENDULUM_STEPS + steps - first and summary["updates"] == steps
    assert summary["episodes"] == 1
    with sw.Store.open(checkpoints(folder)[-1] / "replay") as store:
        ends = [(len(one.reward), one.whole) for one in store.episodes()]
        assert ends == [(PENDULUM_STEPS, True)] * 3 + [(10, True), (20, ends[-1][1])]
        if kind == "calql":
            for one in store.episodes()[:4]:
                found, known = store.read_column("return_to_go", one.ids)
                expected = [(0.99 ** np.arange(len(one.reward) - t) * one.reward[t:]).sum() for t in range(len(found))]
                if len(found) == 10:  # which a checkpoint broke off: nobody knows what would have followed
                    expected = [np.nan] * 10
                assert known.all()
                np.testing.assert_allclose(found, expected, rtol=1e-4)
    for steps_before in (5, PENDULUM_STEPS + 20):
        half = tmp_path / f"half {steps_before}"
        run("offline", recipe.override(steps=steps_before), half, quiet())
        resume(half, {"steps": steps}, quiet())
        for name in ("weights.safetensors", "optimizer.safetensors"):
            assert (checkpoints(half)[-1] / name).read_bytes() == (checkpoints(folder)[-1] / name).read_bytes()


def test_capacity_covers_the_steps_that_are_played(swung, tmp_path, monkeypatch):
    recipe = default_recipe("td3bc").override(data=str(swung), steps=9, online_after=5, evaluate_every=0, capacity=399)
    with pytest.raises(ValueError, match=r"--capacity: got 399, expected at least 404, the 400 steps of .* and the 4 "):
        run("offline", recipe, tmp_path / "run", quiet())
    with pytest.raises(ValueError, match=r"got 99, .* at least 200, the 200 steps of the best 0.5 of '.*: all are"):
        run("offline", recipe.override(capacity=99, best_share=0.5, steps=5), tmp_path / "run", quiet())
    folder, _ = run("offline", recipe.override(capacity=1_500, batch_size=4), tmp_path / "run", quiet())
    with pytest.raises(
        ValueError, match=r"--capacity: got 1,500, expected at least 1,501, the 404 steps of .* the 1,097"
    ):
        resume(folder, {"steps": 1_106}, quiet())
    with monkeypatch.context() as patch:  # the room is made, however little of it is used here
        found: list[int] = []
        patch.setattr("sharpwave.training.run.RunParts.train", lambda parts, *args: found.append(args[2].capacity))
        resume(folder, {"steps": 1_105}, quiet())
        assert found[0] >= 1_500
    with pytest.raises(ValueError, match="save-replay: got False, expected True with --online-after"):
        recipe.override(save_replay=False)
    with pytest.raises(ValueError, match=r"--action-noise: .* it needs --online-after"):
        default_recipe("td3bc").override(action_noise=0.2)
    with pytest.raises(ValueError, match=r"--weight-decay: got 0.1, which has no effect"):
        default_recipe("calql").override(weight_decay=0.1)


def test_continuous_actions_beyond_the_bounds_are_refused(tmp_path):
    """The pendulum's are at most 2."""
    pendulum = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((1,), "float32"))
    for number, (action, fits) in enumerate([(2.00001, True), (2.1, False), (-3.0, False), (np.nan, False)]):
        with sw.Store(pendulum, disk=tmp_path / str(number), capacity=100) as store:
            actions = np.array([[0.5], [action], [-2.0]])
            store.add_episode(obs=np.zeros((4, 3)), action=actions, reward=np.zeros(3), terminated=True)
        bc = default_recipe("bc").override(data=str(tmp_path / str(number)), env="Pendulum-v1", steps=1)
        recipe = bc.override(evaluate_every=0)
        if fits:
            run("offline", recipe, tmp_path / f"run {number}", quiet())
        else:
            with pytest.raises(ValueError, match=f"has an action with {action:g}, expected -2 to 2 there, as Pendulum"):
                run("offline", recipe, tmp_path / f"run {number}", quiet())


def strange(folder, action=1, **annotations):
    with sw.Store(spec(), capacity=100) as store:
        store.annotate(None, annotations)
        for step in range(8):
            store.append(
                obs=np.zeros(4), action=action, reward=0.0, terminated=step == 7, truncated=False, final_obs=np.zeros(4)
            )
        store.checkpoint(folder)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data, own: {"data": ""}, "expected data"),
        (lambda data, own: {"data": str(data / "nothing")}, "is no folder, expected that of a store or of a run"),
        (lambda data, own: {"data": str(data)}, "cannot be read"),
        (lambda data, own: {"data": str(data / "unsaid")}, "name one with --env"),
        (lambda data, own: {"data": "npz:" + str(data / "set.npz")}, "name one with --env"),
        (lambda data, own: {"data": "npz:" + str(data / "no.npz"), "env": "CartPole-v1"}, "does not exist"),
        (lambda data, own: {"data": str(data / "disk"), "env": "Acrobot-v1"}, "has obs .*expected"),
        (lambda data, own: {"data": str(data / "disk"), "capacity": 20}, "--capacity: got 20, expected at least"),
        (lambda data, own: {"data": str(strange(own, 2)), "env": "CartPole-v1"}, "has action 2, expected those of"),
        (
            lambda data, own: {"data": str(strange(own, environment={"kind": "gymnasium", "name": "os:Own-v0"}))},
            "would import a module",
        ),
        (lambda data, own: {"data": str(strange(own, environment="a room"))}, "name one with --env"),
    ],
)
def test_data_that_cannot_be_learned_from_are_refused_by_name(kept, tmp_path, change, message):
    data, *_ = kept
    before = content(data)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        recipe = default_recipe("bc").override(steps=5, evaluate_every=0, **change(data, tmp_path / "own"))
        run("offline", recipe, tmp_path / "run", quiet())
    assert content(data) == before
    with new_folder(tmp_path / "run", "x", 0):
        pass  # nothing is in the way of a second try


def test_settings_of_acting_are_refused(kept):
    recipe = default_recipe("cql")
    for change, message in (
        ({"actors": 1}, "--actors: got 1, expected 0"),
        ({"warmup_steps": 5}, "--warmup-steps: got 5, expected 0"),
        ({"update_every": 2}, "--update-every: got 2, expected 1"),
        ({"evaluate_from": 5.0}, "--evaluate-from"),
        ({"epsilon_end": 0.5}, "--epsilon-end: got 0.5, which has no effect"),
    ):
        with pytest.raises(ValueError, match=message):
            recipe.override(**change)


def test_help_and_mistakes_on_the_command_line(capfd, monkeypatch):
    for kind, own, other in (
        ("bc", "--weight-decay", "--conservatism"),
        ("cql", "--conservatism", "--weight-decay"),
        ("iql", "--expectile", "--conservatism"),
    ):
        code, text = command(capfd, monkeypatch, "train", "offline", "--algorithm", kind, "--help")
        assert code == 0 and own in text and other not in text
        assert all(option in text for option in ("--data", "--algorithm", "--updates", "--env"))
    code, text = command(capfd, monkeypatch, "train", "offline", "--data", "x", "--algorithm", "dqn")
    assert code == 2 and "expected one that learns offline: cql, iql, bc, td3bc, rebrac, calql" in text
    code, text = command(capfd, monkeypatch, "train", "offline")
    assert code == 2 and "--data: got nothing" in text
