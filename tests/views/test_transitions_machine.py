"""Random sequences of operations against the oracle: tiny capacities, every cursor position, every item bit for bit."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import sharpwave as sw
from tests.support.oracle import Obs, Oracle, Stacking, assert_same_transition
from tests.views.plans import DTYPES, FieldPlan, ViewUnderTest, batched, made_up

# gamma and rewards are short binary fractions: every n-step return is exact in float32, in whatever order it is summed
GAMMAS = [1.0, 0.5, 0.25]
CODECS = ["raw", "zstd", "delta", "auto"]
OBS_KINDS = ["frame", "vector", "scalar", "dict"]
RETENTIONS = [sw.Fifo, lambda: sw.Reservoir(1), lambda: sw.Reservoir(2), sw.LowestPriority]


class TransitionsMachine(RuleBasedStateMachine):
    """One store, several views of it, and the oracle beside them."""

    retentions = RETENTIONS

    # set up

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        self.lanes = data.draw(st.integers(1, 3), "lanes")
        self.capacity = data.draw(st.integers(2 * self.lanes, 40), "capacity")
        self.segment_steps = data.draw(st.integers(1, 8), "segment_steps")
        stacks = st.sampled_from([None, 1, 2, 3, 4])
        pads: st.SearchStrategy[Literal["repeat", "zeros"]] = st.sampled_from(["repeat", "zeros"])
        kind = data.draw(st.sampled_from(OBS_KINDS), "obs")
        dtype = data.draw(st.sampled_from(DTYPES), "dtype")
        self.content = data.draw(st.integers(0, 2), "content")
        self.plans: FieldPlan | dict[str, FieldPlan]
        if kind == "dict":
            self.plans = {
                "image": FieldPlan((4, 5), "uint8", Stacking(data.draw(stacks, "stack"), data.draw(pads, "pad"))),
                "speed": FieldPlan((3,), dtype, Stacking(data.draw(stacks, "stack"), data.draw(pads, "pad"))),
            }
            names = ["obs.image", "obs.speed"]
        else:
            shape = {"frame": (4, 5), "vector": (3,), "scalar": ()}[kind]
            self.plans = FieldPlan(shape, dtype, Stacking(data.draw(stacks, "stack"), data.draw(pads, "pad")))
            names = ["obs"]
        self.vector_action = data.draw(st.booleans(), "vector action")
        self.every = data.draw(st.sampled_from([1, 2, 3, 7]), "every")
        codec: Any = data.draw(st.sampled_from(CODECS), "codec")
        if data.draw(st.booleans(), "codec per field"):
            codec = {name: data.draw(st.sampled_from(CODECS), f"codec of {name}") for name in names}
        spec = sw.Spec(
            obs={n: p.field() for n, p in self.plans.items()} if isinstance(self.plans, dict) else self.plans.field(),
            action=sw.Field((2,), "float32") if self.vector_action else sw.Field((), "int64"),
            serial=sw.Field((), "int64"),
            features=sw.Field((2,), "float32"),
            core=sw.Field((3,), "float32", every=self.every, codec=data.draw(st.sampled_from(CODECS), "codec of core")),
        )
        seed = data.draw(st.integers(0, 9), "seed")
        self.retention: Any = data.draw(st.sampled_from(self.retentions), "retention")()
        self.store = self.make_store(
            spec,
            capacity=self.capacity,
            segment_steps=self.segment_steps,
            codec=codec,
            retention=self.retention,
            seed=seed,
        )
        self.oracle = Oracle(
            {name: plan.stacking for name, plan in self.plans.items()}
            if isinstance(self.plans, dict)
            else self.plans.stacking,
            {"core": self.every},
        )
        self.id_of: dict[int, int] = {}  # serial -> id, for ever
        self.held: set[int] = set()  # serials, those aside that wait for their successor
        self.gone: set[int] = set()
        self.let_go = 0  # steps, for a smaller capacity than now
        self.dropped = 0  # steps at most that were taken back since segments were evicted for them, one a lane
        self.views: list[ViewUnderTest] = []
        self.add_view(1, 0.5, None, 0.0)  # the view that tells which steps are held

    def make_store(self, spec: sw.Spec, **settings: Any) -> sw.Store:
        return sw.Store(spec, **settings)

    def add_view(self, n_step: int, gamma: float, alpha: float | None, eps: float) -> None:
        sampler = sw.Uniform() if alpha is None else sw.Prioritized(alpha=alpha, beta=0.5, eps=eps)
        name = f"view {len(self.views)}"
        replay = self.store.transitions(name=name, n_step=n_step, gamma=gamma, sampler=sampler)
        held = self.oracle.sampleable(n_step, held=self.held)
        # a view made late starts with what is there, every step at the first priority
        known = {serial: {1.0} for serial in held}
        self.views.append(ViewUnderTest(replay, n_step, gamma, alpha, eps, known, {1.0}))

    @precondition(lambda self: len(self.views) < 4)
    @rule(
        n_step=st.integers(1, 5),
        gamma=st.sampled_from(GAMMAS),
        alpha=st.sampled_from([None, 0.0, 0.5, 1.0]),
        eps=st.sampled_from([1e-6, 0.5]),
    )
    def another_view(self, n_step: int, gamma: float, alpha: float | None, eps: float) -> None:
        self.learn_what_is_held()
        self.add_view(n_step, gamma, alpha, eps)

    # writing

    def observation(self, key: int, letter: int) -> Obs:
        if isinstance(self.plans, dict):
            return {n: made_up(p, key, self.content + i + letter) for i, (n, p) in enumerate(self.plans.items())}
        return made_up(self.plans, key, self.content + letter)

    def rows(self, lanes: list[int], ends: list[str], kinds: list[int], rewards: list[float]) -> dict[str, Any]:
        """Columns for `extend`, noted in the oracle once the store has taken them."""
        first = self.oracle.total_steps
        table: list[dict[str, Any]] = []
        for i, (end, kind, reward) in enumerate(zip(ends, kinds, rewards, strict=True)):
            serial = first + i
            action = np.array([serial, -serial], np.float32) if self.vector_action else np.int64(serial % 7)
            table.append(
                {
                    "obs": self.observation(serial, kind),
                    "action": action,
                    "reward": reward,
                    "terminated": end in ("terminated", "terminated with final", "both"),
                    "truncated": end in ("truncated", "both"),
                    "final_obs": self.observation(serial + 1_000_000, kind),
                    "has_final": end not in ("", "terminated"),
                    "serial": np.int64(serial),
                    "features": np.array([serial / 4, -0.0], np.float32),
                    "core": np.array([serial, 0, -serial], np.float32),
                }
            )
        return {"lanes": lanes, "table": table}

    def remember(self, lanes: list[int], table: list[dict[str, Any]], finals_given: bool) -> None:
        for lane, row in zip(lanes, table, strict=True):
            self.oracle.append(
                lane,
                row["obs"],
                row["action"],
                row["reward"],
                row["terminated"],
                row["truncated"],
                row["final_obs"] if finals_given else None,
                serial=int(row["serial"]),
                features=row["features"],
                core=row["core"],
            )

            for view in self.views:
                view.at_append[int(row["serial"])] = set(view.highest)

    ends = st.sampled_from(["", "", "", "", "terminated", "terminated with final", "truncated", "both"])

    @rule(data=st.data(), some=st.booleans())
    def extend(self, data: st.DataObject, some: bool) -> None:
        every = list(range(self.lanes))
        lanes = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True), "lanes") if some else every
        ends = [data.draw(self.ends, "end") for _ in lanes]
        kinds = [data.draw(st.integers(0, 2), "kind") for _ in lanes]
        rewards = [data.draw(st.integers(-8, 8), "reward") / 4 for _ in lanes]
        table = self.rows(lanes, ends, kinds, rewards)["table"]
        finals_given = any(row["has_final"] for row in table)
        final = batched([row["final_obs"] for row in table])
        ids = self.store.extend(
            obs=batched([row["obs"] for row in table]),
            action=np.stack([row["action"] for row in table]),
            reward=np.array([row["reward"] for row in table], np.float32),
            terminated=np.array([row["terminated"] for row in table]),
            truncated=np.array([row["truncated"] for row in table]),
            final_obs=final if finals_given else None,
            serial=np.array([row["serial"] for row in table]),
            features=np.stack([row["features"] for row in table]),
            core=np.stack([row["core"] for row in table]),
            lanes=np.array(lanes) if some else None,
        )
        self.remember(lanes, table, finals_given)
        self.note_ids(table, ids.tolist())

    @rule(data=st.data(), end=ends, kind=st.integers(0, 2), reward=st.integers(-8, 8))
    def append(self, data: st.DataObject, end: str, kind: int, reward: int) -> None:
        lane = data.draw(st.integers(0, self.lanes - 1), "lane")
        (row,) = self.rows([lane], [end], [kind], [reward / 4])["table"]
        self.append_row(lane, row)

    @rule(data=st.data(), count=st.integers(2, 12), kind=st.integers(0, 2))
    def run_of_steps(self, data: st.DataObject, count: int, kind: int) -> None:
        """A run of one lane, without an end inside: cursors move past everything else."""
        lane = data.draw(st.integers(0, self.lanes - 1), "lane")
        for i in range(count):
            (row,) = self.rows([lane], [""], [kind], [(i % 5) / 4])["table"]
            self.append_row(lane, row)

    def note_ids(self, table: list[dict[str, Any]], ids: list[int]) -> None:
        """Steps have their ids from the beginning, though what they led to isn't known yet."""
        for row, one in zip(table, ids, strict=True):
            assert self.id_of.setdefault(int(row["serial"]), one) == one

    def append_row(self, lane: int, row: dict[str, Any]) -> None:
        one = self.store.append(
            lane=lane,
            obs=row["obs"],
            action=row["action"],
            reward=row["reward"],
            terminated=row["terminated"],
            truncated=row["truncated"],
            final_obs=row["final_obs"] if row["has_final"] else None,
            serial=row["serial"],
            features=row["features"],
            core=row["core"],
        )
        self.remember([lane], [row], row["has_final"])
        self.note_ids([row], [one])

    @precondition(lambda self: any(self.oracle.can_end_episode(lane) for lane in range(self.lanes)))
    @rule(data=st.data())
    def end_episode(self, data: st.DataObject) -> None:
        lane = data.draw(
            st.sampled_from([lane for lane in range(self.lanes) if self.oracle.can_end_episode(lane)]), "lane"
        )
        final = self.observation(2_000_000 + self.oracle.total_steps, 0)
        self.store.end_episode(lane, final)
        self.oracle.end_episode(lane, final)

    @precondition(lambda self: self.oracle.total_steps > self.let_go)
    @rule(sure=st.integers(0, 3))
    def clear(self, sure: int) -> None:
        """Not at every chance: what is held matters more. Nothing of episodes under way is left."""
        if sure:
            return
        self.learn_what_is_held()
        self.store.clear()
        assert len(self.store) == 0 and not any(len(view.replay) for view in self.views)
        for lane in range(self.lanes):
            if self.oracle.can_end_episode(lane):
                self.gone.add(self.oracle.lanes[lane][-1].serial)
                self.oracle.end_episode(lane, self.observation(3_000_000 + lane, 0))
        self.let_go = self.oracle.total_steps

    # sampling and priorities

    @precondition(lambda self: any(len(view.replay) for view in self.views))
    @rule(data=st.data(), size=st.integers(1, 20))
    def sample(self, data: st.DataObject, size: int) -> None:
        view = data.draw(st.sampled_from([view for view in self.views if len(view.replay)]), "view")
        batch = view.replay.sample(size)
        allowed = self.oracle.sampleable(view.n_step, held=self.held)
        assert len(batch.ids) == size and batch.ids.dtype == np.int64
        assert batch.weights.dtype == np.float32 and batch.probabilities.dtype == np.float64
        for row, serial in enumerate(batch["serial"].tolist()):
            assert serial in allowed
            assert self.id_of[serial] == batch.ids[row]
            assert_same_transition(batch, row, self.oracle.transition(serial, view.n_step, view.gamma))
        self.check_probabilities(view, batch)

    @precondition(lambda self: any(len(view.replay) for view in self.views))
    @rule(data=st.data(), size=st.integers(1, 9), lookahead=st.integers(0, 3), count=st.integers(1, 3))
    def stream(self, data: st.DataObject, size: int, lookahead: int, count: int) -> None:
        """Batches that were drawn before steps came and went; each view has one stream, begun at its first use."""
        view = data.draw(st.sampled_from([view for view in self.views if len(view.replay)]), "view")
        if view.stream is None:
            view.stream = view.replay.stream(size, lookahead=lookahead)
        allowed = self.oracle.sampleable(view.n_step, held=self.held)
        for _ in range(count):
            batch = next(view.stream)
            for row, serial in enumerate(batch["serial"].tolist()):
                assert serial in allowed
                assert self.id_of[serial] == batch.ids[row]
                assert_same_transition(batch, row, self.oracle.transition(serial, view.n_step, view.gamma))

    def check_probabilities(self, view: ViewUnderTest, batch: Any) -> None:
        if view.alpha is None:
            np.testing.assert_array_equal(batch.weights, np.ones(len(batch.ids), np.float32))
            np.testing.assert_allclose(batch.probabilities, 1 / len(view.replay), rtol=1e-12)
            return
        mass = len(view.replay) * batch.probabilities
        np.testing.assert_allclose(batch.weights, mass**-0.5 / (mass**-0.5).max(), rtol=1e-5)
        self.note_new_steps(view)
        drawn = dict(zip(batch["serial"].tolist(), batch.probabilities.tolist(), strict=True))
        if all(len(values) == 1 for values in view.known.values()):
            total = sum(min(values) ** view.alpha for values in view.known.values())
        else:
            sure = [serial for serial in drawn if len(view.known[serial]) == 1]
            if not sure:
                return
            total = min(view.known[sure[0]]) ** view.alpha / drawn[sure[0]]
        for serial, probability in drawn.items():
            fitting = {
                value
                for value in view.known[serial]
                if abs(value**view.alpha / total - probability) <= 1e-5 * probability
            }
            assert fitting, f"step {serial}: probability {probability}, priorities {view.known}, total {total}"
            view.known[serial] = fitting

    def note_new_steps(self, view: ViewUnderTest) -> None:
        """A new step has the highest priority so far: when it came, or when it could first be drawn."""
        now = self.oracle.sampleable(view.n_step, held=self.held)
        for serial in now - view.known.keys():
            view.known[serial] = view.highest | view.at_append.get(serial, set())
        for serial in view.known.keys() - now:
            del view.known[serial]

    @precondition(lambda self: self.id_of and any(view.alpha is not None for view in self.views))
    @rule(data=st.data(), size=st.integers(0, 8))
    def update_priorities(self, data: st.DataObject, size: int) -> None:
        """Steps of this view mostly; also gone ones, ones that it cannot draw yet, and the same one several times."""
        view = data.draw(st.sampled_from([view for view in self.views if view.alpha is not None]), "view")
        mine = self.oracle.sampleable(view.n_step, held=self.held)
        pool = sorted(self.id_of) if data.draw(st.booleans(), "any step") else sorted(mine)
        if not pool:
            return
        serials = data.draw(st.lists(st.sampled_from(pool), min_size=size, max_size=size), "serials")
        errors = [data.draw(st.integers(-4, 4), "td error") / 2 for _ in serials]
        self.note_new_steps(view)
        stale = view.replay.update_priorities(
            np.array([self.id_of[serial] for serial in serials], np.int64), np.array(errors, np.float32)
        )
        assert stale == sum(serial not in mine for serial in serials)
        assert len(view.replay) == len(mine)
        given = [(s, abs(e) + view.eps) for s, e in zip(serials, errors, strict=True) if s in mine]
        view.known.update({serial: {priority} for serial, priority in given})  # of a repeated step the last wins
        view.highest = {max([*view.highest, *(priority for _, priority in given)])}

    @precondition(lambda self: bool(self.oracle.where))
    @rule(data=st.data(), size=st.integers(1, 9))
    def find_ids(self, data: st.DataObject, size: int) -> None:
        """By lane and number; of what has left there is none."""
        serials = data.draw(st.lists(st.sampled_from(sorted(self.oracle.where)), min_size=1, max_size=size), "serials")
        lanes, steps = zip(*(self.oracle.where[serial] for serial in serials), strict=True)
        found = self.store.ids(lanes, steps, missing="mask").tolist()
        held = [serial in self.held for serial in serials]
        for serial, is_held, one in zip(serials, held, found, strict=True):
            if is_held:
                assert one == self.id_of[serial]
            elif serial in self.gone:
                assert one == -1
            else:  # no view shows it yet, or it was evicted before one did
                assert one in (-1, self.id_of[serial])
        batch = self.views[0].replay.fetch(np.array([self.id_of[serial] for serial in serials]), missing="mask")
        assert (batch.ids >= 0).tolist() == held and (batch.weights == held).all()
        for row, serial in enumerate(serials):
            if held[row]:
                assert_same_transition(batch, row, self.oracle.transition(serial, 1, self.views[0].gamma))
            else:
                assert not batch.action[row].any() and not batch.reward[row].any() and not batch["serial"][row]

    # what must always hold

    def learn_what_is_held(self) -> None:
        """From the view of single steps: what has left never comes back; under Fifo a lane's are a suffix."""
        probe = self.views[0].replay
        ids = probe.sampleable_ids()
        assert ids.dtype == np.int64 and len(set(ids.tolist())) == len(ids) == len(probe)
        serials = probe.fetch(ids)["serial"].tolist() if len(ids) else []
        assert len(set(serials)) == len(serials)
        for serial, one in zip(serials, ids.tolist(), strict=True):
            assert self.id_of.setdefault(serial, one) == one, f"step {serial} changed its id"
        assert len(set(self.id_of.values())) == len(self.id_of), "an id was used for two steps"
        assert not self.gone & set(serials), "a step that had left came back"
        held, self.held = self.held, set(serials)
        self.gone |= held - self.held
        assert self.held == self.oracle.sampleable(1, held=self.held), "a step was invented"
        sure, open_lanes = len(serials), 0
        for lane in range(self.lanes):
            history = self.oracle.lanes.get(lane, [])
            here = [index for index, step in enumerate(history) if step.serial in self.held]
            waits = bool(history) and not history[-1].ended  # for its successor; so it cannot be seen
            if here:
                sure += waits
            else:
                open_lanes += waits  # it is there unless its lane was let go
            if here and isinstance(self.retention, sw.Fifo):
                assert here == list(range(here[0], len(history) - waits))
        assert sure <= len(self.store) <= sure + open_lanes

    @invariant()
    def everything_is_as_the_oracle_says(self) -> None:
        if not hasattr(self, "store"):
            return
        self.learn_what_is_held()
        assert self.store.total_steps == self.oracle.total_steps
        assert len(self.store) <= self.capacity
        slack = min(self.segment_steps, self.capacity) + self.dropped
        if not isinstance(self.retention, sw.Reservoir):  # which keeps room rather than favour the newest
            most = min(self.capacity, self.oracle.total_steps - self.let_go)
            assert len(self.store) > most - slack, "more left than had to"
        for view in self.views:
            expected = self.oracle.sampleable(view.n_step, held=self.held)
            ids = view.replay.sampleable_ids()
            assert len(view.replay) == len(ids) == len(expected)
            if len(ids) == 0:
                continue
            batch = view.replay.fetch(ids)
            assert set(batch["serial"].tolist()) == expected
            for row, serial in enumerate(batch["serial"].tolist()):
                assert self.id_of[serial] == ids[row] == batch.ids[row]
                assert_same_transition(batch, row, self.oracle.transition(serial, view.n_step, view.gamma))
            self.note_new_steps(view)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            view = self.views[0]
            expected = self.oracle.sampleable(1, held=self.held)
            if expected:
                # a step is missed with probability (1 - 1/N)^(40 N) < e^-40
                drawn = view.replay.sample(40 * len(expected))["serial"].tolist()
                assert set(drawn) == expected, f"never drawn: {sorted(expected - set(drawn))}"
            else:
                with_nothing = view.replay
                try:
                    with_nothing.sample(1)
                except sw.EmptyError:
                    pass
                else:
                    raise AssertionError("an empty view gave a batch")
            gone = [one for serial, one in self.id_of.items() if serial not in expected]
            if gone:
                try:
                    view.replay.fetch(np.array(gone[:1], np.int64))
                except KeyError as error:
                    assert str(gone[0]) in str(error)
                else:
                    raise AssertionError(f"id {gone[0]} has left and was fetched")
            note(f"{self.oracle.total_steps} steps, {len(expected)} sampleable at the end")
        finally:
            self.store.close()


TestTransitions = TransitionsMachine.TestCase
TestTransitions.pytestmark = [pytest.mark.timeout(900)]  # type: ignore[attr-defined]  # a failure is shrunk for minutes
