"""Eight bytes at a time, at any alignment, for kernels: numba has no such access of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]


@intrinsic
def _load(typing_context: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, arguments), align=1)

    return types.uint64(array, types.intp), codegen


@intrinsic
def _store(typing_context: Any, array: Any, index: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _pointer(context, builder, signature, arguments), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())


def _load_in_python(array: Bytes, index: int) -> np.uint64:
    return np.uint64(int.from_bytes(array[index : index + 8].tobytes(), "little"))


def _store_in_python(array: Bytes, index: int, word: np.uint64) -> None:
    array[index : index + 8] = np.frombuffer(int(word).to_bytes(8, "little"), np.uint8)


_interpreted: bool = config.DISABLE_JIT  # type: ignore[attr-defined]

load_word: Callable[[Bytes, int], np.uint64] = _load_in_python if _interpreted else _load  # type: ignore[assignment]
"""The word that begins at byte ``index``. Nothing is checked: ``index + 8 <= array.size``."""

store_word: Callable[[Bytes, int, np.uint64], None] = _store_in_python if _interpreted else _store  # type: ignore[assignment]
"""Write the word from byte ``index`` on. Nothing is checked, as above."""
