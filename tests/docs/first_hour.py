"""A newcomer's first hour: pages run from top to bottom, each in an environment that holds only what the page installs.

    python -m tests.docs.first_hour README.md docs/getting-started.md [--steps 3000] [--folder FOLDER] [--keep]

Each page gets a copy of the tracked files and an empty virtual environment. ``pip install .`` installs a wheel of the
tree. Extras that the page's text names are installed first, those in a block of commands at their place; Python blocks
share one interpreter. Three things differ from what a reader types: ``sharpwave train`` stops after ``--steps``
environment steps, by ``OPTIONS`` where make runs it; the run of an example (``runs/pong-20260101-120000-0``) is the
newest one; and PIP_CONSTRAINT is constraints.txt. Only the standard library is needed here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import PROGRAM, ROOT, Block, blocks, name

PAGES = ["README.md", "docs/getting-started.md", *(f"docs/frameworks/{one}.md" for one in
         ("index", "sb3", "torchrl", "tianshou", "cleanrl"))]  # fmt: skip
MADE = {"README.md": ["make docs"]}
"""Commands that a page names in its text alone, run after its blocks."""
OWN_JOBS = {"make test", "make bench"}
"""Commands that have jobs of their own."""
DATA = {"halfcheetah.hdf5": "import h5py, numpy as np; f = h5py.File('halfcheetah.hdf5', 'w'); n = 4000;"
        "[f.__setitem__(k, np.random.default_rng(0).normal(size=(n, *s)).astype('float32')) for k, s in"
        " {'observations': (17,), 'actions': (6,), 'rewards': ()}.items()];"
        "[f.__setitem__(k, np.arange(n) % 500 == 499) for k in ('terminals', 'timeouts')]"}  # fmt: skip
"""Programs that write files which a page takes the reader to have."""
LIMIT_S = 3600
INTERPRETER = """
import importlib, json, sys
names = {"__name__": "page"}
for line in sys.stdin:
    block = json.loads(line)
    importlib.invalidate_caches()
    exec(compile(block["text"], block["page"], "exec"), names)
    print("<done>", flush=True)
"""


class PageError(Exception):
    """A command or a block of a page that failed: where, and its last lines."""


class Reader:
    """Follows one page in ``folder``.

    Args:
        wheel: installed in the place of the checkout.
        steps: at which training stops.
    """

    def __init__(self, page: Path, folder: Path, wheel: Path, steps: int) -> None:
        self.page, self.tree, self.wheel, self.steps = page, folder / "tree", wheel, steps
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for file in filter(None, files.split("\0")):
            (self.tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, self.tree / file)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))
        }
        self.environment |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_QUIET": "1"}
        self.environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "MPLBACKEND": "Agg", "OPTIONS": f"--steps={steps}"}
        self._activate(folder / "venv")
        self._interpreter: subprocess.Popen[str] | None = None

    def read(self) -> None:
        """Run the page. Raises: PageError."""
        text = self.page.read_text("utf-8")
        fenced = "\n".join(block.text for language in ("sh", "python") for block in blocks(self.page, language))
        for line in re.findall(r"`(pip install [^`]+)`", text.replace("\n", " ")):
            if line not in fenced and "-e " not in line:
                self._command(line, "in its text")
        found = sorted([*blocks(self.page, "sh"), *blocks(self.page, "python")], key=lambda block: block.line)
        for block in found:
            if block.language == "python":
                self._python(block)
            else:
                for number, line in enumerate(block.text.splitlines()):
                    self._command(line, f"line {block.line + number}")
        for line in MADE.get(name(self.page), ()):
            self._command(line, "in its text")

    def close(self) -> None:
        """End the interpreter."""
        if self._interpreter is not None:
            self._interpreter.kill()
            self._interpreter.wait()

    def _activate(self, environment: Path) -> None:
        self.environment["PATH"] = os.pathsep.join([str(environment / "bin"), os.environ["PATH"]])
        self.environment["VIRTUAL_ENV"] = str(environment)

    def _command(self, line: str, where: str) -> None:
        words = shlex.split(line, comments=True)
        typed = shlex.join(words)
        if not words or typed in OWN_JOBS or words[:2] == ["git", "clone"]:
            return
        if words[0] == "source":
            self._activate(self.tree / Path(words[1]).parents[1])
            return
        if words[:2] == ["pip", "install"]:
            words = [re.sub(r"^\.(?=\[|$)", str(self.wheel), word) for word in words]
        if words[:2] == ["sharpwave", "train"] and not {"--help", "--steps"} & set(words):
            words += ["--steps", str(self.steps)]
        for number, word in enumerate(words):
            words[number] = self._run_of(word)
            for file, program in DATA.items():
                if file in word and not (self.tree / file).exists():
                    self._run(["python", "-c", program], f"{where}: {typed}")
        self._run(words, f"{where}: {typed}")

    def _run_of(self, word: str) -> str:
        """Return the newest run in the place of an example's."""
        if not (match := re.fullmatch(r"runs/([a-z]+)-\d{8}-\d{6}-\d+", word)):
            return word
        runs = sorted((self.tree / "runs").glob(f"{match[1]}-*"), key=lambda path: path.stat().st_mtime)
        return str(runs[-1].relative_to(self.tree)) if runs else word

    def _run(self, words: list[str], what: str) -> None:
        begun = time.monotonic()
        log = self.tree.parent / "said"
        with log.open("w") as said:
            found = shutil.which(words[0], path=self.environment["PATH"])
            command = [found or words[0], *words[1:]]
            try:
                ran = subprocess.run(
                    command, cwd=self.tree, env=self.environment, stdin=subprocess.DEVNULL, stdout=said,
                    stderr=subprocess.STDOUT, timeout=LIMIT_S,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                raise PageError(f"{name(self.page)}, {what}: {error}") from error
        if ran.returncode:
            raise PageError(f"{name(self.page)}, {what}: ended with {ran.returncode}\n{log.read_text()[-3000:]}")
        print(f"{name(self.page)}, {what}: {time.monotonic() - begun:.0f} s", flush=True)

    def _python(self, block: Block) -> None:
        where = f"line {block.line}: Python"
        if PROGRAM in block.text:
            program = self.tree / f"page_line_{block.line}.py"
            program.write_text(block.text, "utf-8")
            self._run(["python", program.name], where)
            return
        begun = time.monotonic()
        if self._interpreter is None:
            python = shutil.which("python", path=self.environment["PATH"])
            assert python is not None
            self._interpreter = subprocess.Popen(
                [python, "-c", INTERPRETER], cwd=self.tree, env=self.environment, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        assert self._interpreter.stdin is not None and self._interpreter.stdout is not None
        text = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's line
        self._interpreter.stdin.write(json.dumps({"text": text, "page": name(self.page)}) + "\n")
        self._interpreter.stdin.flush()
        said = []
        for line in self._interpreter.stdout:
            if line == "<done>\n":
                print(f"{name(self.page)}, {where}: {time.monotonic() - begun:.0f} s", flush=True)
                return
            said.append(line)
        raise PageError(f"{name(self.page)}, {where}:\n{''.join(said)[-3000:]}")


def wheel_of_the_tree(folder: Path) -> Path:
    """Build a wheel of the tree, unless ``folder`` holds one, and return it."""
    if not list(folder.glob("sharpwave-*.whl")):
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
        subprocess.run(command, check=True)
    return next(folder.glob("sharpwave-*.whl"))


def failures(pages: list[Path], folder: Path, steps: int) -> Iterator[str]:
    """Follow pages, one after another; yield the failure of each that has one."""
    wheel = wheel_of_the_tree(folder)
    for page in pages:
        begun, made = time.monotonic(), folder / page.stem
        made.mkdir()
        reader = Reader(page, made, wheel, steps)
        try:
            reader.read()
            print(f"{name(page)}: {time.monotonic() - begun:.0f} s", flush=True)
        except PageError as error:
            yield str(error)
        finally:
            reader.close()


def main() -> None:
    """Run the command line; exit with 1 if a page fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", default=PAGES, help="paths in the repository (default: all that it knows)")
    parser.add_argument("--steps", type=int, default=3_000, help="environment steps at which training stops (3000)")
    parser.add_argument("--folder", type=Path, help="empty folder for the environments, or one that has the wheel")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="first-hour-"))
    try:
        found = list(failures([ROOT / page for page in given.pages], folder, given.steps))
    finally:
        if not given.keep:
            shutil.rmtree(folder)
    print("\n\n".join(found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
