"""Names of codecs that users pass, and zstd's trainer on next to nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from sharpwave.codecs import codec_registry


@pytest.mark.parametrize("name", [None, "lz4", 1, "RAW"])
def test_an_unknown_codec_is_named_beside_the_known(name: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name!r}.*'auto'.*'delta'.*'zstd'.*'raw'"):
        codec_registry.codec_choice(name, "Store")


def test_small_rows_with_zstd_do_not_end_the_process() -> None:
    """zstd's trainer divides by zero, or reads past its end, on a handful of bytes: asked in a process of its own."""
    code = (
        "import sharpwave as sw\n"
        "spec = sw.Spec(obs=sw.Field((), 'uint8'), action=sw.Field((), 'int64'))\n"
        "for steps in (1, 2, 7, 8, 9, 10, 13, 16, 20):\n"
        "    with sw.Store(spec, capacity=200, segment_steps=steps, codec='zstd') as store:\n"
        "        for k in range(60):\n"
        "            store.append(obs=k * 37 % 251, action=k, reward=0.0, terminated=False, truncated=False)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, f"ended by signal {-answer.returncode}\n{answer.stderr}"
