"""Frames of videos at given times, as LeRobot's data sets hold what cameras saw; decoded by PyAV, that is by FFmpeg."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.packages import needed

TOLERANCE_S = 1e-4
"""How far a frame may be from the time asked for, as in LeRobot's own loader."""
STEPS_BACK_S = (0.0, 1.0, 10.0, np.inf)
"""How far before the time asked for a key frame is sought, until one is shown in time."""
SLACK_PIXELS = 128
"""Pixels by which decoders may enlarge a side, to whole blocks."""


def decode(path: Path, times: npt.NDArray[np.float64], out: npt.NDArray[np.uint8]) -> None:
    """Decode the frames of a video that are shown at given times: one each, the others are passed over.

    Args:
        times: [N], rising, in seconds of the video.
        out: uint8 [N, height, width, 3], for the frames in RGB.

    Raises:
        ValueError: the video is missing or damaged, of another size, or has no frame at one of the times.
    """
    av = needed("av", "lerobot")
    if not np.isfinite(times).all() or (np.diff(times) <= TOLERANCE_S).any():
        raise ValueError(f"{path}: times of rows, expected finite ones that rise by more than {TOLERANCE_S:g} s")
    try:
        # As MP4, whatever it looks like: a playlist would lead FFmpeg to other files.
        options = {"protocol_whitelist": "file"}
        with av.open(str(path), format="mp4", options=options, metadata_errors="replace") as file:
            if not file.streams.video:
                raise ValueError(f"{path} has no video")
            stream = file.streams.video[0]
            if stream.codec_context is None:
                raise ValueError(f"{path} is in an encoding that this PyAV does not decode")
            if stream.frames > (nbytes := path.stat().st_size):
                raise ValueError(f"{path} declares {stream.frames:,} frames in {nbytes:,} bytes")
            check_size(path, stream.codec_context, out)
            stream.codec_context.options = {
                "max_pixels": str((out.shape[1] + SLACK_PIXELS) * (out.shape[2] + SLACK_PIXELS)),
                "err_detect": "explode",  # rather than frames with what is lost made up
            }
            stream.thread_type = "AUTO"
            try:
                found = _fill(path, _from(file, stream, float(times[0])), times, out)
            except av.InvalidDataError:  # H.264 may miss what came before an open GOP; nothing comes before the start
                file.seek(0, stream=stream)
                found = _fill(path, file.decode(stream), times, out)
    except av.FFmpegError as error:
        raise ValueError(f"{path} cannot be decoded ({error})") from error
    if found < len(times):
        raise ValueError(
            f"{path} ends before {times[found]:.4f} s: it has frames for {found:,} of {len(times):,} rows; is the file "
            "complete?"
        )


def _from(file: Any, stream: Any, time: float) -> Iterator[Any]:
    """Decode from a key frame on that is shown at ``time`` or before.

    Files are sought by when frames are decoded. A key frame may be shown later than frames that are decoded after it,
    for which frames before it are needed ("open GOP"): those are passed over.
    """
    for back in STEPS_BACK_S:
        begin = time - TOLERANCE_S - back
        file.seek(int(begin / stream.time_base) if begin > 0 else 0, stream=stream)
        packets = file.demux(stream)
        key = next(packets)
        if begin <= 0 or key.pts is None or key.pts * stream.time_base < time + TOLERANCE_S:
            break
    for packet in itertools.chain([key], packets):
        if begin <= 0 or packet.pts is None or key.pts is None or packet.pts >= key.pts:
            yield from packet.decode()


def _fill(path: Path, decoded: Iterator[Any], times: npt.NDArray[np.float64], out: npt.NDArray[np.uint8]) -> int:
    """Fill ``out``; return how many frames were found before the video's end.  Raises: ValueError."""
    found = 0
    for frame in decoded:
        if frame.time is None:
            raise ValueError(f"{path}: a frame has no time")
        if frame.time >= times[found] + TOLERANCE_S:
            raise ValueError(
                f"{path} has no frame within {TOLERANCE_S:g} s of {times[found]:.4f} s, of row {found:,} of "
                f"{len(times):,}; the next one is at {frame.time:.4f} s"
            )
        if frame.time > times[found] - TOLERANCE_S:
            check_size(path, frame, out)
            out[found] = frame.to_ndarray(format="rgb24")
            found += 1
            if found == len(times):
                break
    return found


def check_size(path: Path, given: Any, out: npt.NDArray[np.uint8]) -> None:
    """Check the size of a frame, or of those that a decoder expects.  Raises: ValueError."""
    if (given.height, given.width) != out.shape[1:3]:
        raise ValueError(
            f"{path}: frames of {given.height} x {given.width} pixels, expected {out.shape[1]} x {out.shape[2]} as "
            "info.json says"
        )
