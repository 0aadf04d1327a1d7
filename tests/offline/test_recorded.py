"""Episodes read from a store's folder, against a plain list of what was appended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.errors import DamagedError
from sharpwave.offline.recorded import RecordedEpisodes
from tests.support.examples import every_two

SPEC = sw.Spec(
    obs={"picture": sw.Field((6, 6), "uint8", stack=3), "position": sw.Field((2,), "float32")},
    action=sw.Field((), "int64"),
    core=sw.Field((2,), "float32", every=4),
    guess=sw.Field((3,), "float32"),
)


def observation(serial: int) -> dict[str, Any]:
    return {"picture": np.full((6, 6), serial % 251, np.uint8), "position": np.array([serial, -serial], np.float32)}


class Account:
    """Appends steps to a store, and keeps (lane, serials, final serial, end) of every whole episode by its end."""

    def __init__(self, store: sw.Store) -> None:
        self.store, self.serial = store, 0
        self.current: dict[int, list[int]] = {}
        self.whole: list[tuple[int, list[int], int, str]] = []

    def append(self, lane: int, end: str = "", next_obs: bool = False) -> None:
        serial = self.serial = self.serial + 1
        later: dict[str, Any] = {"next_obs": observation(serial + 10_000)} if next_obs else {}
        self.store.append(
            lane=lane, obs=observation(serial), action=serial % 5, reward=serial / 4, terminated=end == "terminated",
            truncated=end == "truncated", final_obs=observation(serial + 10_000) if end else None,
            core=np.full(2, serial), guess=np.full(3, serial), **later,
        )  # fmt: skip
        self.current.setdefault(lane, []).append(serial)
        if end:
            self.whole.append((lane, self.current.pop(lane), serial + 10_000, end))

    def break_off(self, lane: int) -> None:
        """After steps without their next observation: the last one is dropped, and its observation is the final one."""
        assert self.store.break_episode(lane)
        *steps, last = self.current.pop(lane)
        if steps:
            self.whole.append((lane, steps, last, "truncated"))


def fill(account: Account, steps: int, lanes: int = 3, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        account.append(int(rng.integers(lanes)), str(rng.choice(["", "terminated", "truncated"], p=[0.9, 0.06, 0.04])))


def check(folder: Path, whole: list[tuple[int, list[int], int, str]]) -> None:
    found = RecordedEpisodes(folder)
    assert found.spec == SPEC and found.steps == sum(len(serials) for _, serials, _, _ in whole)
    episodes = list(found)
    key = {tuple(serials): (lane, final, end) for lane, serials, final, end in whole}
    assert len(episodes) == len(whole)
    for one in episodes:
        serials = one.obs["obs.position"][:-1, 0].astype(int)
        lane, final, end = key.pop(tuple(serials.tolist()))
        assert (one.episode.lane, one.episode.end, one.episode.steps) == (lane, end, len(serials))
        assert one.episode.total == pytest.approx(serials.sum() / 4)
        everything = [*serials.tolist(), final]
        for name, frames in one.obs.items():
            np.testing.assert_array_equal(frames, [observation(serial)[name[4:]] for serial in everything])
            assert frames.dtype == SPEC.fields[name].dtype
        assert one.fields.keys() == {"action", "guess"}, "values of sparse fields are not there for every step"
        np.testing.assert_array_equal(one.fields["action"], serials % 5)
        np.testing.assert_array_equal(one.fields["guess"], np.repeat(serials[:, None], 3, axis=1))
        np.testing.assert_array_equal(one.reward, (serials / 4).astype(np.float32))
    assert not key


@pytest.mark.parametrize(("codec", "segment_steps"), every_two(["auto", "raw", "delta", "zstd"], [4, 64]))
def test_whole_episodes_are_those_that_were_appended(codec: str, segment_steps: int, tmp_path: Path) -> None:
    """On disk and from a checkpoint, across segments and within one; unfinished ones are left out."""
    with sw.Store(SPEC, capacity=10_000, disk=tmp_path / "disk", codec=codec, segment_steps=segment_steps) as store:
        account = Account(store)
        fill(account, 400)
        assert account.current
        store.flush()
        store.checkpoint(tmp_path / "checkpoint")
    check(tmp_path / "disk", account.whole)
    check(tmp_path / "checkpoint", account.whole)


def test_a_checkpoint_of_a_store_in_memory(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=10_000) as store:
        account = Account(store)
        fill(account, 150)
        store.checkpoint(tmp_path / "checkpoint")
    check(tmp_path / "checkpoint", account.whole)


def test_episodes_that_were_broken_off(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=10_000, disk=tmp_path, segment_steps=4) as store:
        account, rng = Account(store), np.random.default_rng(1)
        for _ in range(60):
            lane = int(rng.integers(2))
            for _ in range(int(rng.integers(1, 8))):
                account.append(lane)
            if rng.random() < 0.5:
                account.append(lane, "terminated")
            else:
                account.break_off(lane)
    check(tmp_path, account.whole)


def test_episodes_whose_beginning_was_evicted_are_left_out(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=64, segment_steps=4) as store:
        account = Account(store)
        for step in range(200):
            account.append(0, "terminated" if step % 11 == 10 else "")
        held = len(store)
        store.checkpoint(tmp_path)
    kept = [one for one in account.whole if one[1][0] > 200 - held]
    assert 2 <= len(kept) < len(account.whole) - 5
    check(tmp_path, kept)


OPENED = """
import sys
import sharpwave as sw
store = sw.Store.open(sys.argv[1])
print(len(store), flush=True)
sys.stdin.read()
"""


def test_a_store_that_another_process_uses(tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=10_000, disk=tmp_path, segment_steps=16) as store:
        account = Account(store)
        fill(account, 100)
        for lane in [*account.current]:  # opening would break them off
            account.append(lane, "terminated")
    with subprocess.Popen(
        [sys.executable, "-c", OPENED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 90
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        check(tmp_path, account.whole)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        process.communicate(b"")


def test_no_store_and_damage_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordedEpisodes(tmp_path)
    with sw.Store(SPEC, capacity=10_000, disk=tmp_path, segment_steps=16) as store:
        fill(Account(store), 100)
    region = next((tmp_path / "regions").glob("*.region"))
    content = bytearray(region.read_bytes())
    content[len(content) // 2] ^= 255
    region.write_bytes(content)
    with pytest.raises(DamagedError, match="see `sharpwave verify`"):
        RecordedEpisodes(tmp_path)
