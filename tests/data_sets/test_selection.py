"""Some episodes of a data set, by numbers or by name; a resumed import must be of the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import sharpwave as sw
from sharpwave import loading
from tests.cli.test_data_sets import run
from tests.data_sets.data import d4rl
from tests.data_sets.test_columns import noted
from tests.data_sets.test_hdf5_layouts import aloha, write_aloha
from tests.data_sets.test_robomimic import demo, write

LENGTHS = [4, 6, 5, 9, 2, 7]


def saved(path: Path) -> str:
    np.savez(path, **d4rl(LENGTHS))
    return f"npz:{path}"


@pytest.mark.parametrize(
    ("episodes", "numbers", "text"),
    [
        (range(2), [0, 1], "0:2"),
        ([3, 0, 3], [0, 3], "0,3"),
        (4, [4], "4"),
        (-1, [5], "5"),
        (slice(-2, None), [4, 5], "4:6"),
        (slice(None, None, 2), [0, 2, 4], "0,2,4"),
        ("0:2, 5", [0, 1, 5], "0:2,5"),
        ("-2:", [4, 5], "4:6"),
        (np.array([1, 2]), [1, 2], "1:3"),
        (np.array(3), [3], "3"),
        (range(6), [0, 1, 2, 3, 4, 5], None),
        (None, [0, 1, 2, 3, 4, 5], None),
    ],
)
def test_numbers(tmp_path: Path, episodes: Any, numbers: list[int], text: str | None) -> None:
    store = sw.load(place := saved(tmp_path / "x.npz"), episodes=episodes)
    assert [one.length for one in store.episodes()] == [LENGTHS[n] for n in numbers]
    note = noted(store)
    assert note.get("selection") == text
    audit = note["audit"]
    assert audit["read"] == audit["store"] and audit["source"]["steps"] == sum(LENGTHS)
    assert audit["source"]["episodes"] == len(LENGTHS)
    if text is not None:
        left = len(LENGTHS) - len(numbers)
        assert audit["unselected"]["episodes"] == left
        assert audit["unselected"]["steps"] == sum(LENGTHS) - audit["read"]["steps"]
        assert note["left_out"][0] == f"{left} of 6 episodes: not selected; selected are {text}"
    assert loading.check(place, episodes=episodes)["audit"]["read"] == audit["read"]


@pytest.mark.parametrize(
    ("episodes", "error", "message"),
    [
        ([6], ValueError, r"x\.npz: has 6 episodes, so there is no 6; expected 0 to 5"),
        (-7, ValueError, "there is no -7"),
        ([], ValueError, "selects none of 6"),
        ("8:", ValueError, "selects none of 6"),
        ("::0", ValueError, "got a slice of step 0"),
        ("1:2:3:4", ValueError, "got '1:2:3:4', expected a number, or a slice"),
        ("train", ValueError, "episodes='train', but its format has no names for episodes"),
        ([True], TypeError, "got True, expected numbers"),
        (1.5, TypeError, "got 1.5, expected numbers"),
        (np.array(1.5), TypeError, r"got array\(1.5\), expected numbers"),
    ],
)
def test_no_such_episodes(tmp_path: Path, episodes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sw.load(saved(tmp_path / "x.npz"), episodes=episodes)


def test_a_resumed_import_is_of_the_same_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharpwave.loading.FLUSH_S", 0)
    place, chosen = saved(tmp_path / "x.npz"), [0, 2, 3, 5]
    whole = noted(sw.load(place, episodes=chosen))["audit"]
    for at in (4, 9, 18):

        def breaking(done: int, total: int, at: int = at) -> None:
            assert total == sum(LENGTHS) * 4 // 6
            if done >= at:
                raise KeyboardInterrupt

        folder = tmp_path / f"store{at}"
        with pytest.raises(KeyboardInterrupt):
            sw.load(place, disk=folder, progress=breaking, episodes=chosen)
        with pytest.raises(ValueError, match="episodes all, but its import began with 0,2:4,5; give the same"):
            sw.load(place, disk=folder)
        for _ in range(2):
            with sw.load(place, disk=folder, episodes=chosen) as store:
                assert [one.length for one in store.episodes()] == [LENGTHS[n] for n in chosen]
                audit = noted(store)["audit"]
                assert audit["read"] == pytest.approx(whole["read"]) and audit["store"] == pytest.approx(whole["store"])
                assert audit["unselected"] == whole["unselected"]
    with sw.load(place, disk=tmp_path / "all") as store, pytest.raises(ValueError, match="began with all"):
        sw.load(place, store, episodes=[1])


def test_damaged_episodes_that_are_not_selected(tmp_path: Path) -> None:
    data = d4rl(LENGTHS)
    data["rewards"][5] = np.nan
    np.savez(tmp_path / "x.npz", **data)
    place = f"npz:{tmp_path / 'x.npz'}"
    assert len(sw.load(place, episodes="2:").episodes()) == 4
    with pytest.raises(ValueError, match="episode 1 "):
        sw.load(place, episodes=1)


def test_filter_keys_of_robomimic(tmp_path: Path) -> None:
    place = write(tmp_path / "x.hdf5", [demo(4, n) for n in range(4)], [0, 2, 10, 11])
    store = sw.load(place, episodes="train")
    assert [one.info["demo"] for one in store.episodes()] == ["demo_0", "demo_10"]
    assert noted(store)["selection"] == "0,2"
    with pytest.raises(ValueError, match=r"has no mask/valid, only \['train'\]"):
        sw.load(place, episodes="valid")
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        file["mask/valid"] = ["demo_2", "demo_7"]
        file["mask/numbers"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"mask/valid has 'demo_7', which is not in data"):
        sw.load(place, episodes="valid")
    with pytest.raises(ValueError, match=r"mask/numbers is .* expected texts"):
        sw.load(place, episodes="numbers")


def test_a_file_of_aloha(tmp_path: Path) -> None:
    place = write_aloha(tmp_path, [aloha(length, n) for n, length in enumerate([4, 6])])
    assert [one.length for one in sw.load(place, episodes="episode_1.hdf5").episodes()] == [5]
    with pytest.raises(ValueError, match=r"got 'episode_2\.hdf5', expected numbers, or the name of a file"):
        sw.load(place, episodes="episode_2.hdf5")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = saved(tmp_path / "x.npz")
    assert run("import", place, str(tmp_path / "store"), "--episodes", "0:2,-1", "--quiet") == 0
    said = capsys.readouterr().out
    assert "3 episodes, 17 steps of" in said and "left out: 3 of 6 episodes: not selected; selected are 0:2,5" in said
    assert "unselected: 3 episodes, 16 steps, whose rewards and ends are not read\n" in said
    assert run("import", "--check", place, "--episodes", "9", "--quiet") == 2
    assert "there is no 9" in capsys.readouterr().err
