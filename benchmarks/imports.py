"""Imports of damaged and unusual files, compared with the episodes that were written.

    python benchmarks/imports.py [FORMAT...] [--damages NAME...] [--out FILE]

Episodes known beforehand, a plain list, are written in each format: by its library where that is installed (numpy,
h5py, minari, pyarrow), else by its documented layout (LeRobot, RLDS, robomimic ...). Then the files are
damaged, or written in another way that occurs. Each is imported, and each again with ``skip_damaged=True``, and
compared with the list:

exact: the store has these episodes, all of them; also where the last step of a truncated one is left out, with a word.
named: they differ, and a note, what was left out or a warning says so, other than what is said of a sound file.
refused: by an error that names the file. skipped: so, but for ``skip_damaged=True``, which names the episodes that are
damaged, and has the others, exactly.
SILENT: they differ without a word. The program ends with 1 if there is one.

``invented`` counts transitions of the store that never happened. Where there are any in a row that is not SILENT, what
was damaged are values that nothing can tell from true ones but the words.

A new format is a ``Format`` here or in a module of ``import_*.py``; ``FORMATS`` there lists it.
"""

# mypy: disable-error-code="func-returns-value, misc, var-annotated"
from __future__ import annotations

import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import runner

import sharpwave as sw

ROUTINE = re.compile(
    "steps at the ends of episodes that|episodes of one such step|taken to tell episodes apart|compared as|"
    "is read as last='final'"
)
"""What is said of sound files, too, and so is no word for a difference."""
LENGTHS = (5, 3, 1, 7, 4, 6)
"""Steps of the episodes; every second one terminated, the others were truncated."""
VERDICTS = ("exact", "named", "refused", "skipped", "SILENT")
Array = npt.NDArray[Any]


@dataclass
class Episode:
    """Episode as it happened: ``obs`` [T + 1, 3], ``action`` [T], ``reward`` [T]; else than terminated, truncated."""

    obs: Array
    action: Array
    reward: Array
    terminated: bool


@dataclass
class Format:
    """Format of data sets.

    Attributes:
        write: writes episodes into a folder, after ``damage`` was done to what is written; returns what to load.
        damages: by name. ``""``, of a sound file, is among them.
        marked: whether it says which episodes terminated.
    """

    write: Callable[[Path, list[Episode], Callable[..., Any]], str]
    damages: Mapping[str, Callable[..., Any]]
    marked: bool = True


def episodes(marked: bool = True) -> list[Episode]:
    """Return the episodes; without ``marked`` all of them were truncated.

    Every value occurs once; rewards are multiples of 1/8, whose sums are exact.
    """
    made, at = [], 1
    for number, length in enumerate(LENGTHS):
        steps = at + np.arange(length + 1)
        obs = np.stack([steps, steps + 0.25, -steps], axis=1).astype(np.float32)
        made.append(Episode(obs, steps[:-1] % 5 + 1, (steps[:-1] / 8).astype(np.float32), marked and number % 2 == 0))
        at += length + 10
    return made


def transitions(one: Any, terminated: bool) -> list[tuple[Any, ...]]:
    """Return an episode's transitions. What a terminated one led to is none's concern: its discount is 0."""
    rows = one.obs["state"] if isinstance(one.obs, dict) else one.obs
    obs = np.asarray(rows, np.float64).reshape(len(rows), -1)
    action, reward = (np.asarray(x, np.float64).reshape(len(one.reward), -1) for x in (one.action, one.reward))
    found = []
    for t in range(len(reward)):
        end = terminated and t == len(reward) - 1
        after = b"" if end else (obs[t + 1] + 0.0).tobytes()
        found.append(((obs[t] + 0.0).tobytes(), action[t].tobytes(), reward[t].tobytes(), after, end))
    return found


def oracle(known: list[Episode], shorter: bool) -> Counter[tuple[Any, ...]]:
    """Return what must be in a store, by episode; ``shorter``: without the last steps of the truncated ones."""
    every = (transitions(one, one.terminated) for one in known)
    cut = (one if one[-1][-1] or not shorter else one[:-1] for one in every)
    return Counter(tuple(one) for one in cut if one)


def words(note: Mapping[str, Any], warned: list[Any]) -> set[str]:
    """Return all that an import said."""
    return {*note["left_out"], *note["notes"], *note["skipped"], *(str(one.message) for one in warned)}


@dataclass
class Outcome:
    """What became of a file."""

    verdict: str
    said: str
    invented: int = 0


def outcome(
    place: str, folder: Path, usual: set[str], known: list[Episode], *, skip: bool = False
) -> tuple[Outcome, set[str]]:
    """Import a file, and compare."""
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            store = sw.load(place, progress=False, skip_damaged=skip)
    except (ValueError, FileNotFoundError) as error:
        named = str(folder) in str(error)
        return Outcome("refused" if named else "SILENT", str(error) if named else f"does not name it: {error}"), set()
    except Exception as error:
        last = traceback.format_exc().splitlines()[-1]
        return Outcome("SILENT", f"{type(error).__name__} instead of a ValueError: {last}"), set()
    (note,) = store.annotations()["imports"].values()
    found = [tuple(transitions(one, bool(one.terminated[-1]))) for one in store.episodes()]
    said = words(note, warned)
    new = {one for one in said - usual if not ROUTINE.search(one)}
    true = Counter(step for one in oracle(known, False) for step in one)
    invented = sum((Counter(step for one in found for step in one) - true).values())
    got = Counter(found)
    exact = got == oracle(known, False) or (got == oracle(known, True) and any("steps at the ends" in x for x in said))
    if skip:
        kept = got <= oracle(known, False) or got <= oracle(known, True)
        good = (new or note["skipped_episodes"]) and kept and all(str(folder) in one for one in note["skipped"])
        return Outcome("skipped" if good else "SILENT", "; ".join(note["skipped"] or sorted(new)), invented), said
    if exact:
        return Outcome("exact", "; ".join(sorted(new)), invented), said
    return Outcome("named" if new else "SILENT", "; ".join(sorted(new)) or "differs", invented), said


def run(name: str, one: Format, chosen: list[str] | None) -> dict[str, Outcome]:
    """Import all files of a format."""
    found: dict[str, Outcome] = {}
    usual: set[str] = set()
    oracles = episodes(one.marked)
    for damage, change in one.damages.items():
        if damage and chosen and damage not in chosen:
            continue
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made).resolve()
            place = one.write(folder, episodes(), change)
            result, said = outcome(place, folder, usual, oracles)
            if result.verdict == "refused":
                again = outcome(place, folder, usual, oracles, skip=True)[0]
                if again.verdict != "refused":
                    result = again
            result.said = result.said.replace(str(folder), "")
        if not damage:  # what is said of a sound file is no news
            usual = said
            assert result.verdict == "exact", f"{name}: a sound file is {result}"
        found[damage or "none"] = result
    return found


# files in the D4RL layout, and damages of them

Data = dict[str, Any]
STARTS = np.cumsum([0, *LENGTHS[:-1]])
COUNT = sum(LENGTHS)
ENDS = STARTS + np.array(LENGTHS) - 1
EPISODE = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
STEP = np.arange(COUNT) - STARTS[EPISODE]
END = np.isin(np.arange(COUNT), ENDS)
DAMAGES: dict[str, Callable[[Data], Any]] = {"": lambda data: None}
"""Damage of the arrays; it may return a function that damages the file's bytes."""


def without(data: Data, *names: str) -> None:
    for name in names:
        del data[name]


def unmarked(data: Data) -> None:
    """Take away all that says where truncated episodes end."""
    without(data, "timeouts", "next_observations")


def also(name: str, **arrays: Any) -> None:
    """Add a damage: nothing but these arrays says where truncated episodes end."""

    def change(data: Data) -> None:
        unmarked(data)
        data.update({one.replace("__", "/"): values for one, values in arrays.items()})

    DAMAGES[name] = change


def renamed(old: str, new: str) -> None:
    DAMAGES[f"{old} named {new}"] = lambda data: data.update({new: data.pop(old)})


def cast(name: str, dtype: str) -> None:
    DAMAGES[f"{name} as {dtype}"] = lambda data: data.update({name: data[name].astype(dtype)})


def resized(name: str, rows: int) -> None:
    def change(data: Data) -> None:
        values = data[name]
        data[name] = values[:rows] if rows < 0 else np.concatenate([values, values[:rows]])

    DAMAGES[f"{name} {'short' if rows < 0 else 'long'}"] = change


def put(label: str, name: str, row: Any, value: Any) -> None:
    def change(data: Data) -> None:
        data[name] = data[name].astype(
            np.result_type(data[name], np.float64) if isinstance(value, float) else data[name].dtype
        )
        data[name][row] = value

    DAMAGES[label] = change


for one in ("episode", "episode_id", "traj_ids", "trajectory_index", "infos__episode_id", "ep_id", "episodeId"):
    also(f"ends by {one}", **{one: EPISODE})
for one in ("step", "timesteps", "t", "frame_index", "time_step", "elapsed_steps"):
    also(f"ends by {one}", **{one: STEP})
also("ends by step [N, 1] from 1 on", step=STEP[:, None] + 1)
also("ends by step of two each", step=STEP * 2)
for one in ("dones", "done", "is_last", "is_end", "episode_ends", "episode_terminals"):
    also(f"ends by {one}", **{one: END})
for one in ("is_first", "is_start", "episode_starts"):
    also(f"ends by {one}", **{one: STEP == 0})
also("ends by TimeLimit.truncated", **{"infos/TimeLimit.truncated": END & (EPISODE % 2 == 1)})
also("numbers of another name", place=EPISODE)
also("steps of another name", place=STEP)
also("single values", step=STEP, episodes=np.int64(6), steps=np.int64(COUNT), timeout=np.float64(30))
also("ends by another flag and t", finished=END, t=STEP)
also("ends by float16 is_last [N, 1]", is_last=END.astype(np.float16)[:, None])
also("ends by unsigned steps", step=STEP.astype(np.uint8))
also("numbers of episodes come again", episode=EPISODE % 2)
for one in ("terminations", "terminateds", "terminal", "is_terminal", "terminated"):
    renamed("terminals", one)
for one in ("truncations", "timeout", "infos/TimeLimit.truncated"):
    renamed("timeouts", one)
for old, new in (
    ("observations", "obs"),
    ("actions", "action"),
    ("rewards", "reward"),
    ("next_observations", "next_obs"),
):
    renamed(old, new)
for old in ("observations", "actions", "rewards", "terminals"):
    renamed(old, "unknown")
for one in ("float16", "float32", "uint64", "int8"):
    cast("terminals", one)
for one in ("float64", "float16", ">f4"):
    cast("rewards", one)
for one in ("float64", "float16", ">f4", "int16", "complex64"):
    cast("observations", one)
for one in ("float64", "float16", "complex64"):
    cast("next_observations", one)
for one in ("uint8", "float32", "complex64", "S4"):
    cast("actions", one)
for one in ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts"):
    resized(one, -1)
    resized(one, 2)
for one in ("rewards", "terminals", "timeouts", "actions"):
    DAMAGES[f"{one} [N, 1]"] = lambda data, one=one: data.update({one: data[one][:, None]})
put("NaN reward", "rewards", 6, np.nan)
put("infinite reward", "rewards", 6, np.inf)
put("reward beyond float32", "rewards", 6, 1e300)
put("terminal of 2", "terminals", 6, 2.0)
put("terminal of -1", "terminals", 6, -1.0)
put("NaN terminal", "terminals", 6, np.nan)
put("NaN in next observations", "next_observations", 6, np.nan)
put("infinite next observation", "next_observations", 6, np.inf)
put("terminal within an episode", "terminals", 10, True)
put("timeout within an episode", "timeouts", 10, True)


def moved(name: str, rows: int) -> Callable[[Data], Any]:
    """Return a damage that moves a column by some rows."""
    return lambda data: data.update({name: np.roll(data[name], rows, axis=0)})


def scaled(factor: float) -> Callable[[Data], Any]:
    """Return a damage that scales the next observations."""
    return lambda data: data.update(next_observations=data["next_observations"] * np.float32(factor))


DAMAGES |= {
    "rewards of two": lambda data: data.update(rewards=np.stack([data["rewards"]] * 2, 1)),
    "no timeouts": lambda data: without(data, "timeouts"),
    "no next observations": lambda data: without(data, "next_observations"),
    "nothing says where truncated ones end": unmarked,
    "rounded next observations": scaled(1 + 2e-7),
    "next observations off by a thousandth": scaled(1.001),
    "next observations are the observations": lambda data: data.update(next_observations=data["observations"].copy()),
    "next observations a row early": moved("next_observations", -1),
    "zeros of another sign": lambda data: data.update(zero=-np.zeros(COUNT)),
    "timeouts a row early": moved("timeouts", -1),
    "timeouts a row late": moved("timeouts", 1),
    "terminals a row early": moved("terminals", -1),
    "terminals a row late": moved("terminals", 1),
}


def rows(data: Data, which: Any) -> None:
    for name in list(data):
        data[name] = data[name][which]


def chosen(label: str, which: Any, **arrays: Any) -> None:
    """Add damages: only these rows are there; with all that says where episodes end, and with these arrays only."""

    def all_of_it(data: Data) -> None:
        data.update(arrays)
        rows(data, which)

    DAMAGES[label] = all_of_it

    def change(data: Data) -> None:
        unmarked(data)
        data.update(arrays)
        rows(data, which)

    for name in arrays:
        DAMAGES[f"{label}, {name} only"] = change


REORDERED = np.concatenate([np.flatnonzero(one == EPISODE) for one in (3, 1, 0, 2, 5, 4)])
chosen("episodes in another order", REORDERED, episode_id=EPISODE)
chosen("no first step of an episode", ~((EPISODE == 3) & (STEP == 0)), step=STEP)
chosen("no third step of an episode", ~((EPISODE == 3) & (STEP == 2)), step=STEP)
chosen("no last step of an episode", ~((EPISODE == 3) & (STEP == 6)))
chosen("no first step, numbered", ~((EPISODE == 3) & (STEP == 0)), timestep=STEP, episode=EPISODE)
chosen("an episode is missing", EPISODE != 3, episode_id=EPISODE)
chosen("an episode comes twice", np.concatenate([np.arange(COUNT), np.flatnonzero(EPISODE == 3)]), episode_id=EPISODE)
chosen("an episode twice in a row", np.insert(np.arange(COUNT), STARTS[4], np.flatnonzero(EPISODE == 3)), step=STEP)
chosen("rows shuffled", np.random.default_rng(0).permutation(COUNT), episode_id=EPISODE)
chosen("rows shuffled, steps", np.random.default_rng(0).permutation(COUNT), step=STEP)
chosen("rows reversed", np.arange(COUNT)[::-1], step=STEP)
chosen("a row comes twice", np.insert(np.arange(COUNT), 11, 11), step=STEP)
chosen("two rows swapped", np.r_[0:10, 11, 10, 12:COUNT], step=STEP)
chosen("no rows", slice(0, 0))


def instead(name: str, *removed: str, **arrays: Any) -> None:
    """Add a damage: arrays in place of all that says where truncated episodes end, and of the removed ones."""

    def change(data: Data) -> None:
        unmarked(data)
        without(data, *removed)
        data.update(arrays)

    DAMAGES[name] = change


instead("dones only", "terminals", dones=END)
instead("dones that contradict terminals", dones=END & (EPISODE < 3))
instead("dones true everywhere", dones=np.ones(COUNT, bool))
instead("is first a row late", is_first=np.roll(STEP == 0, 1))
instead("steps that contradict episodes", step=STEP, episode=np.minimum(EPISODE, 4))
instead("step of the whole run", step=np.arange(COUNT), episode=EPISODE)
instead("step of the whole run only", step=np.arange(COUNT))


def in_dict(data: Data, after: str) -> None:
    """Name the observations as parts of a dict, and the next ones as its part ``after``."""
    data["observations/state"] = data.pop("observations")
    data[f"next_observations/{after}"] = data.pop("next_observations")


DAMAGES |= {
    "a text a step": lambda data: data.update(mission=np.array(["go"] * COUNT, "S2")),
    "further field of other length": lambda data: data.update({"infos/qpos": np.zeros(3)}),
    "two names of terminals": lambda data: data.update(terminated=data["terminals"]),
    "two names of timeouts": lambda data: data.update(truncated=data["timeouts"]),
    "dones and timeouts": lambda data: (without(data, "terminals"), data.update(dones=END)),
    "observations in a dict": lambda data: in_dict(data, "state"),
    "next observations of another key": lambda data: in_dict(data, "other"),
    "next observations of another width": lambda data: data.update(next_observations=data["next_observations"][:, :2]),
}


def cut(label: str, change: Callable[[bytes], bytes]) -> None:
    DAMAGES[label] = lambda data: change


for share in (0.1, 0.5, 0.9, 0.99):
    cut(f"cut at {share:.0%}", lambda content, share=share: content[: int(share * len(content))])
cut("empty file", lambda content: b"")
cut("text file", lambda content: b"observations,actions\n")
cut("zeros behind", lambda content: content + bytes(100))
cut("zeros before", lambda content: bytes(100) + content)


def arrays_of(episodes: list[Episode]) -> Data:
    ends = np.zeros((2, COUNT), np.bool_)
    for at, one in zip(ENDS, episodes, strict=True):
        ends[:, at] = one.terminated, not one.terminated
    return {
        "observations": np.concatenate([one.obs[:-1] for one in episodes]),
        "next_observations": np.concatenate([one.obs[1:] for one in episodes]),
        "actions": np.concatenate([one.action for one in episodes]),
        "rewards": np.concatenate([one.reward for one in episodes]),
        "terminals": ends[0],
        "timeouts": ends[1],
    }


def written(
    path: Path, episodes: list[Episode], change: Callable[[Data], Any], save: Callable[[Path, Data], None]
) -> str:
    data = arrays_of(episodes)
    after = change(data)
    save(path, data)
    if callable(after):
        path.write_bytes(after(path.read_bytes()))
    return f"{path.suffix[1:]}:{path}"


def write_npz(folder: Path, episodes: list[Episode], change: Callable[[Data], Any]) -> str:
    return written(folder / "x.npz", episodes, change, lambda path, data: np.savez(path, **data))


def write_hdf5(folder: Path, episodes: list[Episode], change: Callable[[Data], Any]) -> str:
    def save(path: Path, data: Data) -> None:
        with h5py.File(path, "w") as file:
            for name, values in data.items():
                file[name] = values

    return written(folder / "x.hdf5", episodes, change, save)


def fortran(data: Data) -> None:
    data["observations"] = np.asfortranarray(data["observations"])


def objects(data: Data) -> None:
    data["actions"] = data["actions"].astype(object)


COLUMNS = {
    "npz": Format(write_npz, DAMAGES | {"Fortran order": fortran, "pickled actions": objects}),
    "hdf5": Format(write_hdf5, DAMAGES),
}


# all formats


def formats() -> dict[str, Format]:
    """Return all formats."""
    import import_folders
    import import_layouts

    return {**COLUMNS, **import_folders.FORMATS, **import_layouts.FORMATS}


def main() -> int:
    parser = runner.parser(__doc__)
    parser.add_argument("formats", nargs="*", metavar="FORMAT")
    parser.add_argument("--damages", nargs="+", metavar="NAME")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    known = formats()
    results = {name: run(name, known[name], args.damages) for name in args.formats or known}
    for name, rows in results.items():
        print(f"\n{name}")
        for damage, result in rows.items():
            invented = f" ({result.invented} invented)" if result.invented else ""
            said = result.said if len(result.said) <= 150 or args.damages else result.said[:147] + "..."
            print(f"  {result.verdict:8}{damage:34}{invented} {said}")
    print(f"\n| format | files | {' | '.join(VERDICTS)} |\n| --- |{' ---: |' * (len(VERDICTS) + 1)}")
    total: Counter[str] = Counter()
    for name, rows in results.items():
        counts = Counter(one.verdict for one in rows.values())
        total += counts
        print(f"| {name} | {len(rows)} | {' | '.join(str(counts[one]) for one in VERDICTS)} |")
    print(f"| all | {sum(total.values())} | {' | '.join(str(total[one]) for one in VERDICTS)} |")
    if args.out:
        runner.write(args.out, {n: {d: vars(o) for d, o in rows.items()} for n, rows in results.items()})
    return 1 if total["SILENT"] else 0


if __name__ == "__main__":
    sys.exit(main())
