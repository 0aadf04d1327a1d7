"""Q-values and TD errors of episodes of real runs, against the saved weights applied by other code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("starlette", reason="the viewer needs the extra view: pip install 'sharpwave[view]'")

import torch
from safetensors.torch import load_file

import sharpwave as sw
from sharpwave.agents.bc import BC
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.r2d2 import R2D2
from sharpwave.extras import install
from sharpwave.training import setup
from sharpwave.training.folder import read_config
from sharpwave.viewer import action_values
from sharpwave.viewer.action_values import NoValuesError, ValuesOf
from sharpwave.viewer.rerun_export import export_rerun
from sharpwave.viewer.snapshots import Snapshot
from sharpwave.viewer.sources import find_sources
from sharpwave.viewer.watching import Watched
from tests.offline.written import SPEC, Writer, contents, fill
from tests.viewer.runs import trained
from tests.viewer.served import serving

STACK, GAMMA = 3, 0.99


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose memory has evicted the beginning of some episode."""
    run = tmp_path_factory.mktemp("cartpole") / "run"
    return trained("cartpole", run, steps=1500, warmup_steps=200, stack=STACK, hidden_units=16, capacity=1000)


@pytest.fixture(scope="module")
def tmaze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("tmaze") / "run"
    return trained("tmaze", run, steps=1200, warmup_steps=600, hidden_units=16, core_units=8)


def read(run: Path) -> tuple[ValuesOf, Snapshot]:
    (source,) = find_sources([run])
    memory = Watched(source)
    memory.read()
    assert memory.snapshot is not None
    return ValuesOf(source), memory.snapshot


def opened(run: Path) -> sw.Store:
    """Open the newest checkpoint's memory."""
    return sw.Store.open(max((run / "checkpoints").iterdir()) / "replay")


def by_hand(weights: dict[str, torch.Tensor], obs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return Q [N, A] of the network of the recipe cartpole: three layers."""
    x = obs.reshape(len(obs), -1).astype(np.float64)
    layers = ("torso.0", "head.hidden", "head.advantage")
    for number, layer in enumerate(layers):
        weight, bias = (weights[f"policy.{layer}.{part}"].double().numpy() for part in ("weight", "bias"))
        x = x @ weight.T + bias
        x = x if number == len(layers) - 1 else np.maximum(x, 0)
    return x


def test_values_are_those_of_the_saved_weights(cartpole: Path) -> None:
    before = contents(cartpole)
    weights = load_file(cartpole / "last.safetensors")
    values, snapshot = read(cartpole)
    ended = {"terminated": 0, "unfinished": 0}
    with opened(cartpole) as store:
        view = store.transitions(n_step=1, gamma=GAMMA)
        for episode in snapshot.episodes:
            if not episode.begun:
                continue
            found = values.compute(snapshot, episode)
            assert found.steps == 1500 and len(found.largest) == len(found.td_error) == episode.steps
            ended[episode.end] = ended.get(episode.end, 0) + 1
            learned = episode.steps - (episode.end == "unfinished")  # its last step has no successor yet
            if not learned:
                continue
            steps = episode.first_step + np.arange(learned)
            batch = view.fetch(store.ids(np.full(learned, episode.lane), steps))
            q, behind = by_hand(weights, batch.obs), by_hand(weights, batch.next_obs)
            taken = q[np.arange(learned), batch.action]
            assert found.each is not None
            np.testing.assert_allclose(found.each[:learned], q, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(found.largest[:learned], q.max(axis=1), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(found.taken[:learned], taken, rtol=1e-4, atol=1e-4)
            td_error = batch.reward + batch.discount * behind.max(axis=1) - taken
            np.testing.assert_allclose(found.td_error[:learned], td_error, rtol=1e-4, atol=1e-3)
            assert np.isfinite(found.td_error).sum() == learned
    assert ended["terminated"] > 10 and ended["truncated"] > 0 and contents(cartpole) == before


def test_the_last_step_of_an_episode_under_way_has_no_td_error_yet(cartpole: Path) -> None:
    values, snapshot = read(cartpole)
    whole = next(one for one in snapshot.episodes if one.whole)
    ended = values.compute(snapshot, whole)
    under_way = values.compute(snapshot, type(whole)(**{**vars(whole), "end": "unfinished"}))
    assert np.isnan(under_way.td_error[-1]) and (under_way.td_error[:-1] == ended.td_error[:-1]).all()
    assert (under_way.largest == ended.largest).all()


@pytest.mark.parametrize("segment_steps", [2, 8, 64])
@pytest.mark.parametrize("pad", ["repeat", "zeros"])
def test_observations_are_those_of_a_view(
    tmp_path: Path, pad: Any, segment_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacks of 4 over segments' ends and beyond the parts of an episode; dicts of observations."""
    monkeypatch.setattr(action_values, "ROWS", 5)
    spec = sw.Spec(
        obs={"a": sw.Field((3,), "float32", stack=4, pad=pad), "b": {"c": sw.Field((), "int64")}},
        action=sw.Field((2,), "int64"),
    )
    rng, lengths = np.random.default_rng(0), [1, 3, 2, 17, 9, 30]
    with sw.Store(spec, capacity=500, disk=tmp_path / "store", segment_steps=segment_steps) as store:
        view = store.transitions(n_step=1)
        for number, length in enumerate(lengths):
            obs = {"a": rng.normal(size=(length + 1, 3)).astype(np.float32), "b": {"c": np.arange(length + 1)}}
            store.add_episode(
                obs=obs, action=rng.integers(9, size=(length, 2)), reward=rng.normal(size=length),
                terminated=bool(number % 2),
            )  # fmt: skip
        store.flush()
        memory = Watched(find_sources([tmp_path / "store"])[0])
        memory.read()
        assert memory.snapshot is not None and len(memory.snapshot.episodes) == len(lengths)
        for episode in memory.snapshot.episodes:
            parts = list(action_values.walked(memory.snapshot, episode))
            assert [one.step for one in parts] == list(np.cumsum([0, *(len(one.reward) for one in parts[:-1])]))
            ids = store.ids(np.full(episode.steps, episode.lane), episode.first_step + np.arange(episode.steps))
            batch = view.fetch(ids)
            for get in (lambda obs: obs["a"], lambda obs: obs["b"]["c"]):
                seen = np.concatenate([get(one.obs) for one in parts])
                np.testing.assert_array_equal(seen[:-1], get(batch.obs))
                if episode.end == "truncated":
                    np.testing.assert_array_equal(seen[-1], get(batch.next_obs)[-1])
            np.testing.assert_array_equal(np.concatenate([one.action for one in parts])[:-1], batch.action)
            np.testing.assert_array_equal(np.concatenate([one.reward for one in parts])[:-1], batch.reward)


def test_an_episode_without_its_beginning_has_values_once_its_stacks_are_whole(cartpole: Path) -> None:
    weights = load_file(cartpole / "last.safetensors")
    values, snapshot = read(cartpole)
    episode = max((one for one in snapshot.episodes if not one.begun), key=lambda one: one.steps)
    assert episode.steps > STACK
    found = values.compute(snapshot, episode)
    assert np.isnan(found.largest[: STACK - 1]).all() and np.isfinite(found.largest[STACK - 1 :]).all()
    with opened(cartpole) as store:
        (stored,) = [
            one for one in store.episodes() if (one.lane, one.first_step) == (episode.lane, episode.first_step)
        ]
        frames = stored.obs
    stacks = np.stack([frames[t : t + STACK] for t in range(episode.steps - STACK + 1)])
    np.testing.assert_allclose(found.largest[STACK - 1 :], by_hand(weights, stacks).max(axis=1), rtol=1e-4, atol=1e-4)


def test_a_recurrent_agent_remembers_from_the_episodes_start(tmaze: Path) -> None:
    """By acting through the episode, with the actions that were taken."""
    values, snapshot = read(tmaze)
    recipe = read_config(tmaze).recipe.override(device="cpu")
    env = recipe.env.make(1)
    player: Any = setup.player(recipe, env, load_file(tmaze / "last.safetensors"))
    env.close()
    assert isinstance(player, R2D2) and player.initial_errors(1, 1) is not None  # so that its state has its values
    episodes = [one for one in snapshot.episodes if one.whole]
    assert len({one.steps for one in episodes}) > 1
    with opened(tmaze) as store:
        for episode in sorted(episodes, key=lambda one: -one.steps)[:5]:
            (stored,) = [
                one for one in store.episodes() if (one.lane, one.first_step) == (episode.lane, episode.first_step)
            ]
            state, q = player.begin(1), []
            for t in range(episode.steps):
                acted = player.act(stored.obs[t : t + 1], state, 0, explore=False)
                q.append(unscaled(acted.state.values[0], player.settings.rescale))
                state = player.replaced(acted.state, stored.action[t : t + 1])
                state = player.observe(state, stored.reward[t : t + 1], np.zeros(1, np.bool_))
            last = unscaled(
                player.act(stored.obs[-1:], state, 0, explore=False).state.values[0], player.settings.rescale
            )
            found = values.compute(snapshot, episode)
            np.testing.assert_allclose(np.array(found.each), np.array(q), rtol=1e-3, atol=1e-4)
            taken = np.array(q)[np.arange(episode.steps), stored.action]
            behind = np.append(np.array(q).max(axis=1)[1:], last.max() if episode.end == "truncated" else 0.0)
            td_error = stored.reward + recipe.agent.replay.gamma * behind - taken
            np.testing.assert_allclose(found.td_error, td_error, rtol=1e-3, atol=1e-3)


def unscaled(values: npt.NDArray[Any], rescale: bool) -> npt.NDArray[np.float64]:
    """Undo h(x) = sign(x) (sqrt(|x| + 1) - 1) + .001 x by bisection."""
    if not rescale:
        return values.astype(np.float64)
    low, high = np.full(len(values), -1e6), np.full(len(values), 1e6)
    for _ in range(80):
        middle = (low + high) / 2
        below = np.sign(middle) * (np.sqrt(np.abs(middle) + 1) - 1) + 1e-3 * middle < values
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def test_a_recurrent_agent_has_none_without_the_beginning(tmaze: Path) -> None:
    values, snapshot = read(tmaze)
    whole = next(one for one in snapshot.episodes if one.whole)
    with pytest.raises(NoValuesError, match="the episode's beginning was evicted"):
        values.compute(snapshot, type(whole)(**{**vars(whole), "begun": False}))


def test_expected_values_of_a_distribution(tmp_path: Path) -> None:
    """C51 with noisy layers: the mean of the atoms, by the means of the weights."""
    run = trained("minatar-rainbow", tmp_path / "run", steps=160, warmup_steps=120, update_every=8, batch_size=4,
                  hidden_units=16, head="c51", precision="float32", capacity=1000)  # fmt: skip
    values, snapshot = read(run)
    episode = max(snapshot.episodes, key=lambda one: one.steps * one.begun)
    found = values.compute(snapshot, episode)
    recipe = read_config(run).recipe.override(device="cpu")
    env = recipe.env.make(1)
    player: Any = setup.player(recipe, env, load_file(run / "last.safetensors"))
    env.close()
    player.act(np.zeros((1, *player.spaces.observation.shape), player.spaces.observation.dtype), player.begin(1), 0,
               explore=False)  # fmt: skip
    with opened(run) as store:
        view, count = store.transitions(n_step=1), episode.steps - 1
        batch = view.fetch(store.ids(np.full(count, episode.lane), episode.first_step + np.arange(count)))
        with torch.inference_mode():
            logits = player.online(player.inputs(torch.from_numpy(batch.obs)))
    atoms = torch.linspace(recipe.agent.lowest_return, recipe.agent.highest_return, recipe.agent.atoms)
    expected = (logits.softmax(dim=2) * atoms).sum(dim=2).numpy()
    assert found.each is not None and expected.std() > 0
    np.testing.assert_allclose(found.each[:count], expected, rtol=1e-3, atol=1e-4)


def refusal(values: ValuesOf, snapshot: Snapshot) -> str:
    with pytest.raises(NoValuesError) as error:
        values.compute(snapshot, snapshot.episodes[0])
    return str(error.value)


def test_why_there_are_none(cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sw.Store(SPEC, capacity=200, disk=tmp_path / "store") as store:
        fill(Writer(store), 100, 2)
    assert "a store has no policy" in refusal(*read(tmp_path / "store"))
    values, snapshot = read(cartpole)
    monkeypatch.setattr(action_values, "LIMIT_S", -1.0)
    assert "steps take longer than -1 s" in refusal(values, snapshot)
    monkeypatch.setattr(action_values, "MAX_STEPS", 0)
    assert "expected at most 0" in refusal(values, snapshot)
    monkeypatch.undo()
    policy = sw.Policy.load(cartpole)
    spaces = policy.observation_space, policy.action_space
    cloned = sw.Policy(BC(Spaces(*spaces), BC.Settings()), *spaces)
    monkeypatch.setattr(action_values, "loaded", lambda run, checkpoint: cloned)
    assert refusal(*read(cartpole)) == "the agent bc has no Q-values"


def test_a_damaged_policy_and_a_foreign_module_are_named(cartpole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(cartpole, tmp_path / "run"))
    content = bytearray((run / "last.safetensors").read_bytes())
    content[-3] ^= 1
    (run / "last.safetensors").write_bytes(content)
    values, snapshot = read(run)
    assert "last.safetensors' is damaged" in refusal(values, snapshot)
    shutil.copy(cartpole / "last.safetensors", run)
    assert values.compute(snapshot, snapshot.episodes[0]).steps == 1500
    (run / "config.json").write_text("{}")
    assert "is not the config of a run" in refusal(*read(run))


def test_without_torch_the_extra_is_named(cartpole: Path) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
from pathlib import Path
from sharpwave.viewer.action_values import NoValuesError, ValuesOf
from sharpwave.viewer.watching import Watched
from sharpwave.viewer.sources import find_sources
(source,) = find_sources([Path({str(cartpole)!r})])
memory = Watched(source)
memory.read()
try:
    ValuesOf(source).compute(memory.snapshot, memory.snapshot.episodes[0])
except NoValuesError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=120)
    assert done.stdout.strip() == f"they need torch: {install('train')}", done.stderr


def ask(server: Any, **of: Any) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while (found := server.get("0/values", **of))["state"] == "computing":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    told: dict[str, Any] = found
    return told


def test_the_endpoint_computes_once_for_each_policy(cartpole: Path, tmp_path: Path, monkeypatch: Any) -> None:
    run = Path(shutil.copytree(cartpole, tmp_path / "run"))
    loads, computed = Mock(wraps=action_values.loaded), Mock(wraps=action_values.values_of)
    monkeypatch.setattr(action_values, "loaded", loads)
    monkeypatch.setattr(action_values, "values_of", computed)
    with serving(run) as server:
        assert not loads.called, "nothing is loaded before it is asked for"
        row = server.get("0/episodes", sort="length", desc=1, whole=1, limit=1)["rows"][0]
        of = {"lane": row["lane"], "first": row["first"]}
        told = ask(server, **of)
        curves = server.get("0/steps", **of)
        assert told["state"] == "ready" and told["saved_after"] == 1500 and told["step"] == curves["step"]
        assert [one["label"] for one in told["curves"]] == [
            "Q of the best action",
            "Q of the action taken",
            "TD error, 1 step",
        ]
        assert [max(row) for row in told["each"]] == told["curves"][0]["values"]
        part = ask(server, **of, begin=2, end=5)
        assert part["step"] == [2, 3, 4] and part["each"] == told["each"][2:5]
        assert loads.call_count == computed.call_count == 1
        os.utime(run / "last.safetensors", ns=(1, 1))
        assert ask(server, **of) == told
        assert loads.call_count == computed.call_count == 2
        (run / "last.safetensors").write_bytes(b"")
        assert ask(server, **of)["state"] == "none"
        assert ask(server, **of)["why"] and loads.call_count == 3


class Rerun(ModuleType):
    """As much of Rerun's SDK as the export calls; it keeps the columns that it is sent."""

    def __init__(self) -> None:
        super().__init__("rerun")
        self.__spec__ = ModuleSpec("rerun", None)
        self.sent: dict[str, dict[int, float]] = {}
        self.RecordingStream, self.Scalars = Mock(), Mock(columns=lambda scalars: scalars)
        self.TextDocument, self.EncodedImage = Mock(), Mock()
        self.RecordingStream.return_value.save = lambda path: Path(path).touch()
        self.RecordingStream.return_value.send_columns = self.send

    def new_entity_path(self, parts: list[str]) -> str:
        return "/".join(parts)

    def TimeColumn(self, name: str, sequence: Any) -> Any:
        return sequence

    def send(self, path: str, indexes: Any, columns: Any) -> None:
        self.sent.setdefault(path, {}).update(zip(indexes[0].tolist(), columns.tolist(), strict=True))


def test_an_export_for_rerun_has_them(cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, said = Rerun(), list[str]()
    monkeypatch.setitem(sys.modules, "rerun", fake)
    export_rerun(cartpole, tmp_path / "one.rrd", 20, said.append)
    values, snapshot = read(cartpole)
    found = values.compute(snapshot, snapshot.episodes[20])
    for path, column in {
        "Q-values/Q of the best action": found.largest,
        "Q-values/Q of the action taken": found.taken,
        "TD error, 1 step/TD error, 1 step": found.td_error,
    }.items():
        assert list(fake.sent[path]) == list(range(len(column)))
        np.testing.assert_allclose(list(fake.sent[path].values()), column, rtol=1e-5, atol=1e-9)
    assert len(said) == 1
    monkeypatch.setattr(action_values, "LIMIT_S", -1.0)
    fake.sent.clear()
    export_rerun(cartpole, tmp_path / "two.rrd", 20, said.append)
    assert "without Q-values" in said[1] and "reward/reward" in fake.sent and len(fake.sent) > 1
    assert not [path for path in fake.sent if path.startswith(("Q", "TD"))]


def test_a_checkpoint_has_the_policy_of_its_steps(cartpole: Path) -> None:
    checkpoint = max((cartpole / "checkpoints").iterdir())
    values, snapshot = read(checkpoint)
    of_run, of_snapshot = read(cartpole)
    same, other = values.compute(snapshot, snapshot.episodes[-1]), of_run.compute(of_snapshot, of_snapshot.episodes[-1])
    assert same.steps == other.steps == 1500
    np.testing.assert_allclose(same.largest, other.largest, rtol=1e-5)
