"""A toy view in plain Python: pieces of as many consecutive steps of an episode as it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpwave.arrays import Int32s, Ints
from sharpwave.log.step_log import StepLog
from sharpwave.spec import START, TERMINATED, TRUNCATED
from sharpwave.views.layout import Arrays, BatchTarget, Column
from sharpwave.views.steps import Steps
from sharpwave.views.view_protocol import MAX_RUNS, View

Place = tuple[int, int]
"""A step: slot of its segment, and row there."""


@dataclass
class PieceBatch:
    """B pieces: ``action`` int64 [B, length], ``total`` float32 [B], their rewards' sum."""

    action: Any
    total: Any
    weights: Any
    probabilities: Any
    ids: Any


class Pieces(View[PieceBatch]):
    """Pieces of ``length`` steps; each step begins one, if the episode has as many from there on."""

    kind = "pieces"

    def __init__(self, length: int) -> None:
        self.length = length

    def settings(self) -> dict[str, Any]:
        return {"length": self.length}

    def bind(self, log: StepLog) -> None:
        self._steps, self._stride, self._log = Steps(log), log.stride, log
        self._pieces: dict[int, list[list[Place]]] = {}  # by slot, those that begin there
        self._lost: dict[int, int] = {}  # slots whose pieces are lost -> the first id of their segment

    def find(self, spans: Int32s) -> Ints:
        runs: list[tuple[int, int, int]] = []
        for slot in self._steps.slots():
            if self._lost.get(slot) != self._log.index.segment_id(slot) and len(runs) < MAX_RUNS:
                self._pieces[slot] = pieces = self._pieces_of(slot)
                if len(pieces) > spans[slot, 1]:
                    runs.append((slot, int(spans[slot, 1]), len(pieces)))
                    spans[slot, 1] = len(pieces)
        return np.array(runs, np.int64).reshape(-1, 3).T

    def lose(self, slot: int, spans: Int32s) -> Ints:
        lost: list[int] = []
        for other, pieces in self._pieces.items():
            kept = [k for k, piece in enumerate(pieces) if all(at != slot for at, _ in piece)]
            if other != slot and len(kept) < spans[other, 1]:
                lost += range(other * self._stride + len(kept), other * self._stride + int(spans[other, 1]))
                spans[other, 1] = len(kept)
        self._pieces[slot] = []
        self._lost[slot] = self._log.index.segment_id(slot)
        return np.array(sorted(lost), np.int64)

    def segments(self, items: Ints) -> Ints:
        return np.array([[slot for slot, _ in piece] for piece in map(self._piece, items)]).reshape(-1, self.length)

    def columns(self) -> Mapping[str, Column]:
        return {
            "action": Column(np.uint8, (self.length, 8), {"numbers": (np.int64, (self.length,), 0)}),
            "total": Column(np.float32),
        }

    def fill(self, target: BatchTarget) -> None:
        pieces = [self._piece(item) for item in target.draw.items.tolist()]
        target.columns["total"][:] = [sum(self._steps.rewards(slot)[row] for slot, row in piece) for piece in pieces]
        slots, rows = np.array(pieces, np.int64).reshape(-1, 2).T.copy()
        one_by_one = np.empty((len(slots), 1, 8), np.uint8)
        self._steps.read("action", slots, rows, one_by_one)
        target.columns["action"][:] = one_by_one.reshape(-1, self.length, 8)

    def batch(self, arrays: Arrays) -> PieceBatch:
        common = (arrays[name] for name in ("weights", "probabilities", "ids"))
        return PieceBatch(arrays["action", "numbers"], arrays["total"], *common)

    def _piece(self, item: int) -> list[Place]:
        return self._pieces[item // self._stride][item % self._stride]

    def _pieces_of(self, slot: int) -> list[list[Place]]:
        places = [(slot, row) for row in range(len(self._steps.flags(slot)))]
        own, after = len(places), self._steps.following(slot)
        while after >= 0 and len(places) < own + self.length:
            places += [(after, row) for row in range(len(self._steps.flags(after)))]
            after = self._steps.following(after)
        pieces = (places[k : k + self.length] for k in range(own))
        return [piece for piece in pieces if len(piece) == self.length and not self._broken(piece)]

    def _broken(self, piece: list[Place]) -> bool:
        flags = [int(self._steps.flags(slot)[row]) for slot, row in piece]
        return any(flag & (TERMINATED | TRUNCATED) for flag in flags[:-1]) or any(flag & START for flag in flags[1:])
