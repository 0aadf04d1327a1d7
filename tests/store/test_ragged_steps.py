"""Actions with rows of any length at every door of a store: files, queries, tools, recorders, relabelled goals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.store.test_ragged_steps_machine import PARTS, check, joined, part_of

ACTIONS = sw.Spec(obs=PARTS["number"], action=PARTS)
OBSERVATIONS = sw.Spec(obs=PARTS, action=PARTS)


def obs_of(spec: sw.Spec, number: int) -> Any:
    return number if spec.array_obs else part_of(number)


def play(store: sw.Store, episodes: int = 6, length: int = 7, lane: int = 0) -> None:
    """Play episodes whose step ``k`` observes the number 1000 + k and acts 2000 + k."""
    for episode in range(episodes):
        numbers = [1000 + episode * 100 + k for k in range(length + 1)]
        obs = np.array(numbers) if store.spec.array_obs else joined([part_of(one) for one in numbers])
        actions = joined([part_of(one + 1000) for one in numbers[:-1]])
        reward = np.arange(length, dtype=np.float32)
        store.add_episode(lane=lane, obs=obs, action=actions, reward=reward, terminated=episode % 2 == 0)


def played(episodes: int = 6, length: int = 7) -> list[list[int]]:
    return [[1000 + episode * 100 + k for k in range(length)] for episode in range(episodes)]


def numbers_of(store: Any) -> list[list[int]]:
    """Return the numbers of all observations by episode, after comparing rows with numbers."""
    found = []
    for one in store.episodes():
        check(one.action)
        if not store.spec.array_obs:
            check(one.obs)
        obs = np.asarray(one.obs if store.spec.array_obs else one.obs["number"])
        assert (one.action["number"] == obs[: one.length] + 1000).all()
        found.append(obs[: one.length].tolist())
    return found


SPECS = pytest.mark.parametrize("spec", [ACTIONS, OBSERVATIONS], ids=["actions", "observations"])


@SPECS
@pytest.mark.parametrize("kind", ["array", "text"])
def test_an_action_may_be_rows_alone(spec: sw.Spec, kind: str) -> None:
    field, rows = (sw.Field(str), ["a", "", "é" * 9]) if kind == "text" else (sw.Field((None,), "int8"), [[1], [], [2]])
    one = sw.Store(sw.Spec(obs=sw.Field((), "int64"), action=field), capacity=100)
    one.add_episode(obs=np.arange(4), action=rows, reward=np.zeros(3), terminated=True)
    one.extend(obs=[7], action=rows[:1], reward=[0.0], terminated=[True], truncated=[False])
    one.append(obs=8, action=rows[2], reward=0, terminated=True, truncated=False)
    found = [list(row) for episode in one.episodes() for row in episode.action]
    assert found == [list(row) for row in [*rows, rows[0], rows[2]]]
    with pytest.raises(ValueError, match="action no rows, expected"):
        one.add_episode(obs=np.arange(1), action=[], reward=np.zeros(0), terminated=True)
    with pytest.raises(ValueError, match="action no rows, expected"):
        one.add_episode(obs=np.arange(2), action="text", reward=np.zeros(1), terminated=True)


@SPECS
def test_wrong_actions_are_refused_by_name_and_nothing_is_appended(spec: sw.Spec) -> None:
    store = sw.Store(spec, capacity=100)
    wrong: list[tuple[Any, str]] = [
        (part_of(9) | {"text": 3}, "action.text.*expected a str"),
        (part_of(9) | {"text": "x" * 9000}, "action.text.*9,000 bytes, expected at most 8,000"),
        (part_of(9) | {"tokens": ([1.5], np.zeros((0, 2)))}, "action.tokens.0"),
        (part_of(9) | {"tokens": ([1], np.zeros((1, 3)))}, "action.tokens.1.*shape"),
        ({"number": 3, "text": ""}, "action"),
    ]
    for action, why in wrong:
        with pytest.raises((ValueError, TypeError, KeyError), match=why):
            store.append(obs=obs_of(spec, 1), action=action, reward=0, terminated=True, truncated=False)
    assert not len(store)


@SPECS
def test_single_parts_are_sampled_and_fetched(spec: sw.Spec) -> None:
    store = sw.Store(spec, capacity=1000, segment_steps=4)
    play(store)
    view, windows = store.transitions(), store.sequences(3, name="windows")
    for replay in (view, windows):
        batch = replay.sample(8, fields=("action.text", "action.number"))
        assert batch.obs is None and batch.action["tokens"][0] is None
        for place in np.ndindex(*batch.action["number"].shape):
            assert batch.action["text"][place] == part_of(int(batch.action["number"][place]))["text"]
        assert "action" in repr(replay.sample(2)) and "<table" in replay.sample(2)._repr_html_()
    assert "<table" in store.episodes()[0]._repr_html_()
    ids = view.sampleable_ids()
    some = view.fetch(ids[::5], fields=("action.tokens.0",))
    whole = view.fetch(ids[::5])
    assert [r.tolist() for r in some.action["tokens"][0]] == [r.tolist() for r in whole.action["tokens"][0]]
    store.clear()
    play(store, 1)
    gone = view.fetch(np.concatenate([ids[:2], view.sampleable_ids()[:2]]), missing="mask")
    assert gone.ids[:2].tolist() == [-1, -1] and gone.action["text"].lengths[:2].tolist() == [0, 0]
    check(gone.action)


@SPECS
def test_blends_join_them(spec: sw.Spec) -> None:
    stores = [sw.Store(spec, capacity=1000, segment_steps=8, seed=k) for k in range(2)]
    for store in stores:
        play(store)
    blend = sw.Blend([(1, one.transitions(sampler=sw.Fifo(), name=f"f{k}")) for k, one in enumerate(stores)])
    windows = sw.Blend([(k + 1, one.sequences(3, burn_in=1, n_step=2)) for k, one in enumerate(stores)])
    for batch in (blend.sample(24), next(blend.stream(6)), windows.sample(11)):
        check(batch.action)
        if not spec.array_obs:
            check(batch.obs)


@SPECS
def test_segments_of_a_writer_bring_them(spec: sw.Spec) -> None:
    store, sealed = sw.Store(spec, capacity=1000, segment_steps=16), list[sw.SealedSegment]()
    writer = sw.SegmentWriter(spec, 2, sealed.append, segment_steps=5)
    for k in range(40):
        numbers = [1000 + k, 3000 + k]
        parts = joined([part_of(one) for one in numbers])
        writer.extend(
            obs=np.array(numbers) if spec.array_obs else parts, action=joined([part_of(n + 1000) for n in numbers]),
            reward=[0.0, 0.0], terminated=[k % 9 == 8] * 2, truncated=[False] * 2,
        )  # fmt: skip
    writer.end_episode(0, obs_of(spec, 77))
    writer.break_episode(1)
    writer.seal()
    for one in sealed:
        store.add_segment(one.packed, one.dictionaries)
    assert sorted(n for episode in numbers_of(store) for n in episode) == [
        *range(1000, 1040), *range(3000, 3039)
    ]  # fmt: skip


@SPECS
def test_files_queries_and_exports_have_them(spec: sw.Spec, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    from sharpwave.data.queries import query
    from sharpwave.offline.surveys import survey

    store = sw.Store(spec, capacity=1000, segment_steps=8, disk=tmp_path / "store")
    play(store)
    store.snapshot("first")
    columns = ["action.number", "action.text", "action.tokens.1"]
    table = store.table("steps", fields=columns).read_all().to_pydict()
    for k, number in enumerate(table["action.number"]):
        assert table["action.text"][k] == part_of(number)["text"]
        assert table["action.tokens.1"][k] == part_of(number)["tokens"][1].tolist()
    batch = store.transitions(where="\"action.text\" like '668 %'").sample(8)
    assert all(text.startswith("668 ") for text in batch.action["text"].strings())
    store.export(f"parquet:{tmp_path / 'out.parquet'}")
    data = sw.load(f"parquet:{tmp_path / 'out.parquet'}")
    assert numbers_of(data) == numbers_of(store) == played()
    for kind in ("npz", "minari"):
        with pytest.raises(ValueError, match=r"field '(obs|action).+' has rows of any length"):
            store.export(f"{kind}:{tmp_path / kind}")
    store.close()
    steps = query(survey(tmp_path / "store"), 'select "action.number", "action.text" from steps').to_pydict()
    assert steps["action.text"] == [part_of(number)["text"] for number in steps["action.number"]]
    if not spec.array_obs:
        steps = query(survey(tmp_path / "store"), 'select "obs.number", "obs.text" from steps').to_pydict()
        assert steps["obs.text"] == [part_of(number)["text"] for number in steps["obs.number"]]
    for command in ("inspect", "verify"):
        said = subprocess.run(
            [sys.executable, "-m", "sharpwave.cli", command, str(tmp_path / "store")], capture_output=True, text=True
        )
        assert said.returncode == 0, said.stderr
    with sw.Store.open(tmp_path / "store", version="first") as before:
        assert numbers_of(before) == played()
    with sw.Store.open(tmp_path / "store") as again:
        assert numbers_of(again) == played()


def test_hindsight_has_them_beside_goals() -> None:
    goal = sw.Field((2,), "float32")
    obs: dict[str, Any] = {"achieved_goal": goal, "desired_goal": goal}
    store = sw.Store(sw.Spec(obs=obs, action=PARTS, note=sw.Field(str)), capacity=500, segment_steps=8)
    for episode in range(12):
        numbers = [100 * episode + k + 1 for k in range(6)]
        reached = np.array([[k, episode] for k in range(7)], np.float32)
        store.add_episode(
            obs={"achieved_goal": reached, "desired_goal": np.full((7, 2), -1)}, reward=np.zeros(6), terminated=True,
            action=joined([part_of(one) for one in numbers]), note=[f"{one}" for one in numbers],
        )  # fmt: skip

    def reward(achieved: Any, desired: Any, info: Any) -> Any:
        assert len(info["note"]) == len(achieved)
        return [int(text) for text in info["note"].strings()]

    view = store.transitions(relabel=sw.Future(k=4, reward_fn=reward))
    other = store.transitions(relabel=sw.Future(k=4, reward_fn=reward), name="other")
    for batch in (view.sample(32), sw.Blend([(1, view), (1, other)]).sample(32)):
        check(batch.action)
        relabelled = batch.relabelled
        assert relabelled.any()
        assert (batch.reward[relabelled] == batch.action["number"][relabelled]).all()


def test_damaged_rows_of_an_action_are_named(tmp_path: Path) -> None:
    store = sw.Store(ACTIONS, capacity=1000, segment_steps=8, disk=tmp_path / "store")
    play(store)
    store.close()
    (region,) = (tmp_path / "store" / "regions").glob("*.region")
    data = bytearray(region.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 255
    region.write_bytes(data)
    with sw.Store.open(tmp_path / "store") as again:
        assert again.recovery is not None and again.recovery.damages
        numbers = [n for episode in numbers_of(again) for n in episode]
        assert set(numbers) < {n for episode in played() for n in episode}
    said = subprocess.run(
        [sys.executable, "-m", "sharpwave.cli", "verify", str(tmp_path / "store")], capture_output=True, text=True
    )
    assert said.returncode != 0


class Talk:
    """Environment whose actions are sentences, which it keeps and overwrites arrays of."""

    def __init__(self, length: int = 5) -> None:
        self.length, self.heard, self.count = length, list[Any](), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.step_number = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        self.heard.append(action)
        result = self._observation(), 1.0, self.step_number == self.length, False, dict[str, Any]()
        if isinstance(action, dict):
            action["tokens"][0][:] = -1  # the caller's memory is not the store's
        return result

    def _observation(self) -> Any:
        self.count += 1
        return np.array([self.count], np.float32)


@pytest.mark.parametrize("kind", ["parts", "text"])
def test_a_recorder_takes_actions_of_any_length(kind: str) -> None:
    action: Any = PARTS if kind == "parts" else sw.Field(str)
    store = sw.Store(sw.Spec(obs=sw.Field((1,), "float32"), action=action), capacity=1000, segment_steps=8)
    env = Talk()
    recorder = sw.Recorder(env, store)
    for episode in range(6):
        recorder.reset()
        for step in range(5):
            number = 100 * episode + step + 1
            recorder.step(part_of(number) if kind == "parts" else f"say {number} " * (number % 3))
    found = [row for one in store.episodes() for row in (one.action["number"] if kind == "parts" else one.action)]
    numbers = [100 * episode + step + 1 for episode in range(6) for step in range(5)]
    if kind == "parts":
        assert found == numbers
        for one in store.episodes():
            check(one.action)
    else:
        assert found == env.heard == [f"say {number} " * (number % 3) for number in numbers]
    recorder.reset()
    with pytest.raises((TypeError, ValueError), match="action"):
        recorder.step(3)


@pytest.mark.parametrize("mode", [None, "NEXT_STEP", "SAME_STEP"])
def test_environments_of_texts_are_recorded_with_their_true_final_observations(mode: str | None) -> None:
    gym: Any = pytest.importorskip("gymnasium")

    class Story(gym.Env):
        """Observes the episode, the step and its last action as text, in one array of tokens as well."""

        observation_space = gym.spaces.Dict(
            text=gym.spaces.Text(99), tokens=gym.spaces.Sequence(gym.spaces.Discrete(99), stack=True)
        )
        action_space = gym.spaces.Text(20)
        episodes = 0

        def seen(self, action: str) -> Any:
            tokens = np.array([self.episode, *range(self.number)], np.int64)
            return {"text": f"{self.episode} {self.number} {action}", "tokens": tokens}, 1.0

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            Story.episodes += 1
            self.episode, self.number = Story.episodes, 0
            return self.seen("")[0], {}

        def step(self, action: str) -> Any:
            self.number += 1
            return *self.seen(action), self.number == 3, False, {}

    lanes = 1 if mode is None else 2
    env: Any = Story()
    if mode is not None:
        env = gym.vector.SyncVectorEnv([Story] * lanes, autoreset_mode=gym.vector.AutoresetMode[mode])
    spec = sw.step_spec(env)
    assert spec.fields["action"] == sw.Field(str) == spec.fields["obs.text"]
    assert spec.fields["obs.tokens"] == sw.Field((None,), "int64")
    store = sw.Store(spec, capacity=500, segment_steps=5)
    recorder = sw.Recorder(env, store)
    recorder.reset()
    for step in range(40):
        actions = [f"a{step}" * (step % 3) + str(lane) for lane in range(lanes)]
        result = recorder.step(actions[0] if mode is None else tuple(actions))
        if mode is None and result[2]:
            recorder.reset()
    checked = 0
    for one in store.episodes():
        texts, tokens, actions = one.obs["text"].strings(), one.obs["tokens"], one.action.strings()
        episode = texts[0].split()[0]
        assert texts[0] == f"{episode} 0 " and (one.length == 3 or one.ended is None)
        for number in range(1, len(texts)):
            assert texts[number] == f"{episode} {number} {actions[number - 1]}"
            assert tokens[number].tolist() == [int(episode), *range(number)]
        checked += one.length
    assert checked == len(store) >= 30 * lanes - 2


def test_graphs_of_arrays_are_recorded_as_rows() -> None:
    gym: Any = pytest.importorskip("gymnasium")

    class Net(gym.Env):
        observation_space = gym.spaces.Graph(gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(5))
        action_space = gym.spaces.Discrete(2)

        def seen(self) -> Any:
            count, links = self.number + 1, np.array([[k, k + 1] for k in range(self.number)], np.int64)
            nodes = np.full((count, 2), self.number / 10, np.float32)
            edges = np.arange(self.number) if self.number else None
            return gym.spaces.GraphInstance(nodes, edges, links if self.number else None)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.number = 0
            return self.seen(), {}

        def step(self, action: int) -> Any:
            self.number += 1
            return self.seen(), 0.0, self.number == 4, False, {}

    env = Net()
    store = sw.Store(sw.step_spec(env), capacity=100, segment_steps=4)
    assert store.spec.fields["obs.edge_links"] == sw.Field((None, 2), "int64")
    recorder = sw.Recorder(env, store)
    for _ in range(3):
        recorder.reset()
        for _ in range(4):
            recorder.step(1)
    for one in store.episodes():
        assert one.obs["nodes"].lengths.tolist() == [1, 2, 3, 4, 5]
        assert one.obs["edges"].lengths.tolist() == one.obs["edge_links"].lengths.tolist() == [0, 1, 2, 3, 4]
        assert one.obs["edge_links"][3].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_an_episode_is_broken_off_where_the_next_text_is_another() -> None:
    store = sw.Store(sw.Spec(obs=sw.Field(str), action=sw.Field((), "int64")), capacity=100, segment_steps=3)
    said = ["a", "b", "c", "", "", "other", "é", "é"]
    for k, (obs, after) in enumerate(zip(said, [*said[1:5], "so", "é", "é", "end"], strict=True)):
        store.append(obs=obs, action=k, reward=0, terminated=False, truncated=False, next_obs=after)
    first, second = store.episodes()
    assert first.obs.strings() == ["a", "b", "c", "", "", "so"] and first.ended == "truncated"
    assert second.obs.strings() == ["other", "é", "é"] and second.ended is None
    assert store.stats()["broken_episodes"] == 1


@pytest.mark.parametrize("block", [False, True])
def test_numbers_that_are_equal_by_value_do_not_break_an_episode(block: bool) -> None:
    store = sw.Store(sw.Spec(obs=sw.Field((None,), "float32"), action=sw.Field((), "int64")), capacity=100)
    after, again = np.array([0.0, np.nan, 2.0], np.float32), np.array([-0.0, np.nan, 2.0], np.float32)
    obs, nexts = [[1.0], again, after, after], [after, after, after, [3.0]]
    none = np.zeros(4, np.bool_)
    if block:
        store.extend(
            obs=[[one] for one in obs], action=none[:, None] + 0, reward=none[:, None] + 0.0,
            terminated=none[:, None], truncated=none[:, None], next_obs=[[one] for one in nexts],
        )  # fmt: skip
    else:
        for one, following in zip(obs, nexts, strict=True):
            store.append(obs=one, action=0, reward=0, terminated=False, truncated=False, next_obs=following)
    (episode,) = store.episodes()
    assert episode.length == 4 and store.stats()["broken_episodes"] == 0
    assert np.signbit(episode.obs[1][0]) and not np.signbit(episode.obs[2][0])


@pytest.mark.parametrize("on_disk", [False, True])
def test_rows_of_the_greatest_length_fit_everywhere(on_disk: bool, tmp_path: Path) -> None:
    most = 1 << 20
    spec = sw.Spec(obs=sw.Field(bytes, max_length=most), action=sw.Field((), "int64"))
    where: dict[str, Any] = {"disk": tmp_path / "store"} if on_disk else {}
    store = sw.Store(spec, capacity=60, segment_steps=4, **where)
    rng = np.random.default_rng(0)
    given = [rng.bytes(most - k % 2 if k % 5 else k) for k in range(26)]
    for k in range(25):
        known: dict[str, Any] = {"next_obs": given[k + 1]} if k % 3 == 0 else {}
        final: dict[str, Any] = {"final_obs": given[0]} if k % 7 == 6 else {}
        store.append(obs=given[k], action=k, reward=0, terminated=k % 7 == 6, truncated=False, **(final or known))
    store.end_episode(0, given[3])
    if on_disk:
        store.close()
        store = sw.Store.open(tmp_path / "store")
        assert store.recovery is not None and not store.recovery.damages
    rows = [row for one in store.episodes() for row in one.obs]
    expected = list[bytes]()
    for k in range(25):
        expected += [given[k], given[0]] if k % 7 == 6 else [given[k]]
    assert rows == [*expected, given[3]]
    batch = store.transitions().sample(16)
    for i, k in enumerate(batch.step.tolist()):
        after = given[0] if k % 7 == 6 else given[3] if k == 24 else given[k + 1]
        assert (batch.obs[i], batch.action[i], batch.next_obs[i]) == (given[k], k, after)
    with pytest.raises(ValueError, match=r"next_obs: row 0 has 1,048,577 bytes"):
        store.append(obs=b"", action=0, reward=0, terminated=False, truncated=False, next_obs=bytes(most + 1))
    store.close()


def test_wrong_observations_are_refused_by_name() -> None:
    store = sw.Store(OBSERVATIONS, capacity=100)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"obs": part_of(9) | {"text": 3}}, "obs.text.*expected a str"),
        ({"obs": part_of(9) | {"tokens": ([1], np.zeros((1, 3)))}}, "obs.tokens.1.*shape"),
        ({"next_obs": part_of(9) | {"text": b"a"}}, "next_obs.text.*expected a str"),
        ({"obs": {"number": 3, "text": ""}}, "obs"),
    ]
    for given, why in wrong:
        step: dict[str, Any] = {"obs": part_of(1), "action": part_of(2), "reward": 0.0}
        with pytest.raises((ValueError, TypeError, KeyError), match=why):
            store.append(**step | given, terminated=False, truncated=False)
    goals = {"achieved_goal": sw.Field(str), "desired_goal": sw.Field(str)}
    texts = sw.Store(sw.Spec(obs=goals, action=sw.Field((), "int64")), capacity=100)
    with pytest.raises(ValueError, match="relabel with achieved_goal of rows of any length"):
        texts.transitions(relabel=sw.Future(reward_fn=lambda *_: 0))
    with pytest.raises(ValueError, match="stack=4 of rows of any length"):
        sw.Spec(obs=sw.Field(str, stack=4), action=sw.Field((), "int64"))
    assert not len(store)


def test_texts_beside_stacks_go_on_from_segment_to_segment() -> None:
    obs = {"frame": sw.Field((2,), "uint8", stack=4), "text": sw.Field(str)}
    store = sw.Store(sw.Spec(obs=obs, action=sw.Field((), "int64")), capacity=500, segment_steps=4)
    for k in range(101):
        ends: dict[str, Any] = {"final_obs": {"frame": [k + 1] * 2, "text": f"t{k + 1}"}} if k % 30 == 29 else {}
        seen = {"frame": [k] * 2, "text": f"t{k}"}
        store.append(obs=seen, action=k, reward=0, terminated=bool(ends), truncated=False, **ends)
    for view in (store.transitions(), store.transitions(n_step=3, name="far")):
        batch = view.sample(64)
        for obs_of_batch in (batch.obs, batch.next_obs):
            assert obs_of_batch["text"].strings() == [f"t{k}" for k in obs_of_batch["frame"][:, -1, 0].tolist()]
