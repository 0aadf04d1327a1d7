"""Native core, and access to the system: files, signals, memory."""

from sharpwave.native.checkout import refresh_core

refresh_core()

from sharpwave import _core as core  # noqa: E402  (import after the build, so that it matches its sources)

__all__ = ["core"]
