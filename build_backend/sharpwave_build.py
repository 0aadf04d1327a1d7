"""Build backend: scikit-build-core for wheels, the native core beside its package for editable installs, and zig as the
C++ compiler where the system has none.

``python build_backend/sharpwave_build.py`` builds the core in a checkout; with ``requirements`` it prints what to
install before, and with ``requirements EXTRA`` what the package and an extra of it need.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("c++", "g++", "clang++", "cl")
REQUIRED = ("scikit-build-core>=0.10", "nanobind>=2.4", "numpy>=2")
"""As in pyproject.toml."""


def without_compiler() -> list[str]:
    """Return the requirement that replaces a C++ compiler, where there is none."""
    found = os.environ.get("CXX") or any(shutil.which(name) for name in COMPILERS)
    return [] if found else ["ziglang>=0.13"]


def without_tools() -> list[str]:
    """Return the requirements that replace the build tools that the system lacks."""
    return [*([] if shutil.which("cmake") else ["cmake>=3.20"]), *([] if shutil.which("ninja") else ["ninja"])]


def needed_by(extra: str) -> list[str]:
    """Return the requirements of the package, of some extras ("train,view"), and of the extras that these include."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found, extras = dict.fromkeys(project["dependencies"]), extra.split(",")
    for name in extras:
        for one in project["optional-dependencies"][name]:
            if one.startswith("sharpwave["):
                extras += [other for other in one[len("sharpwave[") : -1].split(",") if other not in extras]
            else:
                found[one] = None
    return [*found]


def choose_compiler() -> None:
    """Set CXX to zig's where there is no other."""
    if not without_compiler():
        return
    try:
        import ziglang  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        sys.exit("sharpwave: no C++ compiler: install g++ or clang, or pip install ziglang")
    binary = os.path.join(os.path.dirname(str(ziglang.__file__)), "zig.exe" if os.name == "nt" else "zig")
    os.environ["CXX"] = f"{binary} c++"


def tools() -> str:
    """Return the folders of programs: those of this Python's environment come first, also where it is not activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def check(*names: str) -> None:
    """Say what to install where packages or programs are missing: pip brings them, but not without build isolation."""
    missing = [
        name
        for name in names
        if not shutil.which(name, path=tools()) and importlib.util.find_spec(name.replace("-", "_")) is None
    ]
    if missing:
        sys.exit(f"sharpwave: building the native core takes {', '.join(missing)}: pip install {' '.join(missing)}")


def build_core(*options: str) -> None:
    """Build the core in build/core, and put it beside its package; unchanged sources are not compiled again.

    Args:
        options: of CMake, as -DSHARPWAVE_CHECKED=ON; CMAKE_ARGS in the environment has more. Later calls keep them.
    """
    choose_compiler()
    check("cmake", "nanobind", "numpy")
    folder = ROOT / "build" / f"core-{sys.implementation.cache_tag}"
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=tools()) else []
    configure = [
        "cmake", "-S", str(ROOT), "-B", str(folder), *generator, f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={ROOT / 'src' / 'sharpwave'}", *os.environ.get("CMAKE_ARGS", "").split(),
        *options,
    ]  # fmt: skip
    for command in (configure, ["cmake", "--build", str(folder), "--parallel"]):
        done = subprocess.run(command, env={**os.environ, "PATH": tools()}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}sharpwave: the native core was not built: see the errors above")
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:  # newer than all sources, also where nothing was compiled
        module = ROOT / "src" / "sharpwave" / f"_core{suffix}"
        if module.exists():
            module.touch()


def _backend() -> Any:
    check("scikit-build-core", "nanobind", "numpy")
    import scikit_build_core.build as backend

    return backend


def get_requires_for_build_wheel(settings: Any = None) -> list[str]:
    """Return what a wheel's build needs besides REQUIRED."""
    return [*_backend().get_requires_for_build_wheel(settings), *without_compiler()]


def get_requires_for_build_editable(settings: Any = None) -> list[str]:
    """Return what an editable install's build needs besides REQUIRED."""
    return [*without_tools(), *without_compiler()]


def get_requires_for_build_sdist(settings: Any = None) -> list[str]:
    """Return what a source distribution's build needs besides REQUIRED."""
    return list(_backend().get_requires_for_build_sdist(settings))


def prepare_metadata_for_build_wheel(folder: str, settings: Any = None) -> str:
    """Write a wheel's metadata to ``folder`` without building the core; return the name of its folder there."""
    return str(_backend().prepare_metadata_for_build_wheel(folder, settings))


def build_wheel(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    """Build a wheel in ``folder``; return its name."""
    choose_compiler()
    return str(_backend().build_wheel(folder, settings, metadata))


def build_editable(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    """Build the core in the checkout, and in ``folder`` a wheel that refers to it; return the wheel's name."""
    build_core()
    return str(
        _backend().build_editable(folder, {**(settings or {}), "wheel.cmake": "false", "wheel.py-api": "py3"}, metadata)
    )


def build_sdist(folder: str, settings: Any = None) -> str:
    """Build a source distribution in ``folder``; return its name."""
    return str(_backend().build_sdist(folder, settings))


if __name__ == "__main__":
    if sys.argv[1:2] == ["requirements"]:
        before = [*REQUIRED, *without_tools(), *without_compiler()]
        print(*(needed_by(sys.argv[2]) if sys.argv[2:] else before), sep="\n")
    else:
        build_core(*sys.argv[1:])
