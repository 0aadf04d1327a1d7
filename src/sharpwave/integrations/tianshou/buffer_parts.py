"""Buffers of single environments within a buffer of several, which reads their observations."""

from __future__ import annotations

import weakref
from typing import Any

from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer


class BufferPart:
    """Part of a buffer whose observations are in a store; comes before one of Tianshou's in a class's bases."""

    def __getattr__(self, key: str) -> Any:
        if key in ("obs", "obs_next"):
            return self._parent()._column(key, self._places(self._indices))
        return super().__getattr__(key)  # type: ignore[misc]

    def _parent(self) -> Any:
        whole = self.__dict__.get("_whole")
        buffer = whole and whole()
        if buffer is None:
            raise RuntimeError("the whole buffer, which holds this part's observations, is gone")
        return buffer

    def _places(self, index: Any) -> Any:
        return self._indices[index] + self._offset

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """Return values at indices, as the whole buffer does."""
        if key not in ("obs", "obs_next"):
            return super().get(index, key, default_value, stack_num)  # type: ignore[misc]
        stack = self.stack_num if stack_num is None else stack_num
        return self._parent().get(self._places(index), key, default_value, stack)

    def update(self, buffer: Any) -> Any:
        """Move transitions from another part of the same buffer.  Raises: NotImplementedError: from another buffer."""
        parent = self._parent()
        if not isinstance(buffer, BufferPart) or buffer._parent() is not parent:
            raise NotImplementedError("update: expected a part of the same buffer; give others to a ReplayBuffer")
        given: Any = buffer
        stack, given.stack_num = given.stack_num, 1
        places = given._places(given.sample_indices(0))
        given.stack_num = stack
        indices = super().update(buffer)  # type: ignore[misc]
        if len(indices):
            parent._move(places, self._places(indices))
        return indices

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the whole buffer, which links its parts again later."""
        return {key: value for key, value in self.__dict__.items() if key != "_whole"}


class _Plain(BufferPart, ReplayBuffer):  # type: ignore[misc]
    pass


class _PrioritizedPart(BufferPart, PrioritizedReplayBuffer):  # type: ignore[misc]
    pass


def part_of(whole: Any, offset: int, part: Any) -> None:
    """Let a buffer of Tianshou's read its observations from ``whole``, at the places from ``offset`` on."""
    part.__class__ = _PrioritizedPart if isinstance(part, PrioritizedReplayBuffer) else _Plain
    part._offset, part._whole = offset, weakref.ref(whole)
