"""``sharpwave bench ladder`` into this folder's results, with the finished runs that ladder-pong.json keeps."""

import sys
from pathlib import Path

from sharpwave.cli import main

RESULTS = Path(__file__).parent / "results"

if __name__ == "__main__":
    main(["bench", "ladder", "--out", str(RESULTS), "--finished", str(RESULTS / "ladder-pong.json"), *sys.argv[1:]])
