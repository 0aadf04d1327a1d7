"""Values for the steps of a batch of sequences, as the values of a column's steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array
from sharpwave.arrays import Ints
from sharpwave.spec import Field
from sharpwave.views.batch import SequenceBatch
from sharpwave.views.replay import on_host


def window_values(
    name: str, field: Field, batch: SequenceBatch, given: Any
) -> tuple[Ints, Ints, npt.NDArray[Any], Ints]:
    """Return the lanes and numbers of the real steps of windows, their values, and each one's window.

    Args:
        given: [B, T, *shape], or of trained steps alone [B, length, *shape], of a ``field``.

    Raises: ValueError, TypeError: values that do not fit.
    """
    if batch.source is not None:
        raise ValueError("write_column: this batch is of a blend, whose items are of several views; pass one view's")
    values, mask, begin = as_array(name, given), on_host(batch.mask), 0
    size, columns = mask.shape
    if values.shape[:2] == (size, columns - batch.burn_in):
        begin = batch.burn_in
    elif values.shape[:2] != (size, columns):
        raise ValueError(
            f"{name}: got shape {values.shape} {values.dtype}, expected {(size, columns, *field.shape)} {field.dtype}, "
            f"or of trained steps alone {(size, columns - batch.burn_in, *field.shape)}"
        )
    window, column = np.nonzero(mask[:, begin:])
    lanes, trained = on_host(batch.lane)[window], on_host(batch.step)[window]
    rows = field.rows(name, values[window, column], len(window))
    return lanes, trained + column + (begin - batch.burn_in), rows, window
