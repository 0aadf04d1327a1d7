"""List the benchmarks: ``python -m benchmarks``."""

import ast
from pathlib import Path


def main() -> None:
    """Print each program and the first sentence of its docstring."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        if f"python benchmarks/{path.name}" in said:  # others are parts of a program
            first = said.partition("\n\n")[0].replace("\n", " ")
            print(f"python benchmarks/{path.name:20} {first}")


if __name__ == "__main__":
    main()
