"""Files in the D4RL layout whose ends have other names, and whose observations are rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import sharpwave as sw
from tests.data_sets.data import d4rl, same

EPISODE, STEP = np.repeat(np.arange(8), 5), np.tile(np.arange(5), 8)
END = STEP == 4
TERMINAL = END & (EPISODE % 2 == 0)
LATE = END & ~TERMINAL


def toy(**more: Any) -> dict[str, Any]:
    """Eight episodes of five steps, every second one terminated; nothing says where the others end."""
    data = {"observations": np.stack([EPISODE, STEP], 1).astype(np.float32), "actions": np.zeros(40, np.int64)}
    return data | {"rewards": np.ones(40, np.float32), "terminals": TERMINAL.astype(np.float32)} | more


def load(folder: Path, data: dict[str, Any], ending: str = "hdf5") -> sw.Store:
    path = folder / f"data.{ending}"
    if ending == "npz":
        np.savez(path, **data)
    else:
        with h5py.File(path, "w") as file:
            for name, values in data.items():
                file[name] = values
    return sw.load(f"{ending}:{path}")


def noted(store: sw.Store) -> dict[str, Any]:
    (note,) = store.annotations()["imports"].values()
    return dict(note)


def check_toy(store: sw.Store) -> None:
    episodes = list(store.episodes())
    assert [(one.length, one.ended) for one in episodes] == [(5, "terminated"), (4, "truncated")] * 4
    for number, one in enumerate(episodes):
        assert (one.obs[:, 0] == number).all()


@pytest.mark.parametrize("ending", ["hdf5", "npz"])
@pytest.mark.parametrize(
    ("name", "values"),
    [(name, LATE) for name in ("timeout", "truncated", "truncations", "truncateds", "infos/TimeLimit.truncated")]
    + [(name, LATE) for name in ("TimeLimit.truncated", "x/TimeLimit.truncated", "truncation", "is_truncated")]
    + [(name, LATE) for name in ("infos/truncated", "infos/timeouts", "infos/Truncation", "Timeouts")]
    + [(name, END) for name in ("dones", "done", "episode_terminals", "episode_ends", "is_last")]
    + [(name, END) for name in ("dones_float", "Dones", "infos/IS_LAST")]
    + [(name, STEP == 0) for name in ("is_first", "episode_starts", "episode_start")],
)
def test_flags_of_ends_by_other_names(tmp_path: Path, name: str, values: Any, ending: str) -> None:
    for one in (values, values.astype(np.float32)[:, None]):
        store = load(tmp_path, toy(**{name: one}), ending)
        check_toy(store)
        assert not store.spec.extra_names


def test_names_in_groups(tmp_path: Path) -> None:
    check_toy(load(tmp_path, toy(**{"infos/is_last": END, "infos/t": np.zeros((40, 3)), "notes/step": np.arange(3)})))
    store = load(tmp_path, toy(**{"infos/episode_id": EPISODE}))
    check_toy(store)
    assert store.spec.extra_names == ("infos.episode_id",)
    data = toy()
    data["observations/step"], data["observations/done"] = STEP[::-1].copy(), np.ones(40)
    data["observations/at"] = data.pop("observations")
    assert len(load(tmp_path, data).episodes()) == 5


@pytest.mark.parametrize(
    ("name", "values"),
    [(name, EPISODE) for name in ("ep_id", "episodeId", "Episode-Index", "trajIdx", "demo_num", "infos/epIdx")]
    + [(name, STEP) for name in ("elapsed_steps", "elapsedSteps", "step_count", "infos/episode_step")]
    + [(name, END) for name in ("isLast", "episodeEnds")]
    + [(name, STEP == 0) for name in ("isFirst", "infos/episodeStart")],
)
def test_other_spellings(tmp_path: Path, name: str, values: Any) -> None:
    store = load(tmp_path, toy(**{name: values}))
    check_toy(store)
    assert noted(store)["notes"][0].startswith(f"{name}: taken to tell episodes apart")


def test_spellings_beside_each_other(tmp_path: Path) -> None:
    store = load(tmp_path, toy(episode_id=EPISODE, episodeId=EPISODE))
    check_toy(store)
    assert set(store.spec.extra_names) == {"episode_id", "episodeId"}


@pytest.mark.parametrize(
    ("name", "values"),
    [("is_first", STEP == 0), ("isLast", END), ("elapsed_steps", STEP), ("episode_id", EPISODE)],
)
def test_marks_among_observations(tmp_path: Path, name: str, values: Any) -> None:
    """They stay observations."""
    data = toy(**{f"observations/{name}": values})
    data["observations/at"] = data.pop("observations")
    store = load(tmp_path, data)
    assert [(one.length, one.ended) for one in store.episodes()] == [(5, "terminated"), (4, "truncated")] * 4
    assert same(store.episodes()[1].obs[name], values[5:10])
    assert noted(store)["notes"][0].startswith(f"observations/{name}: taken to tell episodes apart")


@pytest.mark.parametrize(
    ("name", "values"),
    [("is_first", np.ones(40)), ("done", END), ("t", STEP / 5), ("episode_id", np.arange(40)), ("step", STEP[::-1])],
)
def test_observations_that_mark_nothing(tmp_path: Path, name: str, values: Any) -> None:
    data = toy(**{f"observations/{name}": values.copy()})
    data["observations/at"] = data.pop("observations")
    store = load(tmp_path, data)
    assert [one.length for one in store.episodes()] == [5, 10, 10, 10, 4]


@pytest.mark.parametrize("name", ["episode_id", "episode", "traj_ids", "trajectory_id", "step", "timesteps"])
def test_numbers_that_tell_episodes_apart_are_kept(tmp_path: Path, name: str) -> None:
    values = STEP * 4 + 1 if "step" in name else 7 - EPISODE
    store = load(tmp_path, toy(**{name: values}))
    check_toy(store)
    assert store.spec.extra_names == (name,) and same(store.episodes()[2][name], values[10:15])
    assert noted(store)["notes"][0].startswith(f"{name}: taken to tell episodes apart")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("infos/episode/t", np.where(END, np.arange(40) * 0.25, 0)),  # of RecordEpisodeStatistics
        ("infos/steps", 4 + np.arange(40) // 2 % 2),
        ("infos/t", np.random.default_rng(0).normal(size=40)),
        ("infos/step", np.full(40, 4)),
    ],
)
def test_numbers_in_groups_that_do_not_count_steps(tmp_path: Path, name: str, values: Any) -> None:
    store = load(tmp_path, toy(timeouts=LATE, **{name: values}))
    check_toy(store)
    assert any(one.startswith(f"{name}: a further field") for one in noted(store)["notes"])
    store.close()
    store = load(tmp_path, toy(**{"infos/t": STEP * 0.05 + np.random.default_rng(0).uniform(0, 0.01, 40)}))
    check_toy(store)  # times of an uneven rate
    store.close()


def test_numbers_that_fall_within_episodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps, by which episodes are told apart, would end one after 32 of 40 steps"):
        load(tmp_path, toy(timeouts=LATE, steps=STEP[::-1].copy()))


def test_terminals_by_other_names(tmp_path: Path) -> None:
    for name in ("terminations", "terminateds", "is_terminal"):
        data = toy(timeouts=LATE)
        data[name] = data.pop("terminals")
        check_toy(load(tmp_path, data))


def test_dones_without_terminals(tmp_path: Path) -> None:
    data = toy()
    del data["terminals"]
    with pytest.raises(ValueError, match=r"has dones, but no terminals: rename it to terminals if .*episode_ends"):
        load(tmp_path, data | {"dones": END})
    for dones in (END, TERMINAL):
        check_toy(load(tmp_path, data | {"dones": dones, "infos/TimeLimit.truncated": LATE}))
    some = TERMINAL | (LATE & (EPISODE < 4))
    with pytest.raises(ValueError, match="dones is true at 2 of 4 timeouts, expected all or none; rename dones to"):
        load(tmp_path, data | {"dones": some, "timeouts": LATE})


def test_names_of_ends_that_hold_anything_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"episode_ends is \(8,\) int64, expected one number a step, \(40,\)"):
        load(tmp_path, toy(episode_ends=np.arange(5, 45, 5)))
    with pytest.raises(ValueError, match=r"meta/episode_ends is \(8,\) int64, expected one number a step"):
        load(tmp_path, toy(**{"meta/episode_ends": np.arange(5, 45, 5)}))
    with pytest.raises(ValueError, match="step, by which episodes are told apart, would end one after each step"):
        load(tmp_path, toy(step=np.zeros(40)))
    with pytest.raises(ValueError, match="is_last has 3, expected 0 and 1"):
        load(tmp_path, toy(is_last=END * 3))


@pytest.mark.parametrize("ending", ["hdf5", "npz"])
@pytest.mark.parametrize("name", ["steps", "episodes", "t", "done", "timeout", "reward", "infos/timeouts", "is_last"])
def test_a_single_value_marks_no_steps(tmp_path: Path, name: str, ending: str) -> None:
    for value, said in ((np.int64(31), "()"), (np.array([31]), "(1,)")):
        if name in ("timeout", "reward") and said == "(1,)":
            continue
        store = load(tmp_path, toy(truncated=LATE) | {name: value}, ending)
        check_toy(store)
        assert f"{name} ({said} int64): not one value a step" in noted(store)["left_out"]
    with pytest.raises(ValueError, match=r"has .*, expected rewards as well"):
        load(tmp_path, toy() | {"rewards": np.float32(1)}, ending)


def test_a_layout_that_says_all_ends_may_have_fields_of_such_names(tmp_path: Path) -> None:
    data = d4rl([4, 6]) | {"step": np.arange(10)[::-1].copy(), "dones": np.ones(10)}
    store = load(tmp_path, data, "npz")
    assert [one.length for one in store.episodes()] == [4, 6] and {"step", "dones"} < set(store.spec.extra_names)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_next_observations_that_are_rounded_do_not_end_episodes(tmp_path: Path, dtype: Any) -> None:
    data = d4rl([50] * 4, shape=(5,))
    scale = np.array([1e-9, 1.0, 1e3, 1e9, 1e-3])  # and a component is all but constant
    for name in ("observations", "next_observations"):
        data[name] = (data[name] * scale).astype(dtype)
    exact = data["next_observations"].copy()
    data["next_observations"] = (exact * (1 + 1e-7 * np.cos(np.arange(exact.size)).reshape(exact.shape))).astype(dtype)
    data["observations"][3, 1], data["next_observations"][2, 1] = 0.0, -0.0
    for name in ("terminals", "timeouts"):
        data[name][99] = data[name][149] = False
    store = load(tmp_path, data, "npz")
    assert [one.length for one in store.episodes()] == [50] * 4
    assert same(store.episodes()[0].obs[:-1], data["observations"][:50])
    inner = [row for row in range(199) if row % 50 != 49]
    differ = (data["next_observations"][inner] != data["observations"][[row + 1 for row in inner]]).any(axis=1).sum()
    assert noted(store)["notes"] == [
        f"next_observations: {differ:,} differ from the following observation by rounding (at most 1e-06 of "
        "it, or of 16 times the median); the following observation is stored",
        "next_observations: 2 rows lead to an observation other than the following one where no flag ends an episode "
        "(the first is row 99); an episode ends after each",
    ]


@pytest.mark.parametrize("rows", [[7], [7, 8, 9]])
def test_a_diverged_row_hides_no_break(tmp_path: Path, rows: list[int]) -> None:
    data = d4rl([5, 6, 5, 6, 5, 6], shape=(1,))  # by next observations only
    data["observations"][rows] = data["next_observations"][[row - 1 for row in rows]] = 1e7
    del data["timeouts"]
    data["terminals"][:] = False
    store = load(tmp_path, data, "npz")
    assert [one.length for one in store.episodes()] == [5, 6, 5, 6, 5, 6]
    finals = data["next_observations"][np.cumsum([5, 6, 5, 6, 5, 6]) - 1]
    assert same(np.stack([one.obs[-1] for one in store.episodes()]), finals)
    assert not any("rounding" in one for one in noted(store)["notes"])


def test_normalised_twice_is_rounding(tmp_path: Path) -> None:
    """Values near 0 that float32 computed of ones of 10 are off by float32's rounding of 10."""
    data = d4rl([500] * 4, shape=(5,))
    raw = np.random.default_rng(0).normal(5, 1, (2004, 5))
    inner = np.concatenate([np.arange(501 * number, 501 * number + 500) for number in range(4)])
    for name, rows, dtype in (("observations", inner, np.float32), ("next_observations", inner + 1, np.float64)):
        data[name] = ((raw[rows].astype(dtype) - raw.mean(0).astype(dtype)) / raw.std(0).astype(dtype)).astype("f4")
    store = load(tmp_path, data, "npz")
    assert [one.length for one in store.episodes()] == [500] * 4


def test_a_negative_zero_is_zero_and_nan_is_itself(tmp_path: Path) -> None:
    data = d4rl([20])
    data["observations"][[3, 9]] = [[0.0, 1, 2], [np.nan, np.inf, -np.inf]]
    data["next_observations"][[2, 8]] = [[-0.0, 1, 2], [np.nan, np.inf, -np.inf]]
    store = load(tmp_path, data, "npz")
    assert [one.length for one in store.episodes()] == [20] and not noted(store)["notes"]
    data["next_observations"][8, 1] = -np.inf
    assert [one.length for one in load(tmp_path, data, "npz").episodes()] == [9, 11]


def test_one_number_a_step_in_rows_of_one(tmp_path: Path) -> None:
    data = d4rl([4, 6])
    columns = {name: data[name][:, None] for name in ("rewards", "terminals", "timeouts")}
    store = load(tmp_path, data | columns)
    assert same(np.concatenate([one.reward for one in store.episodes()]), data["rewards"])
    assert [one.ended for one in store.episodes()] == ["terminated", "truncated"]
    with pytest.raises(ValueError, match="expected one number a step"):
        load(tmp_path, data | {"rewards": np.zeros((10, 2))})


@pytest.mark.parametrize("ending", ["hdf5", "npz"])
@pytest.mark.parametrize("dtypes", ["f4 f8", "f8 f4", "f4 f2", "f2 f8", "u1 f4", "f4 u1", "i4 i8"])
def test_next_observations_of_another_dtype(tmp_path: Path, dtypes: str, ending: str) -> None:
    data, (there, after) = d4rl([20, 30]), dtypes.split()
    for name, dtype in (("observations", there), ("next_observations", after)):
        values = np.clip(np.abs(data[name]) * 50, 0, 255)
        data[name] = (values.round() if "u" in dtypes or "i" in dtypes else values).astype(dtype)
    store = load(tmp_path, data, ending)
    assert [one.length for one in store.episodes()] == [20, 30]
    for one, end in zip(store.episodes(), (20, 50), strict=True):
        assert same(one.obs[-1], data["next_observations"][end - 1].astype(there))
        assert same(one.obs[:-1], data["observations"][end - one.length : end])
    (note,) = [one for one in noted(store)["notes"] if "compared as" in one]
    assert note.startswith(
        f"next_observations: {np.dtype(after)}, where observations is {np.dtype(there)}; compared as"
    )
    if there == "u1":
        data["next_observations"][19, 1] = 7.5
        with pytest.raises(
            ValueError, match=r"episode 0 \(rows 0 to 19\): next_observations\[19\] has 7.5, which does not"
        ):
            load(tmp_path, data, ending)


def test_flags_of_any_name_where_numbers_of_steps_restart(tmp_path: Path) -> None:
    """They are no fields then, and what was taken is in the notes; others are fields."""
    more = {"finished": END, "begun": STEP == 0, "lucky": STEP == 3, "t": STEP}
    store = load(tmp_path, toy(**more))
    check_toy(store)
    assert set(store.spec.extra_names) == {"t", "lucky"}
    assert noted(store)["notes"] == [
        "t: taken to tell episodes apart; it rises within an episode",
        "begun: taken to tell episodes apart; it is true exactly where t restarts",
        "finished: taken to tell episodes apart; it is true exactly before t restarts",
    ]


def test_columns_that_may_end_episodes_are_named_where_nothing_does(tmp_path: Path) -> None:
    store = load(tmp_path, toy(**{"infos/was_reset": END, "infos/timeout": np.full(40, 2.5), "success": END}))
    assert store.spec.extra_names == ("infos.timeout", "infos.was_reset", "success") and len(store.episodes()) == 5
    assert noted(store)["notes"][1].startswith("infos/was_reset: a further field; if it says where episodes end, ren")
