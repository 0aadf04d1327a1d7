"""Examples are programs; those that are packages or have parts to be tested are found in their folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples"))
