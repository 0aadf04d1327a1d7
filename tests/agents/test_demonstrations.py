"""Demonstrations: a folder's episodes become windows of the agent's own kind, or are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import sharpwave as sw
from sharpwave.agents.demonstrations import DemonstratedReplay, read_demonstrations
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.r2d2 import CORE, SequencesSettings
from sharpwave.agents.r2d3 import R2D3

SPEC = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
SPACES = Spaces(Box(-1.0, 1.0, (2,), np.float32), Discrete(3, start=1))
LENGTHS = (7, 1, 5)


def record(folder: Path, spec: sw.Spec = SPEC, lengths: tuple[int, ...] = LENGTHS, unfinished: int = 0) -> Path:
    """Episodes by their lengths: observation and reward are the step's number; the second one is truncated."""
    with sw.Store(spec, capacity=1000) as store:
        number = 0
        for episode, length in enumerate([*lengths, unfinished]):
            for step in range(length):
                number += 1
                end = step == length - 1 and episode < len(lengths)
                store.append(
                    obs=np.full(spec.fields["obs"].shape, number), action=number % 3 + 1, reward=number,
                    terminated=end and episode != 1, truncated=end and episode == 1,
                    final_obs=np.full(spec.fields["obs"].shape, -number) if end else None,
                )  # fmt: skip
        store.checkpoint(folder)
    return folder


def make(folder: Path | str, **changes: object) -> R2D3:
    torch.manual_seed(0)
    settings = {
        "network": "mlp", "hidden_units": 4, "core_units": 2, "demonstrations": str(folder),
        "demonstration_share": 0.5, "replay": SequencesSettings(batch_size=8, length=4, burn_in=2, stride=2, gamma=0.5),
    }  # fmt: skip
    return R2D3(SPACES, R2D3.Settings(**settings | changes))  # type: ignore[arg-type]


def opened(agent: R2D3) -> tuple[sw.Store, sw.Blend[sw.SequenceBatch]]:
    store = sw.Store(sw.Spec(obs=SPEC.fields["obs"], action=SPEC.fields["action"], **agent.step_fields()), capacity=100)
    return store, agent.replay().open(store, "learner", 0)


def test_demonstrations_are_windows_of_the_blend_with_previous_actions_and_rewards(tmp_path: Path) -> None:
    agent = make(record(tmp_path, unfinished=3))
    store, blend = opened(agent)
    with store:
        np.testing.assert_allclose(blend.shares(), [0.5, 0.5])
        demonstrated = blend.views[0]
        batch = demonstrated.fetch(demonstrated.sampleable_ids())
        assert len(batch) == 4 + 1 + 3  # steps 0, 2, 4, 6 of the first episode, 0 of the second, 0, 2, 4 of the third
        begin = batch.mask.argmax(axis=1)
        for row in range(len(batch)):
            first = batch.first[row, begin[row]]
            number = int(batch.obs[row, begin[row], 0])
            assert number - 1 in (0, 7, 8) if first else number > 1
            recurrent, action, reward = np.split(batch[CORE][row], [4, 7])
            assert not recurrent.any(), "a demonstration has no recurrent state"
            expected = np.zeros(3) if first else np.eye(3)[(number - 1) % 3]
            np.testing.assert_array_equal(action, expected)
            assert reward == (0 if first else number - 1)
            real = batch.mask[row]
            np.testing.assert_array_equal(batch.step_reward[row][real], number + np.arange(real.sum()))
            np.testing.assert_array_equal(batch.action[row][real], batch.step_reward[row][real] % 3 + 1)
            last = int(np.flatnonzero(real)[-1])
            after = batch.obs[row, last + 1, 0]
            number = int(batch.step_reward[row, last])
            if number in (7, 13):
                assert after == -number and batch.discount[row, last] == 0
            elif number == 8:
                assert after == -8 and batch.discount[row, last] == 0.5  # truncated: bootstraps
            else:
                assert after == number + 1


def test_the_blend_learns(tmp_path: Path) -> None:
    agent = make(record(tmp_path))
    store, blend = opened(agent)
    with store:
        assert len(blend) == 0, "no batch before the agent's own experience has begun"
        state, rng = agent.begin(1), np.random.default_rng(0)
        for step in range(40):
            obs = rng.normal(size=(1, 2)).astype(np.float32)
            acted, ended = agent.act(obs, state, step), np.array([step % 8 == 7])
            store.extend(obs=obs, action=acted.action, reward=np.ones(1), terminated=ended, truncated=np.zeros(1, bool),
                         final_obs=obs, **acted.fields)  # fmt: skip
            state = agent.observe(acted.state, np.ones(1), ended)
        sources = []
        for step in range(20):
            batch = blend.sample(8)
            sources += batch.source.tolist()
            learned = agent.learn(batch.copy().torch(), step)
            assert learned.td_error is not None
            assert blend.update_priorities(batch, learned.td_error.numpy()) == 0
        assert 0.3 < np.mean(sources) < 0.7


ANNEALED: dict[str, float] = {
    "demonstration_share": 0.8, "demonstration_share_end": 0.1, "demonstration_share_steps": 1_000,
}  # fmt: skip


def test_the_share_follows_the_steps_made_whatever_was_drawn(tmp_path: Path) -> None:
    agent = make(record(tmp_path), **ANNEALED)
    store, blend = opened(agent)
    assert isinstance(blend, DemonstratedReplay)
    with store:
        for step in range(20):
            store.extend(obs=np.zeros((1, 2), np.float32), action=[1], reward=np.ones(1), terminated=[step % 8 == 7],
                         truncated=[False], final_obs=np.zeros((1, 2)), core=np.zeros((1, 8)))  # fmt: skip
        for step, share in ((0, 0.8), (500, 0.45), (250, 0.625), (1_000, 0.1), (90_000, 0.1)):
            blend.follow(step)
            assert agent.schedules(step)["demonstration_share"] == pytest.approx(share)
            batch = blend.sample(2_000)
            found = (batch.source == 0).mean()
            assert abs(found - share) < 5 * np.sqrt(share * (1 - share) / 2_000), "five standard deviations"
            assert (batch.obs.any(axis=(1, 2)) == (batch.source == 0)).all(), "own observations are zeros"


def test_a_share_that_falls_to_zero_draws_demonstrations_no_more(tmp_path: Path) -> None:
    agent = make(record(tmp_path), **ANNEALED | {"demonstration_share": 1.0, "demonstration_share_end": 0.0})
    store, blend = opened(agent)
    assert isinstance(blend, DemonstratedReplay)
    with store:
        assert len(blend) == 8 and not blend.sample(50).source.any(), "demonstrations alone need no own experience"
        blend.follow(1)
        assert len(blend) == 0
        for _ in range(20):
            store.extend(obs=np.zeros((1, 2), np.float32), action=[1], reward=np.ones(1), terminated=[False],
                         truncated=[False], core=np.zeros((1, 8)))  # fmt: skip
        blend.follow(1_000)
        assert blend.sample(200).source.all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"demonstration_share_end": 1.5}, "--demonstration-share-end: got 1.5, expected from 0 to 1"),
        ({"demonstration_share_end": float("nan")}, "--demonstration-share-end: got nan, expected a finite number"),
        ({"demonstration_share_steps": -1}, "--demonstration-share-steps: got -1, expected at least 0"),
        (
            {"demonstration_share_steps": 0},
            "--demonstration-share-steps: got 0, expected at least 1 with --demonstration-share-end",
        ),
        (
            {"demonstration_share_end": None},
            "--demonstration-share-steps: got 1000, expected 0 without --demonstration-share-end",
        ),
    ],
)
def test_bad_schedules_are_refused_by_name(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make("demos", **ANNEALED | changes)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64")), r"obs of shape \(3,\), expected \(2,\)"),
        (
            sw.Spec(obs=sw.Field((2,), "float64"), action=sw.Field((), "int64")),
            "obs of dtype float64, expected float32",
        ),
        (
            sw.Spec(obs=sw.Field((2,), "float32", stack=4), action=sw.Field((), "int64")),
            "obs of stack 4, expected None",
        ),
        (sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int32")), "action of dtype int32, expected int64"),
    ],
)
def test_another_spec_is_refused_by_name(spec: sw.Spec, name: str, tmp_path: Path) -> None:
    agent = make(record(tmp_path, spec))
    with pytest.raises(ValueError, match=rf"demonstrations: .* has {name}, as the"):
        opened(agent)


def test_actions_that_the_environment_lacks_are_refused(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=10) as store:
        for step in range(2):
            store.append(obs=np.zeros(2), action=4 * step, reward=0.0, terminated=step == 1, truncated=False,
                         final_obs=np.zeros(2))  # fmt: skip
        store.checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"has action 0, expected those of .*, Discrete\(3, start=1\)"):
        opened(make(tmp_path))


def test_folders_without_demonstrations_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="r2d3 needs --demonstrations FOLDER; sharpwave record ENV --policy RUN --out FOLDER"
    ):
        make("").replay()
    with pytest.raises(ValueError, match=r"demonstrations: .*nowhere.*record some with sharpwave record"):
        opened(make(tmp_path / "nowhere"))
    record(tmp_path / "unfinished", lengths=(), unfinished=5)
    with pytest.raises(ValueError, match="holds no whole episode; record at least one to its end"):
        opened(make(tmp_path / "unfinished"))


def test_dict_observations_and_stacks(tmp_path: Path) -> None:
    spec = sw.Spec(
        obs={"eye": sw.Field((4, 4), "uint8", stack=3), "speed": sw.Field((), "float32")}, action=sw.Field((), "int64")
    )
    with sw.Store(spec, capacity=100) as store:
        for number in range(12):
            obs = {"eye": np.full((4, 4), number, np.uint8), "speed": number / 2}
            store.append(obs=obs, action=0, reward=0.0, terminated=number % 6 == 5, truncated=False, final_obs=obs)
        store.checkpoint(tmp_path)
    with read_demonstrations(tmp_path, spec, lambda episode: {}) as read:
        batch = read.sequences(6, n_step=1).sample(20)
        step = batch.obs["speed"][:, 2] * 2
        np.testing.assert_array_equal(batch.obs["eye"][:, 2, :, 0, 0], step[:, None] - [2, 1, 0])
