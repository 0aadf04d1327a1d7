"""Whole episodes of a store's folder as arrays, read without opening the store."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.disk.store_folder import VERSIONS, read_manifest
from sharpwave.errors import DamagedError
from sharpwave.format.segment import CHECKSUM
from sharpwave.offline.surveys import EpisodeSpan, survey
from sharpwave.spec import Spec


@dataclass(frozen=True)
class Recorded:
    """An episode of T steps.

    Attributes:
        obs: [T + 1, *shape] by field, the newest frame only; the last is the final observation.
        fields: [T, *shape] by name: the action, and further fields but for sparse ones.
        reward: float32 [T].
    """

    episode: EpisodeSpan
    obs: dict[str, npt.NDArray[Any]]
    fields: dict[str, npt.NDArray[Any]]
    reward: npt.NDArray[np.float32]


def best_of(totals: Sequence[float], share: float) -> list[int]:
    """Return the indices, rising, of the best share of totals, one at least; of equal totals the first is preferred."""
    count = max(1, int(share * len(totals)))
    return sorted(nlargest(count, range(len(totals)), key=lambda index: totals[index]))


class RecordedEpisodes:
    """The whole episodes of the store in ``folder``, or of a checkpoint there, in the order of their ends.

    Iterating reads them; unfinished episodes are left out. Ends are ordered by their lanes' numbers of steps, then by
    lane: segments need not be in the order of their steps, and a checkpoint's are not.

    Args:
        best_share: share of episodes to read, the highest returns first; one at least. Below 1, of those that were not
            broken off.
    Attributes:
        spec: of the store. ``steps``: number of steps of these episodes.

    Raises:
        FileNotFoundError: no store there.  DamagedError: it is damaged; also raised while iterating.
    """

    def __init__(self, folder: Path, best_share: float = 1.0) -> None:
        self._found = survey(folder)
        if self._found.damages:
            raise DamagedError(f"{str(folder)!r}: {self._found.damages[0]}; see `sharpwave verify`")
        whole = sorted(
            (one for one in self._found.episodes if one.whole and (best_share == 1.0 or not one.broken_off)),
            key=lambda episode: (episode.first_step + episode.steps, episode.lane),
        )
        self._episodes = [whole[one] for one in best_of([episode.total for episode in whole], best_share)]
        self.spec: Spec = self._found.described.spec
        self.steps = sum(episode.steps for episode in self._episodes)

    def origin(self, path: Path) -> dict[str, Any]:
        """Return the identity of the store at ``path`` as it was read, as JSON: its path, id, version, steps, segments.

        ``sha256`` is of the segments' places and checksums, and of which of their steps were deleted: equal for the
        same data, whatever folder they are in.

        Raises: OSError: a file was deleted meanwhile.
        """
        path, found, digest = path.absolute(), self._found, hashlib.sha256()
        for lane, chain in sorted(found.lanes.items()):
            for one in chain.segments:
                with one.path.open("rb") as file:
                    file.seek(one.record.offset + one.record.nbytes - CHECKSUM.size)
                    digest.update(struct.pack("<3q", lane, one.header.first_step, one.header.steps))
                    digest.update(file.read(CHECKSUM.size))
                deleted = chain.deleted.get(one.record)
                digest.update(b"" if deleted is None else deleted.tobytes())
        said: Any = read_manifest(found.folder).get("version")  # a stranger's may be anything
        version = str(said.get("name")) if isinstance(said, dict) else None
        return {
            "path": str(path.parent.parent if version is not None and path.parent.name == VERSIONS else path),
            "version": version,
            "store": found.described.identity.store.hex(),
            "steps": found.steps,
            "segments": len(found.segments),
            "sha256": digest.hexdigest(),
        }

    def __iter__(self) -> Iterator[Recorded]:
        return map(self._read, self._episodes)

    def _read(self, episode: EpisodeSpan) -> Recorded:
        spec, found = self.spec, self._found
        names = [name for name in spec.step_names if name not in spec.sparse_names + spec.ragged_names]
        obs: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in spec.obs_names}
        fields: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        reward: list[npt.NDArray[np.float32]] = []
        for part in found.read(episode, (*obs, *fields)):
            frames = part.frames[part.rows]
            for name, parts in obs.items():
                parts.append(part.arrays[name][frames[0] : frames[-1] + 1 + part.ends])
            for name, parts in fields.items():
                parts.append(part.arrays[name][part.rows])
            reward.append(part.arrays["reward"][part.rows])
        return Recorded(
            episode,
            {name: np.concatenate(parts) for name, parts in obs.items()},
            {name: np.concatenate(parts) for name, parts in fields.items()},
            np.concatenate(reward),
        )
