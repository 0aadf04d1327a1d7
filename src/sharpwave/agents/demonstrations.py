"""Demonstrations: episodes of an ordinary store that an agent learns from beside its own, mixed with ``Blend``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sharpwave as sw
from sharpwave.agents.protocol import Spaces, ViewSettings
from sharpwave.agents.replay import MEMORY, linear
from sharpwave.configuration import expect, setting
from sharpwave.format.annotations import BROKEN_OFF
from sharpwave.offline.recorded import Recorded, RecordedEpisodes
from sharpwave.teams import ACTION_MASK

DEMONSTRATIONS = "demonstrations"
"""Name of the demonstrations' store in a run's checkpoints."""
SPARE_STEPS = 1024
"""Room beyond the demonstrations' steps, so that none is evicted."""
LEARNED_FROM = "learned_from"
"""Annotation of a run's store: the identity of the data that it was filled with (``RecordedEpisodes.origin``)."""
Fields = Callable[[Recorded], Mapping[str, npt.NDArray[Any]]]


@dataclass(frozen=True)
class DemonstrationSettings:
    """Settings of agents that learn from demonstrations beside their own experience."""

    demonstrations: str = setting("", "folder of demonstrations, as sharpwave record makes it", MEMORY)
    demonstration_share: float = setting(
        1 / 256, "share of the demonstrations in a batch", MEMORY, at_least=0, at_most=1
    )
    demonstration_share_end: float | None = setting(
        None, "final share of the demonstrations; empty: constant", MEMORY, at_least=0, at_most=1
    )
    demonstration_share_steps: int = setting(
        0, "steps from demonstration-share to demonstration-share-end", MEMORY, at_least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]  # of the agent's settings, which check all
        ends, steps = self.demonstration_share_end is not None, self.demonstration_share_steps
        expected = "at least 1 with --demonstration-share-end" if ends else "0 without --demonstration-share-end"
        expect(self, "demonstration_share_steps", ends == (steps > 0), expected)

    def share(self, step: int) -> float:
        """Return the share of the demonstrations in a batch that is drawn after ``step`` environment steps."""
        start, end = self.demonstration_share, self.demonstration_share_end
        return start if end is None else linear(step, start, end, self.demonstration_share_steps)

    def blended(self, kind: type[BlendedSettings], views: Any, fields: Fields) -> BlendedSettings:
        """Return the settings of a blend of ``kind`` of two views with the settings ``views``.

        Raises:
            ValueError: no demonstrations are named.
        """
        if not self.demonstrations:
            agent = type(self).kind  # type: ignore[attr-defined]
            raise ValueError(
                f"{agent} needs --demonstrations FOLDER; sharpwave record ENV --policy RUN --out FOLDER makes one by a "
                "run's policy, with --script FILE.py:FUNCTION in place of --policy by a function"
            )
        return kind(**vars(views), demonstrations=self.demonstrations, share=self.share, fields=fields)

    def check_actions(self, actions: npt.NDArray[Any], valid: npt.NDArray[np.bool_], spaces: Spaces) -> None:
        """Check that all demonstrated actions [N, ...] are ``valid``, bool [N].  Raises: ValueError: names one."""
        if not valid.all():
            raise ValueError(
                f"demonstrations: {self.demonstrations!r} has action {actions[~valid][0].tolist()}, expected those of "
                f"{spaces.env}, {spaces.action}"
            )


class DemonstratedReplay(sw.Blend[Any]):
    """Blend of demonstrations and of own experience.

    Attributes:
        demonstrations: their store. Its checkpoint, that of the own store, ``state`` and the step of ``follow`` are all
            that later batches depend on.
    """

    def __init__(
        self, demonstrations: sw.Store, store: sw.Store, settings: BlendedSettings, name: str | None, seed: int
    ) -> None:
        self.demonstrations = demonstrations
        views = [settings.view(one, name, seed) for one in (demonstrations, store)]
        self._share, self._now = settings.share, [0.0]
        self.follow(0)
        now = self._now  # without the blend, which would refer to itself
        super().__init__([(lambda drawn: now[0], views[0]), (lambda drawn: 1 - now[0], views[1])], seed=seed)

    def follow(self, step: int) -> None:
        """Draw batches with the share of ``step`` environment steps from now on; the schedules of a ``Blend`` itself go
        by the items drawn."""
        self._now[0] = self._share(step) if callable(self._share) else self._share


@dataclass(frozen=True, kw_only=True)
class BlendedSettings(ViewSettings):
    """Settings of a blend of two views, of the agent's own steps and of demonstrations.

    Base of a class whose second base are the settings of both views: ``class ...(BlendedSettings, SequencesSettings)``.

    Attributes:
        demonstrations: folder of a store or of a checkpoint of one.
        share: share of the demonstrations in a batch, or a function from the environment steps made to it.
        fields: function, episode -> fields that the agent would have stored with its steps.
    """

    demonstrations: str
    share: float | Callable[[int], float]
    fields: Fields

    def view(self, store: sw.Store, name: str | None, seed: int) -> Any:
        """Make one of the two views."""
        return super().open(store, name, seed)  # type: ignore[safe-super]  # the one of the second base

    def open(self, store: sw.Store, name: str | None, seed: int) -> DemonstratedReplay:
        """Make the blend: a view of ``store``, and one of the demonstrations, which are read into memory."""
        demonstrations = read_demonstrations(Path(self.demonstrations), store.spec, self.fields)
        return DemonstratedReplay(demonstrations, store, self, name, seed)

    def reopen(self, store: sw.Store, name: str | None, seed: int, saved: Path) -> DemonstratedReplay:
        """Make the blend of a restored ``store``, and of the demonstrations in a checkpoint, with their priorities.

        Raises:
            ValueError: the checkpoint is damaged.
        """
        demonstrations = sw.Store.open(saved)
        if demonstrations.recovery is not None and demonstrations.recovery.damages:
            raise ValueError(f"its demonstrations are damaged: {demonstrations.recovery.damages[0]}")
        return DemonstratedReplay(demonstrations, store, self, name, seed)


def read_demonstrations(folder: Path, spec: sw.Spec, fields: Fields) -> sw.Store:
    """Read the whole episodes of a store's folder into a store in memory.

    Args:
        spec: of that store; observations and actions must be those of the demonstrations.
        fields: function, episode -> fields that the agent stores beside those, [T, *shape] by name.
    Raises:
        ValueError: no such folder, other observations or actions, or no whole episode.
    """
    try:
        episodes = RecordedEpisodes(folder)
        origin = episodes.origin(folder)
    except (OSError, sw.DamagedError) as error:
        raise ValueError(f"demonstrations: {str(folder)!r}: {error}; record some with sharpwave record") from error
    check_episodes(episodes, spec, f"demonstrations: {str(folder)!r}")
    store = sw.Store(spec, capacity=episodes.steps + SPARE_STEPS)
    store.annotate(None, {LEARNED_FROM: origin})
    for one in episodes:
        add_recorded(store, one, fields(one))
    return store


def check_episodes(episodes: RecordedEpisodes, spec: sw.Spec, what: str) -> None:
    """Check that there are episodes, with the observations and actions of ``spec``; ``what`` names them in errors.

    Raises:
        ValueError: other observations or actions, or no whole episode.
    """
    for name in (*spec.obs_names, *spec.action_names):
        own, other = spec.fields[name], episodes.spec.fields.get(name)
        if other is None:
            without = "; --no-action-masks learns without masks" * name.endswith(ACTION_MASK)
            raise ValueError(f"{what} has no {name}, expected {name}, as the environment has{without}")
        for attribute in ("shape", "dtype", "stack", "pad"):
            found, expected = getattr(other, attribute), getattr(own, attribute)
            if found != expected:
                raise ValueError(
                    f"{what} has {name} of {attribute} {found}, expected {expected}, as the environment has"
                )
    if not episodes.steps:
        raise ValueError(f"{what} holds no whole episode; record at least one to its end")


def add_recorded(store: sw.Store, one: Recorded, fields: Mapping[str, npt.NDArray[Any]]) -> None:
    """Append an episode to lane 0 of ``store``: its observations, actions and rewards, and further ``fields``."""
    spec = store.spec
    if one.episode.broken_off:
        store.annotate(0, {BROKEN_OFF: True}, episode=True)
    store.add_episode(
        obs=spec.join_obs({name: one.obs[name] for name in spec.obs_names}),
        action=spec.join_action({name: one.fields[name] for name in spec.action_names}),
        reward=one.reward,
        terminated=one.episode.end == "terminated",
        **dict[str, Any](fields),
    )
