"""Reused memory of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..sampling.samplers import Draw
from ..spec import Spec
from .batch import Batch


class Buffers:
    """Memory for one batch of a given size, and arrays that shape it."""

    def __init__(self, spec: Spec, n_step: int, size: int) -> None:
        self.draw = Draw.of(size)
        self.reward = np.empty(size, np.float32)
        self.discount = np.empty(size, np.float32)
        self.places = np.empty((7, size), np.int64)
        self.windows: dict[str, list[npt.NDArray[np.uint8]]] = {}
        shaped: dict[str, list[npt.NDArray[Any]]] = {}
        for name, field in spec.fields.items():
            if name in spec.obs_names:
                # One window holds both stacks where they overlap by all but one frame; else each has its own.
                shared = n_step == 1
                lengths = [field.frames + 1] if shared else [field.frames] * 2
            else:
                lengths = [1]
            windows = [np.empty((size, length, field.row_bytes), np.uint8) for length in lengths]
            typed = [w.view(field.dtype).reshape(size, w.shape[1], *field.shape) for w in windows]
            if name in spec.obs_names and n_step == 1:
                typed = [typed[0][:, :-1], typed[0][:, 1:]]
            shaped[name] = typed if field.stack is not None else [array[:, 0] for array in typed]
            self.windows[name] = windows
        self.batch = Batch(
            obs=spec.join_obs({name: shaped[name][0] for name in spec.obs_names}),
            action=shaped["action"][0],
            reward=self.reward,
            next_obs=spec.join_obs({name: shaped[name][1] for name in spec.obs_names}),
            discount=self.discount,
            weights=self.draw.weights,
            probabilities=self.draw.probabilities,
            ids=np.empty(size, np.int64),
            fields={name: shaped[name][0] for name in spec.step_names if name != "action"},
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        windows = sum(w.nbytes for pair in self.windows.values() for w in pair)
        return int(self.batch.ids.nbytes) + windows + self.draw.nbytes + self.places.nbytes + self.reward.nbytes * 2
