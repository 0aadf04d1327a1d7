"""Encoded rows over TCP: what the learner decodes is what the store decodes, and no message harms the learner."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.codecs import codec_registry
from sharpwave.codecs.codec_protocol import Codec, Packed
from sharpwave.errors import DamagedError, UnknownCodecError
from sharpwave.serve import cut_batches
from sharpwave.serve.cut_batches import Dictionaries
from sharpwave.serve.link import Link
from sharpwave.serve.wire import Frame, Request, WireError
from sharpwave.views import filling
from tests.serve.serving import served
from tests.support.examples import every_two, examples

SLOW = settings(
    max_examples=examples(15, most=100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CODECS = ["raw", "zstd", "delta", "predict", "patches", "auto", "flipped"]


class Flipped(Codec):
    """Codec of another package, which cuts nothing: rows with every bit flipped, and a byte less for the last."""

    name, number = "flipped", 200

    def encode(self, rows: Any, dictionary: bytes = b"", line_bytes: int = 0) -> bytes | None:
        return bytes(~rows.reshape(-1)[:-1]) if not rows[-1, -1] else None

    def check(self, column: Packed) -> None:
        if len(column.payload) != column.count * column.size - 1:
            raise DamagedError("flipped column: another length")

    def decode_row(self, column: Packed, row: int) -> Any:
        rows = ~np.frombuffer(bytes(column.payload) + b"\xff", np.uint8)
        return rows[row * column.size : (row + 1) * column.size]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    codec_registry.register(Flipped())
    yield
    codec_registry.unregister("flipped")


def spec_of(codec: str) -> sw.Spec:
    """Return a spec with a dict of observations, large and small fields, several dtypes, and sparse ones."""
    return sw.Spec(
        obs={
            "pixels": sw.Field((16, 18), "uint8", stack=3, codec=codec),
            "camera": sw.Field((6, 6, 3), "uint8", stack=2, pad="zeros", codec=codec),
            "pose": sw.Field((5,), "float64", codec=codec),
            "tiny": sw.Field((), "bool"),
        },
        action=sw.Field((3,), "float32"),
        logits=sw.Field((12,), "float16", codec=codec),
        core=sw.Field((2, 16), "float32", every=4, codec=codec),
        mark=sw.Field((), "int16", every=3),
    )


def written(store: sw.Store, steps: int, seed: int, lanes: int = 2, end: float = 0.08) -> None:
    """Write frames in which little moves, as in a game, among a few of noise."""
    rng = np.random.default_rng(seed)
    fields = store.spec.fields
    still = {
        name: (np.arange(math.prod(f.shape)) // 9 % 7 * 20).reshape(f.shape).astype(f.np_dtype)
        for name, f in fields.items()
    }

    def some(name: str) -> Any:
        field = store.spec.fields[name]
        values = np.repeat(still[name][None], lanes, axis=0).copy()
        if rng.random() < 0.1 and field.dtype == "uint8":
            values[:] = rng.integers(0, 256, values.shape)
        flat = values.reshape(lanes, -1)
        for lane in range(lanes):
            flat[lane, rng.integers(0, flat.shape[1], 3)] = (
                rng.integers(0, 2, 3) if field.dtype == "bool" else (rng.integers(0, 100, 3))
            )
        flat[:, -1] = 0
        return values

    for _ in range(steps):
        draws = rng.random(lanes)
        obs = {key: some(f"obs.{key}") for key in ("pixels", "camera", "pose", "tiny")}
        final = {key: some(f"obs.{key}") for key in ("pixels", "camera", "pose", "tiny")}
        store.extend(
            obs=obs, action=some("action"), reward=rng.normal(size=lanes), terminated=draws < end / 2,
            truncated=(draws >= end / 2) & (draws < end), final_obs=final, logits=some("logits"), core=some("core"),
            mark=some("mark"),
        )  # fmt: skip


def assert_same(batch: Any, stores: dict[int, sw.Store], view: str, asked: dict[str, Any]) -> None:
    """Assert that a batch is what the stores' own views of these settings fetch."""
    for incarnation, store in stores.items():
        mine = np.flatnonzero(batch.shards == incarnation)
        if not mine.size:
            continue
        expected = getattr(store, view)(**asked, name="own").fetch(np.asarray(batch.ids)[mine])
        for name in ("obs", "next_obs", "action", "fields", "reward", "step_reward", "discount", "bootstrap", "mask",
                     "first", "terminated", "truncated", "n", "lane", "step"):  # fmt: skip
            if not hasattr(expected, name):
                continue
            got, want = getattr(batch, name), getattr(expected, name)
            for key in want if isinstance(want, dict) else [None]:
                left, right = (got, want) if key is None else (got[key], want[key])
                assert left.dtype == right.dtype
                np.testing.assert_array_equal(left[mine], right, err_msg=f"{name} {key}")


VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "one step": ("transitions", {}),
    "three steps": ("transitions", {"n_step": 3}),
    "windows": ("sequences", {"length": 7, "burn_in": 3, "stride": 2, "n_step": 2}),
}


@pytest.mark.parametrize(("codec", "kind"), every_two(CODECS, VIEWS))
def test_every_codec_and_field_bit_for_bit(kind: str, codec: str, tmp_path: Path) -> None:
    view, asked = VIEWS[kind]
    spec = spec_of(codec)
    with served(2, tmp_path, "tcp", spec, segment_steps=16) as there:
        for number, store in enumerate(there.stores):
            written(store, 90, number)
        stores = {shard.incarnation: store for shard, store in zip(there.shards, there.stores, strict=True)}
        replay = getattr(there.cluster, view)(**asked)
        for size in (1, 33, 64):
            assert_same(replay.sample(size), stores, view, asked)
        used = there.stores[0]._log.index.codec[2, : there.stores[0]._log.index.highest]
        if codec not in ("raw", "auto"):
            assert (used == codec_registry.by_name(codec).number).any(), "nothing was encoded"


@SLOW
@given(data=st.data())
def test_any_settings_bit_for_bit(data: st.DataObject, tmp_path: Path) -> None:
    codec = data.draw(st.sampled_from(CODECS))
    shape = data.draw(st.sampled_from([(40,), (6, 7), (5, 4, 3), (1,)]))
    dtype = data.draw(st.sampled_from(["uint8", "float32", "int64", "bool", "float16"]))
    stack = data.draw(st.sampled_from([None, 1, 4]))
    pad: Any = data.draw(st.sampled_from(["first", "zeros"])) if stack else "first"
    obs = (
        sw.Field(shape, dtype, stack=stack, codec=codec)
        if pad == "first"
        else (sw.Field(shape, dtype, stack=stack, pad=pad, codec=codec))
    )
    spec = sw.Spec(obs=obs, action=sw.Field((), "int64"))
    view, asked = VIEWS[data.draw(st.sampled_from(list(VIEWS)))]
    lanes, seed = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 1000))
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    with served(1, folder, "tcp", spec, segment_steps=data.draw(st.sampled_from([4, 16]))) as there:
        store, rng = there.stores[0], np.random.default_rng(seed)
        values = rng.integers(0, 2, (2, lanes, *shape)).astype(spec.fields["obs"].np_dtype)
        for _ in range(60):
            moved = rng.random((lanes, *shape)) < 0.05
            obs_now = np.where(moved, values[1], values[0]).reshape(lanes, -1)
            obs_now[:, -1] = 0
            draws = rng.random(lanes)
            store.extend(
                obs=obs_now.reshape(lanes, *shape), action=rng.integers(0, 9, lanes), reward=rng.normal(size=lanes),
                terminated=draws < 0.05, truncated=(draws >= 0.05) & (draws < 0.1),
                final_obs=values[0],
            )  # fmt: skip
        replay = getattr(there.cluster, view)(**asked)
        assert_same(replay.sample(40), {there.shards[0].incarnation: store}, view, asked)


def test_rows_of_a_store_on_disk_that_memory_holds_only_parts_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = filling.resident
    monkeypatch.setattr(filling, "resident", lambda log, slots, columns: min(7, resident(log, slots, columns)))
    with served(1, tmp_path, "tcp", spec_of("zstd"), segment_steps=16, ram="8MiB", disk=tmp_path / "store") as there:
        written(there.stores[0], 200, 0)
        for kind in ("one step", "windows"):
            view, asked = VIEWS[kind]
            replay = getattr(there.cluster, view)(**asked, name=kind)
            assert_same(replay.sample(64), {there.shards[0].incarnation: there.stores[0]}, view, asked)


def test_rows_are_sent_and_dictionaries_once(tmp_path: Path) -> None:
    spec = sw.Spec(obs=sw.Field((40, 40), "uint8", stack=4, codec="patches"), action=sw.Field((), "int64"))
    with served(1, tmp_path, "tcp", spec, segment_steps=32) as there:
        store, rng = there.stores[0], np.random.default_rng(0)
        still = rng.integers(0, 256, (1, 40, 40), np.uint8)
        for step in range(321):
            frame = still.copy()
            frame[0, step % 30 : step % 30 + 3, 5:9] = 7
            store.extend(obs=frame, action=[1], reward=[0.0], terminated=[step % 50 == 49], truncated=[False])
        replay, (link,) = there.cluster.transitions(), there.cluster.links
        assert link is not None
        counts = []
        for _ in range(3):
            before = link.received_bytes
            batch = replay.sample(64)
            counts.append((link.received_bytes - before) / 64)
        whole = batch.obs.nbytes // 64
        assert counts[0] > counts[1] == pytest.approx(counts[2], rel=0.3)
        assert counts[2] < whole / 20


def message(there: Any, replay: Any) -> tuple[Frame, Any]:
    """Return a shard's reply to a draw of 16 items, and the memory that it is read into."""
    link: Link = there.cluster.links[0]
    points = (np.arange(16) + 0.5) / 16
    reply = link.call(Request.DRAW, {"view": 0, "max_priority": 1.0, "cut": True}, {"points": points})
    source = replay._batches.whole.source
    layout = source.layout(16)
    lent = [replay._batches.pool.lend(size, *root) for size, root in zip(layout.sizes, layout.roots, strict=True)]
    return reply, layout.over(lent, replay.view, source.tag)


@pytest.mark.parametrize("kind", ["one step", "windows"])
@pytest.mark.parametrize("codec", ["delta", "patches", "zstd", "predict", "raw"])
def test_changed_messages_are_refused_or_decoded_but_do_no_harm(codec: str, kind: str, tmp_path: Path) -> None:
    view, asked = VIEWS[kind]
    with served(1, tmp_path, "tcp", spec_of(codec), segment_steps=16) as there:
        written(there.stores[0], 80, 1)
        replay = getattr(there.cluster, view)(**asked)
        reply, target = message(there, replay)
        arguments = (replay.view, replay._batches.fields, replay._batches.whole.numbers)
        cut_batches.read_into(target, reply, *arguments)
        rng, refused, tries = np.random.default_rng(0), 0, examples(400)
        names = [name for name, part in reply.parts.items() if name.startswith(("rows:", "pieces:", "places"))]
        for _ in range(tries):
            parts = dict(reply.parts)
            name = names[rng.integers(len(names))]
            part = np.array(parts[name])
            flat = part.reshape(-1).view(np.uint8)
            how = rng.integers(4)
            if how == 0 and part.ndim == 1:
                part = part[: rng.integers(part.size)].copy()
            elif how == 1:
                flat[rng.integers(flat.size)] = rng.integers(256)
            elif how == 2:
                at = rng.integers(flat.size)
                flat[at : at + 8] = rng.integers(0, 256, len(flat[at : at + 8]))
            else:
                flat[rng.integers(0, min(16, flat.size))] = rng.integers(256)
            parts[name] = part
            changed = Frame(reply.kind, reply.number, {}, parts, dictionaries=reply.dictionaries)
            try:
                cut_batches.read_into(target, changed, *arguments)
            except (WireError, UnknownCodecError):
                refused += 1
        assert refused > tries / 10


def test_rows_without_their_dictionary_and_of_codecs_that_are_not_cut_are_refused(tmp_path: Path) -> None:
    spec = sw.Spec(obs=sw.Field((8, 9), "uint8", stack=2, codec="delta"), action=sw.Field((), "int64"))
    with served(1, tmp_path, "tcp", spec, segment_steps=16) as there:
        rng = np.random.default_rng(0)
        still = rng.integers(0, 256, (1, 8, 9), np.uint8)
        for _ in range(200):
            still[0, 3, rng.integers(9)] = 5
            there.stores[0].extend(obs=still, action=[0], reward=[0.0], terminated=[False], truncated=[False])
        replay = there.cluster.transitions()
        reply, target = message(there, replay)
        arguments = (replay.view, replay._batches.fields, replay._batches.whole.numbers)
        codecs = {int(one) for one in there.stores[0]._log.index.codec[2, :4]}
        assert codec_registry.by_name("delta").number in codecs
        if any(name.startswith("row_dictionary:") for name in reply.parts):
            bare = Frame(reply.kind, 1, {}, reply.parts, dictionaries=Dictionaries())
            with pytest.raises(WireError, match="window"):
                cut_batches.read_into(target, bare, *arguments)
        for number, error in ((4, WireError), (77, UnknownCodecError)):
            rows = reply.parts["rows:obs"].copy()
            rows[4] = number
            changed = Frame(reply.kind, 1, {}, {**reply.parts, "rows:obs": rows}, dictionaries=reply.dictionaries)
            with pytest.raises(error):
                cut_batches.read_into(target, changed, *arguments)


def test_a_dictionary_in_anothers_place_leaves_earlier_messages_theirs() -> None:
    first = Dictionaries().after({"row_dictionary:0:1": b"abc"})
    table, known = first.table(0, 3)
    again = first.after({"row_dictionary:0:2": b"def"})
    assert again is first and known[:4].tolist() == [1, 1, 1, 0] and table.references[2].tobytes() == b"def"
    other = first.after({"row_dictionary:0:1": b"xyz"})
    assert other is not first
    assert table.references[1].tobytes() == b"abc"
    assert other.table(0, 3)[0].references[1:3].tobytes() == b"xyzdef"
    for place in ("0:0", "0:256", "-1:1", "9999:1", "1"):
        with pytest.raises(WireError, match="dictionary"):
            first.after({f"row_dictionary:{place}": b"abc"})
