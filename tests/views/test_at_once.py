"""Batches that the core draws and fills at once, beside those of a view that takes every step by itself."""

from __future__ import annotations

import gc
import itertools
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.memory.batch_pool import Pool
from sharpwave.native import core
from sharpwave.sampling.retention import Reservoir
from sharpwave.views.batch_source import BatchSource

from ..native.test_interrupts import interrupted
from ..support.examples import every_two

SIZES = (1, 8, 32)
Appender = Callable[[int], None]


def made(
    seed: int = 0, *, image: bool = False, width: int = 5, goals: bool = False, **more: Any
) -> tuple[sw.Store, Appender]:
    """Two lanes; numbers say which step is where; every seventh step ends an episode, every 21st is cut off."""
    field = sw.Field((3, 4), "uint8", stack=3) if image else sw.Field((width,), "float32")
    goal = sw.Field((2,), "float32")
    obs: Any = {"seen": field, "achieved_goal": goal, "desired_goal": goal} if goals else field
    spec = sw.Spec(obs=obs, action=sw.Field((2,), "float32"), noise=sw.Field((), "int64"))
    store = sw.Store(spec, **({"capacity": 400, "segment_steps": 16, "seed": seed} | more))
    numbers = itertools.count()

    def append(count: int) -> None:
        for _ in range(count):
            k = next(numbers)
            rows: Any = np.random.default_rng(k).integers(0, 200, (2, *field.shape)).astype(field.dtype)
            if goals:
                places = np.array([[k, 1], [k, 2]], np.float32)
                rows = {"seen": rows, "achieved_goal": places, "desired_goal": -places}
            store.extend(
                obs=rows,
                action=np.full((2, 2), k, np.float32),
                reward=np.array([k, -k], np.float32),
                terminated=np.array([k % 7 == 6, False]),
                truncated=np.array([False, k % 21 == 20]),
                final_obs=rows,
                noise=np.array([k, k + 1]),
            )

    return store, append


def step_by_step(view: Any) -> Any:
    """Let a view take every step by itself, and fill its batches by ``locate`` and ``decode``."""
    view.source.filler = lambda: None
    view.source.at_once = lambda batch_size, beta: None
    view.source.update_at_once = lambda ids, td_error: None
    return view


def at_once(view: Any, size: int = 8) -> bool:
    """Whether the next batch is drawn and filled by one call."""
    count = view.source.items.samples
    view.source.sample = None
    try:
        view.sample(size)
    except TypeError:
        return False
    finally:
        del view.source.sample  # the method is its class's
    return bool(view.source.items.samples == count + size)


def same(one: Any, other: Any) -> None:
    assert vars(one).keys() == vars(other).keys()
    for name, value in vars(one).items():
        pairs = [(value, vars(other)[name])] if not isinstance(value, dict) else list(
            zip(value.values(), vars(other)[name].values(), strict=True)
        )  # fmt: skip
        for mine, theirs in pairs:
            if not isinstance(mine, np.ndarray):
                assert mine == theirs, name
            else:
                assert (mine.dtype, mine.shape, mine.strides) == (theirs.dtype, theirs.shape, theirs.strides), name
                assert mine.tobytes() == theirs.tobytes(), name
    assert type(one.ids) is type(other.ids)


def states(view: Any) -> list[Any]:
    """Return a view's state, its arrays as bytes: without a capacity they are long, and lists of them are slow."""
    items = view.source.items
    sampler = {name: (np.shape(value), np.asarray(value).tobytes()) for name, value in items.sampler.state().items()}
    return [
        items.count,
        items.samples,
        items.grew,
        view.source.items.rng.bit_generator.state,
        sampler,
        items.spans.tobytes(),
    ]


KINDS: dict[str, Callable[[], Any]] = {
    "uniform": sw.Uniform,
    "prioritized": lambda: sw.Prioritized(alpha=0.7, beta=0.3),
}


def nearness(achieved: Any, desired: Any, info: Any) -> Any:
    return info["noise"] - np.abs(achieved - desired).sum(-1)


def reached(achieved: Any, desired: Any, info: Any) -> Any:
    return (achieved == desired).all(-1)


VIEWS: dict[str, Callable[..., Any]] = {
    "one step": lambda store, **more: store.transitions(n_step=1, **more),
    "three steps": lambda store, **more: store.transitions(n_step=3, **more),
    "windows": lambda store, **more: store.sequences(5, burn_in=3, stride=2, n_step=2, eta=0.7, **more),
    "long windows": lambda store, **more: store.sequences(20, burn_in=20, **more),
    "future": lambda store, **more: store.transitions(relabel=sw.Future(k=4, reward_fn=nearness), **more),
    "episode": lambda store, **more: store.transitions(
        relabel=sw.Episode(k=1, reward_fn=nearness, terminated_fn=reached), **more
    ),
}
STORES: dict[str, dict[str, Any]] = {
    "plain": {},
    "image": {"image": True},
    "reservoir": {"retention": "reservoir"},
    "growing": {"capacity": None, "ram": "64MiB"},
    "ram": {"capacity": 400, "ram": "4MiB"},
}
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 30)),
        st.tuples(st.just("sample"), st.sampled_from(SIZES)),
        st.tuples(st.just("sample"), st.sampled_from(SIZES)),
        st.tuples(st.just("beta"), st.sampled_from(SIZES)),
        st.tuples(st.just("update"), st.integers(0, 8)),
        st.tuples(st.just("stream"), st.just(8)),
    ),
    max_size=40,
)


@pytest.mark.parametrize(("store", "kind", "of"), every_two(STORES, KINDS, VIEWS))
@settings(max_examples=5, deadline=None)
@given(calls=CALLS, seed=st.integers(0, 99))
def test_batches_are_those_of_steps_taken_one_by_one(
    store: str, kind: str, of: str, calls: list[tuple[str, int]], seed: int
) -> None:
    views, appenders = [], []
    goals = of in ("future", "episode")
    for _ in range(2):
        more = STORES[store] | ({"retention": Reservoir()} if "retention" in STORES[store] else {})
        one, append = made(seed, goals=goals, **more)
        views.append(VIEWS[of](one, sampler=KINDS[kind]()))
        appenders.append(append)
        append(30)
    step_by_step(views[1])
    batches = [[view.sample(size) for view in views] for size in SIZES for _ in range(3)]
    for call, number in calls:
        if call == "append":
            for append in appenders:
                append(number)
        elif call == "update":
            ids = [[*(int(one) for one in batch.ids), 3, -1, int(batch.ids[0])] for batch in batches[number % 9]]
            errors = np.random.default_rng(number).normal(size=(len(ids[0]), *views[0].view.error_shape))
            stale = [view.update_priorities(some, errors) for view, some in zip(views, ids, strict=True)]
            assert stale[0] == stale[1] > 0
        elif call == "stream":
            batches.append([next(view.stream(number)) for view in views])
        else:
            beta = 0.9 if call == "beta" else None
            batches.append([view.sample(number, beta=beta) for view in views])
        assert states(views[0]) == states(views[1])
    for pair in batches:  # their memory is theirs
        same(*pair)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of", VIEWS)
def test_a_batch_after_another_takes_one_call(of: str, kind: str) -> None:
    store, append = made(goals=of in ("future", "episode"))
    view = VIEWS[of](store, sampler=KINDS[kind]())
    append(80)
    for _ in range(3):
        view.sample(8)
    assert at_once(view)
    append(5)  # what became known meanwhile is found by the same call
    known = len(step_by_step(VIEWS[of](store, name="other")))
    assert at_once(view) and view.source.items.count == known
    append(400)  # evicts; what needs steps of several segments is excluded for the first time
    view.sample(8)
    for _ in range(9):
        append(11)
        assert at_once(view)


def test_priorities_are_set_by_one_call() -> None:
    store, append = made()
    sampler = sw.Prioritized()
    view = store.transitions(sampler=sampler)
    append(40)
    for _ in range(3):
        batch = view.sample(8)
    append(1)
    assert view.source.update_at_once(np.asarray(batch.ids), np.full(8, 9.0)) == 8
    assert sampler.max_priority == 9 + sampler.eps
    assert step_by_step(view).update_priorities([1, *batch.ids], np.ones(9)) in (0, 1)


def test_a_batch_that_takes_more_is_drawn_step_by_step(tmp_path: Path) -> None:
    store, append = made()
    append(40)
    for view in (
        store.transitions(name="a", max_times_sampled=9),
        store.transitions(name="b", limiter=sw.MinSize(5)),
        store.transitions(name="c", sampler=sw.Fifo(), max_times_sampled=50),
    ):
        for _ in range(4):
            assert not at_once(view)
            view.sample(8)


def test_a_block_may_begin_where_another_ends() -> None:
    memory, made_bytes = memoryview(bytearray(1 << 20)), itertools.accumulate(itertools.repeat(1 << 13))

    def neighbour(nbytes: int) -> memoryview:  # as systems place mappings: below the one before it
        assert nbytes <= 1 << 13
        end = len(memory) - next(made_bytes)
        return memory[end : end + nbytes]

    store, append = made(width=128)  # 16 observations fill 8 KiB
    append(40)
    store._log.batches.pool = Pool(neighbour)
    view = store.transitions(n_step=3)
    batches = [view.sample(16).copy() for _ in range(5)]  # whose blocks return before the next one
    for batch in batches:
        expected = view.fetch(batch.ids)
        np.testing.assert_array_equal(batch.obs, expected.obs)
        np.testing.assert_array_equal(batch.next_obs, expected.next_obs)
        assert batch.reward.tolist() == expected.reward.tolist()


def test_memory_that_is_held_is_never_lent_again() -> None:
    store, append = made()
    view = store.transitions()
    append(100)
    held: list[tuple[Any, bytes]] = []
    for k in range(400):
        batch = view.sample(SIZES[k % 3])
        held.append((batch.next_obs[-1:], batch.next_obs[-1:].tobytes()))
        if k % 5 == 0:
            held = held[:-20]
    for array, content in held:
        assert array.tobytes() == content
    assert store.stats()["held_batch_bytes"] > 0
    del held, batch, array
    gc.collect()
    view.sample(8)
    assert store.stats()["held_batch_bytes"] <= 4096


def test_a_view_and_its_memory_go_with_the_last_reference() -> None:
    store, append = made()
    append(60)
    gc.collect()
    gc.disable()
    try:
        view = store.transitions(sampler=sw.Prioritized())
        for _ in range(4):
            view.sample(8)
        assert at_once(view)
        gone = weakref.ref(view.source.items)
        del view
        assert gone() is None
    finally:
        gc.enable()


def test_a_store_and_a_view_in_a_cycle_are_freed(tmp_path: Path) -> None:
    """The garbage collector sees what the core holds for a view, whose state the store's folder keeps."""
    spec = sw.Spec(obs=sw.Field((4,), "float32"), action=sw.Field((), "int64"))
    store = sw.Store(spec, capacity=200, segment_steps=8, disk=tmp_path, ram="16MiB")
    view = store.transitions(sampler=sw.Prioritized())
    for k in range(600):
        store.append(obs=np.full(4, k, np.float32), action=k, reward=0.0, terminated=False, truncated=False)
        if k % 50 == 40:
            view.update_priorities(view.sample(8), np.ones(8))
    gone = [weakref.ref(one) for one in (view.source.items, view.sampler, store._log)]
    cycle: list[Any] = [store, view]
    cycle.append(cycle)
    del store, view, cycle
    gc.collect()  # ends the store, which writes to its folder
    gc.collect()
    assert [one() for one in gone] == [None] * 3


def test_segments_on_disk_are_read_first(tmp_path: Path) -> None:
    stores = [made(3, disk=tmp_path / str(k), ram="4MiB", width=600, capacity=20_000) for k in range(2)]
    views = [store.transitions(sampler=sw.Prioritized()) for store, _ in stores]
    step_by_step(views[1])
    pairs = []
    for _ in range(60):
        for _, append in stores:
            append(60)
        pairs += [[view.sample(32) for view in views] for _ in range(4)]
        for view, batch in zip(views, pairs[-1], strict=True):
            view.update_priorities(batch, np.abs(batch.reward) + 1)
        pairs = pairs[-6:]
    for pair in pairs:
        same(*pair)
    assert states(views[0]) == states(views[1])
    caches = [store._log.segment_cache for store, _ in stores]
    assert caches[0] is not None and caches[1] is not None
    assert caches[0].hits == caches[1].hits > 0
    index = stores[0][0]._log.index
    assert not index.resident[: index.highest][index.rows[: index.highest] > 0].all()  # memory has no room for all
    for store, _ in stores:
        store.close()


BLENDS: dict[str, Any] = {
    "fixed": [0.25, 0.75],
    "changing": [1.0, lambda samples: samples / 500],
    "none of one": [0, 1],
}


STORED = ["one", "two", "two, one of which the core does not decode"]


@pytest.mark.parametrize(
    ("stores", "of", "kind", "shares"), every_two(STORED, ["three steps", "windows"], KINDS, BLENDS)
)
@settings(max_examples=2, deadline=None)
@given(calls=CALLS, seed=st.integers(0, 99))
def test_blends_are_those_of_steps_taken_one_by_one(
    stores: str, of: str, kind: str, shares: str, calls: list[tuple[str, int]], seed: int
) -> None:
    blends: list[Any] = []
    appenders, views = [], []
    for _ in range(2):
        more: list[dict[str, Any]] = [{}, {"codec": "zstd"} if "decode" in stores else {}]
        pairs = [made(seed + k, image=of == "windows", **more[k]) for k in range(2)]
        pairs = pairs[:1] if stores == "one" else pairs
        parts = [VIEWS[of](pairs[k % len(pairs)][0], sampler=KINDS[kind](), name=f"{k}") for k in range(2)]
        blends.append(sw.Blend(list(zip(BLENDS[shares], parts, strict=True)), seed=seed))
        views.append(parts)
        appenders.append([append for _, append in pairs])
        for append in appenders[-1]:
            append(60)
    blends[1]._source.at_once = lambda batch_size, beta: None
    for view in views[1]:
        step_by_step(view)
    batches = [[blend.sample(size) for blend in blends] for size in SIZES for _ in range(3)]
    for call, number in calls:
        if call == "append":
            for both in zip(*appenders, strict=True):
                for append in both:
                    append(number)
        elif call == "update":
            pair = batches[number % 9]
            errors = np.random.default_rng(number).normal(size=(len(pair[0]), *views[0][0].view.error_shape))
            stale = [blend.update_priorities(one, errors) for blend, one in zip(blends, pair, strict=True)]
            assert stale[0] == stale[1]
        elif call == "stream":
            batches.append([next(blend.stream(number)) for blend in blends])
        else:
            beta = 0.9 if call == "beta" else None
            batches.append([blend.sample(number, beta=beta) for blend in blends])
        assert blends[0].state() == blends[1].state()
        for one, other in zip(*views, strict=True):
            assert states(one) == states(other)
    for pair in batches:
        same(*pair)


def test_a_blends_batch_after_others_takes_one_call() -> None:
    stores = [made(seed) for seed in range(2)]
    for _, append in stores:
        append(60)
    blend = sw.Blend([(1, store.transitions(sampler=sw.Prioritized())) for store, _ in stores])
    for _ in range(3):
        blend.sample(8)
    for size in (8, 8):
        stores[0][1](3)
        assert blend._source.at_once(size, None) is not None
    assert blend.samples == 5 * 8 and sum(view.source.items.samples for view in blend.views) == 5 * 8
    stores[1][1](1)
    blend.views[1].source.items.losing.append(np.empty(0, np.int64))  # then nothing is drawn from the first either
    before = [blend.state(), *map(states, blend.views)]
    assert blend._source.at_once(8, None) is None
    assert [blend.state(), *map(states, blend.views)] == before


def test_an_error_of_the_users_leaves_nothing_drawn() -> None:
    store, append = made(goals=True)
    fails = False

    def reward(achieved: Any, desired: Any, info: Any) -> Any:
        return "no number" if fails else nearness(achieved, desired, info)

    view = store.transitions(relabel=sw.Future(reward_fn=reward), sampler=sw.Prioritized())
    append(80)
    for _ in range(3):
        view.sample(8)
    before = states(view)
    fails = True
    with pytest.raises(ValueError, match="reward_fn: returned shape"):
        view.sample(8)
    assert states(view) == before
    fails = False
    assert at_once(view)


def test_a_closed_store_is_refused() -> None:
    store, append = made()
    view = store.transitions()
    append(40)
    for _ in range(4):
        view.sample(8)
    store.close()
    with pytest.raises(ValueError, match="closed"):
        view.sample(8)


def test_arguments_are_refused_as_ever() -> None:
    store, append = made()
    view = store.transitions()
    append(40)
    for _ in range(4):
        view.sample(1)
    before = view.source.items.samples
    wrong: list[dict[str, Any]] = [{"batch_size": True}, {"batch_size": 1.0}, {"beta": 2}, {"timeout": -1}]
    for arguments in wrong:
        with pytest.raises(ValueError, match="expected"):
            view.sample(**{"batch_size": 1} | arguments)
    assert view.source.items.samples == before


def test_an_interrupt_at_any_line_leaves_a_batch_drawn_or_not() -> None:
    """Whatever was drawn follows the same random numbers: two for each item that counts as sampled."""
    store, append = made()
    view = store.transitions()
    append(60)
    for _ in range(4):
        view.sample(8)
    rng = np.random.default_rng(0)
    rng.bit_generator.state = view.source.items.rng.bit_generator.state
    begun = view.source.items.samples
    line = 1
    while interrupted(lambda: view.sample(8), line, signal.SIGINT):
        append(1)
        line += 1
        assert view.lock.acquire(timeout=0)
        view.lock.release()
    assert line > 8
    rng.random(2 * (view.source.items.samples - begun))
    assert rng.bit_generator.state == view.source.items.rng.bit_generator.state
    assert isinstance(view.source, BatchSource)


def test_an_interrupt_at_any_line_leaves_a_blends_batch_drawn_or_not() -> None:
    """Whatever was drawn follows the same random numbers: the blend's, one for each item, and each view's."""
    stores = [made(seed) for seed in range(2)]
    for _, append in stores:
        append(60)
    blend = sw.Blend([(1, store.transitions()) for store, _ in stores], seed=3)
    for _ in range(4):
        blend.sample(8)
    sources = [view.source for view in blend.views]
    generators = [np.random.default_rng(0) for _ in range(3)]
    for rng, one in zip(generators, [blend._source.rng, *(source.items.rng for source in sources)], strict=True):
        rng.bit_generator.state = one.bit_generator.state
    begun = [blend.samples, *(source.items.samples for source in sources)]
    line = 1
    while interrupted(lambda: blend.sample(8), line, signal.SIGINT):
        stores[line % 2][1](1)
        line += 1
        for view in blend.views:
            assert view.lock.acquire(timeout=0)
            view.lock.release()
    assert line > 8
    now = [blend.samples, *(source.items.samples for source in sources)]
    drawn = [after - before for before, after in zip(begun, now, strict=True)]
    assert drawn[0] == drawn[1] + drawn[2]
    for rng, count in zip(generators, (drawn[0], 2 * drawn[1], 2 * drawn[2]), strict=True):
        rng.random(count)
    assert generators[0].bit_generator.state == blend._source.rng.bit_generator.state
    for rng, source in zip(generators[1:], sources, strict=True):
        assert rng.bit_generator.state == source.items.rng.bit_generator.state


def test_blocks_that_lie_side_by_side_are_told_apart() -> None:
    """As memory of whole pages does: an array at the end of one is at the beginning of the next."""
    memory = np.arange(4096, dtype=np.uint8)
    roots = [memory[:2048], memory[2048:3072], memory[3072:]]
    like: dict[str, Any] = {
        "one": roots[0],
        "two": roots[1].view(np.float32),
        "three": roots[2][::2],
        "none": roots[0][2048:],
    }
    layout = core.Layout(like, roots)
    others = [np.full(2048, 1, np.uint8), np.full(1024, 2, np.uint8), np.full(1024, 3, np.uint8)]
    made = layout.over(others)
    for name, other in zip(("one", "two", "three"), others, strict=True):
        assert made[name].shape == like[name].shape and made[name].dtype == like[name].dtype
        assert (
            np.shares_memory(made[name], other) and (np.ascontiguousarray(made[name]).view(np.uint8) == other[0]).all()
        )
    assert made["none"].shape == (0,)
