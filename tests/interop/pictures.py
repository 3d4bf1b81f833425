"""Pictures that another program has decoded, as it wrote them: PPM, one after the other."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.browser.pages import MAX_COLOUR_ERROR, RGB
from tests.transport.demo_server import BLOCK_PX, NUMBER_BITS

Picture = NDArray[np.uint8]
RGB8: Final = ("P6", 255)


def read_pictures(path: Path) -> list[Picture]:
    """Return the pictures of a file, uint8 RGB [H, W, 3] each."""
    data, pictures = io.BytesIO(path.read_bytes()), []
    while first := data.readline():
        lines = [first]
        while len(b"".join(lines).split()) < 4:
            line = data.readline()
            lines += [line] if not line.startswith(b"#") else []
        kind, width, height, most = b"".join(lines).split()
        assert (kind.decode(), int(most)) == RGB8
        pixels = np.frombuffer(data.read(int(width) * int(height) * 3), np.uint8)
        pictures.append(pixels.reshape(int(height), int(width), 3))
    return pictures


def number_of(picture: Picture) -> int:
    """Return the number that the demo server painted into a picture."""
    row = picture[BLOCK_PX // 2, BLOCK_PX // 2 : NUMBER_BITS * BLOCK_PX : BLOCK_PX]
    return int((row[:, 1] > 127) @ (1 << np.arange(NUMBER_BITS)[::-1]))


def check_counted(pictures: list[Picture], prompt: str, least: int) -> None:
    """Check that so many pictures came, in order, hardly one missing, of the prompt's colour."""
    assert len(pictures) >= least, f"{len(pictures)} pictures came"
    assert {picture.shape for picture in pictures} == {(128, 128, 3)}
    steps = np.diff([number_of(picture) for picture in pictures])
    assert steps.min() >= 0, f"the order is wrong: {steps}"
    assert np.mean(steps == 1) > 0.95, f"numbers are missing, or come again: {steps}"
    colours = np.array([picture[40:120, 8:120].mean(axis=(0, 1)) for picture in pictures])
    assert np.abs(colours - RGB[prompt]).max() <= MAX_COLOUR_ERROR, colours


def check_filmed(pictures: list[Picture], least: int) -> None:
    """Check that so many pictures of the bundled model came: bright, with detail, and moving."""
    assert len(pictures) >= least, f"{len(pictures)} pictures came"
    assert {picture.shape for picture in pictures} == {(128, 128, 3)}
    film = np.stack(pictures).astype(np.float32)
    assert film.mean(axis=(1, 2, 3)).min() > 20, "it is black"
    assert film.std(axis=(1, 2, 3)).min() > 10, "there is nothing on it"
    moved = np.abs(np.diff(film, axis=0)).max(axis=(1, 2, 3)) > 8
    assert moved.mean() > 0.5, "the picture stands still"
