"""A video file that is there whole or not at all."""

from __future__ import annotations

import os
import secrets
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Final

import av
import numpy as np
import numpy.typing as npt
from av.container import OutputContainer
from av.video.stream import VideoStream

from streamgen.errors import ConfigError

CONTAINERS: Final = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
CODEC: Final = "libx264"
# swscale makes BT.601; players take what is not tagged for BT.709 and show other colours.
COLOUR_TAGS: Final = "colorprim=smpte170m:transfer=smpte170m:colormatrix=smpte170m"
ENCODER: Final = {"preset": "superfast", "crf": "18", "x264-params": COLOUR_TAGS}


def check_output(path: Path, suffixes: tuple[str, ...], param: str) -> None:
    """Raise ConfigError unless a file of this name and one of these suffixes can be written."""
    folder = path.parent
    if path.suffix.lower() not in suffixes:
        wanted = ", ".join(suffixes)
        raise ConfigError(f"{path}: the name must end in one of {wanted}", param=param)
    if not folder.is_dir():
        raise ConfigError(f"{path}: there is no folder {folder}", param=param)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", param=param)
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{path}: the folder {folder} cannot be written to", param=param)


def partial_path(path: Path) -> Path:
    """Return a name beside `path` for a file that is not finished."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


class VideoFile:
    """Write frames as H.264: x264 superfast, quality 18, BT.601 and tagged so, at the real rate.

    A context: its file has a temporary name until the end, and none is left after an error. Raises
    ConfigError when a file of this name cannot be written.
    """

    def __init__(self, path: Path, width: int, height: int, fps: int) -> None:
        check_output(path, tuple(CONTAINERS), "output")
        self._path = path
        self._partial = partial_path(path)
        self._size = (width, height)
        self._fps = fps
        self._num_frames = 0
        self._container: OutputContainer
        self._stream: VideoStream

    def add(self, frames: npt.NDArray[np.uint8]) -> None:
        """Append RGB frames `[n, height, width, 3]`."""
        for picture in frames:
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = self._num_frames, Fraction(1, self._fps)
            self._num_frames += 1
            self._container.mux(self._stream.encode(frame))

    def __enter__(self) -> VideoFile:
        """Begin the file."""
        kind = CONTAINERS[self._path.suffix.lower()]
        options = {} if kind == "matroska" else {"movflags": "faststart"}
        self._container = av.open(str(self._partial), "w", format=kind, options=options)
        self._stream = self._container.add_stream(CODEC, rate=self._fps, options=ENCODER)
        self._stream.width, self._stream.height = self._size
        self._stream.pix_fmt = "yuv420p"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the file and give it its name, or remove it after an error."""
        try:
            with self._container:
                if error is None:
                    self._container.mux(self._stream.encode())
            if error is None:
                self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)
