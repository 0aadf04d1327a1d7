"""Frames of videos at given times, as in LeRobot's data sets; decoded by PyAV, which uses FFmpeg."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sharpwave.data.episode import needed
from sharpwave.data.opened_files import File, explained

TOLERANCE_S = 1e-4
"""Largest distance of a frame from the given time, as in LeRobot's own loader."""
STEPS_BACK_S = (0.0, 1.0, 10.0, np.inf)
"""Distances before the given time at which a key frame is sought, tried in order until one is shown in time."""
SLACK_PIXELS = 128
"""Pixels by which decoders may enlarge a side, to whole blocks."""
COUNTED = {b"stsz": 12, b"stz2": 12, b"trun": 8, b"elst": 8, b"iinf": 8}
"""Tables of MP4, with the offset of their number of entries after the name: of frames, parts of a track, pictures.
FFmpeg allocates the declared number of entries, even if the file lacks them; and all frames again for each part."""
MAX_PARTS, MAX_TRACKS = 16, 64
MAX_INDEX_BYTES = 1 << 28


def decode(file: File, times: npt.NDArray[np.float64], out: npt.NDArray[np.uint8]) -> None:
    """Decode a video's frames at given times, one frame each; skip the others.

    Args:
        times: [N], rising, in seconds of the video.
        out: uint8 [N, height, width, 3], for the frames in RGB.

    Raises:
        ValueError: the video is damaged, of another size, or has no frame at one of the times.
    """
    av = needed("av", "lerobot")
    path = file.path
    if not np.isfinite(times).all() or (np.diff(times) <= TOLERANCE_S).any():
        raise ValueError(f"{path}: times of rows, expected finite ones that rise by more than {TOLERANCE_S:g} s")
    with explained(f"{path} cannot be decoded", str(path)):
        _check_index(file)
        limit = {"max_pixels": str((out.shape[1] + SLACK_PIXELS) * (out.shape[2] + SLACK_PIXELS))}
        file.seek(0)
        # Always as MP4: a playlist would lead FFmpeg to other files.
        with av.open(file, format="mp4", options=limit, metadata_errors="replace") as opened:
            if not opened.streams.video:
                raise ValueError(f"{path} has no video")
            stream = opened.streams.video[0]
            if stream.codec_context is None:
                raise ValueError(f"{path} is in an encoding that this PyAV does not decode")
            if stream.frames > file.nbytes:
                raise ValueError(f"{path} declares {stream.frames:,} frames in {file.nbytes:,} bytes")
            check_size(file, stream.codec_context, out)
            # An error is better than frames with guessed parts.
            stream.codec_context.options = {**limit, "err_detect": "explode"}
            stream.thread_type = "AUTO"
            try:
                found = _fill(file, _from(opened, stream, float(times[0])), times, out)
            except av.InvalidDataError:  # H.264 may need frames before an open GOP; at the start none are missing
                opened.seek(0, stream=stream)
                found = _fill(file, opened.decode(stream), times, out)
    if found < len(times):
        raise ValueError(
            f"{path} ends before {times[found]:.4f} s: it has frames for {found:,} of {len(times):,} rows; is the file "
            "complete?"
        )


def _check_index(file: File) -> None:
    """Check the sizes that an MP4 file's tables declare, apart from the frames' own bytes.  Raises: ValueError."""
    at, index = 0, b""
    while at + 8 <= file.size:
        head = file.read_at(at, min(16, file.size - at))
        nbytes, kind = int.from_bytes(head[:4]), head[4:8]
        nbytes = int.from_bytes(head[8:16]) if nbytes == 1 else nbytes
        end = min(at + nbytes, file.size) if nbytes >= 8 else file.size
        if kind != b"mdat":
            if len(index) + end - at > MAX_INDEX_BYTES:
                raise ValueError(
                    f"{file.path}: {end - at:,} bytes beside its frames, expected {MAX_INDEX_BYTES:,} at most"
                )
            index += file.read_at(at, end - at)
        at = end
    if b"cmov" in index:
        raise ValueError(f"{file.path}: its tables are compressed, which is not read; write it anew by FFmpeg")
    if (tracks := index.count(b"trak")) > MAX_TRACKS:
        raise ValueError(f"{file.path}: {tracks:,} tracks, expected {MAX_TRACKS} at most")
    for kind, offset in COUNTED.items():
        counts = [int.from_bytes(index[at + offset : at + offset + 4]) for at in _places(index, kind)]
        if kind == b"elst" and max(counts, default=0) > MAX_PARTS:
            raise ValueError(f"{file.path}: a track of {max(counts):,} parts, expected {MAX_PARTS} at most")
        if sum(counts) > file.nbytes:
            raise ValueError(f"{file.path} declares {sum(counts):,} frames in {file.nbytes:,} bytes; is it complete?")
    if (samples := _sound_samples(index)) > 64 * file.nbytes:
        raise ValueError(f"{file.path} declares {samples:,} samples of sound in {file.nbytes:,} bytes; is it complete?")


def _sound_samples(index: bytes) -> int:
    """Return the number of samples in all chunks, by tables of (first chunk, samples a chunk)."""
    found = 0
    chunks = max(
        (int.from_bytes(index[at + 8 : at + 12]) for kind in (b"stco", b"co64") for at in _places(index, kind)),
        default=0,
    )
    for at in _places(index, b"stsc"):
        count = min(int.from_bytes(index[at + 8 : at + 12]), (len(index) - at - 12) // 12)
        table = np.frombuffer(index, ">u4", 3 * count, at + 12).reshape(count, 3).astype(object)
        lasts = [*table[1:, 0], chunks + 1]
        found += sum(max(0, last - first) * each for (first, each, _), last in zip(table.tolist(), lasts, strict=False))
    return found


def _places(index: bytes, kind: bytes) -> Iterator[int]:
    at = index.find(kind)
    while at >= 0:
        yield at
        at = index.find(kind, at + 4)


def _from(file: Any, stream: Any, time: float) -> Iterator[Any]:
    """Decode from a key frame on that is shown at ``time`` or before.

    Seeking goes by decoding time. A key frame may be shown later than frames that are decoded after it and need frames
    before it ("open GOP"): such frames are skipped.
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


def _fill(file: File, decoded: Iterator[Any], times: npt.NDArray[np.float64], out: npt.NDArray[np.uint8]) -> int:
    """Fill ``out``; return the number of frames found before the video's end.  Raises: ValueError."""
    found, path = 0, file.path
    for number, frame in enumerate(decoded):
        file.budget.check_total_bytes(f"{path}: frames decoded for {len(times):,} rows", number * out[0].nbytes)
        file.budget.check_time()
        if frame.time is None:
            raise ValueError(f"{path}: a frame has no time")
        if frame.time >= times[found] + TOLERANCE_S:
            raise ValueError(
                f"{path} has no frame within {TOLERANCE_S:g} s of {times[found]:.4f} s, of row {found:,} of "
                f"{len(times):,}; the next one is at {frame.time:.4f} s"
            )
        if frame.time > times[found] - TOLERANCE_S:
            check_size(file, frame, out)
            out[found] = frame.to_ndarray(format="rgb24")
            found += 1
            if found == len(times):
                break
    return found


def check_size(file: File, given: Any, out: npt.NDArray[np.uint8]) -> None:
    """Check the size of a frame, or the size that a decoder expects.  Raises: ValueError."""
    if (given.height, given.width) != out.shape[1:3]:
        raise ValueError(
            f"{file.path}: frames of {given.height} x {given.width} pixels, expected {out.shape[1]} x {out.shape[2]} "
            "as info.json says"
        )
