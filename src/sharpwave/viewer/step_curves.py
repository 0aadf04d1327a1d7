"""Values of an episode's steps: as curves, and in full for one step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Floats, Ints
from sharpwave.escaping import escaped
from sharpwave.extras import install
from sharpwave.offline.surveys import EpisodeSpan, TooLargeError
from sharpwave.spec import Field
from sharpwave.viewer.frame_pictures import is_picture
from sharpwave.viewer.priorities import episode_numbers, numbers
from sharpwave.viewer.snapshots import MAX_DECODED_BYTES, MAX_READ_STEPS, Snapshot

Decode = Callable[[list[int]], str]
"""Returns the text of tokens."""

MAX_POINTS = 4000
"""Limit of a curve's points; with more, each bucket shows its smallest and largest."""
MAX_CURVES, MAX_COMPONENTS = 64, 8
"""Limits of an episode's curves, and of a value's components with a curve each; with more components, their smallest,
mean and largest are drawn."""
MAX_CHARACTERS, MAX_HEX, MAX_NUMBERS = 20_000, 256, 4096
"""Limits of the characters, bytes and numbers of a row of any length that are shown."""
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Characters of texts that are escaped: controls but tabs and line breaks, surrogates, and changes of direction."""
MAX_VALUES = 32
"""Limit of the components of a value that are shown in full."""


def plotted(snapshot: Snapshot) -> tuple[list[tuple[str, Field]], list[tuple[str, Field]]]:
    """Return the columns added later and the fields that are drawn as curves: all but pictures, up to ``MAX_CURVES``
    curves."""
    described = snapshot.survey.described
    late: list[tuple[str, Field]] = []
    fields: list[tuple[str, Field]] = []
    left, room = MAX_CURVES, MAX_DECODED_BYTES // described.layout.max_frames
    for found, those in ((late, snapshot.survey.late.fields), (fields, described.spec.fields)):
        for name, field in those.items():
            if field.ragged or is_picture(field):
                continue
            curves = _components(field) if _components(field) <= MAX_COMPONENTS else 3
            if curves <= left and field.row_bytes < room:
                found.append((name, field))
                left, room = left - curves, room - field.row_bytes
    return late, fields


def curves(snapshot: Snapshot, episode: EpisodeSpan, begin: int, end: int) -> dict[str, Any]:
    """Return rewards, fields and priorities of the steps ``begin <= step < end`` of an episode.

    Returns:
        ``step``, numbers; ``curves``, each with the ``name`` of its quantity, a ``label`` and ``values``, with None for
        missing numbers, and whether it is of a column added later (``late``); ``exact``: whether every step has a
        point.

    Raises:
        DamagedError, TooLargeError: as ``Snapshot.read``; also for too many steps.
    """
    if end - begin > MAX_READ_STEPS:
        raise TooLargeError(f"{end - begin:,} steps, at most {MAX_READ_STEPS:,} are drawn at a time; choose fewer")
    late, fields = plotted(snapshot)
    spec = snapshot.survey.described.spec
    sparse, observed = spec.sparse_names, spec.obs_names
    names = [name for name, _ in fields]
    count = end - begin
    found: list[tuple[str, str, Floats]] = [("reward", "reward", np.full(count, np.nan))]
    for name, field in fields:
        found += [(name, label, np.full(count, np.nan)) for label in _labels(name, field)]
    for part in snapshot.read(episode, names, begin, end):
        first, rows, arrays = part.first, part.rows, part.arrays
        out = slice(first + rows.start - begin, first + rows.stop - begin)
        found[0][2][out] = arrays["reward"][rows]
        place = 1
        for name, field in fields:
            values = arrays[name]
            parts = len(_labels(name, field))
            if name in sparse:
                kept, at = _kept(arrays["flags"], part.segment.header.episode_step, field.every or 1)
                shown = (kept >= rows.start) & (kept < rows.stop) & (at < len(values))
                for number, column in enumerate(_columns(values[at[shown]])):
                    found[place + number][2][kept[shown] + first - begin] = column
            else:
                for number, column in enumerate(_columns(values[part.frames[rows] if name in observed else rows])):
                    found[place + number][2][out] = column
            place += parts
    found[1:1] = _of_late(snapshot, episode, begin, end, late)
    found += _of_views(snapshot, episode, begin, end)
    late_names = {name for name, _ in late}
    x, thin = thinned(begin, [values for _, _, values in found])
    return {
        "step": x,
        "exact": count <= MAX_POINTS,
        "curves": [
            {"name": escaped(name), "label": escaped(label), "values": numbers(values), "late": name in late_names}
            for (name, label, _), values in zip(found, thin, strict=True)
        ],
    }


def tokenizer_of(path: Path) -> Decode:
    """Return the decoder of a ``tokenizer.json``.

    Raises: ModuleNotFoundError: the extra ``tokens`` is not installed.  ValueError: the file is none.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        what = f"--tokenizer needs tokenizers: {install('tokens')}"
        raise ModuleNotFoundError(what, name="tokenizers") from error
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception as error:  # it has no class of its own
        raise ValueError(f"--tokenizer {str(path)!r}: {error}; expected a tokenizer.json") from error
    return lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=False))


def values_at(snapshot: Snapshot, episode: EpisodeSpan, step: int, decode: Decode | None = None) -> dict[str, Any]:
    """Return all values of one step, as text; rows of any length with their number of items (``count``), their
    ``unit`` and what is ``left_out`` at their end, and rows of integers with the text that they are of (``decoded``).

    Args:
        decode: of tokens; ``None``: no text.

    Raises:
        DamagedError: the segment was deleted meanwhile, or cannot be decoded.
    """
    spec = snapshot.survey.described.spec
    small = [name for name, field in spec.fields.items() if not is_picture(field) and name not in spec.sparse_names]
    small = [name for name in small if spec.fields[name].row_bytes <= 1 << 20][:MAX_CURVES]
    told: list[dict[str, Any]] = []
    for part in snapshot.read(episode, small, step, step + 1):
        row = part.rows.start
        told.append({"name": "reward", "text": f"{float(part.arrays['reward'][row]):.6g}"})
        for name in small:
            at = part.frames[row] if name in spec.obs_names else row
            value, row_of = part.arrays[name][at], spec.fields[name]
            shown = _row_of(value, row_of) if row_of.ragged else {"text": text_of(value)}
            if decode is not None and _is_of_tokens(row_of):
                shown["decoded"] = _decoded(value, decode)
            told.append({"name": escaped(name), **shown})
    ids = snapshot.survey.ids(episode, step, step + 1)
    for name, field in list(snapshot.survey.late.fields.items())[:MAX_CURVES]:
        if field.row_bytes <= 1 << 20:
            values, written = snapshot.survey.late.read(name, ids)
            told.append({"name": escaped(name), "text": text_of(values[0]) if written[0] else "–", "late": True})
    return {"step": step, "lane_step": episode.first_step + step, "values": told}


def _is_of_tokens(field: Field) -> bool:
    return field.ragged and not field.inner and field.text is None and field.np_dtype.kind in "iu"


def _decoded(tokens: npt.NDArray[Any], decode: Decode) -> str:
    """Return the text of as many tokens as are shown; negative ones, which fill up rows, are left out."""
    some = tokens[:MAX_NUMBERS]
    try:
        return _plain(decode(some[some >= 0].tolist()))
    except Exception as error:  # of a library, or of numbers that are no tokens
        return f"({_plain(str(error))})"


def _plain(text: str) -> str:
    return CONTROLS.sub(lambda one: escaped(one[0]), text[:MAX_CHARACTERS])


def _row_of(value: npt.NDArray[Any], field: Field) -> dict[str, Any]:
    """Return a row of any length as JSON: text with its line breaks, bytes in hexadecimal, and numbers."""
    if field.text == "str":
        content = value.tobytes().decode(errors="replace")
        return _counted(_plain(content), len(content), "characters", MAX_CHARACTERS)
    if field.text == "bytes":
        return _counted(value[:MAX_HEX].tobytes().hex(" "), len(value), "bytes", MAX_HEX)
    unit = f"rows of {' × '.join(map(str, field.inner))}" if field.inner else "numbers"
    size = int(np.prod(field.inner, dtype=np.int64))
    most = max(1, MAX_NUMBERS // max(1, size))
    form = "{}" if field.np_dtype.kind in "iub" else "{:.4g}"
    rows = value[:most].reshape(min(len(value), most), size)[:, :MAX_NUMBERS].tolist()
    text = ("\n" if field.inner else " ").join(" ".join(map(form.format, row)) for row in rows)
    return _counted(text, len(value), unit, most)


def _counted(text: str, count: int, unit: str, most: int) -> dict[str, Any]:
    return {"text": text, "count": count, "unit": unit, "left_out": max(0, count - most)}


def text_of(value: npt.NDArray[Any]) -> str:
    """Return a value as shortened text."""
    flat = np.asarray(value).reshape(-1)
    form = "{:.6g}" if flat.dtype.kind == "f" else "{}"
    words = [form.format(one) for one in flat[:MAX_VALUES].tolist()]
    if len(flat) > MAX_VALUES:
        words.append(f"... {len(flat):,} numbers")
    return words[0] if np.ndim(value) == 0 else " ".join(words)


def _of_late(
    snapshot: Snapshot, episode: EpisodeSpan, begin: int, end: int, columns: list[tuple[str, Field]]
) -> list[tuple[str, str, Floats]]:
    found = []
    ids = snapshot.survey.ids(episode, begin, end) if columns else np.zeros(0, np.int64)
    for name, field in columns:
        values, written = snapshot.survey.late.read(name, ids)
        for label, column in zip(_labels(name, field), _columns(values), strict=True):
            found.append((name, label, np.where(written, column, np.nan)))
    return found


def _of_views(snapshot: Snapshot, episode: EpisodeSpan, begin: int, end: int) -> list[tuple[str, str, Floats]]:
    found = []
    for view in snapshot.views:
        low, high = np.searchsorted(view.lane, [episode.lane, episode.lane + 1])
        steps = view.step[low:high] - episode.first_step
        inside = slice(low + int(np.searchsorted(steps, begin - view.span + 1)), low + int(np.searchsorted(steps, end)))
        at = view.step[inside] - episode.first_step
        of_items = {"priority": view.priority, "TD error": view.td_error, "times sampled": view.uses}
        for what, values in of_items.items():
            if values is None or not len(at):
                continue
            column = np.full(end - begin, np.nan)
            for offset in range(min(view.span, end - begin)):  # a window's steps share its priority
                places = at + offset - begin
                ok = (places >= 0) & (places < end - begin) & (at + offset < episode.steps) & (at >= 0)
                column[places[ok]] = values[inside][ok]
            found.append((what, f"{what} ({view.name})" if len(snapshot.views) > 1 else what, column))
    return found


def thinned(begin: int, columns: list[Floats]) -> tuple[list[int], list[Floats]]:
    """Return the numbers of the steps with a point, from ``begin`` on, and each column's values there. Beyond
    ``MAX_POINTS`` steps, points are the smallest and largest of each bucket."""
    count = len(columns[0])
    if count <= MAX_POINTS:
        return list(range(begin, begin + count)), columns
    size = -(-2 * count // MAX_POINTS)
    starts = np.arange(0, count, size)
    x = np.stack([starts, np.minimum(starts + size // 2, count - 1)], axis=1).reshape(-1) + begin
    thin = []
    for values in columns:
        padded = np.pad(values, (0, len(starts) * size - count), constant_values=np.nan).reshape(-1, size)
        known = ~np.isnan(padded)
        low = np.where(known, padded, np.inf).min(axis=1)
        high = np.where(known, padded, -np.inf).max(axis=1)
        thin.append(np.where(known.any(axis=1, keepdims=True), np.stack([low, high], axis=1), np.nan).reshape(-1))
    return x.tolist(), thin


def _kept(flags: npt.NDArray[np.uint8], first: int, every: int) -> tuple[Ints, Ints]:
    """Return the steps of a segment that a sparse field keeps, and each one's row in its column. The column may begin
    with the last step kept before the segment."""
    number = episode_numbers(flags, first)
    kept = np.flatnonzero((number >= 0) & (number % every == 0))
    return kept, np.arange(len(kept)) + int(len(number) > 0 and number[0] % every != 0)


def _components(field: Field) -> int:
    return int(np.prod(field.shape, dtype=np.int64))


def _labels(name: str, field: Field) -> list[str]:
    count = _components(field)
    if count == 1:
        return [name]
    return (
        [f"{name}[{k}]" for k in range(count)]
        if count <= MAX_COMPONENTS
        else [f"{name} {w}" for w in ("min", "mean", "max")]
    )


def _columns(values: npt.NDArray[Any]) -> list[Floats]:
    """Return the curves of values [n, *shape], float64 [n] each."""
    flat = values.reshape(len(values), int(np.prod(values.shape[1:], dtype=np.int64))).astype(np.float64)
    if flat.shape[1] <= MAX_COMPONENTS:
        return list(flat.T)
    return [flat.min(axis=1), flat.mean(axis=1), flat.max(axis=1)]
