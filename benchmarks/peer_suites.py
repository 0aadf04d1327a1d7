"""The test suites of the libraries whose buffers ours replace, run with ours in their place.

    python benchmarks/peer_suites.py tianshou=FOLDER sb3=FOLDER torchrl=FOLDER cleanrl=FOLDER [--only test_her.py]
        [--out F] [--python P]

A folder is a checkout or an unpacked source distribution of the release that is installed; nothing of it is kept here.
Its tests are copied to a temporary folder, so that they import the library that is installed, and pytest loads this
file as a plugin, which puts our buffers where theirs were. Of CleanRL the programs are run that use a replay buffer
and PyTorch, for some hundred steps, with one import changed.

Each test has passed; or it was refused by a sentence that ``REFUSALS`` foresees, and says why; or it failed. Those that
use no store, as they test other classes, are counted apart; so are those that do not pass with the library's own
buffers either, which is tried for all that did not pass.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import runner

from sharpwave.store import Store

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 3600


@dataclass(frozen=True)
class Suite:
    """Tests of a library.

    Attributes:
        package: its name where packages are installed. ``folder``: that of the tests. ``files``: those run, in it.
        stated: file of the release's number. ``path``: folders to import from.
    """

    package: str
    folder: str
    files: tuple[str, ...]
    stated: str
    path: tuple[str, ...] = (".",)


SUITES = {
    "tianshou": Suite("tianshou", "test", ("base/test_buffer.py", "base/test_collector.py"), "pyproject.toml"),
    "sb3": Suite(
        "stable_baselines3",
        "tests",
        ("test_buffers.py", "test_her.py", "test_n_step_replay.py", "test_save_load.py"),
        "stable_baselines3/version.txt",
    ),
    "torchrl": Suite("torchrl", "test", ("rb/test_rb_core.py",), "version.txt", (".", "test", "test/rb")),
}
PROGRAMS: dict[str, list[str]] = {
    "dqn": [],
    "c51": [],
    "dqn_atari": ["--buffer-size", "1000"],
    "c51_atari": ["--buffer-size", "1000"],
    "sac_atari": ["--buffer-size", "1000"],
    "ddpg_continuous_action": ["--env-id", "Pendulum-v1"],
    "td3_continuous_action": ["--env-id", "Pendulum-v1"],
    "sac_continuous_action": ["--env-id", "Pendulum-v1"],
}
STEPS, STARTS = 600, 200


@dataclass(frozen=True)
class Refusal:
    """What ours cannot do.

    Attributes:
        suite: of which library. ``test``: pattern of the tests' names. ``error``: pattern of what they end with.
        why: the reason.
    """

    suite: str
    test: str
    error: str
    why: str


REFUSALS = (
    Refusal("tianshou", r"test_replaybuffer$", "as in the first transitions", "an obs_next of another kind than obs"),
    Refusal(
        "sb3",
        "test_nstep_no_terminations",
        "its successor is not known yet",
        "no return is cut at the newest step",
    ),
    Refusal("torchrl", "", "expected transitions as collectors make", "TensorDicts that are no transitions"),
    Refusal("torchrl", "", "expected a TensorDict of transitions", "tensors outside of TensorDicts"),
    Refusal("torchrl", "", "ndim=2, expected 1", "storages of several axes"),
    Refusal("torchrl", "_consume_", "ConsumingSampler only supports", "TorchRL allows it with its own storages only"),
    Refusal("sb3", "test_warn_buffer.*True", "optimize_memory_usage=True, expected False", "stored once in any case"),
)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a test: ``kind`` is "passed", "refused", "failed", "skipped" or "other" (it uses no store)."""

    suite: str
    file: str
    test: str
    kind: str
    said: str


def outcome(suite: str, found: dict[str, Any]) -> Outcome:
    """Return the outcome of a test by a line that the plugin wrote."""
    file, _, test = found["test"].partition("::")
    kind, said = found["outcome"], found["error"]
    if kind == "passed" and not found["stores"]:
        kind = "other"
    for one in REFUSALS if kind == "failed" else ():
        if one.suite == suite and re.search(one.test, test) and re.search(one.error, said):
            kind, said = "refused", one.why
            break
    return Outcome(suite, Path(file).name, test, kind, said)


def run_suite(name: str, source: Path, python: str, only: str = "") -> list[Outcome]:
    """Run a library's tests in a folder of their own, and those that did not pass with its own buffers too."""
    suite, found = SUITES[name], []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(source / suite.folder, Path(folder) / suite.folder)
        for file in (f"{suite.folder}/{file}" for file in suite.files if file.endswith(only)):
            outcomes = [outcome(name, line) for line in run_tests(name, file, Path(folder), python)]
            late = [place for place, one in enumerate(outcomes) if one.kind in ("failed", "refused")]
            alone = run_tests(name, file, Path(folder), python, again=late) if late else []
            for place, line in zip(late, alone, strict=False):
                if line["outcome"] != "passed":
                    said = "does not pass with its own buffers either"
                    outcomes[place] = replace(outcomes[place], kind="skipped", said=said)
            found += outcomes
    return found


def run_tests(name: str, file: str, folder: Path, python: str, again: list[int] | None = None) -> list[dict[str, Any]]:
    """Run a library's tests with our buffers, or those at some places with its own.

    Returns:
        what the plugin wrote of each test, in their order.
    """
    out = folder / "outcomes.jsonl"
    out.write_text("")
    paths = [str(HERE), *(str(folder / one) for one in SUITES[name].path), os.environ.get("PYTHONPATH", "")]
    more = {"PEER": name, "PEER_OUTCOMES": str(out), "PYTHONPATH": os.pathsep.join(paths)}
    if again is not None:
        more["PEER_ALONE"] = ",".join(map(str, again))
    command = [python, "-m", "pytest", "-q", "--tb=short", "-p", "peer_suites", "-p", "no:cacheprovider", file]
    try:
        subprocess.run(command, cwd=folder, env=os.environ | more, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"{name}: {file} was stopped after {TIMEOUT_S} s; the rest of its tests is missing", file=sys.stderr)
    return [json.loads(line) for line in out.read_text().splitlines()]


def run_program(source: Path, name: str, arguments: list[str], python: str, ours: bool) -> str:
    """Run a program of CleanRL's, with its own buffer or with ours; return "", or the last line of its error."""
    with tempfile.TemporaryDirectory() as folder:
        text = (source / "cleanrl" / f"{name}.py").read_text()
        if ours:
            text = text.replace("from cleanrl_utils.buffers import", "from sharpwave.integrations.cleanrl import")
        if name.endswith("_atari"):  # later releases of ale-py than CleanRL's register games only when imported
            text = f"import ale_py\n{text}"
        Path(folder, f"{name}.py").write_text(text)
        limits = ["--total-timesteps", str(STEPS), "--learning-starts", str(STARTS), "--no-track", "--no-cuda"]
        paths = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        command = [python, "-W", "ignore", f"{name}.py", *limits, *arguments]
        ended = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        return "" if ended.returncode == 0 else (ended.stderr.strip().splitlines() or ["no word"])[-1]


def run_programs(source: Path, python: str, only: str = "") -> list[Outcome]:
    """Run CleanRL's programs; those that do not run here with their own buffers are skipped."""
    found = []
    for name, arguments in PROGRAMS.items():
        if only not in ("", name):
            continue
        said = run_program(source, name, arguments, python, ours=True)
        kind = "failed" if said else "passed"
        if said and (alone := run_program(source, name, arguments, python, ours=False)):
            kind, said = "skipped", f"does not run here with its own buffer: {alone}"
        found.append(Outcome("cleanrl", "programs", name, kind, said))
    return found


KINDS = ("passed", "refused", "failed", "other", "skipped")


def table(found: list[Outcome]) -> str:
    """Return counts by file, reasons of refusals, and failures."""
    lines = ["| suite | tests that use a store | pass | refused | failed | use none | skipped |", "|---|" + "---:|" * 6]
    for suite, file in dict.fromkeys((one.suite, one.file) for one in found):
        count = Counter(one.kind for one in found if (one.suite, one.file) == (suite, file))
        of = count["passed"] + count["refused"] + count["failed"]
        cells = [of, f"{count['passed']} ({count['passed'] / max(of, 1):.0%})", *(count[kind] for kind in KINDS[1:])]
        lines.append(f"| {suite} {file} | " + " | ".join(str(cell) for cell in cells) + " |")
    refused = Counter((one.suite, one.said) for one in found if one.kind == "refused")
    lines += [f"refused: {suite} ({count}): {why}" for (suite, why), count in refused.items()]
    lines += [f"failed: {one.suite} {one.test}: {one.said[:300]}" for one in found if one.kind == "failed"]
    return "\n".join(lines)


def check_release(name: str, source: Path) -> None:
    """Warn where sources are not those of the library that is installed."""
    suite = SUITES[name]
    installed, text = version(suite.package), (source / suite.stated).read_text()
    if installed not in text:
        print(f"{name}: {suite.package} {installed} is installed; {suite.stated} names another", file=sys.stderr)


def main() -> None:
    """Run what is asked for, print counts, and write all outcomes."""
    parser = runner.parser(__doc__)
    parser.add_argument("sources", nargs="+", metavar="NAME=FOLDER", help=f"of {', '.join([*SUITES, 'cleanrl'])}")
    parser.add_argument("--only", default="", help="a file of tests, or a program of CleanRL's")
    parser.add_argument("--out", type=Path, help="file for the outcomes, as JSON")
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the tests")
    given = parser.parse_args()
    found: list[Outcome] = []
    for one in given.sources:
        name, _, folder = one.partition("=")
        source = Path(folder).resolve()
        if name == "cleanrl":
            found += run_programs(source, given.python, given.only)
        else:
            check_release(name, source)
            found += run_suite(name, source, given.python, given.only)
    print(table(found))
    if given.out is not None:
        runner.write(given.out, [vars(one) for one in found])


# The plugin gets from its environment: PEER, the library's name; PEER_OUTCOMES, the file that gets a line of JSON for
# each test; and PEER_ALONE, the places of those tests, as in "3,17", that are run with the library's own buffers, and
# no others then.

made = 0
"""Stores begun, or opened, so far."""


def tianshou() -> None:
    """Replace the names that users import; Tianshou's modules go on building upon its own classes."""
    theirs, ours = import_module("tianshou.data"), import_module("sharpwave.integrations.tianshou")
    for name in set(ours.__all__) & set(vars(theirs)):
        setattr(theirs, name, getattr(ours, name))


def torchrl() -> None:
    """Replace the storage in memory, which TorchRL's buffers, samplers and writers use."""
    theirs, ours = (
        import_module("torchrl.data.replay_buffers.storages"),
        import_module("sharpwave.integrations.torchrl"),
    )
    put_everywhere("torchrl", theirs.LazyTensorStorage, ours.SharpwaveStorage)


def sb3() -> None:
    """Replace the buffers in all modules, so that algorithms make ours where none is asked for."""
    ours, theirs = import_module("sharpwave.integrations.sb3"), import_module("stable_baselines3.common.buffers")
    her = import_module("stable_baselines3").HerReplayBuffer
    put_everywhere("stable_baselines3", her, ours.HerReplayBuffer)
    put_everywhere("stable_baselines3", theirs.NStepReplayBuffer, ours.NStepReplayBuffer)
    put_everywhere("stable_baselines3", theirs.DictReplayBuffer, ours.ReplayBuffer)
    put_everywhere("stable_baselines3", theirs.ReplayBuffer, ours.ReplayBuffer)


def put_everywhere(package: str, theirs: Any, ours: Any) -> None:
    """Replace an object in each module of a package that has imported it."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] == package:
            for key in [key for key, value in vars(module).items() if value is theirs]:
                setattr(module, key, ours)


PEERS = {"tianshou": tianshou, "sb3": sb3, "torchrl": torchrl}


def pytest_configure() -> None:
    """Count stores, and replace buffers before a test imports them."""
    begin = Store._begin

    def counted(self: Store, *args: Any) -> None:
        global made
        made += 1
        begin(self, *args)

    Store._begin = counted  # type: ignore[assignment, method-assign]
    if "PEER_ALONE" not in os.environ:
        PEERS[os.environ["PEER"]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that ``PEER_ALONE`` names: by place, as names of tests contain those of buffers."""
    if "PEER_ALONE" in os.environ:
        items[:] = [items[int(place)] for place in os.environ["PEER_ALONE"].split(",")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note how many stores there were before the test."""
    item.stash[BEFORE] = made
    yield
    with Path(os.environ["PEER_OUTCOMES"]).open("a") as out:
        out.write(json.dumps(item.stash[OUTCOME] | {"stores": made - item.stash[BEFORE]}) + "\n")


BEFORE, OUTCOME = pytest.StashKey[int](), pytest.StashKey[dict[str, Any]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the outcome of a test, and the error that it ended with."""
    report = yield
    if report.when == "setup" or not report.passed:
        found = {"test": item.nodeid, "outcome": report.outcome, "error": ""}
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            found["error"] = " ".join((crash.message if crash else str(report.longrepr)).split())[:2000]
        item.stash[OUTCOME] = found
    return report


if __name__ == "__main__":
    main()
