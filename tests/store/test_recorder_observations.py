"""What a `Recorder` takes for an observation: nothing is cast, transposed, cut or padded but as was declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.envs import step_spec

gym: Any = pytest.importorskip("gymnasium")
wrappers: Any = gym.wrappers
AutoresetMode = gym.vector.AutoresetMode

from tests.support.truth import Counting  # noqa: E402


class Showing(gym.Env):
    """Observes the given values in turn."""

    def __init__(self, space: Any, values: list[Any]) -> None:
        self.observation_space, self.action_space = space, gym.spaces.Discrete(2)
        self.values, self.at = values, 0

    def _observe(self) -> Any:
        self.at += 1
        return self.values[(self.at - 1) % len(self.values)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        return self._observe(), 1.0, False, False, {}


def store_of(field: Any, capacity: int = 1_000) -> sw.Store:
    return sw.Store(sw.Spec(obs=field, action=sw.Field((), "int64")), capacity=capacity)


def append_says(field: sw.Field, value: Any) -> BaseException:
    with pytest.raises((ValueError, TypeError)) as caught:
        store_of(field).append(obs=value, action=0, reward=0.0, terminated=False, truncated=False)
    return caught.value


def test_what_append_refuses_is_refused_with_the_same_words() -> None:
    unit = np.linspace(0, 1, 4, dtype=np.float32)
    cases: list[tuple[Any, list[Any], sw.Field]] = [
        (gym.spaces.Box(0, 1, (4,), np.float32), [unit], sw.Field((4,), "uint8")),
        (gym.spaces.Discrete(500), [np.int64(314)], sw.Field((), "uint8")),
        (gym.spaces.Box(0, 1e300, (1,), np.float64), [np.array([1e300])], sw.Field((1,), "float32")),
    ]
    for space, values, field in cases:
        store = store_of(field)
        recorder = sw.Recorder(Showing(space, values), store)
        expected = append_says(field, values[0])
        with pytest.raises(type(expected)) as caught:
            recorder.reset()
        assert str(caught.value) == str(expected)
        with pytest.raises(ValueError, match=r"reset"):
            recorder.step(0)
        assert len(store) == 0


def test_a_later_value_that_does_not_fit_refuses_the_steps_that_it_is_part_of() -> None:
    store = store_of(sw.Field((), "uint8"))
    recorder = sw.Recorder(Showing(gym.spaces.Discrete(500), [np.int64(v) for v in (1, 2, 314, 4, 5)]), store)
    recorder.reset()
    recorder.step(0)
    for _ in range(2):  # to 314 and from there
        with pytest.raises(ValueError, match="value 314 does not fit into uint8"):
            recorder.step(0)
    recorder.step(0)
    recorder.reset()
    replay = store.transitions()
    batch = replay.fetch(replay.sampleable_ids())
    assert (batch.obs.tolist(), batch.next_obs.tolist()) == ([1, 4], [2, 5])


def test_exact_casts_are_made() -> None:
    store = store_of(sw.Field((3,), "uint8"))
    recorder = sw.Recorder(Counting(), store)  # int32, small
    recorder.reset()
    recorder.step(0)
    recorder.reset()
    replay = store.transitions()
    assert replay.fetch(replay.sampleable_ids()).next_obs.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_tuples_are_rows_and_not_columns(mode: Any, lanes: int) -> None:
    env = gym.vector.SyncVectorEnv([lambda: gym.make("Blackjack-v1")] * lanes, autoreset_mode=mode)
    store = store_of(sw.Field((3,), "int64"))
    recorder = sw.Recorder(env, store)
    seen = {(int(a), int(b), int(c)) for a, b, c in zip(*recorder.reset(seed=1)[0], strict=True)}
    for _ in range(20):
        obs, _, terminated, _, _ = recorder.step(np.ones(lanes, int))
        seen |= {(int(a), int(b), int(c)) for a, b, c in zip(*obs, strict=True)}
        if mode == AutoresetMode.DISABLED and terminated.any():
            obs, _ = recorder.reset(options={"reset_mask": terminated})
            seen |= {(int(a), int(b), int(c)) for a, b, c in zip(*obs, strict=True)}
    replay = store.transitions()
    batch = replay.fetch(replay.sampleable_ids())
    assert len(batch.ids) > 20 and {tuple(row) for row in batch.obs.tolist()} <= seen


RGB = gym.spaces.Box(0, 255, (3, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("space", "field", "says"),
    [
        (
            RGB,
            sw.Field((8, 8), "uint8"),
            r"gives \(3, 8, 8\), the field holds \(8, 8\) and no stack; declare Field\(\(3",
        ),
        (RGB, sw.Field((8, 8), "uint8", stack=4), r"and a stack of 4; declare .*stack=3"),
        (RGB, sw.Field((8, 8), "uint8", stack=3), r"does not say that it stacks.*Field\(\(3, 8, 8\).*stack_size=3"),
        (RGB, sw.Field((8, 9), "uint8", stack=3), r"declare Field\(\(3, 8, 8\), 'uint8'\)"),
        (gym.spaces.Dict({"a": RGB}), sw.Field((3, 8, 8), "uint8"), r"a dict, the spec declares one field.*\['a'\]"),
        (RGB, {"a": sw.Field((3, 8, 8), "uint8")}, r"expected a dict with the spec's keys \['a'\]"),
        (gym.spaces.Dict({"b": RGB}), {"a": sw.Field((3, 8, 8), "uint8")}, r"keys \['b'\], expected .*\['a'\]"),
        (
            gym.spaces.Dict({"a": gym.spaces.Dict({"b": RGB})}),
            {"a": sw.Field((3, 8, 8), "uint8")},
            "FlattenObservation",
        ),
        (gym.spaces.Tuple([RGB, gym.spaces.Discrete(3)]), sw.Field((2,), "int64"), "parts differ in shape"),
        (gym.spaces.Text(5), sw.Field((5,), "uint8"), "which is no array"),
    ],
)
@pytest.mark.parametrize("vector", [False, True])
def test_axes_are_not_guessed(space: Any, field: Any, says: str, vector: bool) -> None:
    env: Any = Showing(space, [space.sample()])
    if vector:
        if isinstance(space, gym.spaces.Text):
            return  # gymnasium's vectors have no arrays of it either
        env = gym.vector.SyncVectorEnv([lambda: Showing(space, [space.sample()])] * 3)
    with pytest.raises(ValueError, match=says):
        sw.Recorder(env, store_of(field))


@pytest.mark.slow
@pytest.mark.parametrize("vector", ["", "sync", "async"])
def test_padding_is_the_environments(vector: str) -> None:
    def make(padding: Any) -> Any:
        def one() -> Any:
            return wrappers.FrameStackObservation(Counting(lengths=(9,)), 4, padding_type=padding)

        if not vector:
            return one()
        if vector == "sync":
            return gym.vector.SyncVectorEnv([one] * 2)
        return gym.vector.AsyncVectorEnv([one] * 2)

    repeats, zeros = sw.Field((3,), "int32", stack=4), sw.Field((3,), "int32", stack=4, pad="zeros")
    for padding, field, says in [
        ("zero", repeats, r"padding_type='zero', the field with pad='repeat'; declare .*pad='zeros'"),
        ("reset", zeros, r"padding_type='reset', the field with pad='zeros'; declare .*pad='repeat'"),
        (np.array([1, 2, 3], np.int32), repeats, "which the store cannot do"),
    ]:
        env = make(padding)
        with pytest.raises(ValueError, match=says):
            sw.Recorder(env, store_of(field))
        env.close()
    for padding, field in [("zero", zeros), ("reset", repeats), (np.zeros(3, np.int32), zeros)]:
        env, store = make(padding), store_of(field)
        recorder = sw.Recorder(env, store)
        seen = [np.array(recorder.reset()[0])]
        for _ in range(6):
            seen.append(np.array(recorder.step(np.zeros(2, int) if vector else 0)[0]))
        recorder.reset()
        replay = store.transitions()
        batch = replay.fetch(replay.sampleable_ids())
        order = np.argsort(batch.obs[:, -1, 2], kind="stable")
        expected = np.concatenate(seen[:-1] if vector else [one[None] for one in seen[:-1]])
        np.testing.assert_array_equal(batch.obs[order], expected)
        recorder.close()


def test_stacks_are_looked_at_where_a_wrapper_only_says_what_it_does() -> None:
    class Stacks(wrappers.FrameStackObservation):
        how = "first newest"

        def reset(self, **how: Any) -> Any:
            obs, info = super().reset(**how)
            return self.turned(obs, True), info

        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return self.turned(obs, False), *rest

        def turned(self, obs: Any, first: bool) -> Any:
            if self.how == "first newest":
                return obs[::-1]
            return np.zeros_like(obs) + np.arange(1, 4)[:, None] * first + obs * (not first)

    for how, says in [
        ("first newest", "shifted by one frame, with the newest last"),
        ("frames", "it holds other frames"),
    ]:
        store = store_of(sw.Field((3,), "int32", stack=3))
        env = Stacks(Counting(), 3)
        env.how = how
        recorder = sw.Recorder(env, store)
        with pytest.raises(ValueError, match=says):
            recorder.reset()
            recorder.step(0)
    store = store_of(sw.Field((3, 3), "int32"))  # whole stacks can be stored, whatever they are
    recorder = sw.Recorder(env, store)
    recorder.reset()
    recorder.step(0)


def test_step_spec_takes_stack_and_padding_of_any_environment() -> None:
    def make(padding: Any, lanes: int = 1) -> Any:
        return gym.vector.SyncVectorEnv(
            [lambda: wrappers.FrameStackObservation(Counting(), 4, padding_type=padding)] * lanes
        )

    assert step_spec(make("zero")).fields["obs"] == sw.Field((3,), "int32", stack=4, pad="zeros")
    assert step_spec(make("reset", 2)).fields["obs"] == sw.Field((3,), "int32", stack=4)
    assert step_spec(gym.vector.SyncVectorEnv([Counting])).fields["obs"] == sw.Field((3,), "int32")
    with pytest.raises(ValueError, match="stacks frames as"):
        step_spec(make(np.ones(3, np.int32)))


def test_atari_vectors_pad_with_zeros() -> None:
    atari = pytest.importorskip("ale_py.vector_env")
    env = atari.AtariVectorEnv("pong", num_envs=1, num_threads=1, img_height=42, img_width=42)
    assert step_spec(env).fields["obs"] == sw.Field((42, 42), "uint8", stack=4, pad="zeros")
    with pytest.raises(ValueError, match=r"padding_type='zero', the field with pad='repeat'"):
        sw.Recorder(env, store_of(sw.Field((42, 42), "uint8", stack=4)))
    env.close()
    some = atari.AtariVectorEnv("pong", num_envs=2, num_threads=1, batch_size=1)
    with pytest.raises(ValueError, match="batch_size=1 of 2 environments"):
        sw.Recorder(some, store_of(sw.Field((84, 84), "uint8", stack=4, pad="zeros")))
    some.close()


class Mission(gym.Env[dict[str, Any], np.int64]):
    """As MiniGrid's: a dict with a text, and a nested one with a sequence."""

    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (3, 3), np.uint8),
        mission=gym.spaces.Text(30),
        inner=gym.spaces.Dict(
            number=gym.spaces.Discrete(9), seen=gym.spaces.Sequence(gym.spaces.Box(0, 1, (2,), np.float32))
        ),
    )
    action_space = gym.spaces.Discrete(3)

    def _obs(self) -> dict[str, Any]:
        image, seen = np.full((3, 3), self.steps, np.uint8), (np.zeros(2, np.float32),) * self.steps
        return {"image": image, "mission": "go " * self.steps, "inner": {"number": np.int64(self.steps), "seen": seen}}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._obs(), 1.0, self.steps == 4, False, {}


@pytest.mark.parametrize("mode", [None, "NEXT_STEP", "SAME_STEP"])
def test_text_and_sequences_are_recorded(mode: str | None) -> None:
    env: Any = Mission()
    if mode is not None:
        env = gym.vector.SyncVectorEnv([Mission] * 2, autoreset_mode=gym.vector.AutoresetMode[mode])
    spec = step_spec(env)
    assert spec.fields["obs.mission"] == sw.Field(str)
    assert spec.fields["obs.inner.seen"] == sw.Field((None, 2), "float32")
    with sw.Store(spec, capacity=1000) as store:
        recorder = sw.Recorder(env, store)
        obs, _ = recorder.reset()
        assert "mission" in obs
        for _ in range(19):
            result = recorder.step(np.ones(2, np.int64) if mode else 1)
            if mode is None and result[2]:
                recorder.reset()
        batch = store.transitions().fetch(store.transitions().sampleable_ids())
        assert len(batch) > 10
        np.testing.assert_array_equal(batch.next_obs["inner"]["number"], batch.obs["inner"]["number"] + 1)
        np.testing.assert_array_equal(batch.next_obs["image"][:, 0, 0], batch.obs["inner"]["number"] + 1)
        for obs in (batch.obs, batch.next_obs):
            assert obs["mission"].strings() == ["go " * number for number in obs["inner"]["number"].tolist()]
            assert obs["inner"]["seen"].lengths.tolist() == obs["inner"]["number"].tolist()
        np.testing.assert_array_equal(batch.terminated, batch.obs["inner"]["number"] == 3)


def pairs() -> Any:
    """Return a space that no field holds."""
    return gym.spaces.Sequence(gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Discrete(3)]))


class Said(Mission):
    """The same as a tuple: sequences of tuples, the picture, and a tuple with such a sequence."""

    observation_space: Any = gym.spaces.Tuple(
        [
            pairs(),
            gym.spaces.Box(0, 255, (3, 3), np.uint8),
            gym.spaces.Tuple([pairs(), gym.spaces.Discrete(9)]),
            gym.spaces.Dict(word=pairs()),
        ]
    )

    def _obs(self) -> Any:
        said = super()._obs()
        some = ((np.int64(1), np.int64(2)),) * self.steps
        return some, said["image"], (some, said["inner"]["number"]), {"word": some}


@pytest.mark.parametrize("mode", [None, "NEXT_STEP", "SAME_STEP"])
def test_a_tuple_is_stored_without_the_places_that_no_field_holds(mode: str | None) -> None:
    env: Any = Said()
    if mode is not None:
        env = gym.vector.SyncVectorEnv([Said] * 2, autoreset_mode=gym.vector.AutoresetMode[mode])
    left_out = r"obs\[0\] \(Sequence\), obs\[2\]\[0\] \(Sequence\), obs\[3\]\['word'\] \(Sequence\): .* not stored"
    with pytest.warns(UserWarning, match=left_out) as warned:
        spec = step_spec(env)
    assert len(warned) == 1 and spec.obs_names == ("obs.0", "obs.1.0")
    with sw.Store(spec, capacity=1000) as store:
        recorder = sw.Recorder(env, store)
        assert len(recorder.reset()[0]) == 4
        for _ in range(19):
            result = recorder.step(np.ones(2, np.int64) if mode else 1)
            if mode is None and result[2]:
                recorder.reset()
        batch = store.transitions().fetch(store.transitions().sampleable_ids())
        image, (number,) = batch.obs
        assert len(batch) > 10
        np.testing.assert_array_equal(image[:, 1, 1], number)
        np.testing.assert_array_equal(batch.next_obs[1][0], number + 1)


def test_an_observation_of_one_of_several_kinds_is_refused_by_name() -> None:
    class Either(Mission):
        observation_space = gym.spaces.Dict(
            a=gym.spaces.OneOf([gym.spaces.Discrete(2), gym.spaces.Box(0, 1, (2,), np.float32)])
        )

    with pytest.raises(ValueError, match=r"step_spec: env has observations\['a'\] OneOf\(.*one of several kinds"):
        step_spec(Either())
    spec = sw.Spec(obs={"a": sw.Field((), "int64")}, action=sw.Field((), "int64"))
    with pytest.raises(ValueError, match=r"Recorder: obs.a is OneOf"):
        sw.Recorder(Either(), sw.Store(spec, capacity=10))
