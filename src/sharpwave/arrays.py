"""Types of arrays by their elements."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
