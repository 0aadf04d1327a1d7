"""Replay as DreamerV3 needs it, beside lists: windows of an environment's stream across its episodes, with latent
states that are written back to their steps, and each new window once."""

from typing import Any

import numpy as np
import pytest

import sharpwave as sw

LENGTH, LANES = 8, 2
FLAGS = ("is_first", "is_last", "is_terminal")
SPEC = sw.Spec(
    obs=sw.Field((3,), "float32"), action=sw.Field((2,), "float32"), **{name: sw.Field((), "bool") for name in FLAGS}
)


def rows(steps, seed):
    """Rows of a stream. A row is an observation, the reward that came with it, and the action made in it; an episode's
    final observation is a row, too."""
    rng = np.random.default_rng(seed)
    made: list[dict[str, Any]] = []
    while len(made) < steps:
        last, terminates = rng.integers(1, 12), rng.random() < 0.5
        for t in range(last + 1):
            flags = (t == 0, t == last, t == last and terminates)
            numbers = rng.normal(size=6).astype(np.float32)
            step = {"obs": numbers[:3], "action": numbers[3:5], "reward": numbers[5]}
            made.append(step | dict(zip(FLAGS, flags, strict=True)))
    return made[:steps]


def written(steps, capacity=10_000):
    """A store of streams, each of which is one episode that does not end, and its rows by lane."""
    store, streams = sw.Store(SPEC, capacity=capacity, seed=0), [rows(steps, seed) for seed in range(LANES)]
    no = np.zeros(LANES, bool)
    for step in zip(*streams, strict=True):
        columns: dict[str, Any] = {name: np.stack([row[name] for row in step]) for name in step[0]}
        store.extend(**columns, terminated=no, truncated=no)
    return store, streams


def test_a_window_begins_at_every_step_and_goes_on_in_the_next_episode():
    store, streams = written(60)
    windows, found = store.sequences(LENGTH, stride=1), set()
    for _ in range(10):
        batch = windows.sample(100)
        assert batch.mask.all() and batch["is_first"][:, 1:].any()
        for i, (lane, step) in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
            found.add((lane, step))
            expected = streams[lane][step : step + LENGTH]
            for name in ("obs", "action", *FLAGS):
                got = (
                    batch.obs[i, :LENGTH] if name == "obs" else batch.action[i] if name == "action" else batch[name][i]
                )
                np.testing.assert_array_equal(got, [row[name] for row in expected])
            np.testing.assert_array_equal(batch.step_reward[i], [row["reward"] for row in expected])
    # The newest window waits for the observation after it.
    assert found == {(lane, step) for lane in range(LANES) for step in range(60 - LENGTH)}


@pytest.mark.parametrize("capacity", [10_000, 100])
def test_latent_states_are_written_back_to_the_steps_of_a_window(capacity):
    """Values of a step are those that were written last, whichever window it is drawn in."""
    store, _ = written(120, capacity)
    store.add_column("deter", sw.Field((4,), "float32"))
    windows, rng = store.sequences(LENGTH, stride=1), np.random.default_rng(0)
    known: dict[tuple[int, int], Any] = {}
    seen = 0
    for _ in range(12):
        batch = windows.sample(16)
        for i, (lane, step) in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
            for t in range(LENGTH):
                value = known.get((lane, step + t))
                assert batch.mask_of("deter")[i, t] == (value is not None)
                np.testing.assert_array_equal(batch["deter"][i, t], np.zeros(4) if value is None else value)
                seen += value is not None
        latents = rng.normal(size=(16, LENGTH, 4)).astype(np.float32)
        store.write_column("deter", batch, latents)
        for i, (lane, step) in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
            known |= {(lane, step + t): latents[i, t] for t in range(LENGTH)}
    assert seen > 500
    batch, no = windows.sample(16), np.zeros(LANES, bool)
    if capacity == 100:  # all of its steps are evicted before their states are written
        for step in zip(*(rows(200, seed) for seed in range(LANES)), strict=True):
            store.extend(
                **{name: np.stack([row[name] for row in step]) for name in step[0]}, terminated=no, truncated=no
            )
        store.write_column("deter", batch, np.ones((16, LENGTH, 4)))
        assert not windows.sample(64).mask_of("deter").any()


def test_each_new_window_is_drawn_once_beside_those_of_the_whole_memory():
    store, _ = written(60)
    replay = store.sequences(LENGTH, stride=1, name="replay")
    online = store.sequences(LENGTH, stride=LENGTH, sampler=sw.Fifo(), max_times_sampled=1, name="online")
    begun: list[tuple[int, int]] = []
    for _ in range(3):
        batch = online.sample(4)
        begun += zip(batch.lane.tolist(), batch.step.tolist(), strict=True)
        assert replay.sample(12).obs.shape == (12, LENGTH + 1, 3)
    per_lane = (60 - 1) // LENGTH
    assert len(set(begun)) == 12 and {step % LENGTH for _, step in begun} == {0} and LANES * per_lane == 14
    with pytest.raises(sw.EmptyError):
        online.sample(4)  # two are left
