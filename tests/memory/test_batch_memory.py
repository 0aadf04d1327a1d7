"""Whose a batch's memory is: what is held never changes, comes back when it is let go, and counts against ram=."""

from __future__ import annotations

import gc
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sharpwave as sw

MIB = 1 << 20


def number_store(steps: int = 300, **more: Any) -> sw.Store:
    """One lane; step k shows k in every pixel, in its action and in its reward."""
    obs, core = sw.Field((6, 6), "int32", stack=3), sw.Field((64,), "float32")
    spec = sw.Spec(obs=obs, action=sw.Field((), "int64"), core=core)
    store = sw.Store(spec, **({"capacity": 1000, "segment_steps": 16, "seed": 1} | more))
    for k in range(steps):
        store.append(
            obs=np.full((6, 6), k, np.int32),
            action=k,
            reward=float(k),
            terminated=False,
            truncated=False,
            core=np.full(64, k, np.float32),
        )
    return store


def check(batch: Any) -> None:
    """Every part shows the same step."""
    k = np.asarray(batch.action)
    for i, array in enumerate((batch.obs, batch.next_obs)):
        newest = np.asarray(array)[:, -1]
        np.testing.assert_array_equal(newest, np.broadcast_to((k + i)[:, None, None], newest.shape))
    np.testing.assert_array_equal(np.asarray(batch.reward), k)
    np.testing.assert_array_equal(np.asarray(batch["core"]), np.broadcast_to(k[:, None], (len(k), 64)))


def content(part: Any) -> Any:
    return part.tolist()


def held(store: sw.Store) -> int:
    return int(store.stats()["held_batch_bytes"])


@pytest.mark.parametrize("n_step", [1, 3])
def test_all_that_is_made_of_a_batch_keeps_it(n_step: int) -> None:
    """The oracle is a copy made at once; each part is kept alone, in several guises."""
    with number_store() as store:
        view = store.transitions(n_step=n_step, sampler=sw.Prioritized())
        guises: list[Any] = [
            lambda a: a,
            lambda a: a[1:],
            lambda a: a[::2].T,
            lambda a: a.reshape(-1)[3:],
            lambda a: a.view(np.uint8),
            lambda a: np.asarray(a).data,
            lambda a: torch.from_numpy(np.asarray(a)),
            lambda a: torch.from_numpy(np.asarray(a))[2:].reshape(-1),
            lambda a: torch.utils.dlpack.from_dlpack(np.asarray(a)).unsqueeze(0),
            lambda a: np.asarray(torch.from_numpy(np.asarray(a))[1]),
        ]
        names = ["obs", "next_obs", "action", "reward", "discount", "weights", "probabilities", "ids", "core"]
        kept = []
        for name, guise in itertools.product(names, guises):
            try:
                part = guise(view.sample(8)[name])
            except (ValueError, TypeError):  # no view of what is not contiguous
                continue
            kept.append((part, content(part)))
        assert len(kept) > 80
        for _ in range(200):
            view.sample(8)
        for part, as_it_was in kept:
            assert content(part) == as_it_was


def test_memory_comes_back_with_the_last_array_and_is_used_again() -> None:
    with number_store() as store:
        view = store.transitions()
        batches = [view.sample(64) for _ in range(5)]
        five = held(store)
        assert five >= 5 * 64 * (4 * 36 * 4 + 256 + 28)
        reward = batches[0].reward
        obs = torch.from_numpy(batches[1].obs)[3]
        del batches[:2]
        gc.collect()
        # of one batch what reward shares, of the other the frames; core of neither
        assert 3 / 5 * five < held(store) < five * 4 / 5 + 64 * 36
        place = obs.data_ptr()
        del batches, reward, obs
        assert held(store) == 0
        total = store.stats()["bytes"]["batches"]
        assert total == five + 64 * 80  # for the next ones; and what drawing works in
        again = [view.sample(64) for _ in range(5)]
        assert held(store) == five and store.stats()["bytes"]["batches"] == total
        assert any(abs(batch.obs.ctypes.data - place) < five for batch in again)


def test_who_keeps_the_reward_keeps_no_frames() -> None:
    with number_store() as store:
        view = store.transitions()
        rewards = [view.sample(32).reward for _ in range(20)]
        assert held(store) <= 20 * 32 * 64  # the arrays that take less than 256 bytes an item, in one block
        assert len({reward.ctypes.data for reward in rewards}) == 20


def test_memory_that_is_not_needed_any_more_is_given_back() -> None:
    with number_store() as store:
        view = store.transitions()
        many = [view.sample(64) for _ in range(30)]
        much = store.stats()["bytes"]["batches"]
        del many
        for _ in range(600):
            view.sample(64)
        assert store.stats()["bytes"]["batches"] < much / 10


def test_batches_outlive_their_view_and_their_store_and_are_counted_still() -> None:
    store = number_store()
    view = store.transitions()
    batch = view.sample(16)
    del view
    gc.collect()
    assert held(store) > 0
    other = store.transitions(n_step=1)
    for _ in range(50):
        other.sample(16)
    check(batch)
    store.close()
    del store, other
    gc.collect()
    check(batch)


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_four_threads_on_one_view(tmp_path: Path, disk: bool) -> None:
    place: dict[str, Any] = {"disk": tmp_path / "store", "ram": "8MiB"} if disk else {}
    with number_store(**place) as store:
        view = store.transitions(sampler=sw.Prioritized())
        errors: list[BaseException] = []
        gate = threading.Barrier(5)

        def learn(seed: int) -> None:
            rng = np.random.default_rng(seed)
            mine: list[sw.Batch] = []
            try:
                gate.wait(30)
                for _ in range(150):
                    batch = view.sample(int(rng.choice([8, 16])))
                    mine = [batch, *mine][: int(rng.integers(0, 4))]
                    for one in (batch, *mine):
                        check(one)
                    view.update_priorities(batch, rng.random(len(batch)))
            except BaseException as error:
                errors.append(error)

        def watch() -> None:
            gate.wait(30)
            for _ in range(100):
                held(store)

        threads = [threading.Thread(target=learn, args=(seed,)) for seed in range(4)] + [threading.Thread(target=watch)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors and not any(thread.is_alive() for thread in threads)
        assert held(store) == 0


def test_gradients_of_four_batches_are_those_of_each() -> None:
    """``sample().torch()`` four times, then one backward pass."""
    with number_store() as store:
        view = store.transitions(seed=4)
        weight = torch.ones(3, 6, 6, dtype=torch.float64, requires_grad=True)
        batches = [view.sample(16).torch() for _ in range(4)]
        loss = sum((batch.obs.double() * weight).sum() for batch in batches)
        loss.backward()
        same = store.transitions(seed=4)
        expected = sum(same.sample(16).obs.astype(np.float64).sum(axis=0) for _ in range(4))
        assert weight.grad is not None
        np.testing.assert_array_equal(weight.grad.numpy(), expected)


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_ten_batches_of_a_stream(tmp_path: Path, disk: bool) -> None:
    place: dict[str, Any] = {"disk": tmp_path / "store"} if disk else {}
    with number_store(**place) as store:
        batches = list(itertools.islice(store.transitions(seed=2).stream(16, lookahead=3), 10))
        for batch in batches:
            check(batch)
        view = store.transitions(seed=2)
        for batch in batches:
            assert batch.ids.tolist() == view.sample(16).ids.tolist()


def test_obs_and_next_obs_share_memory_when_n_is_one() -> None:
    with number_store() as store:
        batch = store.transitions().sample(8)
        assert np.shares_memory(batch.obs, batch.next_obs)
        copied = batch.copy()
        assert not np.shares_memory(copied.obs, copied.next_obs) and not np.shares_memory(copied.obs, batch.obs)
        batch = store.transitions(n_step=2).sample(8)
        assert not np.shares_memory(batch.obs, batch.next_obs)


# ram=


def pixel_store(steps: int, shape: tuple[int, ...] = (84, 84), stack: int | None = 4, **limits: Any) -> sw.Store:
    """Incompressible frames."""
    store = sw.Store(sw.Spec(obs=sw.Field(shape, "uint8", stack=stack), action=sw.Field((), "int64")), seed=0, **limits)
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (8, *shape), dtype=np.uint8)
    for k in range(steps):
        store.append(obs=noise[k % 8], action=k, reward=0.0, terminated=False, truncated=False)
    return store


def limited(tmp_path: Path, disk: bool) -> dict[str, Any]:
    return {"disk": tmp_path / "store", "disk_limit": "1GiB"} if disk else {}


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_no_step_leaves_for_a_batch(tmp_path: Path, disk: bool) -> None:
    """A full store, of one codec that does not compress: batches that fit come, others are refused by name."""
    with pixel_store(4000, ram="16MiB", codec="raw", **limited(tmp_path, disk)) as store:
        view = store.transitions()
        steps, limit = len(store), 16 * MIB
        assert steps == 4000 if disk else 500 < steps < 2000
        for batch_size in (2048, 300, 256):
            with pytest.raises(MemoryError, match=r"batch of [\d,]+ bytes.*ram=16,777,216.*held.*smaller batch_size"):
                view.sample(batch_size)
            with pytest.raises(MemoryError, match="smaller batch_size"):
                next(view.stream(batch_size))
            with pytest.raises(MemoryError, match="smaller batch_size"):
                view.fetch(view.sampleable_ids()[:batch_size])
        held_ones = []
        for _ in range(5):
            held_ones.append(view.sample(32))
            stats = store.stats()
            assert stats["total_bytes"] <= limit and len(store) == steps
        with pytest.raises(MemoryError, match=r"\d,\d+ bytes are held by batches"):
            while len(held_ones) < 100:
                held_ones.append(view.sample(32))
        assert 5 <= len(held_ones) <= 8 and len(store) == steps
        held_ones.clear()
        view.sample(192)  # what is free in another size is given back
        assert store.stats()["total_bytes"] <= limit and len(store) == steps and held(store) == 0


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_a_batch_larger_than_ram_is_refused_and_the_steps_stay(tmp_path: Path, disk: bool) -> None:
    with pixel_store(60, (512, 512, 3), None, ram="64MiB", codec="raw", **limited(tmp_path, disk)) as store:
        steps = len(store)
        view = store.transitions()
        with pytest.raises(MemoryError, match="smaller batch_size"):
            view.sample(32)
        assert len(store) == steps and len(view.sample(4)) == 4 and len(store) == steps


def test_room_that_steps_had_not_taken_stays_the_batches() -> None:
    """What works while the store fills works when it is full."""
    spec = sw.Spec(obs=sw.Field((84, 84), "uint8"), action=sw.Field((), "int64"))
    with sw.Store(spec, ram="128MiB", codec="raw", seed=0) as store:
        view = store.transitions()
        frame = np.random.default_rng(0).integers(0, 256, (84, 84), dtype=np.uint8)
        for k in range(16_000):
            store.append(obs=frame, action=k, reward=0.0, terminated=False, truncated=False)
            if k % 500 == 499:
                batch = view.sample(min(k, 4200))
                assert batch.action.max() <= k and store.stats()["total_bytes"] <= 128 * MIB
                del batch
        assert store.stats()["evicted_steps"] > 0 and len(store) > 9000


def test_a_batch_that_a_stream_has_drawn_is_not_lost_where_there_is_no_room() -> None:
    with pixel_store(600, ram="16MiB", codec="raw") as store:
        view, twin = store.transitions(seed=3), store.transitions(seed=3)
        expected = [twin.sample(64).ids.tolist() for _ in range(8)]
        stream = view.stream(64, lookahead=2)
        found: list[Any] = []
        kept: list[Any] = []
        for _ in range(8):
            try:
                batch = next(stream)
            except MemoryError:
                kept.clear()
                batch = next(stream)
            kept.append(batch)
            found.append(batch.ids.tolist())
        assert found == expected and len(kept) < 8


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_resize_refuses_what_batches_would_not_fit_into(tmp_path: Path, disk: bool) -> None:
    with pixel_store(3000, ram="64MiB", codec="raw", **limited(tmp_path, disk)) as store:
        view = store.transitions(sampler=sw.Prioritized())
        batch = view.sample(128)
        steps = len(store)
        with pytest.raises(ValueError, match=r"resize: ram=8,388,608, expected at least [\d,]+.*are held"):
            store.resize(ram="8MiB")
        assert store.ram == 64 * MIB and len(store) == steps
        del batch
        view.sample(16)
        with pytest.raises(ValueError, match="for batches"):
            store.resize(ram="8MiB")  # for 128, which were drawn lately
        store.resize(ram="16MiB")
        assert store.stats()["total_bytes"] <= 16 * MIB
        left = len(store)
        for _ in range(10):
            one = view.sample(128)
            assert store.stats()["total_bytes"] <= 16 * MIB and len(store) == left
            view.update_priorities(one, np.ones(128))
            del one


def test_a_resize_that_is_accepted_leaves_a_store_that_works(tmp_path: Path) -> None:
    """For many limits: refused, or what was done before can be done after, appending included."""
    outcomes = set()
    for disk, mib in itertools.product((False, True), (4, 5, 8, 12)):
        place: dict[str, Any] = {"disk": tmp_path / f"{mib}", "disk_limit": "1GiB"} if disk else {}
        with pixel_store(800, ram="64MiB", codec="raw", **place) as store:
            view = store.transitions(n_step=3, sampler=sw.Prioritized())
            view.sample(32)
            try:
                store.resize(ram=mib * MIB)
            except ValueError:
                outcomes.add("refused" if mib < 10 else "refused without need")
                continue
            outcomes.add("done")
            for k in range(50):
                view.update_priorities(view.sample(32), np.ones(32))
                store.append(obs=np.zeros((84, 84), np.uint8), action=k, reward=0.0, terminated=False, truncated=False)
                assert store.stats()["total_bytes"] <= mib * MIB
    assert outcomes == {"refused", "done"}


def test_a_fetch_of_nothing_is_an_empty_batch() -> None:
    with number_store(1) as store:
        view = store.transitions(n_step=3)
        batch = view.fetch(view.sampleable_ids())
        assert batch.obs.shape == batch.next_obs.shape == (0, 3, 6, 6) and batch["core"].shape == (0, 64)
        assert len(batch.ids) == len(batch.reward) == 0


@pytest.mark.parametrize("codec", ["raw", "zstd", "delta"])
@pytest.mark.parametrize(("n_step", "batch_size"), [(1, 32), (3, 1)])
def test_parts_that_take_as_much_memory_do_not_get_one_anothers(codec: str, n_step: int, batch_size: int) -> None:
    """Blocks of one size come back in another order than they were lent in: those of three fields (two of 3 and 1 rows
    a step, one of nearly as many bytes), and for a batch of one that of all small parts."""
    shapes = {"stacked": (8, 16), "tall": (32, 8), "odd": (245,)}
    fields = {name: sw.Field(shape, "uint8", codec=codec) for name, shape in shapes.items()}
    fields["stacked"] = sw.Field((8, 16), "uint8", stack=n_step, codec=codec)
    spec = sw.Spec(obs=fields, action=sw.Field((), "int64"), more=sw.Field((60,), "float32"))
    store = sw.Store(spec, capacity=1000, segment_steps=16, seed=1)
    for k in range(200):
        obs = {name: np.full(shape, k, np.uint8) for name, shape in shapes.items()}
        store.append(obs=obs, action=k, reward=k, terminated=False, truncated=False, more=np.full(60, k))
    view = store.transitions(n_step=n_step, gamma=0.0)
    for _ in range(200):
        batch = view.sample(batch_size)
        shown = np.asarray(batch.action)
        np.testing.assert_array_equal(batch.reward, shown)
        np.testing.assert_array_equal(batch["more"], np.broadcast_to(shown[:, None], (batch_size, 60)))
        for ahead, parts in ((0, batch.obs), (n_step, batch.next_obs)):
            for name, part in parts.items():
                frame = part[:, -1] if name == "stacked" else part
                wanted = np.broadcast_to((shown + ahead).reshape(-1, *[1] * (frame.ndim - 1)), frame.shape)
                np.testing.assert_array_equal(frame, wanted, err_msg=name)
