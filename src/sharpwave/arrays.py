"""Types of arrays by their elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
