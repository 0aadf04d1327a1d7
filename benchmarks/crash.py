"""Crash test: the disk of a store fails, its files are damaged; acknowledged steps must survive, damages be named.

    python benchmarks/crash.py [--flips 10000] [--whole-opens 500] [--retention all] [--fault-rounds 1300] [--out FILE]

faults: every file operation of a store's small life comes out as an error, as a short write, as the process's end, or
as a power cut that leaves any sectors of what was not synced (tests/support/faulty.py). So for each retention; where
regions are copied together there are more operations, of which --fault-rounds are tried, others for each kind.

flips: single bits of a small store's files are flipped, and they are cut off at every record's boundary and a byte
before and behind it. Each must be found and named by reading the region as opening and verifying do; a sample goes
through Store.open and ``sharpwave verify`` whole.

Processes that are killed at any moment: lifetimes.py, and ``sharpwave torture``.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import runner

import sharpwave as sw
from sharpwave.disk import disk_budget
from sharpwave.disk.store_folder import FOLDER, MANIFEST, read_manifest
from sharpwave.format.region import Identity, read_region
from sharpwave.offline import scan
from sharpwave.offline.folder_check import check as verify

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support import faults, faulty

LANES, CAPACITY = 4, 20_000
SPEC = sw.Spec(obs=sw.Field((16, 16), "uint8", stack=2), action=sw.Field((), "int64"), serial=sw.Field((), "int64"))


def say(text: str) -> None:
    """Print and flush at once."""
    print(text, flush=True)


def frame(serial: int) -> Any:
    """Draw a frame that encodes its step's serial number."""
    picture = np.zeros((16, 16), np.uint8)
    picture[serial % 16, (serial >> 4) % 16] = 255
    picture[15, :8] = np.frombuffer(np.int64(serial).tobytes(), np.uint8)
    return picture


def frames(serials: Any) -> Any:
    """Draw the frames of several steps."""
    pictures = np.zeros((len(serials), 16, 16), np.uint8)
    pictures[np.arange(len(serials)), serials % 16, (serials >> 4) % 16] = 255
    pictures[:, 15, :8] = np.ascontiguousarray(serials, np.int64).view(np.uint8).reshape(-1, 8)
    return pictures


def append(store: sw.Store, serial: int) -> int:
    """Append one step to each lane; return the next serial number."""
    store.extend(
        obs=np.stack([frame(serial + lane) for lane in range(LANES)]),
        action=np.arange(LANES) + serial,
        reward=np.full(LANES, serial % 8, np.float32),
        terminated=np.full(LANES, serial % 97 > 92),
        truncated=np.zeros(LANES, bool),
        serial=np.arange(LANES) + serial,
    )
    return serial + LANES


def held_by(store: sw.Store) -> int:
    """Return how many steps can be sampled, after comparing each with the appended one."""
    replay = store.transitions()
    ids = replay.sampleable_ids()
    for at in range(0, len(ids), 1000):
        batch = replay.fetch(ids[at : at + 1000])
        assert np.array_equal(batch.obs[:, -1], frames(batch["serial"])), "a step differs from the appended one"
        assert np.array_equal(batch.action, batch["serial"])
    return len(ids)


LIVES: dict[str, dict[str, Any]] = {"fifo": {}}
LIVES |= {"reservoir": {"appends": 200, "settings": faults.RESERVOIR}}
LIVES |= {"lowest": {"appends": 200, "settings": faults.LOWEST}}
"""Life into which faults are injected, by retention; regions are compacted only in a full store."""


def fail(base: Path, retention: str, max_rounds: int, seed: int) -> dict[str, Any]:
    """Inject every fault at every file operation, in at most ``max_rounds`` rounds."""
    life = LIVES[retention]
    operations = faults.round_of(base / "whole", "delta", 0, "EIO", **life).log
    shutil.rmtree(base / "whole")
    done: dict[str, Any] = {"rounds": 0, "operations": len(operations), "kinds": list(faulty.KINDS), "losses": 0}
    every = -(-len(operations) * len(faulty.KINDS) // max_rounds)
    begin = time.perf_counter()
    for number, kind in enumerate(faulty.KINDS):
        for at in range(1 + (number + seed) % every, len(operations) + 1, every):
            try:
                faults.round_of(base / "life", "delta", at, kind, seed=at, **life)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                done["losses"] += 1
                say(f"faults, {retention}: {kind} at operation {at}, {operations[at - 1]}: {error!r}")
            shutil.rmtree(base / "life")
            done["rounds"] += 1
    done["seconds"] = round(time.perf_counter() - begin, 1)
    say(f"faults, {retention}: {done}")
    return done


def flips(count: int, opens: int, seed: int, base: Path) -> dict[str, Any]:
    """Flip bits and truncate files; count damage that is not found."""
    disk_budget.REGION_BYTES = disk_budget.MIN_REGION_BYTES = 32 << 10
    scan.LOOK_AGAIN_S = 0.0  # nobody writes here
    source = base / "sound"
    with sw.Store(SPEC, capacity=CAPACITY, disk=source, segment_steps=32) as store:
        serial = 0
        while serial < 4 * 700:
            serial = append(store, serial)
            if serial % 400 == 0:
                store.flush()
    manifest = read_manifest(source)
    identity = Identity(bytes.fromhex(manifest["store"]), manifest["schema"])
    files = sorted([source / MANIFEST, *(source / FOLDER).glob("*.region")])
    content = {path: path.read_bytes() for path in files}
    sound = {path: records_of(path, identity)[0] for path in files if path.suffix == ".region"}
    rng = np.random.default_rng(seed)
    sizes = np.array([len(content[path]) for path in files])
    places = rng.integers(0, int(sizes.sum()), count)
    edges = np.cumsum(sizes)
    work: list[tuple[Path, str, bytes]] = []
    for place in places.tolist():
        which = int(np.searchsorted(edges, place, side="right"))
        at, bit = place - int(edges[which] - sizes[which]), int(rng.integers(8))
        flipped = bytearray(content[files[which]])
        flipped[at] ^= 1 << bit
        work.append((files[which], f"bit {bit} of byte {at}", bytes(flipped)))
    for path, records in sound.items():
        marks = {0, 72, len(content[path])} | {one.offset - 40 for one in records}
        marks |= {one.offset for one in records} | {one.offset + one.nbytes for one in records}
        cuts = sorted({cut for mark in marks for cut in (mark - 1, mark, mark + 1) if 0 <= cut < len(content[path])})
        work += [(path, f"cut off at {cut}", content[path][:cut]) for cut in cuts]
    sampled = set(rng.choice(len(work), min(opens, len(work)), replace=False).tolist())
    done: dict[str, Any] = {"flips": count, "truncations": len(work) - count, "store_bytes": int(sizes.sum())}
    done |= {"opened_and_verified_whole": len(sampled), "not_found": 0, "undamaged_lost": 0}
    begin = time.perf_counter()
    for number, (path, what, data) in enumerate(work):
        path.write_bytes(data)
        found, kept = found_by_reading(path, identity, sound)
        if number in sampled:
            whole_found, whole_kept = found_by_opening(source, path, base)
            found, kept = found and whole_found, kept and whole_kept
        if not found or not kept:
            say(f"flips: {path.name}: {what}: {'found' if found else 'NOT FOUND'}, {'kept' if kept else 'LOST'}")
        done["not_found"] += not found
        done["undamaged_lost"] += not kept
        path.write_bytes(content[path])
    done["seconds"] = round(time.perf_counter() - begin, 1)
    say(f"flips: {done}")
    return done


def records_of(path: Path, identity: Identity) -> tuple[list[Any], list[Any]]:
    """Return a region's records and damages."""
    region, records, damages = read_region(path, identity)
    if region is not None:
        os.close(region.descriptor)
    return records, damages


def found_by_reading(path: Path, identity: Identity, sound: dict[Path, list[Any]]) -> tuple[bool, bool]:
    """Return whether the damage is named, and whether all other records are found."""
    if path.name == MANIFEST:
        try:
            read_manifest(path.parent)
        except sw.DamagedError as error:
            return str(path) in str(error), True
        return False, True
    records, damages = records_of(path, identity)
    size = path.stat().st_size
    whole = [one for one in sound[path] if one.offset + one.nbytes <= size]
    header = damages and damages[0].offset == 0 and "header" in damages[0].what
    lost = set(whole) - set(records)
    return bool(damages) and all(one.path == path for one in damages), len(lost) <= 1 or bool(header)


def found_by_opening(source: Path, path: Path, base: Path) -> tuple[bool, bool]:
    """Return the same for the whole store, opened in a copy and verified."""
    folder = base / "copy"
    shutil.copytree(source, folder)
    name = path.relative_to(source)
    try:
        named = any(one.path == folder / name for one in verify(folder).damages)
        try:
            store = sw.Store.open(folder)
        except sw.DamagedError as error:
            return named and str(folder / name) in str(error), path.name == MANIFEST
        assert store.recovery is not None
        held = held_by(store)
        named = named and any(str(folder / name) in damage for damage in store.recovery.damages)
        store.close()
        return named, held > 0 and path.name != MANIFEST
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--whole-opens", type=int, default=500, help="flips and cuts checked on a whole store")
    parser.add_argument("--retention", choices=[*LIVES, "all"], default="all", help="retention of stores with faults")
    parser.add_argument("--fault-rounds", type=int, default=1300, help="rounds with faults for each retention, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=runner.RESULTS / "crash.json")
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="sharpwave-crash-"))
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {}
    for one in LIVES if arguments.retention == "all" else [arguments.retention]:
        name = "faults" if one == "fifo" else f"faults, {one}"
        parts[name] = functools.partial(fail, base, one, max(1, arguments.fault_rounds), arguments.seed)
    if arguments.flips:
        parts["flips"] = lambda: flips(arguments.flips, arguments.whole_opens, arguments.seed, base)
    for name, part in parts.items():
        results[name] = part()
        runner.write(arguments.out, results)
    shutil.rmtree(base)
    bad = [part.get(name, 0) for part in results.values() for name in ("losses", "not_found", "undamaged_lost")]
    say(f"losses: {sum(bad)}")
    sys.exit(1 if sum(bad) else 0)


if __name__ == "__main__":
    main()
