"""An import compares what it read with what the store has, says what it left out, and may skip what is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import sharpwave as sw
from sharpwave import loading
from sharpwave.data.columns import ColumnSource
from tests.cli.test_data_sets import run
from tests.data_sets.data import d4rl
from tests.data_sets.test_columns import load, noted, toy


def counts(episodes: int, steps: int, reward: float, terminated: int, truncated: int, unmarked: int) -> dict[str, Any]:
    found = {"episodes": episodes, "steps": steps, "reward": reward, "terminated": terminated}
    return found | {"truncated": truncated, "unmarked": unmarked}


NONE = counts(0, 0, 0.0, 0, 0, 0)


def test_sums_of_the_source_and_of_the_store(tmp_path: Path) -> None:
    """Episodes of 5 steps, each with the reward 1: of four the last step has no successor."""
    note = noted(load(tmp_path, toy(episode_id=np.repeat(np.arange(8), 5))))
    assert note["audit"] == {
        "source": counts(8, 40, 40.0, 4, 0, 4),
        "read": counts(8, 36, 36.0, 4, 0, 4),
        "left_out": counts(0, 4, 4.0, 0, 0, 0),
        "store": counts(8, 36, 36.0, 4, 4, 0),
        "evicted": NONE,
    }
    assert note["left_out"][0].startswith("4 steps at the ends of episodes that did not terminate, with rewards of 4:")


def test_episodes_of_one_step_without_a_successor_are_named(tmp_path: Path) -> None:
    data = d4rl([4, 1, 6, 1], with_next=False)
    data["rewards"][:] = 1
    note = noted(load(tmp_path, data))
    assert note["audit"]["left_out"] == counts(2, 2, 2.0, 0, 2, 0)
    assert (
        note["audit"]["source"] == counts(4, 12, 12.0, 2, 2, 0) and note["left_out"][1] == "2 episodes of one such step"
    )


def test_rewards_of_what_is_left_out_need_not_be_finite(tmp_path: Path) -> None:
    data = toy(timeouts=(np.arange(40) % 10) == 9)
    data["rewards"][9], data["rewards"][19] = np.inf, np.nan
    assert noted(load(tmp_path, data))["audit"]["left_out"]["reward"] == 2.0


def test_what_the_limits_evict_is_counted(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **d4rl([200] * 20))
    note = noted(store := sw.load(f"npz:{tmp_path / 'data.npz'}", capacity=1000))
    audit = note["audit"]
    assert audit["read"]["steps"] == 4000 == audit["store"]["steps"] + audit["evicted"]["steps"]
    assert audit["store"]["steps"] == 200 * sum(one.whole for one in store.episodes()) < 4000


def test_the_audit_of_an_import_that_was_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharpwave.loading.FLUSH_S", 0)
    np.savez(tmp_path / "data.npz", **d4rl([30] * 9))
    whole = noted(sw.load(f"npz:{tmp_path / 'data.npz'}"))["audit"]
    for at in (31, 100, 240):

        def breaking(done: int, total: int, at: int = at) -> None:
            if done > at:
                raise KeyboardInterrupt

        folder = tmp_path / f"store{at}"
        with pytest.raises(KeyboardInterrupt):
            sw.load(f"npz:{tmp_path / 'data.npz'}", disk=folder, progress=breaking)
        for _ in range(2):
            with sw.load(f"npz:{tmp_path / 'data.npz'}", disk=folder) as store:
                assert noted(store)["audit"] == {
                    **whole,
                    **{k: pytest.approx(whole[k]) for k in ("read", "store", "source")},
                }


def test_a_difference_names_file_episode_and_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = d4rl([4, 6])
    np.savez(tmp_path / "data.npz", **data)
    add = sw.Store.add_episode

    def wrong(self: Any, **arrays: Any) -> Any:
        arrays["reward"] = np.where(np.arange(len(arrays["reward"])) == 5, 9, arrays["reward"])
        return add(self, **arrays)

    monkeypatch.setattr(sw.Store, "add_episode", wrong)
    expected = rf"npz:{tmp_path}/data.npz: episode 1 \(rows 4 to 9\): row 5: the reward is .*, but 9.0 in the store"
    with pytest.raises(ValueError, match=expected):
        sw.load(f"npz:{tmp_path / 'data.npz'}")
    monkeypatch.setattr(sw.Store, "add_episode", lambda self, **arrays: add(self, **arrays | {"terminated": False}))
    with pytest.raises(ValueError, match=r"episode 0 \(rows 0 to 3\): terminated and truncated are \(True, False\)"):
        sw.load(f"npz:{tmp_path / 'data.npz'}")
    monkeypatch.setattr(sw.Store, "add_episode", lambda self, **arrays: None)
    with pytest.raises(ValueError, match=r"episode 0 \(rows 0 to 3\): was read, but the store does not have it"):
        sw.load(f"npz:{tmp_path / 'data.npz'}")


def test_fewer_steps_than_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "data.npz", **d4rl([4, 6]))
    monkeypatch.setattr(ColumnSource, "__len__", lambda self: 1)
    with pytest.raises(ValueError, match="its 1 episodes have 4 steps, expected the 10 that it says of all"):
        sw.load(f"npz:{tmp_path / 'data.npz'}")


def test_check_says_what_an_import_does_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, values in toy(is_last=np.arange(40) % 5 == 4).items():
            file[name] = values
    place = f"hdf5:{tmp_path / 'data.hdf5'}"
    assert run("import", "--check", place, "--quiet") == 0
    said = capsys.readouterr().out.splitlines()
    assert [one.name for one in tmp_path.iterdir()] == ["data.hdf5"]
    assert said == [
        f"8 episodes, 36 steps of {place}",
        "left out: 4 steps at the ends of episodes that did not terminate, with rewards of 4: the observation after "
        "them is not in the data",
        "is_last: taken to tell episodes apart; it is true at the last step of an episode",
        "source: 8 episodes, 40 steps, rewards of 40; 4 terminated, 0 truncated, 4 unmarked",
        "read: 8 episodes, 36 steps, rewards of 36; 4 terminated, 0 truncated, 4 unmarked",
        "left out: 0 episodes, 4 steps, rewards of 4; 0 terminated, 0 truncated, 0 unmarked",
    ]
    assert run("import", place, str(tmp_path / "store"), "--quiet") == 0
    assert capsys.readouterr().out.splitlines()[:5] == said[:5]
    assert run("import", "--check", place, str(tmp_path / "store")) == 2
    assert "--check writes nothing" in capsys.readouterr().err
    assert run("import", place) == 2 and "STORE is missing" in capsys.readouterr().err
    assert json.dumps(loading.check(place))


def test_damaged_episodes_are_refused_by_name_or_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = d4rl([4, 6, 5])
    data["rewards"][7] = np.nan
    np.savez(tmp_path / "data.npz", **data)
    place, message = (
        f"npz:{tmp_path / 'data.npz'}",
        r"episode 1 \(rows 4 to 9\): rewards\[7\] is nan, expected finite float32",
    )
    with pytest.raises(ValueError, match=message):
        sw.load(place)
    with pytest.raises(ValueError, match=message):
        loading.check(place)
    store = sw.load(place, skip_damaged=True)
    note = noted(store)
    assert [one.length for one in store.episodes()] == [4, 5]
    assert (
        note["skipped"] == [f"{place}: episode 1 (rows 4 to 9): rewards[7] is nan, expected finite float32"]
        and note["skipped_episodes"] == 1
    )
    assert note["audit"]["read"]["steps"] == 9
    sw.load(place, store, skip_damaged=True)
    assert [one.length for one in store.episodes()] == [4, 5] and noted(store) == note
    assert run("import", place, str(tmp_path / "store"), "--quiet") == 2
    assert run("import", place, str(tmp_path / "store"), "--quiet", "--skip-damaged") == 0
    assert "skipped: npz:" in capsys.readouterr().out


def test_what_is_said_of_steps_comes_first_where_much_is_left_out(tmp_path: Path) -> None:
    data = d4rl([4, 6], with_next=False)
    note = noted(load(tmp_path, data | {f"a{number}": np.zeros(3) for number in range(40)}))
    assert len(note["left_out"]) == loading.MAX_NOTES and note["left_out"][0].startswith("1 steps at the ends")
