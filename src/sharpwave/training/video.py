"""Video files."""

from __future__ import annotations

from pathlib import Path

from sharpwave.training.measuring import ShowFrame


class open_video:
    """Context manager of a video file; yields a function that appends a picture."""

    def __init__(self, path: Path, fps: int) -> None:
        if path.suffix.lower() not in (".mp4", ".gif"):
            raise ValueError(f"video: got {path.name!r}, expected a name that ends in .mp4 or .gif")
        if not path.parent.is_dir():
            raise ValueError(f"video: the folder {str(path.parent)!r} does not exist; make it first")
        import imageio.v2 as imageio

        try:
            if path.suffix.lower() == ".gif":
                self._writer = imageio.get_writer(path, mode="I", duration=1000 / fps, loop=0)
            else:
                # The codec needs even sides; imageio's default of 16 would rescale the screen.
                self._writer = imageio.get_writer(path, fps=fps, macro_block_size=2)
        except (ImportError, ValueError) as error:
            raise ValueError(f"video: {path.name!r} cannot be written: {error}; a .gif needs no ffmpeg") from error

    def __enter__(self) -> ShowFrame:
        show: ShowFrame = self._writer.append_data
        return show

    def __exit__(self, *_: object) -> None:
        self._writer.close()
