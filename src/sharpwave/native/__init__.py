"""Native core, and what the system offers: files, signals, memory."""

from sharpwave.native.checkout import refresh_core

refresh_core()

from sharpwave import _core as core  # noqa: E402  (only now is it what its sources say)

__all__ = ["core"]
