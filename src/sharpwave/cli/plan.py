"""``sharpwave plan``: predicted memory of a replay memory in each layout."""

from __future__ import annotations

import math
import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sharpwave.cli.output import console as standard_output
from sharpwave.cli.output import table
from sharpwave.escaping import printable
from sharpwave.showing import byte_text
from sharpwave.training.recipes.recipe import parse_size


@dataclass(frozen=True)
class MemoryLayout:
    """Layout of a replay memory: bytes of a step, and of buffers whose size the steps do not change."""

    name: str
    bytes_per_step: float
    fixed_bytes: float = 0

    def total(self, steps: int) -> float:
        return self.bytes_per_step * steps + self.fixed_bytes


SAMPLE_RAM = 1 << 31
"""Memory in bytes for the sample of a data set."""
# An int64 action, a float32 reward, terminated and truncated.
SCALAR_BYTES = 8 + 4 + 2


def layouts(shape: tuple[int, ...], item_bytes: int, stack: int, dtype: str) -> list[MemoryLayout]:
    """Return the usual layouts for observations of ``stack`` frames of ``shape``."""
    pixels = math.prod(shape)
    return [
        MemoryLayout("float64 stacks, obs and next_obs", 2 * stack * pixels * 8 + SCALAR_BYTES),
        MemoryLayout(f"{dtype} stacks, obs and next_obs", 2 * stack * pixels * item_bytes + SCALAR_BYTES),
        MemoryLayout(f"{dtype} stacks, once", stack * pixels * item_bytes + SCALAR_BYTES),
        MemoryLayout(f"{dtype} frames, once", pixels * item_bytes + SCALAR_BYTES),
    ]


def parse_count(text: str) -> int:
    """Parse "1e6", "1_000_000", "1,000,000" or "1M" as 1000000.

    Raises:
        ValueError: another form, or less than one.
    """
    plain = text.replace(",", "").replace("_", "").strip()
    factor = {"k": 1e3, "m": 1e6, "g": 1e9}.get(plain[-1:].lower(), 1.0)
    try:
        count = float(plain[:-1] if factor > 1 else plain) * factor
    except ValueError:
        count = 0.0
    if not 1 <= count < 1e15:
        raise ValueError(f"--capacity: got {text!r}, expected a number of steps such as 1e6, 1_000_000 or 1M")
    return int(count)


def measure(env_name: str, shape: tuple[int, ...], stack: int, steps: int) -> tuple[MemoryLayout, str]:
    """Measure a full store by playing ``env_name`` at random for ``steps`` steps.

    Encoded segments, index and samplers grow with the steps. Open segments, encoders, dictionaries and batches do not.

    Returns:
        its layout, and the codecs that the store chose.
    Raises:
        ValueError: an unknown environment, or one whose observations are not of ``shape``.
    """
    import sharpwave as sw
    from sharpwave.envs import AtariSettings, games, make_env, step_spec

    lanes = 8
    if env_name in games():
        if len(shape) != 2:
            raise ValueError(
                f"--obs: {env_name} gives frames of height x width, got {'x'.join(map(str, shape))}; use 84x84"
            )
        env = make_env(env_name, lanes, AtariSettings(height=shape[0], width=shape[1], stack=stack))
    else:
        env = make_env(env_name, lanes)
        if env.single_observation_space.shape != shape:
            own = "x".join(map(str, env.single_observation_space.shape or ()))
            raise ValueError(
                f"--obs: {env_name} gives observations of {own}, got {'x'.join(map(str, shape))}; use --obs {own}"
            )
    with sw.Store(step_spec(env), capacity=max(steps, lanes)) as store:
        replay = store.transitions()
        recorded = sw.Recorder(env, store)
        recorded.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(math.ceil(steps / lanes)):
            recorded.step(env.action_space.sample())
        replay.sample(32)
        stats = store.stats()
    env.close()
    codecs = "; ".join(f"{field}: {', '.join(counts)}" for field, counts in stats["codecs"].items() if counts)
    taken = stats["bytes"]
    growing = stats["encoded_bytes_per_step"] + (taken["index"] + taken["samplers"]) / stats["steps"]
    return MemoryLayout(f"encoded ({env_name}, measured)", growing, _buffers(taken)), codecs


def plan(
    obs: Annotated[str, typer.Option(help="shape of one frame or vector, for example 84x84 or 17")] = "84x84",
    stack: Annotated[int, typer.Option(min=1, help="frames in an observation")] = 4,
    capacity: Annotated[str, typer.Option(help="steps that the memory holds, for example 1e6 or 1M")] = "1e6",
    dtype: Annotated[str, typer.Option(help="dtype of an observation, for example uint8 or float32")] = "uint8",
    env: Annotated[
        str | None, typer.Option(help="environment in which the encoded size is measured, for example pong")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="data set to measure instead: FILE.npz, hdf5:FILE, minari:NAME or others of `sharpwave import`",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=100, help="steps to measure")] = 10_000,
    png: Annotated[Path | None, typer.Option(help="also draw the table to this PNG file")] = None,
) -> None:
    """Print the memory of a replay memory in each layout, or of your own data.

    Examples:

        sharpwave plan --obs 84x84 --stack 4 --capacity 1e6 --env pong

        sharpwave plan --data minari:D4RL/door/human-v2
    """
    if data is not None:
        if env is not None or png is not None:
            raise ValueError("--data measures a data set; leave out --env and --png")
        plan_data(data, parse_count(capacity), steps)
        return
    import numpy as np

    shape, count = parse_size(obs, "--obs"), parse_count(capacity)
    try:
        item_bytes = np.dtype(dtype).itemsize
    except TypeError:
        raise ValueError(f"--dtype: got {dtype!r}, expected a numpy dtype such as uint8 or float32") from None
    rows = layouts(shape, item_bytes, stack, dtype)
    if env is not None:
        measured, codecs = measure(env, shape, stack, steps)
        rows.append(measured)
    known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})  # not on Windows
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else 0
    console = standard_output()
    title = f"{count:,} steps, observations of {stack} x {obs} {dtype}"
    planned = table("layout", "bytes a step", "total", "smaller by", title=title)
    for row in rows:
        total = row.total(count)
        less = f"{rows[0].total(count) / total:,.0f} x"
        style = "bold green" if row.name.startswith("encoded") else ""
        planned.add_row(row.name, f"{row.bytes_per_step:,.0f}", byte_text(total), less, style=style)
    console.print(planned)
    if memory:
        console.print(f"This machine has {byte_text(memory)} of RAM.", highlight=False)
    if env is None:
        console.print("Its encoded size depends on the frames: --env pong measures it by playing.", highlight=False)
    else:
        fixed = byte_text(measured.fixed_bytes)
        console.print(f"Its total includes {fixed} of buffers, which more steps do not enlarge.", highlight=False)
        console.print(f"Measured over {steps:,} random steps; packed by {codecs}.", highlight=False)
    if png is not None:
        draw(rows, count, png)
        console.print(f"picture: {png}", soft_wrap=True, highlight=False)


def plan_data(text: str, count: int, steps: int) -> None:
    """Print what a data set takes, by field and in total, by encoding episodes of some ``steps``, evenly spread.

    Raises: ValueError, FileNotFoundError, ModuleNotFoundError: as ``load``.
    """
    import tempfile

    import numpy as np
    from rich import box
    from rich.table import Table

    from sharpwave.data.formats import open_source
    from sharpwave.loading import Fit
    from sharpwave.offline.surveys import survey
    from sharpwave.store import Store

    with closing(open_source(text)) as source:
        spec, all_steps, all_episodes = source.spec, source.steps, len(source)
        chosen = min(all_episodes, max(1, math.ceil(steps * all_episodes / max(1, all_steps))))
        fit = Fit(spec, spec, source.name)
        with Store(spec, ram=SAMPLE_RAM) as store, tempfile.TemporaryDirectory() as folder:
            replay = store.transitions()
            given = dict.fromkeys(spec.ragged_names, 0)
            numbers = np.unique(np.linspace(0, all_episodes - 1, chosen).astype(int)).tolist()
            half, half_taken = 0, 0
            for place, number in enumerate(numbers):
                if place == len(numbers) // 2:
                    half, half_taken = len(store), store.stats()["bytes"].get("shared_values", 0)
                episode = source.read(number)
                store.add_episode(**fit.arrays(episode))
                rows = spec.split_obs(episode.obs) | spec.split_action(episode.action) | dict(episode.fields)
                for name in given:
                    given[name] += sum(map(_row_bytes, rows[name][: len(episode.reward)]))
            replay.sample(1)
            sampled, stats = len(store), store.stats()
            taken, shared = stats["bytes"], {name: one["bytes"] for name, one in stats.get("shared", {}).items()}
            path = Path(folder) / "sample"
            store.checkpoint(path)
            found = survey(path)
    encoded = sum(one.bytes for codecs in found.packed.values() for one in codecs.values()) + found.overhead_bytes
    growing = encoded / max(1, found.steps) + (taken["index"] + taken["samplers"]) / sampled
    of_shared = taken.get("shared_values", 0)
    more_of_shared = (of_shared - half_taken) / max(1, sampled - half)  # a step, once the first half has its values
    console = standard_output()
    fields_table = Table(
        title=f"{all_episodes:,} episodes, {all_steps:,} steps; {sampled:,} steps encoded",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    fields_table.add_column("field", overflow="fold")
    fields_table.add_column("values", no_wrap=True)
    for header in ("raw bytes a step", "encoded", "smaller by"):
        fields_table.add_column(header, justify="right")
    fields_table.add_column("codecs")
    fields = {name: f"{'x'.join(map(str, field.shape))} {field.dtype}".strip() for name, field in spec.fields.items()}
    for name, codecs in found.packed.items():
        nbytes = sum(one.bytes for one in codecs.values()) + shared.get(name, 0)
        raw = given[name] if name in given else sum(one.raw_bytes for one in codecs.values())
        held = max(1, sum(one.steps for one in codecs.values()))
        less = f"{raw / nbytes:,.1f} x" if nbytes else ""
        values = fields.get(name, {"flags": "uint8", "reward": "float32"}.get(name, ""))
        cells = (f"{raw / held:,.1f}", f"{nbytes / held:,.1f}", less, ", ".join(sorted(codecs)))
        fields_table.add_row(printable(name), values, *cells)
    fields_table.add_row("headers, checksums", "", "", f"{found.overhead_bytes / max(1, found.steps):,.1f}", "", "")
    console.print(fields_table)
    # Arrays with the observation and the next one, a float32 reward, terminated and truncated.
    row_bytes = 4 + 2 + sum(
        (given[name] / sampled if field.ragged else field.row_bytes) * (2 if name in spec.obs_names else 1)
        for name, field in spec.fields.items()
    )  # fmt: skip
    for what, number in (("the data set", all_steps), (f"{count:,} steps of it", count)):
        total = growing * number + max(0, of_shared + more_of_shared * (number - sampled)) + _buffers(taken)
        console.print(
            f"{what}: {byte_text(total)} of RAM, {total / number:,.1f} bytes a step, index and buffers included; "
            f"as arrays of obs and next_obs {byte_text(row_bytes * number)}",
            highlight=False,
        )


def _row_bytes(row: Any) -> int:
    """Return the bytes of a text, or of an array's values."""
    return len(row.encode()) if isinstance(row, str) else len(row) if isinstance(row, bytes) else int(row.nbytes)


def _buffers(taken: dict[str, int]) -> int:
    """Return the bytes of a store that its number of steps does not change, of its ``stats()["bytes"]``."""
    return taken["open_segments"] + taken["encoders"] + taken["dictionaries"] + taken["batches"]


def draw(rows: list[MemoryLayout], count: int, png: Path) -> None:
    """Draw a bar for each layout, on a logarithmic scale."""
    from matplotlib.figure import Figure

    from sharpwave.training.atomic_files import replacing

    if not png.parent.is_dir():
        raise ValueError(f"--png: the folder {str(png.parent)!r} does not exist; make it first")
    figure = Figure(figsize=(9, 0.7 * len(rows) + 1.4), layout="constrained")
    axes: Any = figure.subplots()
    names = [row.name for row in rows][::-1]
    totals = [row.total(count) for row in rows][::-1]
    colors = ["tab:green" if name.startswith("encoded") else "tab:gray" for name in names]
    bars = axes.barh(names, totals, color=colors)
    axes.bar_label(bars, [byte_text(total) for total in totals], padding=4)
    axes.set_xscale("log")
    axes.set_xlim(min(totals) / 3, max(totals) * 6)
    axes.set_xlabel("bytes")
    axes.set_title(f"Replay memory of {count:,} steps")
    with replacing(png) as partial:
        figure.savefig(partial, dpi=120, format="png")
