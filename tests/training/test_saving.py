"""A disk that is full while a run goes on. The limit on the size of a process's files stands in for it: writes fail for
real, and work again when it is lifted."""

import contextlib
import io
import json
import re
import resource
import shutil

import numpy as np
import pytest
from rich.console import Console
from torch import nn

from sharpwave.disk import region_files
from sharpwave.training.atomic_files import MAX_WAITING_BYTES, RecordFile, write_bytes
from sharpwave.training.callbacks import Callback, Lasting
from sharpwave.training.checkpoints import NotSavedError, save_checkpoint
from sharpwave.training.folder import checkpoints
from sharpwave.training.logs import JsonLines
from sharpwave.training.recipes import load_recipe
from sharpwave.training.run import resume, run
from tests.support.small_disk import fill, mounted

from ..agents.linear import make_dqn

CARTPOLE = load_recipe("cartpole").override(
    steps=3_600, checkpoint_every=1_600, warmup_steps=3_400, report_every=1_600, hidden_units=8
)
BELOW_REPLAY = 48 << 10
"""Bytes: more than anything else takes, less than 1,600 steps of the replay memory."""


@contextlib.contextmanager
def full_above(nbytes):
    """While inside no file of this process grows beyond ``nbytes``; yields a function that frees the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))

    def free():
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    try:
        yield free
    finally:
        free()


class Told(io.StringIO):
    """What a run prints, and what is to be done when it says something."""

    def __init__(self, when="", do=lambda: None):
        super().__init__()
        self.when, self.do = when, do

    def write(self, text):
        if self.when and self.when in text:
            self.do()
        return super().write(text)


def console(out):
    return Console(file=out, width=300, _environ={})


def names(folder):
    return [int(path.name) for path in checkpoints(folder)]


def test_a_checkpoint_that_fails_is_told_and_tried_again_sooner(tmp_path):
    with full_above(BELOW_REPLAY) as free:
        out = Told("could not be written", free)
        folder, summary = run("cartpole", CARTPOLE, tmp_path / "run", console(out))
    text = out.getvalue()
    assert "The checkpoint at 1,600 steps could not be written: [Errno 27] File too large" in text
    assert "No checkpoint has been written yet; the next attempt is made at 1,760 steps" in text
    assert "The checkpoint at 1,760 steps was written" in text
    assert summary["steps"] == 3_600 and names(folder) == [3_200, 3_600]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["steps"] for line in lines if line["event"] == "report"][-1] == 3_600
    assert not list((folder / "checkpoints").glob(".*"))


def test_what_the_end_could_not_save_is_told(tmp_path):
    """Only the replay memory finds no room: all else of the last checkpoint is there, and the run can go on."""
    out = io.StringIO()
    with (
        full_above(BELOW_REPLAY),
        pytest.raises(NotSavedError, match=r"at 3,600 steps, could not .*File too large.* without the replay memory"),
    ):
        run("cartpole", CARTPOLE, tmp_path / "run", console(out))
    folder = tmp_path / "run"
    assert json.loads((folder / "summary.json").read_text())["steps"] == 3_600 and names(folder) == [3_600]
    assert resume(folder, {"steps": 3_800}, console(out))[1]["steps"] == 3_800
    assert "a new one is filled" in out.getvalue()


@pytest.mark.slow
def test_a_full_disk_does_not_call_for_longer_between_checkpoints(tmp_path):
    """Those that are tried sooner break off all episodes; that is not for checkpoints being many."""
    recipe = CARTPOLE.override(env="Acrobot-v1", steps=6_400, checkpoint_every=3_000, warmup_steps=6_300)
    out = io.StringIO()
    with full_above(BELOW_REPLAY), pytest.raises(NotSavedError):
        run("cartpole", recipe, tmp_path / "run", console(out))
    text = out.getvalue()
    assert "--checkpoint-every" not in text
    steps = [int(at.replace(",", "")) for at in re.findall(r"The checkpoint at ([0-9,]+) steps could not be", text)]
    waits = np.diff(steps[:-1]).tolist()  # the last is that of the run's end
    assert len(steps) == 5 and waits == sorted(waits) and waits[1] >= 1.5 * waits[0], "attempts back off"


def test_a_checkpoint_without_room_breaks_nothing_off(tmp_path):
    recipe = CARTPOLE.override(steps=3_600, checkpoint_every=800, warmup_steps=3_400)
    with mounted(tmp_path / "full", 4) as disk:
        _, whole = run("cartpole", recipe.override(checkpoint_every=10**6), tmp_path / "whole", console(io.StringIO()))
        out = Told("resume", lambda: None)
        filled = FillsAt(disk, 1)
        with pytest.raises(NotSavedError, match="could not be written"):
            run("cartpole", recipe, disk / "run", console(out), callbacks=[filled])
    text = out.getvalue()
    assert "bytes left, a checkpoint takes at least" in text and "the next attempt is made at 880 steps" in text
    assert filled.episodes == whole["episodes"]


@pytest.mark.slow
def test_a_memory_on_disk_keeps_what_it_has_while_the_disk_is_full(tmp_path, monkeypatch):
    for name in ("FIRST_EXTENT", "MAX_EXTENT"):
        monkeypatch.setattr(region_files, name, 16 << 10)  # else steps of CartPole find room for long
    recipe = CARTPOLE.override(steps=5_000, checkpoint_every=1_600, warmup_steps=3_400, disk_limit="16MiB")
    with mounted(tmp_path / "full", 8) as disk:
        out = io.StringIO()
        filled = FillsAt(disk, 1_800)
        with pytest.raises(NotSavedError, match="could not be written"):
            run("cartpole", recipe, disk / "run", console(out), callbacks=[filled])
    assert filled.last["steps"] == 5_000
    assert filled.last["disk"]["dropped_steps"] > 1_000


class FillsAt(Callback):
    """Other programs that fill the disk after some steps, and a count of the episodes that end."""

    def __init__(self, disk, steps):
        self.disk, self.steps, self.episodes, self.last = disk, steps, 0, {}

    def on_step(self, training):
        if training.state.progress.steps >= self.steps:
            fill(self.disk)

    def on_end(self, metrics):
        self.episodes, self.last = metrics["episodes"], metrics


@pytest.mark.slow
def test_a_disk_that_is_full_altogether_loses_no_good_checkpoint(tmp_path):
    folder, _ = run("cartpole", CARTPOLE, tmp_path / "run", console(io.StringIO()))
    before = {path: path.read_bytes() for path in (folder / "checkpoints").rglob("*") if path.is_file()}
    with full_above(1 << 30) as free:
        out = Told("steps 4,800", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, resource.RLIM_INFINITY)))
        with pytest.raises(NotSavedError, match=r"is lost. Checkpoint 000000003600 is kept"):
            resume(folder, {"steps": 5_000}, console(out))
        free()
    text = out.getvalue()
    assert text.count("metrics.jsonl cannot be written: [Errno 27] File too large; training goes on") == 1
    assert "curve.png could not be written" in text  # a summary is smaller
    assert {path: path.read_bytes() for path in (folder / "checkpoints").rglob("*") if path.is_file()} == before
    _, summary = resume(folder, {"steps": 3_800}, console(out))
    assert summary["steps"] == 3_800 and out.getvalue().count("from checkpoint 000000003600") == 2


def test_records_wait_for_a_disk_that_is_full(tmp_path):
    path = tmp_path / "metrics.jsonl"
    told: list[str] = []
    callback = Lasting(JsonLines(path), "metrics.jsonl", told.append)
    with full_above(1_000) as free:
        for number in range(100):
            callback.on_report({"steps": number})
        lines = path.read_text().splitlines()
        assert 5 < len(lines) < 100 and all(json.loads(line)["event"] == "report" for line in lines)  # none is half
        callback.on_checkpoint(None, {})
        free()
        callback.on_report({"steps": 100})
    callback.close()
    assert [json.loads(line)["steps"] for line in path.read_text().splitlines()] == list(range(101))
    assert len(told) == 2 and "cannot be written" in told[0] and told[1] == "metrics.jsonl is written again"


def test_records_that_wait_are_bounded(tmp_path):
    file = RecordFile(tmp_path / "records")
    with full_above(10):
        for number in range(100):
            with pytest.raises(OSError, match="File too large"):
                file.append(bytes([number]) * (MAX_WAITING_BYTES // 50))
    file.close()
    assert file.dropped == 50
    assert (tmp_path / "records").read_bytes()[:1] == bytes([50])


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    write_bytes(tmp_path / "file", b"before")
    with full_above(10), pytest.raises(OSError, match="File too large"):
        write_bytes(tmp_path / "file", b"after" * 10)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


# whose checkpoints


def agent():
    return make_dqn(lambda: nn.Linear(2, 3), 3)


def test_what_is_no_checkpoint_of_the_run_is_left_alone(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / ".DS_Store").write_bytes(b"Mac")
    (folder / "notes.txt").write_text("keep")
    for name in ("7", "000000000001", "000000000020", "000000000900", ".000000000003.partial", ".hidden"):
        (folder / name).mkdir()
        (folder / name / "precious").write_text("keep")
    save_checkpoint(tmp_path / "theirs", agent(), {"steps": 15}, run="other")
    shutil.copytree(tmp_path / "theirs" / "000000000015", folder / "000000000015")
    shutil.copytree(tmp_path / "theirs" / "000000000015", folder / ".000000000015.removed")
    (folder / "000000000040").symlink_to(tmp_path / "theirs" / "000000000015")
    before = {path: path.read_bytes() for path in [*folder.rglob("*"), *tmp_path.glob("theirs/*/*")] if path.is_file()}
    saved = [save_checkpoint(folder, agent(), {"steps": steps}, run="own") for steps in (10, 15, 20, 30, 40, 40, 35)]
    assert [path.name for path in saved][1:3] == ["000000000015-2", "000000000020-2"]
    for path, content in before.items():
        assert path.read_bytes() == content
    ours = [path.name for path in checkpoints_of(folder) if (path / "run.json").read_text().count('"own"')]
    assert ours == ["000000000030", "000000000035"]


def checkpoints_of(folder):
    return sorted(path for path in folder.glob("0*") if (path / "run.json").is_file())


def test_what_the_run_left_half_written_goes(tmp_path):
    folder = tmp_path / "checkpoints"
    save_checkpoint(folder, agent(), {"steps": 10}, run="own")
    for name in (".000000000020.0a1b2c3d.partial", ".000000000005.0a1b2c3d.removed"):
        shutil.copytree(folder / "000000000010", folder / name)
        (folder / name / "state.json").unlink()
    (folder / ".000000000021.0a1b2c3d.partial").mkdir()  # killed before it could say whose it is
    save_checkpoint(folder, agent(), {"steps": 20}, run="own")
    assert sorted(path.name for path in folder.iterdir()) == ["000000000010", "000000000020"]


def test_a_run_s_folder_that_was_deleted_is_not_made_again(tmp_path):
    with pytest.raises(FileNotFoundError):
        save_checkpoint(tmp_path / "gone" / "checkpoints", agent(), {"steps": 10})
    assert not (tmp_path / "gone").exists()
    out = Told("steps 1,600", lambda: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(NotSavedError, match=r"No such file.*No checkpoint has been written yet"):
        run("cartpole", CARTPOLE.override(checkpoint_every=2_000), tmp_path / "run", console(out))
    assert not (tmp_path / "run").exists()


def test_an_interrupt_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path):
    def interrupted():
        raise KeyboardInterrupt

    folder = tmp_path / "checkpoints"
    save_checkpoint(folder, agent(), {"steps": 10})
    broken = agent()
    broken.state = interrupted
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(folder, broken, {"steps": 10})
    assert [path.name for path in folder.iterdir()] == ["000000000010"]
