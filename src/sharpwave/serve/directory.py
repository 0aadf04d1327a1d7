"""Directory: tells clients which shards there are, and makes them when the first client says what a step is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sharpwave.serve.addresses import Address, Security, machine
from sharpwave.serve.budget import Budget
from sharpwave.serve.client import Client
from sharpwave.serve.link import Link
from sharpwave.serve.local_shards import READY_S
from sharpwave.serve.requests import Request
from sharpwave.serve.shard import Reply
from sharpwave.serve.wire import Frame, WireError
from sharpwave.spec import Spec

BYTES = 1 << 28
"""Budget of what connections make a directory hold."""
Make = Callable[[Spec], list[list[str]]]
Resize = Callable[[int, bool], None]
Checkpoint = Callable[[str], None]


class Directory:
    """Answers of ``sharpwave serve`` to clients, who then turn to the shards themselves.

    Args:
        make: makes the shards of a spec, and returns the addresses of each. ``resize``: adds or drains some.
        checkpoint: writes one of all of them to a folder.
        spec, addresses: of the shards that are there already.
    """

    def __init__(
        self,
        make: Make,
        resize: Resize,
        checkpoint: Checkpoint,
        spec: Spec | None = None,
        addresses: list[list[str]] | None = None,
    ) -> None:
        self._make, self._resize, self._checkpoint, self._spec = make, resize, checkpoint, spec
        self.addresses = addresses or []
        self.budget = Budget(BYTES)
        self._lock = threading.Lock()

    def about(self) -> dict[str, Any]:
        """Return what clients are told when they connect."""
        return {"directory": True}

    def answer(self, client: Client, frame: Frame) -> Reply:
        """Return the shards' addresses, and their spec; make them if the request brings a spec and there are none.

        Raises:
            ValueError: the spec is another, or there cannot be so many shards.
            ShardFailedError: one does not begin.  OSError: a checkpoint cannot be written.
        """
        if frame.kind in (Request.RESIZE, Request.CHECKPOINT) and self._spec is None:
            raise ValueError("there are no shards yet; the first client says what a step is")
        if frame.kind == Request.CHECKPOINT:
            self._checkpoint(str(frame.head["path"]))
            return {}, {}
        if frame.kind == Request.RESIZE:
            self._resize(frame.head.get("shards", 0), bool(frame.head.get("drain", True)))
            return {}, {}
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


def ask_directory(
    address: Address, security: Security, spec: Spec | None, patience_s: float = READY_S
) -> dict[str, Any]:
    """Return what a directory says: ``spec``, and addresses of ``shards``, made if there are none and it is given.

    Raises:
        ConnectionError, ValueError.
    """
    link = Link(address, security, patience_s=patience_s)
    try:
        return link.call(Request.DIRECTORY, {"spec": None if spec is None else spec.description()}).head
    finally:
        link.close()
