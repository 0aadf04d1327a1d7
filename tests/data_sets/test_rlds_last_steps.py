"""The step with is_last of RLDS: the final observation, as its definition says, or a step, as templates write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.cli.test_data_sets import run
from tests.data_sets.hostile import example, rlds


def write(folder: Path, *episodes: tuple[int, bool, float, float]) -> str:
    """Write episodes of so many rows, terminal or not, with that reward and that action in the last one."""
    folder.mkdir(exist_ok=True)
    made = []
    for number, (rows, terminal, reward, action) in enumerate(episodes):
        i = np.arange(rows)
        last = i == rows - 1
        numbers = {"observation": i + 10 * number, "is_first": i == 0, "is_last": last, "is_terminal": last & terminal}
        reals = {"action": np.where(last, action, i + 1.0), "reward": np.where(last, reward, 0)}
        values = {f"steps/{key}": (3, one.astype(np.uint8).tobytes()) for key, one in numbers.items()}
        values |= {f"steps/{key}": (2, one.astype("<f4").tobytes()) for key, one in reals.items()}
        made.append(example(values))
    tensor = {"shape": {"dimensions": []}, "dtype": "int64", "encoding": "none"}
    real = {"tensor": tensor | {"dtype": "float32"}}
    return rlds(folder, {"observation": {"tensor": tensor}, "action": real, "reward": real}, *made)


def load(place: str, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    store = sw.load(place, **options)
    (note,) = store.annotations()["imports"].values()
    said = [(one.obs.tolist(), one.action.tolist(), one.total_reward, one.ended) for one in store.episodes()]
    return said, note


def test_a_reward_or_an_action_in_the_last_step_makes_it_a_step(tmp_path: Path) -> None:
    for reward, action in ((1.0, 3.0), (1.0, 0.0), (0.0, 3.0)):
        said, note = load(write(tmp_path, (3, True, reward, action), (2, True, 0.0, 0.0)))
        assert said == [
            ([0, 1, 2, 2], [1.0, 2.0, action], reward, "terminated"),
            ([10, 11, 11], [1.0, 0.0], 0.0, "terminated"),
        ]
        assert "read as last='step', its action and reward are taken, as of 2 episodes" in note["notes"][0]
        assert note["left_out"] == []


def test_without_either_it_is_the_final_observation(tmp_path: Path) -> None:
    said, note = load(write(tmp_path, (3, True, 0.0, 0.0), (2, False, 0.0, float("nan"))))
    assert said == [([0, 1, 2], [1.0, 2.0], 0.0, "terminated"), ([10, 11], [1.0], 0.0, "truncated")]
    assert note["notes"] == [
        "the step with is_last is read as last='final', only its observation is taken, as of 2 episodes, 0 have a "
        "reward there and 0 an action other than 0"
    ]


def test_a_step_that_did_not_terminate_is_left_out_with_its_reward_named(tmp_path: Path) -> None:
    said, note = load(write(tmp_path, (3, False, 0.5, 3.0), (2, False, 0.25, 0.0)))
    assert said == [([0, 1, 2], [1.0, 2.0], 0.0, "truncated"), ([10, 11], [1.0], 0.0, "truncated")]
    assert note["left_out"] == [
        "2 steps at the ends of episodes that did not terminate, with rewards of 0.75: the observation after them is "
        "not in the data"
    ]


def test_the_option_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = write(tmp_path / "set", (3, True, 1.0, 3.0))
    said, note = load(place, last="final")
    assert said == [([0, 1, 2], [1.0, 2.0], 0.0, "terminated")] and "as last='final' says" in note["notes"][0]
    said, note = load(write(tmp_path / "zeros", (3, True, 0.0, 0.0)), last="step")
    assert said == [([0, 1, 2, 2], [1.0, 2.0, 0.0], 0.0, "terminated")] and "as last='step' says" in note["notes"][0]
    wrong: Any = "first"
    with pytest.raises(ValueError, match="last='first', expected one of auto, step, final"):
        sw.load(place, last=wrong)
    with pytest.raises(ValueError, match="got last='step' for npz, which declares it"):
        sw.load("npz:x.npz", last="step")
    assert run("import", place, str(tmp_path / "store"), "--last", "final", "--quiet") == 0
    assert "1 episodes, 2 steps" in (out := capsys.readouterr().out) and "read as last='final'" in out


def test_episodes_of_one_observation(tmp_path: Path) -> None:
    """They have one step, if they terminated with it, or none."""
    episodes = [(1, True, 1.0, 0.0), (3, True, 1.0, 3.0), (1, False, 1.0, 0.0)]
    said, note = load(write(tmp_path, *episodes))
    assert said == [([0, 0], [0.0], 1.0, "terminated"), ([10, 11, 12, 12], [1.0, 2.0, 3.0], 1.0, "terminated")]
    assert note["left_out"][0].startswith("1 episodes of one observation")
    said, note = load(write(tmp_path, *episodes), last="final")
    assert said == [([10, 11, 12], [1.0, 2.0], 0.0, "terminated")]
    assert note["left_out"] == [
        "2 episodes of one observation, so without steps",
        "3 steps with is_last, with rewards of 3: they are taken for final observations",
    ]


def test_a_damaged_episode_keeps_its_number(tmp_path: Path) -> None:
    """Chosen by number, it is skipped, and no other one is taken in its place."""
    place = write(tmp_path, (3, True, 1.0, 0.0), (0, True, 1.0, 0.0), (4, True, 1.0, 0.0))
    said, note = load(place, skip_damaged=True, episodes=[0, 1])
    assert [one[0] for one in said] == [[0, 1, 2, 2]]
    assert note["skipped_episodes"] == 1 and "an episode without steps/is_last" in note["skipped"][0]


@pytest.mark.parametrize(("kept", "said"), [(-7, "ends within a record of"), (8, "ends within a record's header")])
def test_records_before_one_that_is_cut_are_loaded(tmp_path: Path, kept: int, said: str) -> None:
    rows = [(3, True, 1.0, 0.0), (5, True, 1.0, 0.0), (4, True, 1.0, 0.0)]
    write(tmp_path / "two", *rows[:2])
    place = write(tmp_path / "set", *rows)
    before, path = (next((tmp_path / name).glob("*.tfrecord*")) for name in ("two", "set"))
    end = before.stat().st_size
    path.write_bytes(path.read_bytes()[: kept if kept < 0 else end + kept])
    with pytest.raises(ValueError, match=said):
        load(place)
    episodes, note = load(place, skip_damaged=True)
    assert [len(one[1]) for one in episodes] == [3, 5] and note["skipped_episodes"] == 1
    (skipped,) = note["skipped"]
    assert f"{path.name}, byte {end:,}: episode 2" in skipped and said in skipped and f"at byte {end:,}" in skipped
