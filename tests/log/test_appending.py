"""Small steps: the short way appends what the long one does, to the byte, or leaves the step to it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.arguments import as_array
from sharpwave.format import segment
from tests.native.test_interrupts import SOURCE
from tests.support.examples import examples

SPECS = {
    "vectors": sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64")),
    "stacks of dicts": sw.Spec(
        obs={"near": sw.Field((2, 2), "uint8", stack=3), "far": sw.Field((5,), "float64")},
        action=sw.Field((2,), "float32"),
        safe=sw.Field((), "bool"),
        cost=sw.Field((), "float32"),
    ),
}


def pair(spec: sw.Spec, **settings: Any) -> tuple[sw.Store, sw.Store, list[bool]]:
    """Two stores, the second of which goes the long way; and whether each call to the first went the short one."""
    short, long = sw.Store(spec, **settings), sw.Store(spec, **settings)
    long._writing.appending.serves, long._log.sealing.turnover = False, None
    went: list[bool] = []
    write = short._writing.rows

    def counted(*args: Any) -> Any:
        went[-1:] = [False]
        return write(*args)

    short._writing.rows = counted  # type: ignore[method-assign, assignment]
    return short, long, went


def value(rng: np.random.Generator, field: sw.Field, count: int | None) -> Any:
    """Something that ``extend`` (or ``append``, without a count) takes for a field."""
    shape = field.shape if count is None else (count, *field.shape)
    found: Any = rng.integers(0, 2 if field.dtype == "bool" else 100, shape).astype(field.dtype)
    kind = rng.integers(12)
    if kind == 0 and field.np_dtype.kind == "f":
        found = found.astype(np.float64) + 0.1
    elif kind == 1 and shape:
        found = np.repeat(found, 2, axis=-1)[..., ::2]  # not contiguous
    elif kind == 2:
        found = found.tolist()
    elif kind == 3 and not shape:
        found = field.np_dtype.type(found)
    elif kind == 4 and shape:
        found = unaligned(found)
    elif kind == 5 and field.dtype != "bool":
        found = found.astype(rng.choice(["int8", "uint16", "int32", "int64", "float16", "float32"]))
        found = found[()] if not shape else found
        if found.dtype.kind == "f" and field.np_dtype.kind != "f":
            found = found.astype(field.dtype)
    return found


def unaligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same numbers in a buffer behind a byte of something else, as messages have them."""
    return np.frombuffer(b"-" + array.tobytes(), array.dtype, array.size, 1).reshape(array.shape)


def call(rng: np.random.Generator, spec: sw.Spec, lanes: int, known: dict[int, Any]) -> dict[str, Any]:
    """Arguments of ``extend`` or of ``append``. Where an episode goes on, it mostly observes what is ``known``."""
    single = rng.random() < 0.4
    chosen = np.sort(rng.permutation(lanes)[: 1 if single else rng.integers(1, lanes + 1)])
    count = None if single else len(chosen)

    def observed() -> dict[str, Any]:
        return {name[4:] or name: value(rng, spec.fields[name], count) for name in spec.obs_names}

    def told(split: dict[str, Any]) -> Any:
        return split["obs"] if spec.array_obs else split

    obs = observed()
    if all(lane in known for lane in chosen.tolist()) and rng.random() < 0.9:
        for name in obs:
            rows = np.stack([known[lane][name] for lane in chosen.tolist()])
            obs[name] = rows[0] if single else rows
    given = {name: value(rng, spec.fields[name], count) for name in spec.step_names}
    ends = rng.random(len(chosen)) < 0.1, rng.random(len(chosen)) < 0.1
    after = observed() if rng.random() < 0.6 or ends[1].any() else None
    final = observed() if ends[1].any() and rng.random() < 0.5 else None
    for row, lane in enumerate(chosen.tolist()):
        known.pop(lane, None)
        if after is not None and not (ends[0][row] or ends[1][row]):
            fields = {name: spec.fields["obs" if name == "obs" else f"obs.{name}"] for name in after}
            known[lane] = {
                name: np.asarray(rows if single else rows[row]).astype(fields[name].dtype)
                for name, rows in after.items()
            }
    flags: Any = [bool(end[0]) if single else end for end in ends]
    reward: Any = rng.normal(size=len(chosen)).astype(rng.choice(["float32", "float64"]))
    reward = unaligned(reward) if rng.random() < 0.1 else reward
    arguments = {"obs": told(obs), "reward": float(reward[0]) if single else reward, **given}
    arguments |= {"terminated": flags[0], "truncated": flags[1]}
    arguments |= {} if after is None else {"next_obs": told(after)}
    arguments |= {} if final is None else {"final_obs": told(final)}
    if single:
        return arguments | {"lane": int(chosen[0])}
    return arguments if len(chosen) == lanes and rng.random() < 0.5 else arguments | {"lanes": chosen}


def contents(store: sw.Store) -> dict[str, Any]:
    """All that a store holds."""
    log = store._log
    index = log.index
    found: dict[str, Any] = {
        "sealed": [log.sealed.packed(slot) for slot in range(index.highest) if index.sealed[slot] and index.rows[slot]],
        "steps": store.lane_steps.tolist(),
        "counts": {k: v for k, v in store.stats().items() if k.endswith("steps") or k.endswith("episodes")},
    }
    view = store.transitions(name="all")
    batch = view.fetch(np.sort(view.sampleable_ids()))
    found["batch"] = {name: np.array(batch[name]) for name in ("action", "reward", "discount", "ids", "lane", "step")}
    for which in ("obs", "next_obs"):
        split = store.spec.split_obs(batch[which])
        found["batch"] |= {f"{which} {name}": np.array(array) for name, array in split.items()}
    return found


def same(some: Any, others: Any) -> None:
    assert some["sealed"] == others["sealed"]
    assert (some["steps"], some["counts"]) == (others["steps"], others["counts"])
    for name, array in some["batch"].items():
        np.testing.assert_array_equal(array, others["batch"][name], name)


@pytest.mark.parametrize("settings", [{"capacity": 90}, {"ram": "4MiB"}, {"disk": True}], ids=["full", "ram", "disk"])
@pytest.mark.parametrize("kind", list(SPECS))
def test_both_ways_append_the_same(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    spec, rng, known = SPECS[kind], np.random.default_rng(1), dict[int, Any]()
    if "disk" in settings:
        short, long, went = pair(spec, capacity=200, segment_steps=4)
        (tmp_path / "a").mkdir()
        short, long = (sw.Store(spec, capacity=200, segment_steps=4, disk=tmp_path / name) for name in "ab")
        long._writing.appending.serves, long._log.sealing.turnover = False, None
    else:
        short, long, went = pair(spec, segment_steps=4, **settings)
    views = [store.transitions(n_step=2, sampler=sw.Prioritized()) for store in (short, long)]
    for number in range(examples(250, most=250)):
        arguments = call(rng, spec, 6, known)
        how = "append" if "lane" in arguments else "extend"
        went.append(True)
        ids = [getattr(store, how)(**arguments) for store in (short, long)]
        np.testing.assert_array_equal(*ids)
        if number % 25 == 24:
            drawn = [view.sample(8).ids for view in views]
            np.testing.assert_array_equal(*drawn)
    same(contents(short), contents(long))
    if "disk" not in settings:
        assert np.mean(went) > 0.3
        assert short._log.inventory.evicted_steps or "ram" in settings


def test_both_ways_append_the_same_where_episodes_are_annotated() -> None:
    """Some of them so much that their lane's segment is sealed before it is full."""
    spec, rng, known = SPECS["vectors"], np.random.default_rng(2), dict[int, Any]()
    short, long, went = pair(spec, capacity=400, segment_steps=32)
    shares = []
    for _ in range(400):
        arguments = call(rng, spec, 3, known)
        how = "append" if "lane" in arguments else "extend"
        went.append(True)
        ids = [getattr(store, how)(**arguments) for store in (short, long)]
        np.testing.assert_array_equal(*ids)
        if rng.random() < 0.2:
            lane, text = int(rng.integers(short.lanes)), "a" * int(rng.choice([1, 20, 3000]))
            for store in (short, long):
                store.annotate(lane, {"text": text}, episode=True)
        shares.append(bool(short._log.opened.annotations) and went[-1])
    same(contents(short), contents(long))
    sealed = [slot for slot in range(short._log.index.highest) if short._log.index.sealed[slot]]
    assert (short._log.index.rows[sealed] < 32).sum() > 6  # beside the first of each lane
    assert np.mean(shares) > 0.2


@pytest.mark.parametrize("number", [0, 1, -3, 2**24, 2**24 + 1, 2**40, -(2**63), 10**30])
@pytest.mark.parametrize("kind", [int, np.int64, np.int32, np.uint16, np.int8])
def test_integers_are_rewards_where_float32_has_them(number: int, kind: Any) -> None:
    if kind is not int and not np.iinfo(kind).min <= number <= np.iinfo(kind).max:
        return
    short, long, went = pair(SPECS["vectors"], capacity=100)
    step: dict[str, Any] = {"obs": np.zeros(3, "f4"), "action": 1, "terminated": True, "truncated": False}
    outcomes = []
    for store in (short, long):
        store.append(**step, reward=0.5)
        went.append(True)
        try:
            store.append(**step, reward=kind(number))
            outcomes.append((view := store.transitions()).fetch(view.sampleable_ids()).reward.tolist())
        except (ValueError, TypeError) as error:
            outcomes.append([type(error), str(error)])
    assert outcomes[0] == outcomes[1]
    assert went[-2] or abs(number) > 2**24


@pytest.mark.parametrize("field", ["int64", "int16", "uint8", "float64", "float32", "float16", "bool"])
@pytest.mark.parametrize("given", ["int64", "int16", "uint8", "float64", "float32", "float16", "bool", "m8[s]", ">i4"])
def test_values_of_other_dtypes_are_stored_or_refused_alike(field: str, given: str) -> None:
    """By the short way where every value is one of the field's, or integers are floats of it."""
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((2,), "float32"), more=sw.Field((), field))
    short, long, went = pair(spec, capacity=100)
    no = np.zeros(4, np.bool_)
    step: dict[str, Any] = {"obs": np.zeros((4, 2), "f4"), "action": np.zeros((4, 2), "f4"), "reward": np.zeros(4)}
    values = np.array([0, 1, 255, 1000]).astype(given) if given != "m8[s]" else np.arange(4).view(given)
    for many in (values, values % 2 if given not in ("m8[s]", "bool") else values):
        outcomes = []
        for store in (short, long):
            store.extend(**step, more=np.zeros(4, field), terminated=~no, truncated=no)
            went.append(True)
            try:
                store.extend(**step, more=many, terminated=~no, truncated=no)
                store.append(
                    obs=step["obs"][0], action=step["action"][0], reward=0.0, more=many[1], terminated=True,
                    truncated=False,
                )  # fmt: skip
                outcomes.append((view := store.transitions()).fetch(view.sampleable_ids())["more"].tolist())
            except (ValueError, TypeError) as error:
                outcomes.append([type(error), str(error)])
        assert outcomes[0] == outcomes[1]
    if field in ("int64", "float64", "float32") and (given in ("int16", "uint8") or given == field):
        assert went[-2]


def test_segments_sealed_together_are_whole() -> None:
    """Rows that could be encoded, lanes that seal in the same call, stacks that reach back."""
    spec = sw.Spec(obs=sw.Field((40,), "float32", stack=3), action=sw.Field((2,), "float32"))
    store, rng, lanes = sw.Store(spec, capacity=4000, segment_steps=16), np.random.default_rng(0), 12
    view, no = store.transitions(), np.zeros(lanes, bool)
    played = []
    for step in range(150):
        obs, action = rng.normal(size=(lanes, 40)).astype("f4"), rng.normal(size=(lanes, 2)).astype("f4")
        ends = rng.random(lanes) < 0.05
        store.extend(obs=obs, action=action, reward=np.full(lanes, step), terminated=ends, truncated=no)
        played.append((obs, action, ends))
    log = store._log
    sealed = [slot for slot in range(log.index.highest) if log.index.sealed[slot]]
    assert len(sealed) > 80
    for slot in sealed:
        _, packed, shared = log.sealed.packed(slot)
        header = segment.check(packed, spec, {key: data for (_, key), data in shared.items()}.__getitem__)
        assert (header.lane, header.steps) == (log.index.lane[slot], log.index.rows[slot])
    batch = view.fetch(view.sampleable_ids())
    for row, (lane, step) in enumerate(zip(batch.lane.tolist(), batch.step.tolist(), strict=True)):
        obs, action, ends = played[step]
        np.testing.assert_array_equal(batch.obs[row, -1], obs[lane])
        np.testing.assert_array_equal(batch.action[row], action[lane])
        if step and not played[step - 1][2][lane]:
            np.testing.assert_array_equal(batch.obs[row, -2], played[step - 1][0][lane])
        if not ends[lane]:
            np.testing.assert_array_equal(batch.next_obs[row, -1], played[step + 1][0][lane])
    assert {(lane, step) for lane in range(lanes) for step in range(149)} <= set(
        zip(batch.lane.tolist(), batch.step.tolist(), strict=True)
    )


def test_a_float64_that_float32_cannot_hold_is_refused_by_its_name() -> None:
    store = sw.Store(SPECS["vectors"], capacity=100)
    step: dict[str, Any] = {"action": 1, "reward": 0.0, "terminated": False, "truncated": False}
    store.append(obs=np.array([1.0, np.inf, np.nan]), **step)
    with pytest.raises(ValueError, match="obs: value 1e\\+300 does not fit into float32"):
        store.append(obs=np.array([0.0, 1e300, 0.0]), **step)
    with pytest.raises(ValueError, match="reward"):
        store.append(obs=np.zeros(3), **step | {"reward": 1e300})
    with pytest.raises(ValueError, match="repeats a lane"):
        rows: dict[str, Any] = {name: np.zeros(2, type(value)) for name, value in step.items()}
        store.extend(obs=np.zeros((2, 3), "f4"), lanes=np.array([0, 0]), **rows)
    assert store.total_steps == 1


def test_a_signal_handler_that_appends_amid_an_append_loses_neither() -> None:
    """At any line of the package's: the handler's step is of another lane, and may even make the log grow."""
    line, there = 0, True
    step: dict[str, Any] = {"reward": 0.0, "terminated": False, "truncated": False}
    before = signal.getsignal(signal.SIGINT)
    try:
        while there:
            line, lines = line + 1, 0
            store = sw.Store(SPECS["vectors"], capacity=10_000, segment_steps=4)
            for number in range(4):
                store.append(obs=np.full(3, number, "f4"), action=number, **step)

            def handle(number: int, frame: Any, store: sw.Store = store) -> None:
                for lane in range(1, 40):
                    store.append(lane=lane, obs=np.full(3, lane, "f4"), action=100 + lane, **step)

            def at_line(frame: Any, event: str, arg: Any) -> Any:
                nonlocal lines
                lines += event == "line"
                if lines == line:  # noqa: B023
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGINT)
                return at_line

            def at_call(frame: Any, event: str, arg: Any) -> Any:
                return at_line if frame.f_code.co_filename.startswith(SOURCE) else None

            signal.signal(signal.SIGINT, handle)
            sys.settrace(at_call)
            try:
                store.append(obs=np.full(3, 4, "f4"), action=4, **step)
            finally:
                sys.settrace(None)
            store.append(obs=np.full(3, 5, "f4"), action=5, **step)
            there = lines == line
            handled = 39 if there else 0
            assert store.lane_steps.tolist() == [6] + [1] * handled, line
            batch = (view := store.transitions()).fetch(view.sampleable_ids())
            np.testing.assert_array_equal(np.sort(batch.action), np.arange(5))
            np.testing.assert_array_equal(batch.obs[:, 0], batch.action)
            np.testing.assert_array_equal(batch.next_obs[:, 0], batch.action + 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert line > 20


def test_what_a_handler_raises_while_an_observation_is_split_is_raised() -> None:
    class Interrupted(dict[str, Any]):
        def keys(self) -> Any:
            signal.raise_signal(signal.SIGALRM)
            return super().keys()

    def handle(number: int, frame: Any) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        raise TimeoutError

    spec = sw.Spec(
        obs={"near": sw.Field((2,), "float32"), "far": sw.Field((2,), "float32")}, action=sw.Field((), "int64")
    )
    store = sw.Store(spec, capacity=100)
    obs = Interrupted(near=np.zeros(2, "f4"), far=np.zeros(2, "f4"))
    step: dict[str, Any] = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(TimeoutError):
            store.append(obs=obs, **step)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert store.stats()["steps"] == 0


def test_a_single_number_names_no_lanes_of_earlier_calls() -> None:
    """``lanes=3`` for two rows once meant lane 3 and whichever lane the second row of an earlier call went to."""
    store = sw.Store(SPECS["vectors"], capacity=100)

    def rows(count: int) -> dict[str, Any]:
        no = np.zeros(count, np.bool_)
        vectors, reward = np.zeros((count, 3), np.float32), np.zeros(count, np.float32)
        return {"obs": vectors, "action": np.arange(count), "reward": reward, "terminated": no, "truncated": no}

    store.extend(**rows(6))
    store.extend(lanes=np.array([1, 5]), **rows(2))
    for count in (1, 2):
        with pytest.raises(ValueError, match=rf"lanes: got 3, expected shape \({count},\)"):
            store.extend(lanes=3, **rows(count))
    one: dict[str, Any] = {
        "obs": np.zeros(3, np.float32),
        "action": 0,
        "reward": 0.0,
        "terminated": False,
        "truncated": False,
    }
    with pytest.raises(ValueError, match="append: lane 1180591620717411303424, expected an integer"):
        store.append(lane=2**70, **one)
    assert store.lane_steps.tolist() == [1, 2, 1, 1, 1, 2]


def test_a_step_is_refused_that_is_staged_when_a_handler_closes_the_store(tmp_path: Path) -> None:
    """Handlers run amid the short way, unlike the long one; such a step once had an id and was in no file."""
    vector = np.zeros(3, np.float32)
    step: dict[str, Any] = {
        "obs": vector,
        "action": 0,
        "reward": 0.0,
        "terminated": False,
        "truncated": False,
        "next_obs": vector,
    }
    store = sw.Store(SPECS["vectors"], capacity=100, disk=tmp_path / "store")
    store.append(**step)
    store.flush()
    original = store._writing.appending._bind

    def closing(changes: int) -> None:
        store.close()
        original(changes)

    store._writing.appending._bind = closing  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="store: closed"):
        store.append(**step)


def test_a_dict_is_no_observation_of_a_spec_that_has_an_array() -> None:
    store = sw.Store(SPECS["vectors"], capacity=100)
    step: dict[str, Any] = {"action": 1, "reward": 0.0, "terminated": False, "truncated": False}
    store.append(obs=np.zeros(3, np.float32), **step)
    with pytest.raises((TypeError, ValueError), match="obs"):
        store.append(obs={"obs": np.zeros(3, np.float32)}, **step)
    assert store.total_steps == 1


def test_the_core_reads_no_array_that_is_not_aligned() -> None:
    taken = as_array("reward", unaligned(np.arange(3.0)))
    assert taken.flags.aligned
    assert taken.tolist() == [0, 1, 2]
    store = sw.Store(SPECS["vectors"], capacity=100)  # seen by the sanitizers
    view = store.transitions(sampler=sw.Prioritized())
    flags, reward, lanes = np.zeros(4, bool), np.arange(4, dtype="f4"), np.arange(4)
    for dtype in "f4", "f8":
        obs, action = unaligned(np.ones((4, 3), dtype)), unaligned(np.zeros(4, np.int64))
        store.extend(
            obs=obs, action=action, reward=unaligned(reward), terminated=~flags, truncated=flags, lanes=unaligned(lanes)
        )
    ids = view.sampleable_ids()
    view.update_priorities(unaligned(ids), unaligned(np.ones(len(ids))))
    assert np.sort(view.fetch(unaligned(ids)).reward).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("length", [10**8, 10**12])
def test_rewards_of_another_length_are_refused_before_memory_is_taken_for_them(length: int) -> None:
    store, no = sw.Store(SPECS["vectors"], capacity=100), np.zeros(1, bool)
    step: dict[str, Any] = {
        "obs": np.zeros((1, 3), "f4"),
        "action": np.zeros(1, int),
        "terminated": no,
        "truncated": no,
    }
    for _ in range(2):  # before and after there is a lane
        with pytest.raises(ValueError, match=r"obs|reward"):
            store.extend(**step, reward=np.broadcast_to(np.float32(0), (length,)))
        store.extend(**step, reward=np.zeros(1))
    assert store.total_steps == 2


SPOILED = """
import threading, time
import numpy as np
import sharpwave as sw

size = 200_000
spec = sw.Spec(obs=sw.Field((size,), "uint8"), action=sw.Field((), "int64"))
store = sw.Store(spec, capacity=60, segment_steps=4, codec="delta")
lanes, obs = np.arange(2), np.zeros((2, size), np.uint8)
others = {"action": lanes.copy(), "reward": np.zeros(2, np.float32), "terminated": np.zeros(2, bool)}

def spoil():
    while True:
        lanes[1] = 10**7
        time.sleep(0.0002)

thread = threading.Thread(target=spoil, daemon=True)
appended = 0
for step in range(2_000):
    lanes[1] = 1
    obs[:, step] += 1
    try:
        appended += len(store.extend(lanes=lanes, obs=obs, truncated=np.zeros(2, bool), **others))
    except ValueError as error:
        assert "lanes" in str(error), error
    if step == 20:
        thread.start()
print(appended == store.total_steps)
"""


def test_lanes_that_another_thread_overwrites_spoil_no_memory():
    done = subprocess.run([sys.executable, "-c", SPOILED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
