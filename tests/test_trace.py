"""The data's way as `python -m sharpwave.testing.trace` shows it: few calls from a verb to the core."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharpwave.testing import trace


@pytest.mark.parametrize("verb", ["append", "extend", "sample", "update_priorities"])
def test_a_verb_is_a_few_calls_from_the_core(verb: str) -> None:
    calls = trace.traced(trace.verbs()[verb])
    assert calls[0].name.endswith(f".{verb}") and calls[0].depth == 1
    assert len(calls) <= 25 and len({call.where.partition(":")[0] for call in calls}) <= 9
    lines = trace.tree(calls).splitlines()
    assert len(lines) == len(calls) and lines[-1].endswith(calls[-1].where)


DOC = Path(__file__).parents[1] / "docs" / "architecture" / "index.md"
SHARE = 0.15
"""By which a part may have grown or shrunk since its figures were printed into the page."""


def rows_of(text: str) -> dict[str, list[int | None]]:
    """Return the figures of the table's rows by name: calls, files, depth and lines."""
    found: dict[str, list[int | None]] = {}
    for line in text[text.index("| to understand") :].partition("\n\n")[0].splitlines()[2:]:
        name, *figures = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = [int(one.replace(",", "")) if one else None for one in figures]
    return found


def test_the_page_has_the_table() -> None:
    """Calls exactly; files and lines of parts roughly, since every commit changes them."""
    printed, told = rows_of(trace.table()), rows_of(DOC.read_text())
    assert list(printed) == list(told)
    assert len(printed) == 4 + len(trace.PARTS) + 1
    for name, figures in printed.items():
        if name.startswith("`") and figures[3] is None:
            assert told[name] == figures, name
        else:
            for one, other in zip(figures, told[name], strict=True):
                assert (one is None) == (other is None) and abs((one or 0) - (other or 0)) <= SHARE * (one or 0), name
    lines = {name: figures[3] or 0 for name, figures in printed.items()}
    assert 0 < lines["the delta codec, without the core"] < lines["DQN"] < lines["all Python"]
