"""Batches as arrays of other libraries: which share the batch's memory, and which are copies."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.views.layout import MAX_DTYPE_BYTES
from tests.views.blends import made

SETTINGS: list[dict[str, Any]] = [{"n_step": 1}, {"n_step": 3}]


def arrays(batch: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: value for name, value in vars(batch).items() if isinstance(value, np.ndarray)}


def pointer(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_dlpack_shares_any_array_of_a_batch_with_numpy_and_torch(settings: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    batch = made(100)[0].transitions(**settings).sample(8)
    for name, array in arrays(batch).items():
        assert pointer(np.from_dlpack(array)) == pointer(array), name
        tensor = torch.from_dlpack(array)
        assert tensor.data_ptr() == pointer(array), name
        np.testing.assert_array_equal(tensor.numpy(), array)


def unstacked(codec: str = "auto") -> sw.Store:
    """Step k of two episodes has k in its observation's parts, which share no frames."""
    image = sw.Field((16, 17, 3), "uint8", codec=codec)
    parts = {"image": image, "state": sw.Field((5,), "float64"), "k": sw.Field((), "int64")}
    store = sw.Store(sw.Spec(obs=parts, action=sw.Field((), "int64")), capacity=1000, segment_steps=16)
    for begin in (0, 100):
        k = np.arange(begin, begin + 91)
        obs = {"image": np.zeros((91, 16, 17, 3), np.uint8), "state": np.outer(k, np.ones(5)), "k": k}
        obs["image"][:, 3, 4] = k[:, None]
        store.add_episode(obs=obs, action=k[:-1], reward=np.zeros(90), terminated=True)
    return store


@pytest.mark.parametrize("codec", ["auto", "zstd", "raw"])
@pytest.mark.parametrize("limit", [MAX_DTYPE_BYTES, 1])
def test_observations_that_share_no_frames_are_compact(codec: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharpwave.views.layout.MAX_DTYPE_BYTES", limit)  # of numpy; beyond it items are apart
    torch = pytest.importorskip("torch")
    replay = unstacked(codec).transitions()
    for size in (0, 1, 3, 150):
        batch = replay.fetch(replay.sampleable_ids()[:size]) if size != 3 else replay.sample(size)
        for obs, after in ((batch.obs, 0), (batch.next_obs, 1)):
            np.testing.assert_array_equal(obs["k"], batch.action + after)
            np.testing.assert_array_equal(obs["state"], np.outer(batch.action + after, np.ones(5)))
            np.testing.assert_array_equal(obs["image"][:, 3, 4, 0], batch.action + after)
            assert obs["image"].sum(dtype=int) == 3 * (batch.action + after).sum()
            for name, array in obs.items():
                assert array.flags.c_contiguous or limit == 1, name
                assert pointer(np.from_dlpack(array)) == pointer(array)
                assert torch.from_dlpack(array).data_ptr() == pointer(array) or not size


def test_stacks_of_one_step_share_their_frames() -> None:
    batch = made(100)[0].transitions().sample(8)
    assert np.shares_memory(batch.obs, batch.next_obs) and not batch.obs.flags.c_contiguous


JAX = """
import jax, numpy as np, sharpwave as sw
from tests.views.test_batch_arrays import SETTINGS, arrays, pointer, unstacked
from tests.views.blends import blend_of, made, prioritized

KEPT = ("ids", "lane", "step")
store = made(400)[0]
for view in (*(store.transitions(**settings) for settings in SETTINGS), store.sequences(20)):
    batch = view.sample(256)  # 128 KiB of frames and more
    found = batch.jax()
    for name, array in arrays(batch).items():
        if name in KEPT:
            assert found[name] is array
            continue
        assert isinstance(found[name], jax.Array), name
        np.testing.assert_array_equal(np.asarray(found[name]), array.astype(found[name].dtype))
        compact = array.flags.c_contiguous and array.itemsize < 8 and array.nbytes >= 1 << 16
        shared = found[name].unsafe_buffer_pointer() == pointer(array)
        assert shared or not compact, name
        assert not shared or array.flags.c_contiguous, name
    assert view.update_priorities(found, np.ones(batch.weights.shape + view.view.error_shape)) == 0

batch = store.transitions(n_step=3).sample(256)
expected, kept = batch.obs.copy(), batch.jax().obs
del batch
for _ in range(20):
    store.transitions(n_step=3).sample(256)
np.testing.assert_array_equal(np.asarray(kept), expected)  # not reused while JAX holds it
blend = blend_of(prioritized(made(400)))
blend.update_priorities(blend.sample(16).jax(), np.ones(16))
nested = sw.Spec(obs={"a": sw.Field((3,), "float32"), "b": sw.Field((), "int64")}, action=sw.Field((), "int64"))
with sw.Store(nested, capacity=100) as store:
    for k in range(20):
        store.append(obs={"a": np.full(3, k), "b": k}, action=k, reward=0, terminated=False, truncated=False)
    found = store.transitions().sample(8).jax()
    np.testing.assert_array_equal(np.asarray(found.obs["a"][:, 0]), np.asarray(found.next_obs["b"]) - 1)
for size in (3, 64):
    batch = unstacked().transitions().sample(size)
    for obs in (batch.obs, batch.next_obs):
        for array in obs.values():
            found = jax.numpy.from_dlpack(array)
            np.testing.assert_array_equal(np.asarray(found), array.astype(found.dtype))
print("ok")
"""


def test_a_batch_for_jax_shares_what_jax_can_share_and_keeps_its_ids_whole() -> None:
    if find_spec("jax") is None:
        pytest.skip("needs JAX: pip install jax")
    program = [sys.executable, "-W", "error", "-c", JAX]  # in a process of its own: JAX warns of every later fork
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "ok\n", done.stderr[-2000:]
