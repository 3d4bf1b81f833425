"""Contact sheets: frames of many clips in one PNG, written with zlib alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
_GAP = 2  # white pixels between frames


def contact_sheet(clips: Sequence[Bytes], columns: int = 8) -> Bytes:
    """Return one picture, uint8 [H, W, 3]: a row a clip, evenly spaced frames from left to right.

    Clips are uint8 [n, h, w, 3] of one size.
    """
    rows = []
    for clip in clips:
        picked = clip[np.linspace(0, len(clip) - 1, columns).round().astype(int)]
        framed = np.pad(picked, ((0, 0), (0, _GAP), (0, _GAP), (0, 0)), constant_values=255)
        rows.append(np.concatenate(list(framed), axis=1))
    return np.concatenate(rows, axis=0)


def write_png(path: str | Path, image: Bytes) -> None:
    """Write a picture, uint8 [H, W, 3], as a PNG."""
    height, width, _ = image.shape
    # Filter "sub" on every row: each byte minus the one a pixel to the left.
    differences = image.copy()
    differences[:, 1:] -= image[:, :-1]
    lines = np.concatenate(
        [np.ones((height, 1), np.uint8), differences.reshape(height, width * 3)], axis=1
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    with Path(path).open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, body in chunks:
            checksum = zlib.crc32(kind + body)
            file.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum))
