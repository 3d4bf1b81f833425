"""Pictures that tell which prompt revision they were made under."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transport.fields import Prompt


def colour_of(revision: int) -> tuple[int, int, int]:
    """Return the colour that a chunk of this prompt revision has."""
    return (
        revision % 8 * 32 + 16,
        revision // 8 % 8 * 32 + 16,
        revision // 64 % 8 * 32 + 16,
    )


def revision_of(picture: NDArray[np.uint8]) -> int:
    """Return the prompt revision that a picture shows."""
    red, green, blue = (int(value) // 32 for value in picture.mean(axis=(0, 1)))
    return red + 8 * green + 64 * blue


@dataclass(frozen=True)
class Shot:
    """What one chunk shows: `num_frames` frames under `prompt`, from a moment of its scene on.

    In a blend the picture is `share` of the way from the prompt `before`.
    """

    prompt: Prompt
    revision: int
    seed: int
    width: int
    height: int
    first_frame: int
    num_frames: int
    before: Prompt | None = None
    share: float = 1.0


def paint_revision(shot: Shot) -> NDArray[np.uint8]:
    """Paint the colour of the prompt revision."""
    frames = np.empty((shot.num_frames, shot.height, shot.width, 3), np.uint8)
    frames[:] = colour_of(shot.revision)
    return frames
