"""Directory: tells clients which shards there are, and makes them when the first client says what a step is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sharpwave.serve.addresses import machine
from sharpwave.serve.client import Client
from sharpwave.serve.requests import Request
from sharpwave.serve.shard import Reply
from sharpwave.serve.wire import Frame, WireError
from sharpwave.spec import Spec

Make = Callable[[Spec], list[list[str]]]


class Directory:
    """Answers of ``sharpwave serve`` to clients, who then turn to the shards themselves.

    Args:
        make: makes the shards of a spec, and returns the addresses of each.
        spec, addresses: of the shards that are there already.
    """

    def __init__(self, make: Make, spec: Spec | None = None, addresses: list[list[str]] | None = None) -> None:
        self._make, self._spec = make, spec
        self.addresses = addresses or []
        self._lock = threading.Lock()

    def about(self) -> dict[str, Any]:
        """Return what clients are told when they connect."""
        return {"directory": True}

    def answer(self, client: Client, frame: Frame) -> Reply:
        """Return the shards' addresses, and their spec; make them if the request brings a spec and there are none.

        Raises:
            ValueError: the spec is another.
        """
        if frame.kind != Request.DIRECTORY:
            raise WireError(f"a request of kind {frame.kind} to the directory, expected {Request.DIRECTORY}")
        asked = frame.head.get("spec")
        with self._lock:
            if asked is not None:
                spec = Spec.from_json(asked)
                if self._spec is not None and spec.description() != self._spec.description():
                    raise ValueError(
                        f"the shards store steps of {self._spec.description()}, asked for were {spec.description()}; "
                        "use that spec, or serve another folder"
                    )
                if self._spec is None:
                    self.addresses, self._spec = self._make(spec), spec
            spec_now = None if self._spec is None else self._spec.description()
            return {"spec": spec_now, "shards": self.addresses, "machine": machine()}, {}

    def left(self, client: Client) -> None:
        """Do nothing: clients hold nothing up."""
