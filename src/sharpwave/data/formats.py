"""Formats of data sets, by the prefix before the colon."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from sharpwave.data.episode import Episode, LastStep, Source, nameless
from sharpwave.data.opened_files import ReadBudget
from sharpwave.escaping import escaped

SOURCES = {
    "minari": ("minari", "open_minari"),
    "hdf5": ("hdf5_layouts", "open_hdf5"),
    "npz": ("npz", "open_npz"),
    "parquet": ("parquet", "open_parquet"),
    "lerobot": ("lerobot", "open_lerobot"),
    "rlds": ("rlds", "open_rlds"),
    "zarr": ("zarr_arrays", "open_zarr"),
}
TARGETS = ("minari", "hdf5", "npz", "parquet")
ENDINGS = {".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5", ".parquet": "parquet"} | {
    ".zarr": "zarr",
    ".zarr.zip": "zarr",
}


def split(text: str, known: tuple[str, ...], what: str) -> tuple[str, str]:
    """Return the format and the place of ``"FORMAT:PLACE"``, or of a file with a known ending.

    Raises: ValueError: an unknown format.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what}: got {type(text).__name__}, expected a string such as 'npz:FILE'")
    kind, colon, place = text.partition(":")
    if colon and kind in known:
        return kind, place
    for ending, one in ENDINGS.items():
        if text.lower().endswith(ending) and one in known:
            return one, text
    raise ValueError(f"{what}: got {text!r}, expected one of {', '.join(f'{one}:...' for one in known)}")


class HeldSource:
    """Data set within the bounds of its files: each error in reading it is a ValueError that names it."""

    def __init__(self, source: Source, budget: ReadBudget) -> None:
        self._source, self._budget = source, budget
        self.name, self.spec, self.steps = source.name, source.spec, source.steps
        self.left_out = [escaped(one) for one in source.left_out]  # names of unknown origin
        self.notes, self.left = [escaped(one) for one in source.notes], source.left
        self.about = dict(getattr(source, "about", {}))
        budget.check_steps(self.name, self.steps)
        budget.check_count(self.name, len(source), "episodes")
        budget.check_total(self.name, self.steps, self.spec.fields)

    def __len__(self) -> int:
        return len(self._source)

    def read(self, number: int) -> Episode:
        """Read an episode.  Raises: ValueError: the data set is damaged."""
        with self._budget.held(self._source.place(number), self.name):
            return self._source.read(number)

    def named(self, name: str) -> list[int]:
        """Return the numbers of the episodes with a name.  Raises: ValueError."""
        named = getattr(self._source, "named", None)
        if named is None:
            raise nameless(self.name, name)
        with self._budget.held(self.name):
            found: list[int] = named(name)
            return found

    def length(self, number: int) -> int:
        """Return an episode's number of steps, also of a damaged one."""
        return self._source.length(number)

    def place(self, number: int) -> str:
        """Describe an episode's place: the data set's name, and where in it the episode lies."""
        return escaped(self._source.place(number))

    def close(self) -> None:
        """Close the files."""
        self._source.close()


def open_source(
    text: str,
    *,
    trust: bool = False,
    progress: bool | None = False,
    last: LastStep = "auto",
    skip_damaged: bool = False,
) -> HeldSource:
    """Open a data set.

    Args:
        skip_damaged: report an episode's damage only when it is read.
        last: meaning of the last steps of RLDS, as for ``load``.
        trust: lift the bounds for files of unknown origin, and follow links.
        progress: show a bar while its episodes are found; ``None``: in a terminal.

    Raises: ValueError, FileNotFoundError, ModuleNotFoundError; OSError: its files cannot be read.
    """
    kind, place = split(text, tuple(SOURCES), "load")
    module, name = SOURCES[kind]
    if last != "auto" and kind != "rlds":
        raise ValueError(f"load: got last={last!r} for {kind}, which declares it; last is for rlds only, leave it out")
    given = {"last": last} if kind == "rlds" else {}
    opener: Callable[..., Source] = getattr(import_module(f"sharpwave.data.{module}"), name)
    budget = ReadBudget(trust, progress, skip_damaged)
    with budget.held(f"{kind}:{place}", f"{kind}:"):
        source = opener(place, budget, **given)
        try:
            if not len(source):
                raise ValueError(f"{source.name}: no episodes with steps to import")
            return HeldSource(source, budget)
        except BaseException:
            source.close()
            raise
