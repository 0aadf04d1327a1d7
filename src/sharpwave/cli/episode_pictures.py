"""Pictures of an episode: a contact sheet, or a film."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sharpwave.offline.surveys import EpisodeSpan, Survey
    from sharpwave.spec import Field, Spec

SHEET_FRAMES = 24
SMALLEST = 120
"""Pixels of the shorter side that a frame is enlarged to."""
MARGIN, CAPTION, TITLE = 8, 18, 28
DPI = 100
MAX_PIXELS = 1 << 27


def image_field(spec: Spec, name: str | None) -> str:
    """Return the flat name of the observation's field to draw: ``name``, or the first that is an image.

    Raises:
        ValueError: no such field, or not an image.
    """
    names = list(spec.obs_names)
    if name is not None:
        flat = name if name in names else f"obs.{name}"
        if flat not in names:
            raise ValueError(f"--field: got {name!r}, expected one of {', '.join(names)}")
        names = [flat]
    for one in names:
        if _is_image(spec.fields[one]):
            return one
    told = ", ".join(f"{one} is {spec.fields[one].dtype} {list(spec.fields[one].shape)}" for one in names)
    raise ValueError(f"--out: only images can be drawn, uint8 [H, W] or [H, W, 1, 3 or 4 channels]; {told}")


def _is_image(field: Field) -> bool:
    channels = field.shape[2] if len(field.shape) == 3 else 1
    return field.dtype == "uint8" and len(field.shape) in (2, 3) and channels in (1, 3, 4)


def write_picture(found: Survey, number: int, name: str, out: Path, count: int | None, fps: float) -> int:
    """Write an episode's frames to ``out``; return how many.

    Args:
        count: number of evenly spaced frames, including first and last; ``None``: ``SHEET_FRAMES``, all in a film.

    Raises:
        ValueError: the frames were evicted or are damaged, or ``out`` cannot be written.
    """
    import numpy as np

    from sharpwave.training.atomic_files import replacing

    episode = found.episodes[number]
    last = episode.steps - (episode.end == "unfinished")  # an episode that ended has a final observation
    if count is None:
        count = SHEET_FRAMES if out.suffix.lower() == ".png" else last + 1
    wanted = np.unique(np.linspace(0, last, min(count, last + 1)).round().astype(np.int64))
    shown = shown_frames(found, episode, name, wanted)
    try:
        with replacing(out) as partial:
            if out.suffix.lower() == ".gif":
                return film(shown, partial, fps)
            title = f"episode {number}, lane {episode.lane}: {episode.steps:,} steps, return {episode.total:g}"
            return sheet(list(shown), partial, title)
    except OSError as error:
        raise ValueError(f"--out: {str(out)!r} cannot be written: {error}") from error


class SheetFrame(NamedTuple):
    """Frame of an episode.

    Attributes:
        step: its number in the episode; for the final observation, the number of steps.
        final: whether it is the final observation.
        gained: sum of the rewards from the frame shown before to this one.
    """

    step: int
    final: bool
    frame: npt.NDArray[Any]
    gained: float


def shown_frames(found: Survey, episode: EpisodeSpan, name: str, wanted: npt.NDArray[np.int64]) -> Iterator[SheetFrame]:
    """Yield an episode's frames at steps ``wanted``, as ``Survey.frames`` does.  Raises: DamagedError."""
    import numpy as np

    reward = np.concatenate([part.arrays["reward"][part.rows] for part in found.read(episode, ())])
    before = 0
    for step, frame in found.frames(episode, name, wanted):
        yield SheetFrame(step, step == episode.steps, frame, float(reward[before:step].sum(dtype=np.float64)))
        before = step


def enlarged(frame: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return a frame as uint8 [height, width, 3], enlarged to a visible size by repeating pixels."""
    import numpy as np

    picture = frame if frame.ndim == 3 else frame[:, :, None]
    if picture.shape[2] == 4:  # blended over black
        picture = (picture[:, :, :3].astype(np.uint16) * picture[:, :, 3:] // 255).astype(np.uint8)
    picture = np.broadcast_to(picture, (*picture.shape[:2], 3))
    times = -(-SMALLEST // max(picture.shape[:2]))
    return np.ascontiguousarray(picture.repeat(times, 0).repeat(times, 1))


def film(shown: Any, out: Path, fps: float) -> int:
    """Write a GIF; return its number of frames. A frame equal to the previous one prolongs that instead."""
    import imageio.v2 as imageio

    count = 0
    writer: Any = imageio.get_writer(out, mode="I", duration=1000 / fps, loop=0)
    with writer:
        for one in shown:
            writer.append_data(enlarged(one.frame))
            count += 1
    return count


def sheet(shown: list[SheetFrame], out: Path, title: str) -> int:
    """Write a PNG: frames in reading order, below each its step and the rewards since the last.

    Pixels are drawn as they are.
    """
    from matplotlib.figure import Figure

    pictures = [enlarged(one.frame) for one in shown]
    height, width = pictures[0].shape[:2]
    cell_width, cell_height = width + MARGIN, height + CAPTION + MARGIN
    columns = min(len(shown), max(1, math.ceil(math.sqrt(len(shown) * 1.5 * cell_height / cell_width))))
    rows = -(-len(shown) // columns)
    total_width = max(columns * cell_width + MARGIN, 8 * len(title))
    total_height = rows * cell_height + MARGIN + TITLE
    if total_width * total_height > MAX_PIXELS:
        raise ValueError(
            f"--frames: {len(shown):,} frames of {width}x{height} pixels exceed a sheet's {MAX_PIXELS:,} pixels; "
            "give fewer --frames"
        )
    figure = Figure(figsize=(total_width / DPI, total_height / DPI), dpi=DPI)
    style: dict[str, Any] = {"va": "top", "family": "DejaVu Sans", "fontsize": 8}
    figure.text(MARGIN / total_width, 1 - MARGIN / total_height, title, **{**style, "fontsize": 10})
    for place, (one, picture) in enumerate(zip(shown, pictures, strict=True)):
        left = MARGIN + place % columns * cell_width
        top = TITLE + MARGIN + place // columns * cell_height
        figure.figimage(picture, left, total_height - top - height, origin="upper")
        caption = f"{one.step:,}{'  end' if one.final else ''}  +{one.gained:g}".replace("+-", "-")
        figure.text(left / total_width, 1 - (top + height + 2) / total_height, caption, **style)
    figure.savefig(out, dpi=DPI, format="png")
    return len(shown)
