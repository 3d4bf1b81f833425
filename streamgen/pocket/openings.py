"""How a stream begins: a mark in the noise of its first chunk, in one of nine places.

With plain noise the first pass of a few-step model meets all beginnings of a motion equally likely
and draws their mean: a thing in two places, which later passes do not always decide. The model is
trained on noise that is raised in the place that belongs to how the clip begins; the engine raises
it in the place that the seed says. A noise prior of this kind is to video what offsets are to
images: the noise tells what only it can (Ge et al., "Preserve Your Own Correlation", 2023).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from streamgen.pocket.world import NUM_STARTS, PHASES, start_of

RADIUS: Final = 0.1  # of the picture, at which a mark has fallen to 0.6 of its height
STRENGTH: Final = 12.0  # standard deviations of the noise, along a mark


def opening_noise(noise: Tensor, seed: int) -> Tensor:
    """Return the noise of a stream's first chunk `[frames, C, h, w]` as the seed has it begin."""
    return noise + STRENGTH * marks(noise.shape)[start_of(seed)]


def marks(shape: torch.Size) -> Tensor:
    """Return all marks for noise `[frames, C, h, w]`, of norm 1, as `[starts, 1, 1, h, w]`."""
    frames, channels, height, width = shape
    y, x = ((torch.arange(n) + 0.5) / n for n in (height, width))
    start = torch.arange(NUM_STARTS)[:, None]
    place, phase = start // PHASES, start % PHASES
    from_left = (x - (place + 1) / (NUM_STARTS // PHASES + 1))[:, None, :]
    from_top = (y - (phase + 1) / (PHASES + 1))[:, :, None]
    hills = torch.exp(-(from_left**2 + from_top**2) / (2 * RADIUS**2))
    norm = hills.flatten(1).norm(dim=1)[:, None, None] * (frames * channels) ** 0.5
    marked: Tensor = (hills / norm)[:, None, None]
    return marked
