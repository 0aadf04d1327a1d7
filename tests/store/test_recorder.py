"""What a `Recorder` stores is what passed through it: every step once, none invented, finals as they really were.

Real environments (CartPole, Pendulum, Pong) and a counting one in which no two observations are equal, one at a time
and as vectors, in all three autoreset modes (trap 10). A twin of each environment, without a recorder, gets the same
actions: what the recorder hands back must be what the twin hands back.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.store.witness import (
    MODES,
    AutoresetMode,
    CountingEnv,
    Witness,
    assert_recorded,
    assert_same_answer,
    counting_spec,
    gym,
    vector_of,
)
from tests.support.oracle import Oracle, Stacking


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("copy", [True, False], ids=["copies", "same buffer"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_trap_10_counting_vector_env(mode: Any, copy: bool, n_step: int) -> None:
    makers = [
        lambda i=i, lengths=lengths: CountingEnv(i, lengths)
        for i, lengths in enumerate([(3, 1, 7, 2), (1, 1, 1, 5), (40, 6)])
    ]
    with sw.Store(counting_spec(), capacity=1000, segment_steps=7) as store:
        witness = Witness(vector_of(makers, mode, copy), vector_of(makers, mode), store, mode, seed=1)
        for k in range(90):
            witness.step(np.arange(3) + 10 * k)
        witness.check(store, n_step)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_trap_10_resets_in_mid_episode_of_some_lanes_and_of_all(mode: Any) -> None:
    makers = [lambda i=i: CountingEnv(i, (4, 6, 3 + i)) for i in range(3)]
    rng = np.random.default_rng(4)
    with sw.Store(counting_spec(), capacity=1000, segment_steps=3) as store:
        witness = Witness(vector_of(makers, mode), vector_of(makers, mode), store, mode, seed=1)
        for k in range(120):
            witness.step(np.arange(3) + 10 * k)
            if k % 13 == 5:
                witness.reset()
            elif k % 4 == 1:
                mask = rng.random(3) < 0.5
                if mask.any():
                    witness.reset(mask)
            if k % 29 == 0:
                witness.reset()  # twice in a row: nothing happened in between
                witness.reset()
        witness.check(store, 1)
        witness.check(store, 3)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_classic_control_vectors(mode: Any, name: str) -> None:
    # CartPole falls after some 20 random steps or is cut off at 25; Pendulum is only ever cut off
    makers = [lambda: gym.make(name, max_episode_steps=25)] * 3
    env, twin = vector_of(makers, mode), vector_of(makers, mode)
    action_space = env.single_action_space
    spec = sw.Spec(
        obs=sw.Field(env.single_observation_space.shape, "float32"),
        action=sw.Field(action_space.shape, str(action_space.dtype)),
    )
    env.action_space.seed(3)
    with sw.Store(spec, capacity=5000, segment_steps=16) as store:
        witness = Witness(env, twin, store, mode, seed=11)
        for _ in range(150):
            witness.step(env.action_space.sample())
        ended = [step for lane in witness.oracle.lanes.values() for step in lane if step.ended]
        assert {step.truncated for step in ended} == ({True} if name == "Pendulum-v1" else {True, False})
        witness.check(store)


def pong_spec() -> sw.Spec:
    return sw.Spec(obs=sw.Field((84, 84), "uint8", stack=4, pad="zeros"), action=sw.Field((), "int64"))


def check_pong_stacks(store: sw.Store, witness: Witness) -> None:
    """The environments stack with zeros too: the store's stacks are theirs, bit for bit."""
    replay = store.transitions()
    batch = replay.fetch(replay.sampleable_ids())
    sampleable = witness.oracle.sampleable(1)
    theirs = Counter(obs.tobytes() for serial, obs in witness.observed.items() if serial in sampleable)
    assert Counter(obs.tobytes() for obs in batch.obs) == theirs


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_pong_of_the_atari_vector_env(mode: Any) -> None:
    atari = pytest.importorskip("ale_py.vector_env")

    def make() -> Any:
        return atari.AtariVectorEnv(
            "pong", num_envs=2, num_threads=1, autoreset_mode=mode, max_num_frames_per_episode=160, noop_max=8
        )

    env, twin = make(), make()
    rng = np.random.default_rng(0)
    with sw.Store(pong_spec(), capacity=1000, segment_steps=32) as store:
        witness = Witness(env, twin, store, mode, seed=5)
        for _ in range(130):
            witness.step(rng.integers(0, 6, 2))
        assert sum(step.truncated for lane in witness.oracle.lanes.values() for step in lane) >= 4
        witness.check(store)
        check_pong_stacks(store, witness)
    env.close()
    twin.close()


def test_pong_lost_to_the_end_in_the_atari_vector_env() -> None:
    """A whole game (nothing pressed: 21 points lost), so that a real termination passes through."""
    atari = pytest.importorskip("ale_py.vector_env")
    mode = AutoresetMode.SAME_STEP
    env, twin = (
        atari.AtariVectorEnv("pong", num_envs=1, num_threads=1, autoreset_mode=mode, frameskip=8) for _ in range(2)
    )
    with sw.Store(pong_spec(), capacity=2000) as store:
        witness = Witness(env, twin, store, mode, seed=5)
        ended = None
        for _ in range(600):
            witness.step(np.array([0]))
            ended = ended or next((step for step in witness.oracle.lanes[0][-1:] if step.ended), None)
        assert ended is not None and ended.terminated and not ended.truncated
        witness.check(store)
    env.close()
    twin.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_pong_of_gymnasium_in_a_sync_vector(mode: Any) -> None:
    """ALE's own vector environment knows no DISABLED mode; gymnasium's does."""
    pytest.importorskip("cv2")
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)

    def make() -> Any:
        env = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, max_episode_steps=120)
        env = gym.wrappers.AtariPreprocessing(env, noop_max=5)
        return gym.wrappers.FrameStackObservation(env, 4, padding_type="zero")

    env, twin = vector_of([make, make], mode), vector_of([make, make], mode)
    rng = np.random.default_rng(2)
    with sw.Store(pong_spec(), capacity=1000, segment_steps=16) as store:
        witness = Witness(env, twin, store, mode, seed=8)
        for _ in range(70):
            witness.step(rng.integers(0, 6, 2))
        assert any(step.truncated for lane in witness.oracle.lanes.values() for step in lane)
        witness.check(store)
        check_pong_stacks(store, witness)
    env.close()
    twin.close()


# one environment


def play_single(env: Any, store: sw.Store, steps: int, seed: int, reset_every: int = 0) -> Oracle:
    field = store.spec.fields["obs"]
    recorder = sw.Recorder(env, store)
    oracle = Oracle(Stacking(field.stack, field.pad))
    env.action_space.seed(seed)
    obs, _ = recorder.reset(seed=seed)
    obs = np.array(obs)
    for k in range(1, steps + 1):
        action = env.action_space.sample()
        answer, reward, terminated, truncated, _ = recorder.step(action)
        after = np.array(answer)
        oracle.append(0, obs, action, reward, terminated, truncated, after)
        obs = after
        asked = reset_every and k % reset_every == 0
        if terminated or truncated or asked:
            if oracle.can_end_episode(0):
                oracle.end_episode(0, obs)
            obs = np.array(recorder.reset()[0])
    assert store.total_steps == oracle.total_steps
    return oracle


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("reset_every", [0, 17])
def test_one_environment(name: str, reset_every: int) -> None:
    env = gym.make(name, max_episode_steps=30)
    spec = sw.Spec(
        obs=sw.Field(env.observation_space.shape, "float32"),
        action=sw.Field(env.action_space.shape, str(env.action_space.dtype)),
    )
    with sw.Store(spec, capacity=1000, segment_steps=8) as store:
        oracle = play_single(env, store, 150, seed=6, reset_every=reset_every)
        assert_recorded(store, oracle)
    env.close()


@pytest.mark.parametrize("reset_every", [0, 5])
def test_trap_10_one_environment_that_hands_out_the_same_buffer(reset_every: int) -> None:
    with sw.Store(counting_spec(), capacity=1000, segment_steps=4) as store:
        oracle = play_single(CountingEnv(one_buffer=True), store, 80, seed=1, reset_every=reset_every)
        assert_recorded(store, oracle, n_step=3)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_recording_past_the_capacity_keeps_the_newest(mode: Any) -> None:
    makers = [lambda i=i: CountingEnv(i, (5, 3, 9)) for i in range(2)]
    with sw.Store(counting_spec(), capacity=32, segment_steps=4) as store:
        witness = Witness(vector_of(makers, mode), vector_of(makers, mode), store, mode, seed=1)
        for k in range(200):
            witness.step(np.arange(2) + 10 * k)
        assert store.total_steps == witness.oracle.total_steps and 24 < len(store) <= 32
        replay = store.transitions(gamma=0.5)
        batch = replay.fetch(replay.sampleable_ids())
        by_count = {tuple(step.obs.tolist()): step.serial for lane in witness.oracle.lanes.values() for step in lane}
        for i in range(len(batch.ids)):
            serial = by_count[tuple(batch.obs[i, -1].tolist())]
            expected = witness.oracle.transition(serial, 1, 0.5)
            np.testing.assert_array_equal(batch.obs[i], expected.obs)
            np.testing.assert_array_equal(batch.next_obs[i], expected.next_obs)
            assert batch.action[i] == expected.action and batch.discount[i] == expected.discount
            assert serial >= witness.oracle.total_steps - 48


def test_dict_observations_pass_through() -> None:
    class DictEnv(CountingEnv):
        def __init__(self, index: int = 0) -> None:
            super().__init__(index)
            self.observation_space = gym.spaces.Dict(
                {"count": self.observation_space, "half": gym.spaces.Box(-1, 1e6, (), np.float32)}
            )

        def observe(self) -> Any:
            count = super().observe()
            return {"count": count, "half": np.float32(count[3] / 2)}

    spec = sw.Spec(
        obs={"count": sw.Field((4,), "int32", stack=2), "half": sw.Field((), "float32")},
        action=sw.Field((), "int64"),
    )
    for mode in MODES:
        env = vector_of([lambda i=i: DictEnv(i) for i in range(2)], mode)  # type: ignore[misc]
        with sw.Store(spec, capacity=500) as store:
            recorder = sw.Recorder(env, store)
            recorder.reset(seed=1)
            for k in range(40):
                _, _, terminated, truncated, _ = recorder.step(np.array([k, k]))
                over = terminated | truncated
                if mode == AutoresetMode.DISABLED and over.any():
                    recorder.reset(options={"reset_mask": over})
            replay = store.transitions(gamma=0.5)
            batch = replay.fetch(replay.sampleable_ids())
            assert len(batch.ids) >= 40
            np.testing.assert_array_equal(batch.obs["half"], batch.obs["count"][:, -1, 3] / 2)
            np.testing.assert_array_equal(batch.next_obs["half"], batch.next_obs["count"][:, -1, 3] / 2)
            now, after = batch.obs["count"][:, -1], batch.next_obs["count"][:, -1]
            np.testing.assert_array_equal(after[:, 0], now[:, 0])  # the same environment,
            np.testing.assert_array_equal(after[:, 1], now[:, 1])  # the same episode,
            np.testing.assert_array_equal(after[:, 2], now[:, 2] + 1)  # one step on,
            np.testing.assert_array_equal(after[:, 3], now[:, 3] + 1)  # and nothing in between


def test_observations_that_do_not_fit_the_spec_are_refused_by_name() -> None:
    spec = sw.Spec(obs=sw.Field((5,), "int32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=100) as store:
        with pytest.raises((ValueError, TypeError), match=r"obs.*4"):
            recorder = sw.Recorder(CountingEnv(), store)
            recorder.reset()
            recorder.step(1)
        assert len(store) == store.total_steps == 0


@pytest.mark.parametrize("vector", [gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv])
def test_a_step_in_two_halves_is_one(vector: Any) -> None:
    class Echo(CountingEnv):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, float(action), *rest

    makers = [lambda i=i: Echo(i, (4, 6, 3 + i)) for i in range(2)]
    mode = AutoresetMode.SAME_STEP
    with sw.Store(counting_spec(), capacity=500) as halves, sw.Store(counting_spec(), capacity=500) as whole:
        recorder = sw.Recorder(vector(makers, autoreset_mode=mode), halves)
        twin = sw.Recorder(vector_of(makers, mode), whole)
        with pytest.raises(ValueError, match="no step was begun"):
            recorder.step_wait()
        assert_same_answer(recorder.reset(seed=1), twin.reset(seed=1))
        for k in range(40):
            action = np.arange(2) + 10 * k
            recorder.step_async(action)
            for call in (lambda: recorder.step_async(np.arange(2)), recorder.reset):
                with pytest.raises(ValueError, match=r"call step_wait\(\) first"):
                    call()
            action[:] = 7  # what the caller does with it meanwhile is none of the store's business
            assert_same_answer(recorder.step_wait(), twin.step(np.arange(2) + 10 * k))
        recorder.close()
        views = halves.transitions(), whole.transitions()
        one, other = (view.fetch(view.sampleable_ids()) for view in views)
        for name in ("obs", "action", "reward", "next_obs", "discount"):
            assert np.array_equal(one[name], other[name]), name
