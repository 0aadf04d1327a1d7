"""The data's way as `python -m sharpwave.testing.trace` shows it: few calls from a verb to the core."""

from __future__ import annotations

import pytest

from sharpwave.testing import trace


@pytest.mark.parametrize("verb", ["append", "extend", "sample", "update_priorities"])
def test_a_verb_is_a_few_calls_from_the_core(verb: str) -> None:
    calls = trace.traced(trace.verbs()[verb])
    assert calls[0].name.endswith(f".{verb}") and calls[0].depth == 1
    assert len(calls) <= 25 and len({call.where.partition(":")[0] for call in calls}) <= 9
    lines = trace.tree(calls).splitlines()
    assert len(lines) == len(calls) and lines[-1].endswith(calls[-1].where)


def test_the_table_has_a_row_a_verb_and_a_part() -> None:
    rows = trace.table().splitlines()
    assert len(rows) == 1 + 4 + len(trace.PARTS) + 1
    lines = {row[:36].strip(): int(row.split()[-1].replace(",", "")) for row in rows[5:]}
    assert 0 < lines["the delta codec"] < lines["DQN"] < lines["src, Python"]
