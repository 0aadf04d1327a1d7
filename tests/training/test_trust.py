"""A run's folder from a stranger: nothing is imported, followed or overwritten that the user did not ask for."""

import io
import json
import os
import re
import shlex
import shutil
import sys

import pytest
from rich.console import Console
from torch import nn

import sharpwave as sw
from sharpwave.cli.output import summary_table
from sharpwave.errors import NewerVersionError
from sharpwave.json_values import sealed
from sharpwave.training.checkpoints import NO_STATE, load_policy, save_policy
from sharpwave.training.evaluation import evaluate
from sharpwave.training.folder import (
    CONFIG,
    LAST,
    LOCK,
    METRICS,
    Config,
    checkpoints,
    drop_metrics,
    locked,
    read_config,
    read_summary,
    write_config,
)
from sharpwave.training.progress import TrainingState
from sharpwave.training.recipes import load_recipe
from sharpwave.training.recipes.recipe import Recipe
from sharpwave.training.run import resume, run

from ..agents.linear import make_dqn

CARTPOLE = load_recipe("cartpole").override(
    steps=600, checkpoint_every=300, warmup_steps=400, report_every=200, capacity=1_000
)
ON_DISK = CARTPOLE.override(disk_limit="64MiB", ram="16MiB")


def go(how, *arguments, **named):
    out = io.StringIO()
    folder, summary = how(*arguments, Console(file=out, width=200, _environ={}), **named)
    return folder, summary, out.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return go(run, "cartpole", CARTPOLE, tmp_path_factory.mktemp("made") / "run")[0]


@pytest.fixture(scope="module")
def made_on_disk(tmp_path_factory):
    return go(run, "cartpole", ON_DISK, tmp_path_factory.mktemp("disk") / "run")[0]


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def seen(path):
    """Names, kinds and contents of all below a folder."""
    return {
        str(one.relative_to(path)): os.readlink(one)
        if one.is_symlink()
        else one.read_bytes()
        if one.is_file()
        else None
        for one in path.rglob("*")
    }


# settings


def test_flips_of_bits_in_config_json_are_refused(tmp_path):
    config = Config("cartpole", CARTPOLE, "ab" * 16, "cd" * 16)
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config
    path = tmp_path / CONFIG
    whole = path.read_bytes()
    for bit in range(0, len(whole) * 8, 7):  # in every byte at least one, each of a byte's in turn
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises((ValueError, NewerVersionError), match=r"config\.json"):
            read_config(tmp_path)


@pytest.mark.parametrize(
    "said", [3, {}, {"path": "a", "version": 1, "steps": 2}, {"path": "a", "version": None, "steps": "2"}]
)
def test_a_config_whose_data_are_of_another_form_is_refused(tmp_path, said):
    right = {"path": "a", "version": None, "steps": 2, "segments": 1, "sha256": "00"}
    for one in (right, said):
        write_config(tmp_path, Config("cartpole", CARTPOLE, "ab" * 16, "cd" * 16, one))
        if one is right:
            assert read_config(tmp_path).learned_from == right
    with pytest.raises(ValueError, match=r"config\.json"):
        read_config(tmp_path)


def test_an_edited_config_is_refused_with_what_to_do_instead(folder):
    path = folder / CONFIG
    path.write_text(path.read_text().replace('"steps": 600', '"steps": 900'))
    before = seen(folder)
    with pytest.raises(ValueError, match=r"config\.json.*its checksum does not match.*options of .*--resume.*--steps"):
        go(resume, folder, {})
    with pytest.raises(ValueError, match="its checksum does not match"):
        evaluate(folder, episodes=1)
    assert seen(folder) == before


@pytest.mark.parametrize("what", [CONFIG, "state.json"])
def test_what_a_later_release_wrote_is_refused_and_left_alone(folder, what):
    path = folder / CONFIG if what == CONFIG else checkpoints(folder)[-1] / what
    values = json.loads(path.read_text()) | {"version": 3}
    path.write_bytes(sealed(values, indent=2) if what == CONFIG else json.dumps(values).encode())
    before = seen(folder)
    attempts = [lambda: go(resume, folder, {"steps": 900})]
    if what == CONFIG:  # of a checkpoint nothing is played where there is a policy
        attempts.append(lambda: evaluate(folder, episodes=1))
    for attempt in attempts:
        with pytest.raises(NewerVersionError, match=rf"{what}: version 3.*written by a newer sharpwave"):
            attempt()
    assert seen(folder) == before


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("training", {"steps": "many"}),
        ("training", {"steps": 1.5}),
        ("agent", {"double": 1}),
        ("env", {"name": None}),
        ("agent", {"lr": "1"}),
    ],
)
def test_settings_of_another_kind_are_refused(section, settings):
    table = CARTPOLE.to_table()
    with pytest.raises(ValueError, match=rf"setting {section}.{next(iter(settings))}: got "):
        Recipe.from_table({**table, section: {**table[section], **settings}})
    assert Recipe.from_table({**table, "agent": {**table["agent"], "lr": 1}}).agent.lr == 1


FIGURES = ["steps", "updates", "avg_loss", "learn_after", "updates_then", "minutes"]


@pytest.mark.parametrize("value", ["x", -(10**400), [], {}, True], ids=["text", "huge", "list", "dict", "true"])
def test_figures_of_another_kind_are_refused_under_a_checksum_that_holds(value):
    agent = make_dqn(lambda: nn.Linear(2, 2))
    state = TrainingState.fresh(CARTPOLE, agent).to_dict()
    assert TrainingState.from_dict(CARTPOLE, agent, state).to_dict()["progress"]["steps"] == 0
    for part, names in {
        "progress": FIGURES,
        "episodes": ["count", "avg_reward"],
        "held_out": ["latest", "best", "count", "minutes"],
    }.items():
        for name in names:
            with pytest.raises(NO_STATE):
                TrainingState.from_dict(CARTPOLE, agent, {**state, part: {**state[part], name: value}})
    for wrong in ({"steps": 1, "scores": []}, {"steps": 1, "scores": [value]}, {"steps": -1, "scores": [1.0]}):
        with pytest.raises(NO_STATE):
            TrainingState.from_dict(CARTPOLE, agent, {**state, "held_out": {**state["held_out"], "best": wrong}})


@pytest.mark.parametrize("name", ["steps", "reason", "replay_bytes", "minutes", "held_out", "mean_reward"])
def test_a_summary_with_figures_of_another_kind_is_none(folder, name):
    summary = read_summary(folder)
    assert summary is not None and read_summary(folder) == summary
    for value in (["x"], {"x": 1}, 10**400, True):
        (folder / "summary.json").write_bytes(sealed({**summary, name: value}, indent=2))
        assert read_summary(folder) is None


def test_lines_of_metrics_that_are_none_are_dropped(tmp_path):
    path, whole = tmp_path / METRICS, b'{"steps": 1}\n'
    huge = b'{"steps": 1%s}' % (b"0" * 400)
    for line in (b"[" * 100_000, huge, b"\xff\xfe", b"[]", b"5", b'{"steps": NaN}', b"\0" * 99):
        path.write_bytes(whole + line + b"\n" + whole + b'{"steps": 9}\n{"st')
        assert drop_metrics(path, 8) == 3 and path.read_bytes() == 2 * whole


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "{}", '{"recipe": 1e999, "settings": {}}', "", "\0"])
def test_a_config_that_is_none(tmp_path, content):
    (tmp_path / CONFIG).write_text(content)
    with pytest.raises(ValueError, match="is not the config of a run"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["run", "replay"])
@pytest.mark.parametrize("value", [True, None, 5, ["a"], "x"])
def test_an_id_in_a_config_that_is_none_is_named(tmp_path, name, value):
    write_config(tmp_path, Config("cartpole", CARTPOLE, "ab" * 16, "cd" * 16))
    values = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_bytes(sealed({**values, name: value}, indent=2))
    with pytest.raises(ValueError, match=re.escape(f"{name} {value!r}, expected an id")):
        read_config(tmp_path)


def test_a_damaged_summary_is_made_again(folder):
    path = folder / "summary.json"
    before = json.loads(path.read_text())
    path.write_text(path.read_text().replace('"steps": 600', '"steps": 700'))
    assert read_summary(folder) is None
    assert go(resume, folder, {})[1]["steps"] == 600
    assert json.loads(path.read_text()) == before


@pytest.mark.parametrize("steps", [float("inf"), float("nan"), [], None])
def test_a_policy_of_no_step_is_refused_under_a_checksum_that_holds(folder, steps):
    save_policy(folder / LAST, load_policy(folder / LAST)[0], {"steps": steps})
    with pytest.raises(ValueError, match="is damaged"):
        sw.Policy.load(folder, "last")


# modules


@pytest.fixture
def planted(folder, tmp_path, monkeypatch):
    """A run whose environment is in a module that leaves a trace when it is imported."""
    (tmp_path / "planted_env.py").write_text(
        "import gymnasium, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'trace')!r}).write_text('imported')\n"
        "gymnasium.register('Planted-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=50)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = read_config(folder)
    write_config(folder, config._replace(recipe=config.recipe.override(env="planted_env:Planted-v0")))
    yield folder, tmp_path / "trace"
    sys.modules.pop("planted_env", None)
    import gymnasium

    gymnasium.registry.pop("Planted-v0", None)


def test_a_module_is_imported_only_where_the_user_trusts_it(planted):
    folder, trace = planted
    for attempt in (lambda: go(resume, folder, {"steps": 900}), lambda: evaluate(folder, episodes=1)):
        with pytest.raises(ValueError, match=r"would import the module 'planted_env'.*nothing was imported.*--trust"):
            attempt()
    assert not trace.exists() and "planted_env" not in sys.modules
    assert len(evaluate(sw.Policy.load(folder, trust=True), episodes=1).scores) == 1
    assert trace.exists()
    assert go(resume, folder, {"steps": 900}, trust=True)[1]["steps"] == 900


def test_a_module_that_the_user_names_himself_is_imported(planted, tmp_path):
    _, trace = planted
    recipe = CARTPOLE.override(env="planted_env:Planted-v0", steps=100)
    go(run, "cartpole", recipe, tmp_path / "own")
    assert trace.exists()


def test_an_environment_that_is_gone_is_named(folder):
    config = read_config(folder)
    write_config(folder, config._replace(recipe=config.recipe.override(env="Gone-v3")))
    with pytest.raises(ValueError, match="env 'Gone-v3' cannot be made"):
        go(resume, folder, {"steps": 900})


def test_a_module_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        ValueError, match="env 'no_such_module:Gone-v3' cannot be made: there is no module 'no_such_module'"
    ):
        go(run, "cartpole", CARTPOLE.override(env="no_such_module:Gone-v3"), tmp_path / "own")


# links


FILES = ["lock", "config.json", "metrics.jsonl", "summary.json", "curve.png"]


@pytest.mark.parametrize("name", [*FILES, "checkpoints", "tensorboard", "replay"])
def test_a_link_is_never_written_through(folder, tmp_path, name):
    theirs = tmp_path / "theirs"
    if name in FILES:
        theirs.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"precious")
        (folder / name).unlink()
    else:
        theirs.mkdir()
        (theirs / "precious").write_text("keep")
        if (folder / name).exists():
            shutil.copytree(folder / name, theirs, dirs_exist_ok=True)
            shutil.rmtree(folder / name)
    (folder / name).symlink_to(theirs)
    before = seen(tmp_path)
    with pytest.raises(ValueError, match=rf"{name} is a symbolic link, expected a (regular file|folder)"):
        go(resume, folder, {"steps": 900})
    assert seen(tmp_path) == before


def test_a_partial_file_that_is_a_link_is_left_alone(folder, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    for name in FILES:
        (folder / f".{name}.partial").symlink_to(theirs)
    go(resume, folder, {"steps": 900})
    assert theirs.read_text() == "precious"
    assert all((folder / f".{name}.partial").is_symlink() for name in FILES)


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_regular_file_hangs_nobody(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=rf"{name} is a FIFO, expected a regular file|has no config\.json"):
        go(resume, folder, {"steps": 900})


def test_a_lock_that_is_another_program_s_file_is_kept(folder):
    (folder / "lock").write_text("my notes")
    with pytest.raises(ValueError, match="is not a run's lock"):
        go(resume, folder, {"steps": 900})
    assert (folder / "lock").read_text() == "my notes"


# the replay memory on disk


def test_a_lock_that_is_somebody_else_s_file_as_well_is_not_written_to(folder, tmp_path):
    (tmp_path / "pid").write_text("4711\n")
    (folder / LOCK).unlink()
    os.link(tmp_path / "pid", folder / LOCK)
    with locked(folder):
        assert (tmp_path / "pid").read_text() == "4711\n"


def test_only_the_run_s_own_replay_memory_is_replaced(made_on_disk, tmp_path):
    folder = shutil.copytree(made_on_disk, tmp_path / "run")
    (folder / "replay" / "notes.txt").write_text("keep")
    (folder / "replay" / "regions" / "000000000099.region").write_bytes(bytes(4096))
    regions = {path.name for path in (folder / "replay" / "regions").iterdir()} - {"000000000099.region"}
    go(resume, folder, {"steps": 900})
    assert (folder / "replay" / "notes.txt").read_text() == "keep"
    assert (folder / "replay" / "regions" / "000000000099.region").read_bytes() == bytes(4096)
    assert regions  # were there, and went or were replaced, so that the disk does not fill up
    _, summary, _ = go(resume, folder, {"steps": 1_200})
    assert summary["steps"] == 1_200
    assert sum(path.is_dir() and path.name.startswith("replay") for path in folder.iterdir()) <= 2


def test_a_run_s_end_closes_its_replay_memory(made_on_disk, tmp_path):
    """With the steps that no segment was full of."""
    shutil.copytree(made_on_disk / "replay", tmp_path / "replay")
    with sw.Store.open(tmp_path / "replay") as store:
        assert store.total_steps == 600 and store.recovery is not None and not store.recovery.damages


def test_another_store_in_its_place_is_kept(made_on_disk, tmp_path):
    folder = shutil.copytree(made_on_disk, tmp_path / "run")
    shutil.rmtree(folder / "replay")
    other, _, _ = go(run, "cartpole", ON_DISK.override(seed=9), tmp_path / "other")
    shutil.copytree(other / "replay", folder / "replay")
    before = seen(folder / "replay")
    _, summary, text = go(resume, folder, {"steps": 900})
    assert summary["steps"] == 900 and "is written to another folder of the run" in text
    assert (folder / "replay-2" / "store.json").is_file()
    assert {**seen(folder / "replay"), "lock": b""} == {**before, "lock": b""}
    go(resume, folder, {"steps": 1_200})
    assert not (folder / "replay-3").exists()  # its own is found again


# names


def test_names_drive_no_terminal(tmp_path):
    """Neither as markup nor as control characters."""
    name = "[/nope][red]run\x1b[31m"
    folder, summary, text = go(run, "cart\x1bpole", CARTPOLE.override(steps=20), tmp_path / name)
    out = io.StringIO()
    Console(file=out, width=400, _environ={}).print(summary_table(folder, summary))
    for printed in (text, out.getvalue()):
        assert "[/nope][red]run\\x1b[31m" in printed and "\x1b" not in printed


def test_commands_that_are_printed_can_be_copied(made, tmp_path):
    folder = shutil.copytree(made, tmp_path / "a run's")
    whole = read_summary(folder)
    assert whole is not None
    summary = {**whole, "reason": "interrupted by SIGINT"}
    out = io.StringIO()
    Console(file=out, width=40, _environ={}).print(summary_table(folder, summary), crop=False)
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert lines[0] == "Ended, interrupted by SIGINT"
    for said, command in (("evaluate", ["eval"]), ("resume", ["train", "--resume"])):
        (line,) = (line for line in lines if line.startswith(said))
        assert shlex.split(line.removeprefix(said)) == ["sharpwave", *command, str(folder)]
