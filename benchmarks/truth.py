"""Check of a `Recorder` against logs of the environments: the store must hold exactly the logged transitions.

    python benchmarks/truth.py [--steps 1000] [--only NAME ...] [--out FILE]

Plays one set-up after another (tests/support/setups.py): single environments, Gymnasium's vectors and ale-py's in every
autoreset mode, wrappers, crashes, recorders made again in mid-episode, refused steps, forgotten resets. An innermost
wrapper logs every reset and every step to a file; whole transitions are put together from that log alone, the
obvious way, and compared with everything that can be sampled, for one step and for three: observations (stacks) and
successors bit by bit, actions, returns, discounts. "wrong" never happened, "missing" did and is not there.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import runner
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.setups import SETUPS

RESULTS = runner.RESULTS / "truth.json"


def main() -> None:
    """Run, print, write the JSON; exit code 1 if anything is wrong or missing."""
    parser = runner.parser(__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="calls of step() for each set-up")
    parser.add_argument("--only", nargs="+", help="set-ups whose names contain one of these")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="gymnasium")
    found: dict[str, dict[str, Any]] = {}
    begin = time.monotonic()
    console = runner.console(110)
    for name, setup in SETUPS.items():
        if args.only and not any(part in name for part in args.only):
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        held, result = setup.run(args.steps)
        found[name] = {"steps": held, "compared": result.compared, "wrong": result.wrong, "missing": result.missing}
    table = Table("set-up", "steps", "transitions compared", "wrong", "missing")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in found.items():
        table.add_row(name, *(f"{value:,}" for value in row.values()))
    total = {what: sum(row[what] for row in found.values()) for what in ("steps", "compared", "wrong", "missing")}
    table.add_section()
    table.add_row(f"{len(found)} set-ups", *(f"{value:,}" for value in total.values()))
    console.print(table)
    seconds = round(time.monotonic() - begin)
    runner.write(args.out, {"seconds": seconds, "total": total, "setups": found})
    print(f"{seconds} s; {args.out}")
    if total["wrong"] or total["missing"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
