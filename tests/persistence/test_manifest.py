"""What ``store.json`` keeps of a spec and of settings comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpwave as sw
from sharpwave.persistence.settings import Settings
from tests.support.examples import examples

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64", ">f4", "<i2"]
CODECS = st.sampled_from([None, "auto", "raw", "zstd", "delta"])
SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)
NAMES = st.text('abcdeß_ "\\\n', min_size=1, max_size=6)
STACKS = st.none() | st.integers(1, 64) | st.integers(1, 64).map(np.int64)


@st.composite
def fields(draw: st.DrawFn, observed: bool) -> sw.Field:
    return sw.Field(
        draw(SHAPES),
        draw(st.sampled_from(DTYPES)),
        stack=draw(STACKS) if observed else None,  # type: ignore[arg-type]
        pad=draw(st.sampled_from(["repeat", "zeros"])) if observed else "repeat",
        codec=draw(CODECS),
    )


@st.composite
def specs(draw: st.DrawFn) -> sw.Spec:
    obs = draw(fields(True) | st.dictionaries(NAMES, fields(True), min_size=1, max_size=4))
    extra = draw(st.dictionaries(NAMES.map(lambda name: f"x{name}"), fields(False), max_size=3))
    return sw.Spec(obs=obs, action=draw(fields(False)), **extra)


@settings(max_examples=examples(200), deadline=None)
@given(specs(), st.data())
def test_a_manifest_gives_the_settings_back(spec: sw.Spec, data: st.DataObject) -> None:
    codec: Any = data.draw(st.sampled_from(["auto", "raw"]) | st.just({next(iter(spec.fields)): "zstd"}))
    was = Settings.checked(
        spec, capacity=1000, ram=None, on_disk=False, disk_limit=None, on_full="raise", codec=codec, retention=None,
        seed=3, segment_steps=None,
    )  # fmt: skip
    found = Settings.from_manifest(Path("store"), json.loads(json.dumps(was.manifest())), on_disk=False)
    assert found == was
    assert list(found.spec.fields) == list(spec.fields), "the order of columns"
    assert found.spec.schema_hash == spec.schema_hash
    assert found.codecs == was.codecs


@pytest.mark.parametrize("on_disk", [False, True], ids=["checkpoint", "disk"])
def test_an_opened_store_has_the_spec_it_was_made_with(tmp_path: Path, on_disk: bool) -> None:
    spec = sw.Spec(
        obs={"screen": sw.Field((8, 8), "uint8", stack=3, pad="zeros", codec="zstd"), "arm": sw.Field((3,), "float16")},
        action=sw.Field((), "int64", codec="raw"),
        done_in=sw.Field((), "bool"),
    )
    with sw.Store(
        spec, capacity=1000, disk=tmp_path / "a" if on_disk else None, codec={"obs.arm": "raw", "obs.screen": "delta"}
    ) as store:
        store.checkpoint(tmp_path / "b")
    with sw.Store.open(tmp_path / ("a" if on_disk else "b")) as opened:
        assert opened.spec == spec
        assert opened._settings.codecs == store._settings.codecs
        opened.checkpoint(tmp_path / "c")
    with sw.Store.open(tmp_path / "c") as again:
        assert again.spec == spec


def test_a_further_field_that_would_count_as_an_observation_is_refused() -> None:
    field = sw.Field((), "int64")
    with pytest.raises(ValueError, match=r"'obs\.x' would be taken for an observation"):
        sw.Spec(obs=field, action=field, **{"obs.x": field})
