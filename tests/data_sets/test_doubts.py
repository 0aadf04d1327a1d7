"""What speaks against how episodes were told apart is said, though the data could be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import sharpwave as sw
from sharpwave.data import doubts
from tests.data_sets.data import d4rl
from tests.data_sets.hostile import change_column, example, lerobot, rlds, sound
from tests.data_sets.test_columns import END, EPISODE, LATE, STEP, TERMINAL, load, noted, toy


def test_next_observations_against_flags() -> None:
    """Rows 0 to 9: flags end episodes after rows 3 and 6; observations break after rows 3 and 4."""
    some = np.array([4, 7]), np.array([4, 5])
    assert doubts.of_next_observations(some[1], some[0], 10) == [
        "next_observations: 1 rows lead to an observation other than the following one where no flag ends an episode "
        "(the first is row 4); an episode ends after each",
        "next_observations: 1 rows lead to the following observation though a flag ends an episode there (the first is "
        "row 6); are flags in another row, or final observations of resets?",
    ]
    assert doubts.of_next_observations(some[0], np.array([4, 7, 10]), 10) == []


def test_numbers_of_steps_and_of_episodes() -> None:
    assert doubts.gaps(np.array([0, 1, 3, 4, 0, 1, 2, 3])).tolist() == [2]
    assert doubts.gaps(np.array([0, 2, 4, 0, 2, 4, 6])).size == 0 == doubts.gaps(np.array([0, 5, 7, 20])).size
    assert doubts.gaps(np.array([0.0, 1.0, 3.0])).size == 0
    steps = np.array([0, 1, 2, 1, 2, 0, 1])
    assert doubts.of_steps("t", steps, np.array([0, 3, 5])) == [
        "t: 1 episodes begin with another number than 0, the first in row 3; are their first rows missing?"
    ]
    assert doubts.of_steps("t", np.arange(7), np.array([0, 3, 5])) == []  # numbers of the whole run
    assert doubts.of_episodes("e", np.array([4, 4, 2, 4, 7])) == [
        "e: 1 numbers come again later; each run of equal numbers counts as an episode",
        "e: 3 numbers between 2 and 7 are missing",
    ]
    assert doubts.of_episodes("e", np.array([5, 5, 6, 7])) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            EPISODE,
            "rises by one now and then as numbers of episodes do, before 3 rows where no episode begins, the",
        ),
        (STEP, "restarts as numbers of steps do, before 3 rows where no episode begins, the first is row 10; if it"),
        (STEP + 1.0, "restarts as numbers of steps do, before 3 rows where no episode begins, the first is row 10"),
    ],
)
def test_numbers_of_other_names(tmp_path: Path, values: Any, said: str) -> None:
    """Of eight episodes of five steps the second and the third are joined, and so on."""
    assert f"place: a further field, but it {said}" in notes_of(tmp_path, toy(place=values))
    assert "place" not in notes_of(tmp_path, toy(place=values, timeouts=LATE))


@pytest.mark.parametrize("values", [EPISODE % 2, EPISODE // 4, STEP**2, np.arange(40), STEP[::-1].copy(), np.ones(40)])
def test_numbers_that_number_nothing(tmp_path: Path, values: Any) -> None:
    assert "thing: a further" not in notes_of(tmp_path, toy(thing=values))


def notes_of(folder: Path, data: dict[str, Any]) -> str:
    return "\n".join(noted(load(folder, data))["notes"])


@pytest.mark.parametrize("change", [-1, 1])
def test_flags_in_another_row(tmp_path: Path, change: int) -> None:
    data = d4rl([6, 6, 6, 6])
    for name in ("terminals", "timeouts"):
        data[name] = np.roll(data[name], change)
    said = notes_of(tmp_path, data)
    assert "3 rows lead to an observation other than the following one where no flag ends an episode (the first is row "
    assert "lead to the following observation though a flag ends an episode there" in said
    assert f"the first is row {4 if change < 0 else 0}" in said


def test_next_observations_that_lead_nowhere(tmp_path: Path) -> None:
    data = d4rl([10, 10])
    data["next_observations"] = data["observations"]
    assert "next_observations: 18 rows lead to an observation other" in notes_of(tmp_path, data)


def test_a_row_that_is_missing_ends_an_episode(tmp_path: Path) -> None:
    """Rows before and after it were a transition that never happened."""
    data = {name: np.delete(values, 7, 0) for name, values in toy(step=STEP).items()}
    store = load(tmp_path, data)
    assert [one.length for one in store.episodes()] == [5, 1, 1, 5, 4, 5, 4, 5, 4]
    assert (
        "step: skips numbers 1 times, first before row 7; are rows missing? An episode ends there"
        in noted(store)["notes"]
    )


def test_arrays_that_go_on_after_terminals(tmp_path: Path) -> None:
    assert "step: continues after 3 of the episodes that ended, the first in row 4" not in notes_of(
        tmp_path, toy(step=STEP)
    )
    said = notes_of(tmp_path, toy(step=np.arange(40)))
    assert "step: continues after 4 of the episodes that ended, the first in row 4" in said
    assert "terminals: nothing else ends an episode; truncated ones are joined" in said
    assert "dones: continues after 1 of" in notes_of(tmp_path, toy(dones=END & (EPISODE != 2)))
    assert "nothing else ends" in notes_of(tmp_path, toy()) and "nothing else" not in notes_of(
        tmp_path, toy(timeouts=LATE)
    )
    with pytest.raises(ValueError, match="dones, by which episodes are told apart, would end one after each step"):
        load(tmp_path, toy(dones=np.ones(40)))
    store = load(tmp_path, toy(terminals=np.ones(40), dones=np.ones(40)))  # as of bandits
    assert len(store.episodes()) == 40 and TERMINAL.sum() == 4


def test_an_episode_that_comes_twice(tmp_path: Path) -> None:
    rows = np.r_[0:10, 5:10, 10:40]
    data = {name: values[rows] for name, values in toy(step=STEP).items()}
    (said,) = [one for one in noted(load(tmp_path, data))["notes"] if "earlier" in one]
    assert said.startswith("has the values of an earlier one in all steps: 1 episodes, the first is hdf5:")
    assert said.endswith("episode 2 (rows 10 to 14)")


def exported(path: Path, lengths: tuple[int, ...] = (4, 5, 6)) -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=100) as store:
        for number, length in enumerate(lengths):
            obs = np.full((length + 1, 2), number) + np.arange(length + 1)[:, None] / 10
            store.add_episode(obs=obs, action=np.zeros(length, int), reward=np.ones(length), terminated=True)
        store.export(f"parquet:{path}")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([1, 2, 3, 4, 5], "row 0 has step 1, expected 0; are rows missing"),
        ([0, 1, 3, 4, 5], "row 2 has step 3, expected 2"),
        ([0, 1, 2, 3, 4], "row 4 has is_last False, expected True"),
        ([0, 1, 1, 2, 3, 4, 5], "row 2 has step 1, expected 2"),
        ([0, 2, 1, 3, 4, 5], "row 1 has step 2, expected 1"),
    ],
)
def test_rows_of_an_export_that_are_missing(tmp_path: Path, rows: list[int], said: str) -> None:
    path = tmp_path / "x.parquet"
    exported(path)
    file = parquet.ParquetFile(path)
    groups = [file.read_row_group(number) for number in range(3)]
    groups[1] = groups[1].take(rows)
    with parquet.ParquetWriter(path, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    with pytest.raises(ValueError, match=f"x.parquet: episode 1 is damaged: {said}"):
        sw.load(f"parquet:{path}")
    assert [one.length for one in sw.load(f"parquet:{path}", skip_damaged=True).episodes()] == [4, 6]


def test_episodes_of_an_export_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    for which, said in (
        ([0, 2], ["1 of the episodes 0 to 2 are missing"]),
        ([2, 0, 1], []),
        ([0, 1, 1, 2], ["1 of its episode numbers occur twice"]),
    ):
        exported(path)
        file = parquet.ParquetFile(path)
        groups = [file.read_row_group(number) for number in range(3)]
        with parquet.ParquetWriter(path, groups[0].schema) as writer:
            for number in which:
                writer.write_table(groups[number])
        assert noted(sw.load(f"parquet:{path}"))["notes"][: len(said)] == said
        path.unlink()


@pytest.mark.filterwarnings("ignore:.*text")
def test_flags_of_lerobot(tmp_path: Path) -> None:
    """Episodes of 3, 12, 1 and 40 rows, the first and the third done."""
    folder = lerobot(tmp_path, "images")
    path = next(folder.glob("data/*/*.parquet"))
    done = np.array(parquet.read_table(path).column("next.done").to_pylist()).reshape(-1)
    assert np.flatnonzero(done).tolist() == [2, 15]

    def notes(*rows: int) -> list[str]:
        change_column(path, "next.done", lambda count: pa.array([i in rows for i in range(count)]))
        return list(noted(sw.load(f"lerobot:{folder}"))["notes"])

    assert notes(2, 15) == []
    (said,) = notes(2, 8, 9, 15)
    assert said.startswith("next.done is true before the last frame: 1 episodes, the first is") and said.endswith("1")
    assert notes(2, 14, 15, 55) == [
        "next.done: is true at the last frame of all episodes; every one terminated, also at time limits"
    ]
    assert notes() == ["next.done: is false at the last frame of all episodes; none terminated"]


def test_shards_of_rlds(tmp_path: Path) -> None:
    place = rlds(tmp_path, {}, *(example(sound(rows)) for rows in (3, 4)))
    one = tmp_path / "x-train.tfrecord-00000-of-00001"
    two = one.with_name("x-train.tfrecord-00000-of-00002")
    one.rename(two)
    with pytest.raises(ValueError, match=r"x-train\.tfrecord-00001-of-00002 is missing; .*00000-of-00002 is"):
        sw.load(place)
    store = sw.load(place, skip_damaged=True)
    assert "x-train.tfrecord-00001-of-00002: is missing" in noted(store)["left_out"] and len(store.episodes()) == 2
    (tmp_path / "dataset_info.json").write_text('{"splits": [{"name": "train", "shardLengths": ["3", "0"]}]}')
    assert noted(sw.load(place))["left_out"][0] == (
        "x-train.tfrecord-00000-of-00002: dataset_info.json says 3 episodes, the file has 2"
    )


def test_numbers_of_rlds_that_do_not_fit_and_episodes_that_end_early(tmp_path: Path) -> None:
    """The reward in the last row of an episode whose end is missing does not decide how all last rows are read."""
    half = sound(3) | {"steps/action": (2, np.full(3, 1.5, "<f4").tobytes())}
    with pytest.raises(ValueError, match="steps/action: a value does not fit int64"):
        sw.load(rlds(tmp_path, {}, example(half)))
    short = sound(4) | {"steps/is_last": (3, bytes(4)), "steps/is_terminal": (3, bytes(4))}
    short["steps/reward"] = (2, np.ones(4, "<f4").tobytes())
    flat = {"steps/action": (3, bytes(3))}
    place = rlds(tmp_path, {}, example(sound(3) | flat), example(short), example(sound(3) | flat))
    with pytest.raises(ValueError, match=r"4 steps, is_last in \[\]; expected"):
        sw.load(place)
    note = noted(sw.load(place, skip_damaged=True))
    assert "read as last='final'" in note["notes"][0] and note["skipped_episodes"] == 1
