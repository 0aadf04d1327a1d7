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

A new format is a module of ``import_*.py`` with a ``Format``; ``FORMATS`` lists it.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import runner

sys.path.insert(0, str(Path(__file__).parent))

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


def formats() -> dict[str, Format]:
    """Return all formats."""
    import import_columns
    import import_folders
    import import_layouts

    return {**import_columns.FORMATS, **import_folders.FORMATS, **import_layouts.FORMATS}


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
        args.out.write_text(
            json.dumps({n: {d: vars(o) for d, o in rows.items()} for n, rows in results.items()}, indent=1)
        )
    return 1 if total["SILENT"] else 0


if __name__ == "__main__":
    shutil.get_terminal_size()
    sys.exit(main())
