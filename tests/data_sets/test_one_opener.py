"""Importers open files by ``data/opened_files.py`` only: whatever else opens a path would follow links and read on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sharpwave

ROOT = Path(sharpwave.__file__).parent / "data"
OPENER = "opened_files.py"
OPENING = {
    "open": "any file",
    "read_text": "any file",
    "read_bytes": "any file",
    "iterdir": "a folder",
    "glob": "a folder",
    "rglob": "a folder",
    "listdir": "a folder",
    "scandir": "a folder",
    "File": "h5py",
    "ZipFile": "zipfile",
    "ParquetFile": "pyarrow",
    "read_table": "pyarrow",
    "ParquetDataset": "pyarrow",
    "dataset": "pyarrow",
    "open_file": "pyarrow",
    "memory_map": "pyarrow",
    "MinariDataset": "minari",
    "load": "numpy, json",
    "memmap": "numpy",
    "fromfile": "numpy",
    "genfromtxt": "numpy",
    "loadtxt": "numpy",
    "FileIO": "io",
}
"""Functions and methods that open what they are given."""
GIVEN = {"file", "self._output", "self._input", "self._checked", "io.BytesIO(content)"}
"""Names of what is open already: files that ``opened_files.py`` opened, those being written, and bytes in memory."""
WRITERS = {"Hdf5Output", "Hdf5Writer", "NpzWriter", "ParquetTarget", "MinariTarget"}
ALLOWED = {
    ("npz.py", "archive.open(info)"),
    ("npz.py", "self._archive.open(self._info)"),
    ("lerobot.py", "self._folder.open(name)"),
    ("lerobot.py", "folder.open(name)"),
    ("lerobot.py", "self._folder.open(video.name, VIDEO_WEIGHT)"),
    ("rlds.py", "self._folder.open(name)"),
    ("rlds.py", "self._folder.open(place.name)"),
    ("hdf5_layouts.py", "folder.open(one)"),
    ("zarr_arrays.py", "self._folder.open(name)"),
    ("minari.py", "files.open('data/main_data.hdf5')"),
    ("lerobot.py", "ParquetFile(folder.open(name), self._budget)"),
    ("lerobot.py", "ParquetFile(self._folder.open(name), self._budget)"),
    ("parquet.py", "ParquetFile(open_path(found, budget), budget)"),
    ("minari.py", "MinariDataset(folder / 'data')"),  # of a data set that is trusted
}
"""Members of an archive, and files of a ``Folder``."""


def openings(path: Path) -> list[str]:
    """Return the calls of a module that would open a path."""
    found = []

    class Visitor(ast.NodeVisitor):
        def visit_ClassDef(self, node: ast.ClassDef) -> None:
            if node.name not in WRITERS:
                self.generic_visit(node)

        def visit_Call(self, node: ast.Call) -> None:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            text = ast.unparse(node)
            given = {ast.unparse(one) for one in node.args[:1]}
            if name in OPENING and (path.name, text) not in ALLOWED and not given & GIVEN:
                found.append(f"line {node.lineno}: {text}")
            self.generic_visit(node)

    Visitor().visit(ast.parse(path.read_text()))
    return found


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda path: path.name)
def test_only_the_opener_opens_files(path: Path) -> None:
    if path.name not in (OPENER, "exporting.py"):
        assert not openings(path), f"{path.name}: open files by sharpwave.data.opened_files (open_path, Folder)"


def test_the_rule_sees_every_way(tmp_path: Path) -> None:
    ways = [
        "open(path)", "Path(path).open()", "h5py.File(path)", "parquet.read_table(path)", "np.load(path)",
        "av.open(str(path))", "json.load(open(path))", "path.read_text()", "zipfile.ZipFile(path)", "folder.glob('*')",
        "os.open(path, 0)", "self._parquet.ParquetFile(path)", "np.memmap(path)", "Image.open(path)",
    ]  # fmt: skip
    for way in ways:
        (tmp_path / "one.py").write_text(way)
        assert openings(tmp_path / "one.py"), way
