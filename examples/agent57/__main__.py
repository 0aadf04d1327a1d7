"""The command ``sharpwave`` with both agents: ``python -m agent57 train --config agent57/deep-sea.toml``."""

from sharpwave.cli import main

if __name__ == "__main__":
    main()
