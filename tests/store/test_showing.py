"""How a store, its views, batches and episodes show themselves, in a terminal and in a notebook."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.showing import MAX_PICTURES, MAX_POINTS, bar, byte_text, contact_sheet, line_chart, picture_of


def filled(folder: Path | None = None) -> sw.Store:
    spec = sw.Spec(
        obs={"image": sw.Field((16, 12, 3), "uint8"), "<speed>": sw.Field((2,), "float32")},
        action=sw.Field((), "int64"),
        cost=sw.Field((), "float32"),
    )
    store = sw.Store(spec, capacity=200, ram="64MiB", disk=folder, segment_steps=16)
    for step in range(100):
        picture = np.full((16, 12, 3), step, np.uint8)
        obs = {"image": picture, "<speed>": np.zeros(2, np.float32)}
        store.append(obs=obs, action=1, reward=1, terminated=step % 10 == 9, truncated=False, cost=0.5)
    return store


class Texts(HTMLParser):
    """What a page says, with its tags balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.opened: list[str] = []
        self.feed(page)
        assert not self.opened, "tags that are not closed"

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "img":
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_store_shows_its_steps_memory_and_codecs(on_disk: bool, tmp_path: Path) -> None:
    store = filled(tmp_path if on_disk else None)
    said = " | ".join(Texts(store._repr_html_()).texts)
    assert "100 of 200" in said and "of 64.0 MiB" in said and "obs.<speed> | float32 [2]" in said
    assert f"{byte_text(store.stats()['total_bytes'])} of" in said and ("disk" in said) == on_disk
    store.close()
    assert "100 of 200" in store._repr_html_(), "closed, too"


def test_a_batch_names_its_arrays_and_shows_pictures() -> None:
    pillow = pytest.importorskip("PIL.Image")
    view = filled().transitions(n_step=3)
    batch = view.sample(5)
    assert repr(batch).startswith(
        "<Batch of 5: obs.image uint8 [5, 16, 12, 3], obs.<speed> float32 [5, 2], action int64 [5]"
    )
    assert "cost float32 [5]" in repr(batch) and len(repr(batch)) < 700
    page = batch._repr_html_()
    assert "obs.<speed>" in Texts(page).texts
    pictures = re.findall("base64,([^']*)'", page)
    assert len(pictures) == 5
    for row, data in zip(batch.obs["image"], pictures, strict=True):
        assert np.array_equal(np.asarray(pillow.open(io.BytesIO(base64.b64decode(data)))), row)
    torch = pytest.importorskip("torch")
    moved = batch.torch()
    assert "obs.image uint8 [5, 16, 12, 3]" in repr(moved) and moved._repr_html_() == page
    assert isinstance(moved.reward, torch.Tensor)


class OnDevice:
    """As a tensor on a GPU: numpy cannot read it there."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> OnDevice:
        return OnDevice(self.array[index])

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self) -> Any:
        assert len(self) <= MAX_PICTURES, "no more than what is shown"
        return self.array


def test_a_batch_on_a_device_shows_pictures() -> None:
    pytest.importorskip("PIL.Image")
    batch = filled().transitions().sample(40)
    assert batch.map(OnDevice)._repr_html_() == batch._repr_html_()
    torch = pytest.importorskip("torch")
    learned = batch.map(lambda array: torch.from_numpy(array).bfloat16().requires_grad_())
    assert "img" not in learned._repr_html_()


def test_a_batch_of_numbers_shows_them() -> None:
    batch = filled().transitions().sample(5).map(np.mean)
    assert repr(batch).startswith("<Batch: ") and "reward | float32 []" in " | ".join(Texts(batch._repr_html_()).texts)


def test_views_and_episodes_say_what_they_are() -> None:
    store = filled()
    view = store.transitions(name="mine", sampler=sw.Prioritized())
    view.sample(3)
    assert repr(view) == "<Transitions 'mine': 100 items when last sampled, Prioritized>"
    said = " | ".join(Texts(view._repr_html_()).texts)
    assert "n_step | 1" in said and "sampler | Prioritized(alpha=0.6" in said and "limiter" not in said
    both = sw.Blend([(1, view), (3, store.transitions(name="<other>"))])
    both.sample(8)
    assert repr(both) == "<Blend of 2 views: 8 items drawn>"
    assert "0.75 | <Transitions '<other>'" in " | ".join(Texts(both._repr_html_()).texts)
    episode = store.episodes()[0]
    page = episode._repr_html_()
    assert page.count("<img") == 11 and "<svg" in page
    assert "length | 10" in " | ".join(Texts(page).texts) and "ended | terminated" in " | ".join(Texts(page).texts)
    sequences = store.sequences(4, name="<windows>").sample(2)
    assert repr(sequences).startswith("<SequenceBatch of 2: obs.image uint8 [2, 5, 16, 12, 3]")
    texts = Texts(store.episodes()._repr_html_()).texts
    assert texts[0] == "<10 episodes, 100 steps>" and texts.count("terminated") == 10
    more = store.episodes()[:0]
    assert Texts(more._repr_html_()).texts[0] == "<0 episodes, 0 steps>"
    store.close()
    assert repr(view).startswith("<Transitions 'mine'")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((84, 84), (84, 84)),
        ((4, 84, 84), (84, 84)),
        ((3, 64, 48), (64, 48, 3)),
        ((64, 48, 3), (64, 48, 3)),
        ((64, 48, 1), (64, 48)),
        ((4, 64, 48, 3), (64, 48, 3)),
        ((4, 4), None),
        ((300, 300), None),
        ((17,), None),
    ],
)
def test_pictures_are_found_by_shape(shape: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    row = np.arange(np.prod(shape), dtype=np.uint32).astype(np.uint8).reshape(shape)
    picture = picture_of(row)
    assert (None if picture is None else picture.shape) == expected
    assert picture_of(row.astype(np.float32)) is None
    if shape == (4, 84, 84):
        assert picture is not None and np.array_equal(picture, row[-1]), "the newest frame"


def test_a_bar_is_as_long_as_its_limit() -> None:
    page = bar({"arena_used": 256, "index": 256, "free": 0}, limit=1024)
    assert re.findall("width:([0-9.]+)%", page) == ["25.00", "25.00"]
    assert "arena used 256 B" in "".join(Texts(page).texts) and "free" not in page
    assert contact_sheet(np.zeros((0, 84, 84), np.uint8)) == ""
    assert [byte_text(count) for count in (0, 1023, 1536, 5 << 30, 3 << 50)] == [
        "0 B", "1,023 B", "1.5 KiB", "5.0 GiB", "3,072.0 TiB",
    ]  # fmt: skip


def test_a_line_chart_is_bounded_and_escaped() -> None:
    lines = {"<mean>": [(float(x), float(x % 7)) for x in range(10_000)], "one": [(0.0, 1.0)], "none": []}
    page = line_chart(lines, "steps & updates")
    texts = Texts(page).texts
    assert texts == ["<mean>", "6", "0", "0 to 9,996 steps & updates"]
    (points,) = re.findall(r"points='([^']*)'", page)
    places = np.array([place.split(",") for place in points.split()], float)
    assert 2 < len(places) <= MAX_POINTS
    assert places.min(0).tolist() == [0, 20] and places.max(0).tolist() == [400, 120]
    assert line_chart({"one": [(0.0, 1.0)]}, "steps") == "" == line_chart({}, "steps")
    flat = line_chart({"flat": [(0.0, 5.0), (1.0, 5.0)]}, "steps")
    assert "0.0,120.0 400.0,120.0" in flat
