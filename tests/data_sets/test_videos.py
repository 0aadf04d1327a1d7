"""LeRobot data sets whose cameras are videos, written by lerobot (``tests/data``), against FFmpeg's program."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as parquet
import pytest

import sharpwave as sw
from sharpwave.extras import install
from tests.data.lerobot_video import CAMERAS, LENGTHS, frames, picture
from tests.data_sets.data import decode_video, same
from tests.support.examples import stride

av = pytest.importorskip("av", reason="needs PyAV: pip install 'sharpwave[lerobot]'")
imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")

DATA = Path(__file__).parent.parent / "data" / "lerobot_video"
STARTS = np.cumsum([0, *LENGTHS])
TOP = "observation.images.top"


@pytest.fixture(params=["v2.1", "v3.0"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def copy(tmp_path: Path, layout: str) -> Path:
    shutil.copytree(DATA / layout, tmp_path / "copy")
    return tmp_path / "copy"


def video_of(folder: Path, name: str, number: int) -> Path:
    if folder.joinpath("videos", name).is_dir():
        return folder / "videos" / name / "chunk-000" / "file-000.mp4"
    return folder / "videos" / "chunk-000" / name / f"episode_{number:06d}.mp4"


def by_ffmpeg(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Decode all frames of a video by FFmpeg's program."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    return np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.uint8).reshape(-1, *shape)


def encode(
    path: Path,
    pictures: npt.NDArray[np.uint8],
    fps: int = 30,
    options: Mapping[str, str] = MappingProxyType({}),
    codec: str = "libx264",
) -> None:
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, fps, options={"crf": "10", **options})
        stream.pix_fmt, (stream.height, stream.width) = "yuv420p", pictures.shape[1:3]
        for one in pictures:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(one, format="rgb24")))
        file.mux(stream.encode())


def change_info(folder: Path, **changed: Any) -> None:
    path = folder / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def refused(folder: Path, message: str, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match=message):
        sw.load(f"lerobot:{folder}")


def test_every_frame_is_the_one_of_its_row(layout: str) -> None:
    store = sw.load(f"lerobot:{DATA / layout}")
    episodes = list(store.episodes())
    assert [one.length for one in episodes] == [3, 11, 1, 39]  # done at the end of each second one only
    for name, shape in CAMERAS.items():
        for number, one in enumerate(episodes):
            shown = by_ffmpeg(video_of(DATA / layout, name, number), shape)
            begin = int(STARTS[number]) if layout == "v3.0" else 0
            rows = shown[begin : begin + LENGTHS[number]]
            expected = rows if one.ended == "truncated" else np.concatenate([rows, rows[-1:]])
            assert same(one.observations(name.replace("observation", "obs")), expected)
            made = np.stack([picture(number, t, shape) for t in range(LENGTHS[number])])
            assert np.abs(rows.astype(int) - made).mean() < 4  # what was recorded, but for its compression
    for number, one in enumerate(episodes):
        states = np.stack([row["observation.state"] for row in frames(number)])
        assert same(one.observations("obs.state")[: len(states)], states)
        assert one.info["tasks"] == [f"task {number}"]
    assert not [one for one in store.annotations()["imports"].popitem()[1]["left_out"] if "video" in one]


OPEN = "open-gop=1:keyint=12:min-keyint=1:bframes=4:b-pyramid=normal"
"""Key frames that are shown later than frames that are decoded after them, which need frames before."""


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"g": "12", "bf": "3"}),
        ("libx264", {"g": "40", "bf": "0"}),
        ("libx264", {"g": "2"}),
        ("libx264", {"x264-params": OPEN}),
        ("libx265", {"x265-params": "open-gop=1:keyint=12:log-level=none"}),
    ],
)
def test_any_part_of_a_video(tmp_path: Path, codec: str, options: dict[str, str]) -> None:
    """Frames that are decoded in another order than shown, and key frames far apart."""
    path, shape = tmp_path / "one.mp4", (48, 64, 3)
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    encode(path, np.stack([np.roll(noise, t, 1) for t in range(40)]), options=options, codec=codec)
    expected = by_ffmpeg(path, shape)
    for begin in range(0, 40, stride(1)):
        for count in {1, min(5, 40 - begin), 40 - begin}:
            out = np.zeros((count, *shape), np.uint8)
            decode_video(path, (begin + np.arange(count)).astype(np.float32).astype(np.float64) / 30, out)
            assert same(out, expected[begin : begin + count]), (begin, count)
    out = np.zeros((20, *shape), np.uint8)
    decode_video(path, np.arange(20) / 15, out)  # a video of twice the data set's frames
    assert same(out, expected[::2])


def test_a_missing_video_is_named(copy: Path) -> None:
    path = video_of(copy, TOP, 1)
    path.unlink()
    refused(copy, rf"the video '.*{path.name}' of episode \d is missing", FileNotFoundError)


def test_a_video_of_fewer_frames_than_rows(copy: Path) -> None:
    path = video_of(copy, TOP, 1)
    encode(path, np.stack([picture(1, t, CAMERAS[TOP]) for t in range(9)]))
    refused(copy, r"episode 1 cannot be read: .* ends before 0\.[23]\d+ s: it has frames for [69] of 12 rows")


def test_a_video_of_another_size(copy: Path) -> None:
    info = json.loads((copy / "meta" / "info.json").read_text())
    info["features"][TOP]["shape"] = [32, 64, 3]
    change_info(copy, **info)
    refused(copy, "frames of 48 x 64 pixels, expected 32 x 64 as info.json says")


def test_a_video_at_another_rate(copy: Path) -> None:
    encode(video_of(copy, TOP, 0), np.zeros((60, *CAMERAS[TOP]), np.uint8), fps=20)
    refused(copy, r"no frame within 0.0001 s of 0.0333 s, of row 1 of 3; the next one is at 0.0500 s")


@pytest.mark.parametrize("times", [[0.0, np.nan], [np.inf, np.inf], [0.1, 0.1], [0.1, 0.0]])
def test_times_that_do_not_rise(times: list[float]) -> None:
    with pytest.raises(ValueError, match="expected finite ones that rise"):
        decode_video(video_of(DATA / "v2.1", TOP, 0), np.array(times), np.zeros((2, *CAMERAS[TOP]), np.uint8))


def test_an_episode_does_not_reach_into_the_next_ones_frames(tmp_path: Path) -> None:
    shutil.copytree(DATA / "v3.0", tmp_path / "copy")
    path = tmp_path / "copy" / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    table = parquet.read_table(path)
    name = f"videos/{TOP}/to_timestamp"
    table = table.set_column(table.column_names.index(name), name, [[0.05, 0.5, 0.54, 2.0]])
    parquet.write_table(table, path)
    refused(tmp_path / "copy", "the last row is shown at 0.0667 s, the episode's part ends at 0.0500 s")


@pytest.mark.parametrize(
    "template",
    [
        "../{video_key}.mp4",
        "videos/{video_key.__class__}",
        "{unknown}",
    ],
)
def test_paths_that_lead_elsewhere(copy: Path, template: str) -> None:
    (copy.parent / f"{TOP}.mp4").write_bytes(video_of(copy, TOP, 0).read_bytes())
    change_info(copy, video_path=template)
    refused(copy, r"lerobot:.*(leaves the folder|missing|KeyError)", (ValueError, FileNotFoundError))  # type: ignore[arg-type]


def test_a_video_that_names_other_files_is_not_followed(copy: Path) -> None:
    other = copy.parent / "other.mp4"
    other.write_bytes(video_of(copy, TOP, 0).read_bytes())
    for content in (f"ffconcat version 1.0\nfile {other}\n", f"#EXTM3U\n#EXTINF:1,\n{other}\n#EXT-X-ENDLIST\n"):
        video_of(copy, TOP, 0).write_text(content)
        refused(copy, "cannot be decoded")


def test_damaged_videos_raise_value_errors(tmp_path: Path) -> None:
    good, rng = video_of(DATA / "v2.1", TOP, 1).read_bytes(), np.random.default_rng(0)
    path, out = tmp_path / "bad.mp4", np.zeros((12, *CAMERAS[TOP]), np.uint8)
    failed = 0
    for number in range(150):
        content = bytearray(good)
        for at in rng.integers(0, len(content), 4):
            content[at] = rng.integers(256)
        path.write_bytes(content if number % 4 else content[: rng.integers(len(content))])
        try:
            decode_video(path, np.arange(12) / 30, out)
        except ValueError as error:
            failed += 1
            assert "bad.mp4" in str(error)
    assert failed > 50


def test_frames_are_not_made_up_where_h264_is_damaged(tmp_path: Path) -> None:
    path, rng, shape = tmp_path / "one.mp4", np.random.default_rng(0), (48, 64, 3)
    encode(path, rng.integers(0, 256, (30, 6, 8, 3), np.uint8).repeat(8, 1).repeat(8, 2))
    good, expected = path.read_bytes(), np.zeros((30, *shape), np.uint8)
    decode_video(path, np.arange(30) / 30, expected)
    begin, out, wrong = good.index(b"mdat") + 4, expected.copy(), 0
    for _ in range(40):
        content = bytearray(good)
        for at in rng.integers(begin, begin + int.from_bytes(good[begin - 8 : begin - 4]) - 8, 3):
            content[at] ^= int(rng.integers(1, 256))
        path.write_bytes(content)
        with contextlib.suppress(ValueError):
            decode_video(path, np.arange(30) / 30, out)
            wrong += not same(out, expected)
    assert wrong < 10  # of what still makes sense; it was most


def test_a_video_that_declares_more_frames_than_it_has_bytes(tmp_path: Path) -> None:
    """FFmpeg would take hours to look for them."""
    path = tmp_path / "one.mp4"
    encode(path, np.zeros((5, 48, 64, 3), np.uint8), options={"bf": "0"})
    content = bytearray(path.read_bytes())
    for box, at, values in ((b"stsz", 8, (1, 1 << 20)), (b"stts", 12, (1 << 20, 3000)), (b"stsc", 12, (1, 1 << 20, 1))):
        begin = content.index(box) + at
        content[begin : begin + 4 * len(values)] = struct.pack(f">{len(values)}I", *values)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"declares 1,048,576 frames in [0-9,]+ bytes"):
        decode_video(path, np.arange(5) / 30, np.zeros((5, 48, 64, 3), np.uint8))


def test_depth_is_left_out_and_said_so(copy: Path) -> None:
    info = json.loads((copy / "meta" / "info.json").read_text())
    info["features"][TOP]["shape"] = [48, 64, 1]
    change_info(copy, **info)
    store = sw.load(f"lerobot:{copy}")
    assert "obs.images.wrist" in store.spec.fields and "obs.images.top" not in store.spec.fields
    (note,) = store.annotations()["imports"].values()
    assert f"{TOP}: video of 1 channels, only 3 are read" in note["left_out"]


def test_without_pyav_the_extra_is_named(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    refused(DATA / layout, "needs av: " + re.escape(install("lerobot")), ModuleNotFoundError)
