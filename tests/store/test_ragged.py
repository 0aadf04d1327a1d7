"""Fields with rows of any length: declarations, what batches have, refusals by name, damage."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.spec import Spec
from sharpwave.views.steps import Steps


def spec_of(**fields: sw.Field) -> sw.Spec:
    return sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), **fields)


def append(store: sw.Store, number: int, ends: bool = False, **rows: Any) -> int:
    return store.append(obs=np.full(2, number), action=0, reward=0, terminated=ends, truncated=False, **rows)


def filled(rows: list[Any], field: sw.Field, **settings: Any) -> sw.Store:
    store = sw.Store(spec_of(response=field), **{"capacity": 1000, **settings})
    for k, row in enumerate(rows):
        append(store, k, k == len(rows) - 1, response=row)
    return store


TOKENS = sw.Field((None,), "int32")


def ragged(*rows: list[int], dtype: str = "int32") -> sw.Ragged:
    arrays = [np.array(row, dtype) for row in rows]
    return sw.Ragged.of(arrays, np.empty(0, dtype))


# declarations


def test_fields_say_their_rows() -> None:
    assert sw.Field(str) == sw.Field((None,), "str") != sw.Field(bytes)
    assert sw.Field((None, 768), "float16").shape == (None, 768)
    spec = spec_of(a=TOKENS, b=sw.Field(str, max_length=10), c=sw.Field((None, 3), "bool"))
    assert Spec.from_json(spec.description()) == spec
    assert spec.ragged_names == ("a", "b", "c")
    assert spec.schema_hash != spec_of(a=TOKENS, b=sw.Field(str), c=sw.Field((None, 3), "bool")).schema_hash


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: sw.Field((None,), "int32", every=3), "every=3 of rows of any length"),
        (lambda: sw.Field((None,), "int32", stack=3), "stack=3 of rows of any length"),
        (lambda: sw.Field((None,), "int32", codec="zstd"), "codec='zstd' of rows of any length"),
        (lambda: sw.Field((3, None), "int32"), "first of which may be None"),
        (lambda: sw.Field((None, 3), "str"), "of str, expected"),
        (lambda: sw.Field(str, "int32"), "dtype 'int32' with str"),
        (lambda: sw.Field((3,), "int32", max_length=3), "max_length 3"),
        (lambda: sw.Field((None,), "int32", max_length=0), "max_length 0"),
        (lambda: sw.Field((None,), "int64", max_length=1 << 30), "lower max_length="),
    ],
)
def test_wrong_declarations_are_refused(make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()
    with pytest.raises(TypeError, match="no dtype"):
        sw.Field((3,))


@pytest.mark.parametrize(
    ("field", "row", "why"),
    [
        (TOKENS, [[1, 2]], "row 0 has shape"),
        (TOKENS, 3, "row 0 has shape"),
        (TOKENS, [1.5], "expected int32"),
        (TOKENS, [1 << 40], "does not fit"),
        (sw.Field((None,), "int32", max_length=2), [1, 2, 3], "response: row 0 has 3 items, expected at most 2"),
        (sw.Field(str, max_length=3), "éé", "row 0 has 4 bytes, expected at most 3"),
        (sw.Field(str), b"ab", "expected a str"),
        (sw.Field(str), "\ud800", "no UTF-8"),
        (sw.Field(bytes), "ab", "expected bytes"),
        (sw.Field((None, 2), "float32"), np.zeros((3, 3)), "row 0 has shape"),
    ],
)
def test_rows_that_do_not_fit_change_nothing(field: sw.Field, row: Any, why: str) -> None:
    store = sw.Store(spec_of(response=field), capacity=100)
    with pytest.raises((ValueError, TypeError), match=why):
        append(store, 0, response=row)
    assert len(store) == 0


def test_rows_of_a_call_are_counted() -> None:
    store = sw.Store(spec_of(response=TOKENS), capacity=100)
    two: dict[str, Any] = {"obs": np.zeros((2, 2)), "action": np.zeros(2, int), "reward": np.zeros(2)}
    ends: dict[str, Any] = {"terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool)}
    for wrong in ([[1]], [[1], [2], [3]], 3):
        with pytest.raises(ValueError, match=r"response: got .*expected 2"):
            store.extend(**two, **ends, response=wrong)
    block: dict[str, Any] = {name: np.stack([array, array]) for name, array in (two | ends).items()}
    with pytest.raises(ValueError, match=r"response: expected \[2\]\[2\] rows"):
        store.extend(**block, response=[[[1]], [[2]]])
    store.extend(**two, **ends, response=ragged([1, 2], []))
    assert len(store) == 2


# batches


def test_a_ragged_is_a_sequence_of_rows() -> None:
    rows = ragged([1, 2, 3], [], [4])
    assert rows.lengths.tolist() == [3, 0, 1] and len(rows) == 3
    assert [row.tolist() for row in rows] == [[1, 2, 3], [], [4]]
    assert [row.tolist() for row in rows[[2, 0]]] == [[4], [1, 2, 3]]
    assert [row.tolist() for row in rows[1:]] == [[], [4]]
    assert [row.tolist() for row in rows[np.array([True, False, True])]] == [[1, 2, 3], [4]]
    two = sw.Ragged(rows.values, np.array([0, 1, 3, 3, 4]), (2, 2))
    assert two[0, 1].tolist() == [2, 3] and two[1].shape == (2,) and two[:, 0].lengths.tolist() == [1, 0]
    with pytest.raises(IndexError):
        rows[3]


def test_padding_lies_at_either_side() -> None:
    rows = ragged([1, 2, 3], [], [4])
    right, mask = rows.padded(-1, multiple_of=4)
    assert right.tolist() == [[1, 2, 3, -1], [-1] * 4, [4, -1, -1, -1]]
    assert mask.tolist() == [[True] * 3 + [False], [False] * 4, [True] + [False] * 3]
    left, mask = rows.padded(side="left")
    assert left.tolist() == [[1, 2, 3], [0] * 3, [0, 0, 4]] and mask[2].tolist() == [False, False, True]
    inner = sw.Ragged(np.arange(6.0).reshape(3, 2), np.array([0, 1, 3]), (2, 1))
    padded, mask = inner.padded()
    assert padded.tolist() == [[[[0, 1], [0, 0]]], [[[2, 3], [4, 5]]]] and mask.shape == (2, 1, 2)
    assert ragged([], []).padded()[0].shape == (2, 0)
    values, ends = rows.packed()
    assert values.tolist() == [1, 2, 3, 4] and ends.tolist() == [0, 3, 3, 4] and ends.dtype == np.int32
    for wrong in ({"side": "up"}, {"multiple_of": 0}):
        with pytest.raises(ValueError, match="padded: "):
            rows.padded(**wrong)


def test_text_is_read_as_strings_or_bytes() -> None:
    store = filled(["a", "é\x00€", "", "a" * 500], sw.Field(str))
    text = store.episodes()[0]["response"]
    assert text.strings() == ["a", "é\x00€", "", "a" * 500] and text[1] == "é\x00€"
    assert text.bytes()[1] == "é\x00€".encode()
    batch = store.sequences(2).sample(3)
    assert [len(pair) for pair in batch["response"].strings()] == [2, 2, 2]
    with pytest.raises(TypeError, match="rows of int32"):
        ragged([1]).strings()
    with pytest.raises(TypeError, match="rows of int32"):
        ragged([1]).bytes()


def test_batches_become_tensors() -> None:
    torch = pytest.importorskip("torch")
    batch = filled([[1, 2], [], [3]], TOKENS).transitions().sample(8)
    copied, moved = batch.copy(), batch.torch()
    assert (copied["response"].values == batch["response"].values).all()
    assert isinstance(moved["response"].values, torch.Tensor)
    for rows in (batch["response"], moved["response"]):
        nested = rows.torch()
        assert nested.is_nested and [one.tolist() for one in nested.unbind()] == [one.tolist() for one in rows]
    with pytest.raises(TypeError, match=r"before batch.torch\(\)"):
        moved["response"].padded()
    assert "response <Ragged int32 [8, None]>" in repr(batch)


JAX = """
import jax, numpy as np
from tests.store.test_ragged import TOKENS, filled

batch = filled([[1, 2], [], [3]], TOKENS).transitions().sample(8)
moved = batch.jax()["response"]
assert isinstance(moved.values, jax.Array)
assert [np.asarray(one).tolist() for one in moved] == [one.tolist() for one in batch["response"]]
"""


def test_batches_become_arrays_of_jax() -> None:
    """In a process of its own: with JAX's threads, forks of other tests would warn, and might wait for ever."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    subprocess.run([sys.executable, "-c", JAX], check=True, timeout=100)


def test_fetching_what_is_missing_gives_empty_rows() -> None:
    store = filled([[1, 2], [3], [4, 5, 6]], TOKENS)
    view, ids = store.transitions(), np.asarray(store.episodes()[0].ids)
    found = view.fetch(np.array([ids[2], -5, ids[0]]), missing="mask")
    assert [row.tolist() for row in found["response"]] == [[4, 5, 6], [], [1, 2]]
    assert [row.tolist() for row in view.fetch(np.array([-5]), missing="mask")["response"]] == [[]]


def test_relabelled_batches_have_rows() -> None:
    goal = sw.Field((1,), "float32")
    obs = {"observation": goal, "achieved_goal": goal, "desired_goal": goal}
    store = sw.Store(sw.Spec(obs=obs, action=sw.Field((), "int64"), response=TOKENS), capacity=100)
    seen: list[Any] = []

    def reward(achieved: Any, desired: Any, info: Any) -> Any:
        seen.append(info["response"])
        return np.zeros(len(achieved))

    values = np.arange(11, dtype=np.float32)[:, None]
    store.add_episode(
        obs=dict.fromkeys(obs, values), action=np.zeros(10, int), reward=np.zeros(10), terminated=True,
        response=[[k] * k for k in range(10)],
    )  # fmt: skip
    batch = store.transitions(relabel=sw.Future(k=4, reward_fn=reward)).sample(32)
    assert batch["response"].lengths.tolist() == batch.step.tolist()
    assert len(seen[0]) == np.count_nonzero(batch.relabelled)


@pytest.mark.parametrize("on_disk", [False, True])
def test_blends_mix_them(on_disk: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    spec = spec_of(tokens=TOKENS, text=sw.Field(str))
    stores, rows = list[sw.Store](), list[list[list[int]]]()
    for k in range(2):
        where: dict[str, Any] = {"disk": tmp_path / str(k), "ram": "16MiB"} if on_disk else {}
        store = sw.Store(spec, capacity=1000, segment_steps=8, **where)
        rows.append([rng.integers(0, 1000, rng.integers(0, 60)).tolist() for _ in range(100)])
        for n, row in enumerate(rows[k]):
            append(store, n, n % 50 == 49, tokens=row, text=str(sum(row)))
        stores.append(store)
    for sampler in (sw.Uniform, sw.Fifo):
        blend = sw.Blend([(3, stores[0].transitions(sampler=sampler())), (1, stores[1].transitions(name="b"))])
        stream = blend.stream(20)
        for batch in (blend.sample(20), next(stream)):
            for i, (source, step) in enumerate(zip(batch.source.tolist(), batch.step.tolist(), strict=True)):
                assert batch["tokens"][i].tolist() == rows[source][step]
                assert batch["text"][i] == str(sum(rows[source][step]))
    windows = sw.Blend([(1, store.sequences(4, burn_in=1, name=f"w{k}")) for k, store in enumerate(stores)])
    found = windows.sample(12)
    for b, (source, step) in enumerate(zip(found.source.tolist(), found.step.tolist(), strict=True)):
        for t in np.flatnonzero(found.mask[b]).tolist():
            assert found["tokens"][b, t].tolist() == rows[source][step + t - 1]
    other = sw.Store(spec_of(tokens=sw.Field((None,), "int64"), text=sw.Field(str)), capacity=100)
    with pytest.raises(ValueError, match="differ in tokens"):
        sw.Blend([(1, stores[0].transitions(name="c")), (1, other.transitions())])


def test_a_part_that_is_filled_again_replaces_its_rows() -> None:
    def part(rows: sw.Ragged, first: int, *parts: list[int]) -> None:
        values, lengths = np.concatenate([[0], *parts])[1:].astype(np.int32), np.array(list(map(len, parts)))
        rows.take_part(first, values, lengths, np.empty)

    rows = ragged([], [], [], [])
    part(rows, 2, [7], [8, 8])
    part(rows, 0, [1], [])
    assert [row.tolist() for row in rows] == [[1], [], [7], [8, 8]]
    part(rows, 2, [9, 9, 9], [])
    assert [row.tolist() for row in rows] == [[1], [], [9, 9, 9], []]
    part(rows, 0, [1, 2], [3], [4], [5])
    assert [row.tolist() for row in rows] == [[1, 2], [3], [4], [5]]


def test_rows_of_many_segments_join_from_disk(tmp_path: Path) -> None:
    """A cache far smaller than the data: a batch is filled in parts."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(-(1 << 60), 1 << 60, rng.integers(5000, 9000)) for _ in range(600)]
    field = sw.Field((None,), "int64")
    store = filled(rows, field, disk=tmp_path / "store", ram="16MiB", segment_steps=4)
    batch = store.transitions().sample(40)
    for i, step in enumerate(batch.step.tolist()):
        assert (batch["response"][i] == rows[step]).all()
    del batch
    with pytest.raises(MemoryError, match="batches may take"):
        store.transitions(name="large").sample(4000)
    store.close()


def test_memory_too_small_for_rows_without_a_limit_names_the_cure() -> None:
    """The error names the fields to declare with max_length=, and declaring them helps."""
    for most in (None, 100):
        spec = sw.Spec(
            obs=sw.Field(str, max_length=most), action=sw.Field(str, max_length=9), x=sw.Field((None,), "int8")
        )
        store = sw.Store(spec, ram="8MiB")
        step: dict[str, Any] = {
            "obs": "o",
            "action": "a",
            "x": [1],
            "reward": 0.0,
            "terminated": False,
            "truncated": False,
        }
        if most is None:
            with pytest.raises(MemoryError, match=r"declare 'obs', 'x' with max_length=$"):
                store.append(**step)
            assert len(store) == 0
        else:
            store.append(**step)


def test_flushed_rows_survive_sigkill(tmp_path: Path) -> None:
    code = """
import sys, time
import numpy as np
import sharpwave as sw
fields = {"tokens": sw.Field((None,), "int32"), "text": sw.Field(str)}
spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"), **fields)
store = sw.Store(spec, capacity=5000, disk=sys.argv[1])
for k in range(500):
    store.append(
        lane=k % 3, obs=k, action=0, reward=0, terminated=k % 100 > 96, truncated=False,
        tokens=np.arange(k), text=f"{k} " * (k % 40),
    )
store.flush()
print("flushed", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "s")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == b"flushed"
        process.kill()
    with sw.Store.open(tmp_path / "s") as store:
        assert store.recovery is not None and not store.recovery.damages
        assert len(store) >= 497  # an unfinished episode's last step has no successor
        for episode in store.episodes():
            for row, text, number in zip(episode["tokens"], episode["text"], episode.obs, strict=False):
                assert row.tolist() == list(range(int(number)))
                assert text == f"{int(number)} " * (int(number) % 40)


def test_memory_stays_within_ram() -> None:
    rng = np.random.default_rng(0)
    store = sw.Store(spec_of(response=TOKENS), ram="32MiB")
    for k in range(300):
        rows = [rng.integers(0, 1 << 30, 4000).astype(np.int32) for _ in range(16)]
        none = np.zeros(16, bool)
        store.extend(
            obs=np.full((16, 2), k), action=none + 0, reward=none + 0.0, terminated=none, truncated=none, response=rows
        )
        assert store.stats()["total_bytes"] <= 32 << 20
    assert store.stats()["bytes"]["open_values"] > 0 and 200 < len(store) < 4800


# other users of a store


def test_tables_have_lists_and_strings() -> None:
    pytest.importorskip("pyarrow")
    spec = spec_of(tokens=TOKENS, states=sw.Field((None, 2), "float32"), text=sw.Field(str), blob=sw.Field(bytes))
    store = sw.Store(spec, capacity=10)
    append(store, 0, tokens=[1, 2], states=np.ones((1, 2)), text="é", blob=b"\xff")
    append(store, 1, True, tokens=[], states=np.zeros((0, 2)), text="", blob=b"")
    read = store.table("steps", fields=["tokens", "states", "text", "blob"]).read_all().to_pydict()
    assert read["tokens"] == [[1, 2], []] and read["states"] == [[[1.0, 1.0]], []]
    assert read["text"] == ["é", ""] and read["blob"] == [b"\xff", b""]


def test_conditions_and_queries_read_them(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    from sharpwave.data.queries import query
    from sharpwave.offline.surveys import survey

    text = ["push", "pull", "push", "é"]
    store = filled(text, sw.Field(str), disk=tmp_path / "store")
    batch = store.transitions(where="response = 'push'").sample(16)
    assert set(batch.step.tolist()) == {0, 2} and set(batch["response"].strings()) == {"push"}
    store.close()
    found = query(survey(tmp_path / "store"), "select step, response from steps order by step").to_pydict()
    assert found["response"] == text
    numbers = filled([[1], [2, 3], []], TOKENS, disk=tmp_path / "numbers")
    numbers.close()
    assert query(survey(tmp_path / "numbers"), "select response from steps").to_pydict()["response"] == [
        [1],
        [2, 3],
        [],
    ]


def test_versions_keep_them(tmp_path: Path) -> None:
    store = filled([[1], [2, 3]], TOKENS, disk=tmp_path / "store")
    store.snapshot("first")
    append(store, 9, True, response=[4, 5])
    store.close()
    with sw.Store.open(tmp_path / "store", version="first") as before:
        assert [row.tolist() for one in before.episodes() for row in one["response"]] == [[1], [2, 3]]


def test_what_cannot_take_them_refuses_by_name(tmp_path: Path) -> None:
    store = filled([[1], [2, 3]], TOKENS)
    no = np.zeros(1, np.int64)
    refusals: list[Any] = [
        lambda: store.export(f"npz:{tmp_path / 'out.npz'}"),
        lambda: store.add_column("late", TOKENS),
        lambda: Steps(store._log).read("response", no, no, np.empty((1, 1, 8), np.uint8)),
        lambda: sw.Store(store.spec, capacity=100, codec={"response": "raw"}),
    ]
    for refuse in refusals:
        with pytest.raises(ValueError, match=r"'(response|late)'.*(rows of any length|any length)"):
            refuse()


@pytest.mark.parametrize("mode", ["Env", "NEXT_STEP", "SAME_STEP"])
def test_a_recorder_takes_a_row_for_each_lane(mode: str) -> None:
    """Rows are copied; those that come with the reset of an autoreset in the next step are left out."""
    gym: Any = pytest.importorskip("gymnasium")
    count = 1 if mode == "Env" else 3
    env = gym.make("CartPole-v1")
    if mode != "Env":
        kwargs = {"autoreset_mode": gym.vector.AutoresetMode[mode]}
        env = gym.make_vec("CartPole-v1", num_envs=count, vectorization_mode="sync", vector_kwargs=kwargs)
    store = sw.Store(sw.step_spec(env, task=sw.Field(str), tokens=TOKENS), capacity=1000)
    recorder, random = sw.Recorder(env, store), np.random.default_rng(0)
    recorder.reset(seed=0)
    expected: list[list[tuple[str, list[int]]]] = [[] for _ in range(count)]
    over = np.zeros(count, np.bool_)
    for t in range(60):
        tokens = [random.integers(0, 9, random.integers(0, 4)).astype("int32") for _ in range(count)]
        task = [f"{t} of {lane}" * (t % 3) for lane in range(count)]
        for lane in range(count):
            if not (over[lane] and mode == "NEXT_STEP"):
                expected[lane].append((task[lane], tokens[lane].tolist()))
        one = mode == "Env"
        result = recorder.step(
            0 if one else np.zeros(count, np.int64), task=task[0] if one else task, tokens=tokens[0] if one else tokens
        )
        over = np.atleast_1d(result[2] | result[3])
        for row in tokens:
            row[:] = -1
        if one and over[0]:
            recorder.reset()
    for lane in range(count):
        steps = store.episodes(lanes=lane)
        found = [row for one in steps for row in zip(one["task"], map(np.ndarray.tolist, one["tokens"]), strict=True)]
        assert found == expected[lane]
    with pytest.raises(ValueError if count > 1 else TypeError, match="task"):
        recorder.step(0 if count == 1 else np.zeros(count, np.int64), task=3, tokens=[[1]] * count)
    env.close()


def test_files_name_the_feature(tmp_path: Path) -> None:
    filled([[1], [2]], TOKENS, disk=tmp_path / "store").close()
    said = (tmp_path / "store" / "store.json").read_text()
    assert '"ragged fields"' in said


def test_a_damaged_frame_is_set_aside(tmp_path: Path) -> None:
    """A payload of another maker, whose checksum is right: its steps are sampled no more, and a warning names it."""
    text = [f"step {k}: " + "the same words again and again " * 8 for k in range(40)]
    store = filled(text, sw.Field(str), segment_steps=8)
    store.stats()
    log = store._log
    c = log.layout.ragged_columns[0]
    (slot,) = [one for one in range(log.index.highest) if log.index.sealed[one]][:1]
    memory, end = log.arena.memory, int(log.index.base[slot] + log.index.nbytes[slot])
    assert log.index.codec[c, slot] == 6
    memory[end - 60 : end - 8] = 255
    view = store.transitions()
    with pytest.warns(RuntimeWarning, match="sampled no more"):
        for _ in range(20):
            view.sample(32)
    batch = view.sample(64)
    assert all(batch["response"][i] == text[step] for i, step in enumerate(batch.step.tolist()))


def test_equal_rows_of_an_open_segment_are_kept_by_reopening(tmp_path: Path) -> None:
    """They take the place of one; the unfinished last step is cut, and the others written anew."""
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), prompt=sw.Field(str))
    store = sw.Store(spec, capacity=10_000, disk=tmp_path / "d")
    for step in range(60):
        store.append(obs=[step, step], action=0, reward=0.0, terminated=False, truncated=False, prompt="p" * 20_000)
    store.close()
    with sw.Store.open(tmp_path / "d") as again:
        assert not again.recovery.damages  # type: ignore[union-attr]
        assert len(again) == 59
        assert set(again.episodes()[0]["prompt"].strings()) == {"p" * 20_000}


def test_batches_of_rows_of_any_length_are_not_refused_for_those_before() -> None:
    spec = sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), tokens=sw.Field((None,), "int32"))
    store, rng = sw.Store(spec, capacity=500, ram="24MiB"), np.random.default_rng(0)
    for step in range(500):
        tokens = rng.integers(0, 50_000, rng.integers(0, 4000), dtype=np.int32)
        store.append(obs=[0, 0], action=0, reward=0.0, terminated=step % 50 == 49, truncated=False, tokens=tokens)
    view = store.transitions()
    for _ in range(150):
        view.sample(128)
    assert store.stats()["total_bytes"] <= 24 << 20
