"""List the benchmarks: ``python -m benchmarks``."""

import ast
from pathlib import Path


def programs() -> dict[str, str]:
    """Return each program's file name, and the first sentence of its docstring."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        if f"python benchmarks/{path.name}" in said:  # others are parts of a program
            found[path.name] = said.partition("\n\n")[0].replace("\n", " ")
    return found


if __name__ == "__main__":
    for name, said in programs().items():
        print(f"python benchmarks/{name:20} {said}")
