"""Lives of a store that the machines of rows of any length share: other limits, checkpoints, crashes and reopening."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import sharpwave as sw


class Lives(RuleBasedStateMachine):
    """A store that goes on in other lives.

    Attributes:
        folder: of all files. ``on_disk``: whether the store is. ``made``: number of copies there.
    """

    store: sw.Store
    folder: Path
    on_disk: bool
    made: int

    def held(self) -> set[tuple[int, int]]:
        """Return the lanes and numbers of the steps held."""
        return {(e.lane, e.first_step + t) for e in self.store.episodes() for t in range(e.length)}

    def begin_views(self) -> None:
        """Make the views of a store that was opened."""
        raise NotImplementedError

    def reopened(self) -> None:
        """Note which steps the store lost at its end."""
        raise NotImplementedError

    @rule(capacity=st.sampled_from([80, 120, 200]))
    def resize(self, capacity: int) -> None:
        self.store.resize(capacity=capacity)

    @rule(single=st.booleans())
    def checkpoint(self, single: bool) -> None:
        self.made += 1
        path = self.folder / (f"{self.made}.sharpwave" if single else f"check-{self.made}")
        self.store.checkpoint(path)
        before = self.held()
        self.store.close()
        where: dict[str, Any] = {"disk": self.folder / f"opened-{self.made}"} if self.on_disk else {}
        self.store = sw.Store.open(path, **where)
        assert self.held() == before
        self.begin_views()

    @precondition(lambda self: self.on_disk)
    @rule(killed=st.booleans())
    def reopen(self, killed: bool) -> None:
        """Open the store again, after it was closed; or a copy of its folder after a flush, as after SIGKILL."""
        path = Path(self.store._log.disk.folder)  # type: ignore[union-attr]
        if killed:
            self.store.flush()
            self.made += 1
            copy = self.folder / f"copy-{self.made}"
            shutil.copytree(path, copy)
            (copy / "lock").unlink(missing_ok=True)
            self.store.close()
            path = copy
        else:
            self.store.close()
        self.store = sw.Store.open(path)
        assert not self.store.recovery.damages  # type: ignore[union-attr]
        self.reopened()
        self.begin_views()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)
