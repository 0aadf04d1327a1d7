"""Appearance of stores, views, batches and episodes in a notebook: tables, bars of bytes, contact sheets."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arrays import Bytes

MAX_PICTURES = 32
MAX_POINTS = 300
"""Limit of the points of a line in a chart."""
MIN_SIDE, MAX_SIDE = 8, 256
"""Least number of pixels of a side of an array shown as a picture."""
COLORS = ("#3f6fb5", "#69a84f", "#d2903c", "#b0514f", "#7d62a8", "#4c9aa3", "#8b8b8b", "#c7a93f", "#5f5f5f")


def byte_text(count: float) -> str:
    """Format bytes: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"


def number_text(value: float | None, digits: int = 2) -> str:
    """Format a number; None becomes a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def duration_text(seconds: float) -> str:
    """Format a duration: 3725 -> "1 h 02 min"; 65 -> "1 min 05 s"; 7.2 -> "7 s"."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"


def step_bytes_text(figures: Mapping[str, Any]) -> str:
    """Format a replay memory's bytes a step, encoded, and apart from them its buffers of fixed size.

    Args:
        figures: of ``Store.stats``.
    """
    encoded = figures["encoded_bytes_per_step"] or None  # nothing is sealed yet
    return f"{number_text(encoded, 1)} bytes a step + {byte_text(figures['fixed_bytes'])} of buffers"


def described(value: Any) -> str:
    """Describe an array by dtype and shape: "uint8 [32, 4, 84, 84]"; describe other values by their text."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{value!r:.40}"


def titled(title: str, *parts: str) -> str:
    """Return a block of parts under a title."""
    return f"<div><b>{html.escape(title)}</b>{''.join(parts)}</div>"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table; cells are escaped."""
    heads = "".join(f"<th>{html.escape(one)}</th>" for one in head)
    cells = ("".join(f"<td>{html.escape(str(one))}</td>" for one in row) for row in rows)
    return f"<table><tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def bar(parts: Mapping[str, int], limit: int | None = None) -> str:
    """Return a bar of bytes by use, with a legend; the bar is as long as ``limit``, or as their sum."""
    parts = {name: nbytes for name, nbytes in parts.items() if nbytes > 0}
    total = max(1, sum(parts.values()), limit or 0)
    pieces, names = [], []
    for color, (name, nbytes) in zip(COLORS, parts.items(), strict=False):
        pieces.append(f"<span style='background:{color};width:{100 * nbytes / total:.2f}%'></span>")
        said = html.escape(f"{name.replace('_', ' ')} {byte_text(nbytes)}")
        names.append(f"<span style='color:{color}'>&#9632;</span> {said}")
    style = "display:flex;height:12px;max-width:640px;border:1px solid #999;margin:4px 0"
    return f"<div style='{style}'>{''.join(pieces)}</div><small>{' &nbsp; '.join(names)}</small>"


def line_chart(lines: Mapping[str, Sequence[tuple[float, float]]], across: str) -> str:
    """Return an SVG picture of lines by name, points [(x, y)] with x ascending; "" if no line has two points.

    Args:
        across: name of the x axis.
    """
    drawn = {name: points[:: -(-len(points) // MAX_POINTS)] for name, points in lines.items() if len(points) > 1}
    if not drawn:
        return ""
    xs, ys = ([point[axis] for points in drawn.values() for point in points] for axis in (0, 1))
    left, low, width, height = min(xs), min(ys), max(xs) - min(xs) or 1, max(ys) - min(ys) or 1
    parts = []
    for number, (color, (name, points)) in enumerate(zip(COLORS, drawn.items(), strict=False)):
        places = " ".join(f"{(x - left) / width * 400:.1f},{120 - (y - low) / height * 100:.1f}" for x, y in points)
        parts.append(f"<polyline points='{places}' fill='none' stroke='{color}' stroke-width='1.5'/>")
        parts.append(f"<text x='{number * 160}' y='12' fill='{color}'>{html.escape(name)}</text>")
    ends = {20: f"{max(ys):,.6g}", 120: f"{low:,.6g}"}
    parts += [f"<text x='404' y='{y + 4}' fill='currentColor'>{said}</text>" for y, said in ends.items()]
    scale = html.escape(f"{left:,.6g} to {max(xs):,.6g} {across}")
    parts.append(f"<text x='0' y='136' fill='currentColor'>{scale}</text>")
    return f"<svg viewBox='0 0 470 140' width='470' height='140' font-size='10'>{''.join(parts)}</svg>"


def picture_of(row: npt.NDArray[Any]) -> Bytes | None:
    """Return a picture, uint8 [height, width] or [height, width, 3], of an observation; ``None``: it is none.

    Of a stack the newest frame counts; axes may be [height, width, channels] or [channels, height, width].
    """
    if row.dtype != np.uint8:
        return None
    while row.ndim > 3:
        row = row[-1]
    if row.ndim == 3 and row.shape[-1] not in (1, 3):
        row = np.moveaxis(row, 0, -1) if row.shape[0] in (1, 3) else row[-1]
    if row.ndim == 3 and row.shape[-1] == 1:
        row = row[..., 0]
    sides = row.shape[:2]
    return row if row.ndim >= 2 and min(sides) >= MIN_SIDE and max(sides) <= MAX_SIDE else None


def contact_sheet(rows: Any) -> str:
    """Return pictures of the first rows of an array, or of a tensor on any device; "" where they are none, or Pillow is
    not installed."""
    if not getattr(rows, "shape", None) or str(rows.dtype).removeprefix("torch.") != "uint8":
        return ""  # numpy cannot read all kinds: bfloat16, tensors with a gradient
    first = rows[:MAX_PICTURES]
    there = np.asarray(first.cpu() if hasattr(first, "cpu") else first)
    pictures = [picture for row in there if (picture := picture_of(row)) is not None]
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return ""
    found = []
    for picture in pictures:
        content = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(picture)).save(content, "PNG")
        data = base64.b64encode(content.getvalue()).decode()
        found.append(f"<img style='margin:1px;width:84px' src='data:image/png;base64,{data}'>")
    return f"<div style='max-width:720px'>{''.join(found)}</div>" if found else ""
