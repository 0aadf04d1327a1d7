"""Where the chain of observations tears, a `Recorder` stores an end: made again, refused, crashed, forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sharpwave as sw

gym: Any = pytest.importorskip("gymnasium")

from tests.support.truth import Counting  # noqa: E402

SPEC = sw.Spec(obs=sw.Field((3,), "int32"), action=sw.Field((), "int64"))
LONG = (1_000,)


def store_of(**options: Any) -> sw.Store:
    return sw.Store(SPEC, capacity=1_000, **options)


def pairs(store: sw.Store, n_step: int = 1) -> list[tuple[int, int]]:
    """Which observation led to which, by their numbers."""
    replay = store.transitions(n_step=n_step)
    batch = replay.fetch(replay.sampleable_ids())
    return sorted(zip(batch.obs[:, 2].tolist(), batch.next_obs[:, 2].tolist(), strict=True))


def vector(mode: str = "NextStep", **options: Any) -> Any:
    makers = [lambda i=i: Counting(i, LONG, **options) for i in range(4)]
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode(mode))


def test_a_recorder_made_again_ends_what_another_one_left() -> None:
    store, env = store_of(), Counting(lengths=LONG)
    for _ in range(3):
        recorder = sw.Recorder(env, store)
        recorder.reset()
        for _ in range(2):
            recorder.step(0)
    assert pairs(store) == [(1, 2), (2, 3), (4, 5), (5, 6), (7, 8)]
    sw.Recorder(env, store).reset()
    assert pairs(store)[-1] == (8, 9)
    assert store.stats()["broken_episodes"] == 0


def test_what_was_appended_without_a_successor_cannot_be_learned_from() -> None:
    store = store_of()
    for k in (101, 102, 103):
        store.append(obs=[0, 0, k], action=0, reward=1.0, terminated=False, truncated=False)
    recorder = sw.Recorder(Counting(lengths=LONG), store)
    recorder.reset()
    recorder.step(0)
    assert pairs(store) == [(101, 102), (102, 103)]
    assert len(store) == 3


def test_a_mask_at_the_first_reset_ends_the_episodes_of_all_lanes() -> None:
    store, env = store_of(), vector("SameStep")
    recorder = sw.Recorder(env, store)
    recorder.reset()
    recorder.step(np.zeros(4, int))
    again = sw.Recorder(env, store)
    again.reset(options={"reset_mask": np.array([True, False, False, False])})
    assert pairs(store) == [(1, 2)] * 4
    for _ in range(3):
        again.step(np.zeros(4, int))
    batch_pairs = pairs(store)
    assert all(after == before + 1 for before, after in batch_pairs)


def test_a_refused_reward_breaks_one_episode_and_the_result_is_in_the_error() -> None:
    store, recorder = store_of(), None
    recorder = sw.Recorder(Counting(lengths=LONG, nan_every=3), store)
    recorder.reset()
    for k in range(1, 6):
        if k != 3:
            recorder.step(k)
            continue
        with pytest.raises(ValueError, match="reward: row 0 is nan") as caught:
            recorder.step(k)
        obs, reward, terminated, truncated, info = caught.value.result  # type: ignore[attr-defined]
        assert obs.tolist() == [0, 3, 4] and np.isnan(reward) and not terminated and not truncated and info == {}
        assert pairs(store) == [(1, 2), (2, 3)]  # the step before has ended already
    recorder.reset()
    assert pairs(store) == [(1, 2), (2, 3), (4, 5), (5, 6)]
    assert pairs(store, n_step=3) == [(1, 3), (2, 3), (4, 6), (5, 6)]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_of_a_vector_only_the_lane_with_the_refused_reward_suffers(mode: str) -> None:
    class Sick(gym.vector.VectorWrapper):
        """Lane 3's third reward is not a number."""

        steps = 0

        def step(self, actions: Any) -> Any:
            obs, reward, *rest = self.env.step(actions)
            self.steps += 1
            if self.steps == 3:
                reward[3] = np.nan
            return obs, reward, *rest

    store = store_of()
    recorder = sw.Recorder(Sick(vector(mode)), store)
    recorder.reset()
    for k in range(5):
        if k != 2:
            recorder.step(np.arange(4))
            continue
        with pytest.raises(ValueError, match=r"lane \[3\]: reward: row 0 is nan.*other lanes are stored") as caught:
            recorder.step(np.arange(4))
        assert caught.value.result[0].shape == (4, 3)  # type: ignore[attr-defined]
    recorder.reset()
    assert store.lane_steps.tolist() == [5, 5, 5, 4]
    well = [(k, k + 1) for k in range(1, 6)]
    assert pairs(store) == sorted([*well * 3, *(pair for pair in well if pair != (3, 4))])


def test_a_limiter_that_holds_a_step_back_breaks_the_episode_even_where_nothing_is_seen_to_move() -> None:
    """The observation is the same before and after: only the Recorder knows that a step is missing."""

    class Still(Counting):
        def _observe(self) -> Any:
            return np.zeros(3, np.int32)

    store = store_of()
    recorder = sw.Recorder(Still(lengths=LONG), store)
    queue = store.transitions(max_times_sampled=1, limiter=sw.Queue(4), sampler=sw.Fifo())
    recorder.reset()
    for _ in range(5):
        recorder.step(0, timeout=0.0)
    with pytest.raises(sw.LimiterTimeoutError) as caught:
        recorder.step(0, timeout=0.0)
    assert caught.value.result[1] == 6.0  # type: ignore[attr-defined]
    queue.sample(4)
    recorder.step(0, timeout=0.0)
    recorder.reset()
    replay = store.transitions(n_step=3, gamma=1.0)
    batch = replay.fetch(replay.sampleable_ids())
    assert sorted(batch.reward.tolist()) == sorted([6.0, 9.0, 12.0, 9.0, 5.0, 7.0])  # 6 is in none, 7 stands alone


def test_after_a_crash_the_recorder_asks_for_a_reset() -> None:
    store = store_of()
    recorder = sw.Recorder(Counting(lengths=LONG, raise_every=3), store)
    recorder.reset()
    recorder.step(0)
    recorder.step(0)
    with pytest.raises(RuntimeError, match="crashed"):
        recorder.step(0)
    assert pairs(store) == [(1, 2), (2, 3)]
    with pytest.raises(ValueError, match=r"the environment raised an error.*call reset\(\) first"):
        recorder.step(0)
    recorder.reset()
    recorder.step(0)
    recorder.step(0)
    assert pairs(store) == [(1, 2), (2, 3), (4, 5)]


def test_a_reset_that_fails_leaves_the_recorder_waiting_for_one_that_does_not() -> None:
    class Stuck(Counting):
        fails = False

        def reset(self, **how: Any) -> Any:
            if self.fails:
                raise RuntimeError("stuck")
            return super().reset(**how)

    store, env = store_of(), Stuck(lengths=LONG)
    recorder = sw.Recorder(env, store)
    recorder.reset()
    recorder.step(0)
    env.fails = True
    with pytest.raises(RuntimeError, match="stuck"):
        recorder.reset()
    with pytest.raises(ValueError, match=r"call reset\(\) first"):
        recorder.step(0)
    env.fails = False
    recorder.reset()
    recorder.step(0)
    recorder.reset()
    assert pairs(store) == [(1, 2), (3, 4)]


def test_fields_that_do_not_fit_the_lanes_are_refused_before_the_environment_steps() -> None:
    store = sw.Store(
        sw.Spec(obs=SPEC.fields["obs"], action=sw.Field((), "int64"), x=sw.Field((), "float32")), capacity=99
    )
    recorder = sw.Recorder(vector(), store)
    recorder.reset()
    for fields in ({"x": 1.0}, {"x": np.ones(3)}):
        with pytest.raises(ValueError, match=r"x has shape .* expected a value for each of the 4 lanes"):
            recorder.step(np.zeros(4, int), **fields)
    recorder.step(np.zeros(4, int), x=np.ones(4))
    assert store.total_steps == 4 and recorder.unwrapped.envs[0].unwrapped.steps == 1


def test_same_step_without_a_final_observation_stores_what_can_be_stored() -> None:
    class Forgets(gym.vector.VectorWrapper):
        def step(self, actions: Any) -> Any:
            *answer, infos = self.env.step(actions)
            return *answer, {key: value for key, value in infos.items() if "final" not in key}

    makers = [lambda i=i: Counting(i, (2,) if i == 1 else LONG) for i in range(2)]
    env = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    store = store_of()
    recorder = sw.Recorder(Forgets(env), store)
    recorder.reset()
    recorder.step(np.zeros(2, int))
    with pytest.raises(ValueError, match=r"without info\['final_obs'\]"):
        recorder.step(np.zeros(2, int))
    recorder.step(np.zeros(2, int))
    recorder.reset()
    assert pairs(store) == sorted([(1, 2), (2, 3), (3, 4), (1, 2), (4, 5)])


class SaysNothing(gym.vector.VectorWrapper):
    """Vector that resets in the step that ends an episode, and does not say what that led to."""

    def step(self, actions: Any) -> Any:
        *answer, _ = self.env.step(actions)
        return *answer, {}


def test_same_step_needs_no_final_observation_of_terminated_episodes() -> None:
    mode = gym.vector.AutoresetMode.SAME_STEP
    env = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    spec = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=1_000, strict=True)
    recorder = sw.Recorder(SaysNothing(env), store)
    recorder.reset(seed=0)
    recorder.action_space.seed(0)
    ends = sum(int(recorder.step(recorder.action_space.sample())[2].sum()) for _ in range(200))
    batch = (view := store.transitions()).fetch(view.sampleable_ids())
    assert ends > 10 and len(store) == 600 and not batch.truncated.any()
    assert abs(int(batch.terminated.sum()) - ends) <= 3  # those of the newest steps
    assert (np.abs(batch.next_obs - batch.obs) < 1).all()  # none leads to the next episode


def test_same_step_needs_the_final_observation_of_truncated_episodes() -> None:
    makers = [lambda: gym.make("Pendulum-v1", max_episode_steps=5)] * 2
    env = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    spec = sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((1,), "float32"))
    store = sw.Store(spec, capacity=1_000)
    recorder = sw.Recorder(SaysNothing(env), store)
    recorder.reset(seed=0)
    for _ in range(3):
        for _ in range(4):
            recorder.step(recorder.action_space.sample())
        with pytest.raises(ValueError, match=r"truncated it \(lane \[0, 1\]\).*Let the vector observe.*not stored"):
            recorder.step(recorder.action_space.sample())
    batch = (view := store.transitions()).fetch(view.sampleable_ids())
    assert len(store) == 2 * 3 * 4 and batch.truncated.sum() == 2 * 3


def test_workers_that_reset_themselves_once_more_make_no_step_of_it() -> None:
    mode = gym.vector.AutoresetMode.NEXT_STEP
    makers = [lambda i=i: Counting(i, (3,)) for i in range(2)]
    env = gym.vector.AsyncVectorEnv(makers, shared_memory=False, autoreset_mode=mode)
    store = store_of()
    recorder = sw.Recorder(env, store)
    recorder.reset()
    for steps in (3, 3, 3, 4):  # the reset comes where an episode has just ended
        for _ in range(steps):
            recorder.step(np.zeros(2, int))
        recorder.reset()
    env.close()
    assert all(after == before + 1 for before, after in pairs(store))
    batch = (replay := store.transitions()).fetch(replay.sampleable_ids())
    assert (batch.next_obs[:, 1] == batch.obs[:, 1] + 1).all()  # times within an episode
