"""Windows as a reader can check them, in the tiny language of ``tests/support/oracle.py``; stores to look at."""

from __future__ import annotations

from typing import Any, NamedTuple

import sharpwave as sw
from tests.support.oracle import FRAME_SHAPE, Oracle, Stacking, letters_of, play_all
from tests.support.sequence_oracle import (
    SequenceOracle,
    Settings,
    Window,
    assert_same_sequences,
)


class W(NamedTuple):
    """A window at gamma = 1/2: frames along the columns (``0``: zeros), and what each column is (``^`` an episode's
    first step, ``=`` another step, ``-`` none)."""

    obs: str
    columns: str
    reward: list[float]
    discount: list[float]
    bootstrap: list[int]


def spec_of(stack: int | None = None, pad: Any = "repeat", **more: sw.Field) -> sw.Spec:
    obs = sw.Field(FRAME_SHAPE, "uint8", stack=stack, pad=pad)
    return sw.Spec(obs=obs, action=sw.Field((), "int64"), serial=sw.Field((), "int64"), **more)


def store_of(spec: sw.Spec | None = None, **settings: Any) -> sw.Store:
    return sw.Store(spec or spec_of(), **{"capacity": 1000, "segment_steps": 3, "seed": 0} | settings)


def told(arrays: Any, obs: Any) -> W:
    marks = zip(arrays["mask"].tolist(), arrays["first"].tolist(), strict=True)
    return W(
        letters_of(obs),
        "".join("^" if first else "=" if real else "-" for real, first in marks),
        arrays["reward"].tolist(),
        arrays["discount"].tolist(),
        arrays["bootstrap"].tolist(),
    )


def windows_of(replay: Any) -> dict[str, W]:
    """What a view says of all its windows, by the letter of the first trained step."""
    ids = replay.sampleable_ids()
    if not len(ids):
        return {}
    batch = replay.fetch(ids)
    names = ("mask", "first", "reward", "discount", "bootstrap")
    rows = [({name: batch[name][row] for name in names}, batch.obs[row]) for row in range(len(ids))]
    return {letters_of(obs[batch.burn_in][None]): told(arrays, obs) for arrays, obs in rows}


def oracle_windows_of(oracle: SequenceOracle) -> dict[str, W]:
    found: list[Window] = [oracle.window(*one) for one in oracle.sampleable().items()]
    first = oracle.settings.burn_in
    return {letters_of(window.obs[first][None]): told(window.arrays, window.obs) for window in found}


def check(text: str, settings: Settings, expected: dict[str, W]) -> None:
    """The windows are those expected: as the oracle says, and as the store does whatever its segments' size."""
    oracle = Oracle(Stacking())
    with store_of() as store:
        play_all(store, text, oracle=oracle)
    assert oracle_windows_of(SequenceOracle(oracle, settings)) == expected
    for segment_steps in (1, 2, 3, 5, 64):
        with store_of(segment_steps=segment_steps) as store:
            early = store.sequences(**settings.asked(), name="early")
            play_all(store, text)
            assert windows_of(early) == expected
            late = store.sequences(**settings.asked(), name="late")
            assert windows_of(late) == expected
            assert_same_sequences(late, SequenceOracle(oracle, settings))
