"""``python -m sharpwave.cli``: the same as ``sharpwave``."""

from sharpwave.cli import main

main()
