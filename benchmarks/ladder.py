"""The ladder beside this folder's other results: ``sharpwave bench ladder`` with the finished runs of ``pong.py``."""

import sys
from pathlib import Path

from sharpwave.cli import main

RESULTS = Path(__file__).parent / "results"

if __name__ == "__main__":
    main(["bench", "ladder", "--out", str(RESULTS), "--finished", str(RESULTS / "pong.json"), *sys.argv[1:]])
