"""List the benchmarks: ``python -m benchmarks``."""

import ast
from pathlib import Path


def main() -> None:
    """Print each program and the first sentence of its docstring."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        text = path.read_text("utf-8")
        if "__main__" in text and path.stem != "__main__" and not path.stem.endswith(("_worker", "_slices")):
            said = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0].replace("\n", " ")
            print(f"python benchmarks/{path.name:24} {said}")


if __name__ == "__main__":
    main()
