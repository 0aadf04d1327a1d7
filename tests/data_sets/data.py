"""Episodes made up for tests, as plain arrays, and their comparison with those of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sharpwave as sw
from sharpwave.data import videos
from sharpwave.data.opened_files import File, ReadBudget, open_path
from sharpwave.views.episodes import StoredEpisode


def same(some: Any, others: Any) -> bool:
    """Return whether nested arrays are the same, bit for bit, and in dtype and shape."""
    if isinstance(some, dict):
        return isinstance(others, dict) and some.keys() == others.keys() and all(same(some[k], others[k]) for k in some)
    if isinstance(some, tuple):
        return isinstance(others, tuple) and len(some) == len(others) and all(map(same, some, others))
    a, b = np.asarray(some), np.asarray(others)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def d4rl(lengths: list[int], seed: int = 0, *, with_next: bool = True, shape: tuple[int, ...] = (3,)) -> dict[str, Any]:
    """Return arrays in the D4RL layout: every second episode terminated, the others timed out."""
    rng, steps = np.random.default_rng(seed), sum(lengths)
    ends = np.cumsum(lengths) - 1
    found: dict[str, Any] = {"observations": rng.normal(size=(steps, *shape))}
    following = rng.normal(size=(steps, *shape))
    inner = np.setdiff1d(np.arange(steps), ends)
    following[inner] = found["observations"][inner + 1]
    if with_next:
        found["next_observations"] = following
    found["actions"] = rng.normal(size=(steps, 2)).astype(np.float32)
    found["rewards"] = rng.normal(size=steps).astype(np.float32)
    found["terminals"], found["timeouts"] = np.zeros((2, steps), np.bool_)
    found["terminals"][ends[::2]] = True
    found["timeouts"][ends[1::2]] = True
    found["infos/qpos"] = rng.normal(size=(steps, 2))
    return found


def check_d4rl(store: sw.Store, data: dict[str, Any], lengths: list[int]) -> None:
    """Check that a store has exactly these episodes, in order."""
    episodes = list(store.episodes())
    assert [one.length for one in episodes] == lengths
    begin = 0
    for one, length in zip(episodes, lengths, strict=True):
        rows = slice(begin, begin + length)
        observed = np.concatenate([data["observations"][rows], data["next_observations"][rows][-1:]])
        assert one.whole and same(one.obs, observed)
        assert same(one.action, data["actions"][rows]) and same(one.reward, data["rewards"][rows])
        assert same(one.terminated, data["terminals"][rows]) and same(one.truncated, data["timeouts"][rows])
        assert same(one["infos.qpos"], data["infos/qpos"][rows])
        begin += length


def check_same(some: sw.Store, others: sw.Store) -> None:
    """Check that two stores have the same episodes, with what is said of them."""
    pairs = list(zip(some.episodes(), others.episodes(), strict=True))
    assert pairs
    for a, b in pairs:
        assert whole(a).keys() == whole(b).keys()
        for name, value in whole(a).items():
            assert same(value, whole(b)[name]), name
        assert {**a.info, "import": 0} == {**b.info, "import": 0}


def whole(one: StoredEpisode) -> dict[str, Any]:
    """Return all arrays of an episode."""
    found = {"obs": one.obs, "action": one.action, "reward": one.reward}
    found |= {"terminated": one.terminated, "truncated": one.truncated}
    return found | {name: one[name] for name in one.spec.extra_names}


def opened(path: Path) -> File:
    """Open a file as importers do."""
    return open_path(path, ReadBudget())


def decode_video(path: Path, times: npt.NDArray[np.float64], out: npt.NDArray[np.uint8]) -> None:
    """Decode the frames of a video file at some times into ``out``."""
    with opened(path) as file:
        videos.decode(file, times, out)
