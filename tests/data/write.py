"""Writes one small store of each sort, as the release that runs this writes them, and what must come back of them.

    python tests/data/write.py tests/data/v2

A folder per format version. Written once and kept as it is: never write over one; a new format version gets a new
folder, and ``tests/format/test_versions.py`` opens them all. Folders are zipped, as region files are mostly zeros.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

import sharpwave as sw

FIELDS: dict[str, Any] = {
    "obs": {
        "image": sw.Field((12, 8), "uint8", stack=3, codec="delta"),
        "text": sw.Field((64,), "float32", codec="zstd"),
    },
    "action": sw.Field((), "int64"),
    "serial": sw.Field((), "int64"),
}
SPEC_1 = sw.Spec(**FIELDS)
SPEC = sw.Spec(**FIELDS, core=sw.Field((2, 3), "float32", every=4))
"""Of stores of version 1, and of those of version 2, whose lanes and episodes are annotated as well."""
LANES, STRIDE = 3, 16
VIEWS: dict[str, dict[str, Any]] = {
    "prioritized": {"name": "transitions", "n_step": 3, "gamma": 0.9},
    "uniform": {"name": "transitions-2", "n_step": 1, "gamma": 0.99},
}


def sampler(view: str) -> Any:
    return sw.Prioritized(alpha=0.6, beta=0.4) if view == "prioritized" else sw.Uniform()


def observation(serial: int) -> dict[str, np.ndarray[Any, Any]]:
    """A dark picture with a bright spot that moves, and a vector of few different values."""
    image = np.full((12, 8), 17, np.uint8)
    image[serial % 12, serial % 7] = 200 + serial % 50
    text = np.round(np.sin(np.arange(64) * 0.2 + serial % 9), 1).astype(np.float32)
    return {"image": image, "text": text}


def play(store: sw.Store, count: int) -> None:
    """Steps of all lanes in turn; episodes of 11 to 13 steps, every other one truncated."""
    for step in range(count):
        for lane in range(LANES):
            serial = 1000 * lane + step
            if "core" in store.spec.fields and step % (11 + lane) == 0:
                store.annotate(lane, {"episode": step // (11 + lane), "hash": b"\0git"}, episode=True)
            last = step % (11 + lane) == 10 + lane
            terminated = last and step % 2 == 0
            store.append(
                lane=lane, obs=observation(serial), action=serial % 4, reward=float(serial % 5) - 2, serial=serial,
                terminated=terminated, truncated=last and not terminated, final_obs=observation(serial + 500),
                **core(store, serial),
            )  # fmt: skip


def core(store: sw.Store, serial: int) -> dict[str, Any]:
    """The value of the sparse field, where the store has one."""
    return {"core": np.full((2, 3), serial, np.float32)} if "core" in store.spec.fields else {}


def annotate(store: sw.Store) -> None:
    """What is said of the store and of a lane."""
    store.annotate(None, {"git": b"\0hash", "note": "\u00e4 [red]", "tags": ["a", {"b": 0.5}]})
    store.annotate(1, {"env": "ALE/Pong-v5", "seed": 7})


def digest(value: Any) -> str:
    parts = value.values() if isinstance(value, dict) else [value]
    return hashlib.blake2b(b"".join(np.ascontiguousarray(part).tobytes() for part in parts), digest_size=4).hexdigest()


def told(store: sw.Store, views: dict[str, Any]) -> dict[str, Any]:
    """What a store gives back: each view's first batch, and every step that can be sampled, by id: its serial number,
    return, discount, digests of both observations, and the probability to draw it."""
    found: dict[str, Any] = {"steps": len(store), "lane_steps": store.lane_steps.tolist(), "views": {}}
    annotated = "core" in store.spec.fields
    if annotated:
        found["annotations"] = [repr(store.annotations(lane)) for lane in (None, *range(store.lanes))]
    for name, view in views.items():
        first, steps = view.sample(16), {}
        for id_ in np.sort(view.sampleable_ids()).tolist():
            batch = view.fetch([id_])
            obs, following = (
                digest({key: value[0] for key, value in part.items()}) for part in (batch.obs, batch.next_obs)
            )
            one: list[Any] = [int(batch["serial"][0]), float(batch.reward[0]), float(batch.discount[0])]
            if annotated:
                one += [float(batch["core"][0, 1, 2]), store.annotations_of([id_])[0].get("episode")]
            steps[str(id_)] = [*one, f"{obs}-{following}"]
        chances: dict[int, float] = {}
        while len(chances) < len(steps):
            batch = view.sample(1024)
            chances |= dict(zip(batch.ids.tolist(), batch.probabilities.tolist(), strict=True))
        for id_, one in steps.items():
            one.append(round(chances[int(id_)], 9))
        found["views"][name] = {
            "first_batch": sorted(first.ids.tolist()),
            "steps": steps,
        }
    return found


def views_of(store: sw.Store) -> dict[str, Any]:
    return {name: store.transitions(sampler=sampler(name), **settings) for name, settings in VIEWS.items()}


def learn(views: dict[str, Any]) -> None:
    """Different priorities for all, and a random state that has moved on."""
    ids = np.sort(views["prioritized"].sampleable_ids())
    views["prioritized"].update_priorities(ids, 0.1 + np.arange(len(ids)) % 13)
    for view in views.values():
        view.sample(32)


def flushed(folder: Path) -> None:
    """On disk, zstd and delta with dictionaries, slots used again, rows of open segments flushed."""
    with sw.Store(SPEC, capacity=400, disk=folder, segment_steps=STRIDE) as store:
        annotate(store)
        play(store, 230)
        store.flush()


def reservoir(folder: Path) -> None:
    """On disk, with notes of what had left."""
    with sw.Store(
        SPEC, capacity=256, disk=folder, segment_steps=STRIDE, retention=sw.Reservoir(seed=3), seed=1
    ) as store:
        annotate(store)
        play(store, 200)
        store.flush()


def in_memory(folder: Path) -> None:
    """A checkpoint of a store in memory, with two views and rows in open segments."""
    store = sw.Store(SPEC, capacity=300, segment_steps=STRIDE, seed=5)
    views = views_of(store)
    annotate(store)
    play(store, 140)
    learn(views)
    store.checkpoint(folder)


def on_disk(folder: Path) -> None:
    """A checkpoint of a store on disk, with two views and rows in open segments."""
    with sw.Store(
        SPEC, capacity=300, disk=folder.with_name("live"), segment_steps=STRIDE, retention=sw.LowestPriority(), seed=7
    ) as store:
        views = views_of(store)
        annotate(store)
        play(store, 100)
        learn(views)
        play_on(store, 100, 140)
        store.checkpoint(folder)


def play_on(store: sw.Store, begin: int, end: int) -> None:
    """Steps of lane 0 alone."""
    for serial in range(begin, end):
        store.append(
            obs=observation(serial), action=0, reward=1.0, serial=serial, terminated=serial % 20 == 19, truncated=False,
            **core(store, serial),
        )  # fmt: skip


STORES = {"flushed": flushed, "reservoir": reservoir, "memory-checkpoint": in_memory, "disk-checkpoint": on_disk}


def main(target: Path) -> None:
    if target.exists():
        raise SystemExit(f"{target} is there already; stores of a version are written once")
    target.mkdir(parents=True)
    expected = {}
    for name, write in STORES.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / name
            write(folder)
            with zipfile.ZipFile(target / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as file:
                for path in sorted(folder.rglob("*")):
                    if path.is_file() and path.name != "lock":
                        file.write(path, path.relative_to(folder))
            with sw.Store.open(folder) as store:
                expected[name] = told(store, views_of(store))
    text = json.dumps(expected, sort_keys=True, separators=(",", ":"))
    (target / "expected.json").write_text(text.replace("],", "],\n") + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
