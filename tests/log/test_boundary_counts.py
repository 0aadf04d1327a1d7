"""Counts of episodes that begin with the observation that the last one ended with, beside a plain account by numpy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from tests.support.examples import examples

DTYPES = ("float32", "float64", "float16", "uint8", "int8", "uint16", "int16", "int32", "uint32", "int64")
SIZES = (1, 3, 7, 8, 17, 127, 128, 129, 300, 1000)
BLOCK = 16
WORLDS = ("any", "resets", "finals")
Steps = dict[str, Any]


class Account:
    """Counts and messages expected of one lane.

    Attributes:
        repeated: how many boundaries count. ``said``: kind, count and numbers of what is to be said each time.
    """

    def __init__(self, rows: list[Steps], lane: int, true_finals: bool) -> None:
        self.rows, self.lane, self.true_finals = rows, lane, true_finals
        self.first: bytes | None = None
        self.left_alone = False
        self.evidence: dict[str, list[int]] = {"resets": [], "finals": []}
        self.fresh = self.unclear = self.undecided = self.repeated = 0
        self.said: list[tuple[str, int, list[int]]] = []

    def of(self, step: int, name: str) -> Any:
        found = self.rows[step][name]
        return [one[self.lane] for one in found] if isinstance(found, list) else found[self.lane]

    def look(self, step: int, known: bool) -> None:
        """Args: known: what the step leads to is given where it does not end its episode."""
        obs = self.of(step, "obs")
        whole = bits(obs)
        if step == 0:
            self.first = whole
        elif (self.of(step - 1, "terminated") or self.of(step - 1, "truncated")) and not self.left_alone:
            if whole != bits(self.of(step - 1, "after")):
                self.fresh += 1
                return
            ends = bool(self.of(step, "terminated") or self.of(step, "truncated"))
            after = self.of(step, "after") if known and not ends else None
            earned, reward = (float(self.of(at, "reward")) for at in (step - 1, step))
            end = bool(self.of(step - 1, "terminated"))
            self.judge(step, self.of(step - 1, "obs"), obs, after, end, earned, ends, reward, whole)

    def judge(
        self, step: int, before: Any, obs: Any, after: Any, end: bool, earned: float, ends: bool, reward: float,
        whole: bytes,
    ) -> None:  # fmt: skip
        same = after is not None and whole == bits(after)
        if ends or same or whole == self.first:
            self.undecided += 1
            self.leave()
            return
        came, went = distance(before, obs), None if after is None else distance(obs, after)
        if reward == 0 and (earned != 0 if went is None else went > came * (1.0 if end else 2.0)):
            kind, number = "resets", step
        elif went is not None and (came > 1.5 * went if self.true_finals else came > 2.0 * went and not end):
            if not self.true_finals and earned != 0 and reward == 0:
                self.repeated += 1
                self.undecided += 1
                self.leave()
                return
            kind, number = "finals", step - 1
        else:
            self.unclear += 1
            self.leave()
            return
        self.repeated += 1
        found = self.evidence[kind]
        found.append(number)
        if len(found) - 3 * self.unclear - 4 * self.fresh >= 6:
            self.said.append((kind, len(found), found[-4:]))

    def leave(self) -> None:
        nothing = self.undecided + self.unclear
        self.left_alone |= nothing >= 64 and 2 * sum(map(len, self.evidence.values())) < nothing


def bits(arrays: Any) -> bytes:
    return b"".join(one.tobytes() for one in arrays)


def distance(some: Any, others: Any) -> float:
    total = 0.0
    for one, other in zip(some, others, strict=True):
        with np.errstate(invalid="ignore"):
            total += float(np.nansum(np.abs(one.astype(np.float64).ravel() - other.astype(np.float64).ravel())))
    return total


def moved(rng: np.random.Generator, obs: Any, scale: Any) -> Any:
    """Values [lanes, n] that lie farther from others by a magnitude a lane, some of them no numbers."""
    found = rng.normal(size=obs.shape) * np.reshape(scale, (-1, 1))
    if obs.dtype.kind != "f":
        bounds = np.iinfo(obs.dtype)
        return np.clip(obs + 20 * found, bounds.min, min(bounds.max, 1 << 40)).astype(obs.dtype)
    wild = rng.random(obs.shape) < 0.0005
    found[wild] = rng.choice([np.nan, np.inf, -np.inf], wild.sum())
    return (np.where(np.isfinite(obs), obs, 0) + found).astype(obs.dtype)


def steps_of(rng: np.random.Generator, fields: list[Any], times: int, lanes: int, world: str) -> list[Steps]:
    """Steps of walks in which most episodes begin where the last one ended, and some stand still.

    Args:
        world: "resets": the first step of an episode jumps and has no reward. "finals": the last one jumps. "any".
    """
    rows = []
    obs = [moved(rng, np.full((lanes, *shape), 60, dtype), 1.0) for dtype, shape in fields]
    ended = np.zeros(lanes, np.bool_)
    for _ in range(times):
        terminated, truncated = rng.random((2, lanes)) < 0.15
        reward = rng.choice([0.0, 0.0, 1.0] if world == "any" else [1.0], lanes).astype(np.float32)
        jumps = {"resets": ended, "finals": terminated | truncated, "any": ended & False}[world]
        reward[jumps & (rng.random(lanes) < 0.95)] = world == "finals"
        scale = np.where(jumps, 1.0, rng.choice((0.1, 0.3, 0.5, 1.0) if world == "any" else (0.06,), lanes))
        after = [moved(rng, one, scale) for one in obs]
        if world == "any" and rng.random() < 0.1:
            after = [one.copy() for one in obs]
        rows.append(dict(obs=obs, after=after, reward=reward, terminated=terminated, truncated=truncated))
        ended = terminated | truncated
        elsewhere = ended & (rng.random(lanes) < (0.1 if world == "any" else 0.01))
        obs = [np.where(elsewhere[:, None], moved(rng, one, 1.0), one) for one in after]
    return rows


def give(store: sw.Store, rows: list[Steps], way: str, nexts: bool, nested: bool) -> None:
    def joined(arrays: list[Any]) -> Any:
        return {"a": arrays[0], "b": arrays[1]} if nested else arrays[0]

    lanes = len(rows[0]["reward"])
    names = ("reward", "terminated", "truncated")
    timeout = 5.0 if way == "checked" else None
    if way == "rollout":
        for begin in range(0, len(rows), BLOCK):
            part = rows[begin : begin + BLOCK]
            block: dict[str, Any] = {name: np.stack([row[name] for row in part]) for name in names}
            block["obs"], after = (
                joined([np.stack(one) for one in zip(*[row[what] for row in part], strict=True)])
                for what in ("obs", "after")
            )
            block["next_obs" if nexts else "final_obs"] = after
            store.extend(**block, action=np.zeros((len(part), lanes), np.int64))
        return
    for row in rows:
        after = {"next_obs" if nexts else "final_obs": joined(row["after"])}
        flags = {name: np.array(row[name]) for name in names}
        store.extend(obs=joined(row["obs"]), **after, **flags, action=np.zeros(lanes, np.int64), timeout=timeout)


@pytest.mark.parametrize("way", ["short", "checked", "rollout"])
@pytest.mark.parametrize("seed", range(examples(40, most=400)))
def test_the_core_counts_and_says_what_a_plain_account_does(way: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    nested, nexts, strict = rng.random(3) < (0.3, 0.7, 0.3)
    fields: list[Any] = [(str(rng.choice(DTYPES)), (int(rng.choice(SIZES)),)) for _ in range(1 + nested)]
    lanes, times = int(rng.integers(1, 4)), 512
    true_finals = {int(lane) for lane in np.flatnonzero(rng.random(lanes) < 0.3)}
    rows = steps_of(rng, fields, times, lanes, WORLDS[seed % 3])

    accounts = [Account(rows, lane, lane in true_finals) for lane in range(lanes)]
    for begin in range(0, times, BLOCK):
        for account in accounts:
            if way == "rollout":  # what lies within a block is looked at before its first row
                for step in range(begin + 1, begin + BLOCK):
                    account.look(step, known=step < begin + BLOCK - 1)
                if nexts or not begin:  # else the end of the last row is not remembered
                    account.look(begin, known=False)
            else:
                for step in range(begin, begin + BLOCK):
                    account.look(step, bool(nexts))

    spec_of = [sw.Field(shape, dtype) for dtype, shape in fields]
    obs: Any = dict(zip("ab", spec_of, strict=True)) if nested else spec_of[0]
    spec = sw.Spec(obs=obs, action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=10_000, strict=bool(strict), segment_steps=int(rng.choice([8, 64])))
    store._log.boundaries.true_finals.update(true_finals)
    refusals = [said for account in accounts for said in account.said] if strict else []
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        if refusals:
            with pytest.raises(ValueError, match="lane") as error:
                give(store, rows, way, bool(nexts), bool(nested))
            texts = [str(error.value)]
        else:
            give(store, rows, way, bool(nexts), bool(nested))
            texts = [str(one.message) for one in record]
            assert store.stats()["repeated_finals"] == sum(account.repeated for account in accounts)
    expected = set()
    for lane, account in enumerate(accounts):
        for kind in ("resets", "finals"):
            if firsts := [said for said in account.said if said[0] == kind]:
                _, count, numbers = firsts[0]
                which = "observe what" if kind == "resets" else "that ended their"
                expected.add((f"lane {lane}: {count} steps {which}", f"{', '.join(map(str, numbers))})"))
    found = {(head, tail) for text in texts for head, tail in expected if head in text and f"steps {tail}" in text}
    assert len(found) == len(texts) and (strict or found == expected)


def test_the_accounts_reach_every_verdict() -> None:
    """Else the test above compares nothing."""
    kinds, left_alone, repeated = set(), 0, 0
    for seed in range(12):
        rows = steps_of(np.random.default_rng(seed), [("float32", (3,))], 512, 1, WORLDS[seed % 3])
        account = Account(rows, 0, seed % 2 == 0)
        for step in range(len(rows)):
            account.look(step, known=True)
        kinds |= {said[0] for said in account.said}
        left_alone, repeated = left_alone + account.left_alone, repeated + account.repeated
    assert kinds == {"resets", "finals"} and 0 < left_alone < 12 and repeated > 100
