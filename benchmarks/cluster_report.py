"""Tables of ``cluster.py``."""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

GOALS = {"samples": 8.0, "cpu": 10.0, "bytes": 25.0}
"""Times Reverb's samples a second, of its processor time, and of its bytes a step."""
NEEDS_MB = {"DQN": 181.0, "IMPALA": 759.0}
"""Decoded megabytes a second that seed workloads sample."""


def report(results: dict[str, Any]) -> None:
    """Print the tables, and the goals beside what was reached."""
    console = Console(width=150)
    settings = results["settings"]
    load = ", ".join(f"{one:.1f}" for one in results["environment"]["load"])
    console.print(f"{settings['steps']:,} steps, medians of {settings['rounds']} rounds; load {load}")
    console.print(_draws(results), _writes(results), _lost(results))
    _goals(console, results)


def median(rounds: list[dict[str, Any]], name: str) -> float:
    """Return the median of a figure over rounds."""
    return float(statistics.median(one[name] for one in rounds))


def servers_ms(rounds: list[dict[str, Any]]) -> float:
    """Return the servers' processor time a batch."""
    return float(statistics.median(one["servers_cpu_s"] / one["batches"] * 1e3 for one in rounds))


def _draws(results: dict[str, Any]) -> Table:
    table = Table(title="Prioritized batches of 256, nobody writing")
    for name in (
        "", "servers", "transitions/s", "MB/s decoded", "p50 ms", "p99 ms", "CPU ms a batch: learner", "servers",
        "bytes a transition", "bytes a step",
    ):  # fmt: skip
        table.add_column(name, justify="right" if name else "left")
    for one in results["contenders"].values():
        draw = one["draw"]
        figures = [median(draw, name) for name in ("transitions_per_s", "mb_per_s", "p50_ms", "p99_ms", "cpu_ms")]
        table.add_row(
            one["name"], str(one["servers"]), f"{figures[0]:,.0f}", f"{figures[1]:,.0f}",
            *(f"{figure:.1f}" for figure in figures[2:]), f"{servers_ms(draw):.1f}",
            f"{median(draw, 'bytes_per_transition'):,.0f}",
            f"{one['fill']['bytes_per_step']:,.0f}" if one["name"] != "tcp" else "as unix",
        )  # fmt: skip
    return table


def _writes(results: dict[str, Any]) -> Table:
    table = Table(title=f"Writing at full speed; then drawing while {results['settings']['paced']:,.0f} steps/s come")
    for name in (
        "", "servers", "writers", "steps/s in", "CPU us a step: writers", "servers", "transitions/s out", "p50 ms",
        "p99 ms", "steps/s meanwhile",
    ):  # fmt: skip
        table.add_column(name, justify="right" if name else "left")
    for one in results["contenders"].values():
        for writers, rounds in one["write"].items():
            both = one["both"][writers]
            speed, ours, theirs = (
                statistics.median(each[name] / each[per] * scale for each in rounds)
                for name, per, scale in (
                    ("steps", "seconds", 1),
                    ("cpu_s", "steps", 1e6),
                    ("servers_cpu_s", "steps", 1e6),
                )
            )
            table.add_row(
                one["name"], str(one["servers"]), writers, f"{speed:,.0f}", f"{ours:.0f}", f"{theirs:.0f}",
                f"{median(both, 'transitions_per_s'):,.0f}", f"{median(both, 'p50_ms'):.1f}",
                f"{median(both, 'p99_ms'):.1f}", f"{median(both, 'steps_per_s'):,.0f}",
            )  # fmt: skip
    return table


def _lost(results: dict[str, Any]) -> Table:
    table = Table(title="One of two killed (SIGKILL)")
    for name in ("", "acknowledged", "lost", "seconds until it is back"):
        table.add_column(name, justify="right" if name else "left")
    for name, one in results["faults"].items():
        lost = one["acknowledged"] - one["there"]
        table.add_row(name, f"{one['acknowledged']:,.0f}", f"{max(0, lost):,.0f}", f"{one['back_s']:.1f}")
    return table


def _goals(console: Console, results: dict[str, Any]) -> None:
    for name, one in results["weights"].items():
        console.print(
            f"{name}: four of skewed priorities, largest relative error against one memory: "
            f"probabilities {one['probability']:.2g}, weights {one['weight']:.2g}"
        )
    contenders = results["contenders"]
    unrolls = statistics.median(results["unrolls_mb_per_s"])
    console.print(
        f"unix 1: {unrolls:,.0f} MB/s of windows of 20 steps, one frame a step: "
        f"{unrolls / NEEDS_MB['IMPALA']:.1f} times IMPALA's {NEEDS_MB['IMPALA']:.0f}"
    )
    for name, one in contenders.items():
        if one["servers"] == 1 and one["name"] != "Reverb":
            speed = median(one["draw"], "mb_per_s")
            times = speed / NEEDS_MB["DQN"]
            console.print(
                f"{name}: {speed:,.0f} MB/s decoded by one shard: {times:.1f} times DQN's {NEEDS_MB['DQN']:.0f}"
            )
        peer = contenders.get(f"Reverb {one['servers']}")
        if peer is None or one["name"] == "Reverb":
            continue
        pairs = list(zip(one["draw"], peer["draw"], strict=True))
        samples = statistics.median(ours["transitions_per_s"] / theirs["transitions_per_s"] for ours, theirs in pairs)
        cpu = statistics.median(_cpu_ms(theirs) / _cpu_ms(ours) for ours, theirs in pairs)
        nbytes = peer["fill"]["bytes_per_step"] / contenders[f"unix {one['servers']}"]["fill"]["bytes_per_step"]
        console.print(
            f"{name}: {samples:.1f} times Reverb's samples (goal {GOALS['samples']:.0f}), 1/{cpu:.1f} of its processor "
            f"time (goal 1/{GOALS['cpu']:.0f}), 1/{nbytes:.1f} of its bytes a step (goal 1/{GOALS['bytes']:.0f})"
        )


def _cpu_ms(one: dict[str, Any]) -> float:
    """Return the processor time of the learner and the servers, a batch."""
    return float(one["cpu_ms"] + one["servers_cpu_s"] / one["batches"] * 1e3)
