"""Torture of stores on disk: random programs, with kills and faults, compared with a plain log of acknowledged steps.

``sharpwave torture`` runs it. A *program* (``program.py``) is a list of operations on one store. ``run.py`` executes
it with one process for each life of the store (``life.py``). The process gets one operation at a time through a pipe,
and is killed by SIGKILL between operations, after some milliseconds, or at a chosen file operation (``faults.c``, a
preloaded library that also makes file operations fail and the disk full). ``model.py`` is the log.
"""

from sharpwave.testing.torture.engine import Found, reproduce, torture

__all__ = ["Found", "reproduce", "torture"]
