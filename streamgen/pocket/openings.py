"""How a stream begins: a mark in the noise of its first chunk, one of nine.

With plain noise the first pass of a few-step model meets all beginnings of a motion equally likely
and draws their mean: a thing in two places, which later passes do not always decide. The model is
trained on noise with the mark that belongs to how the clip begins; the engine marks it as the seed
says. A mark lies where the thing will be, so that the cells that draw it read it themselves: the
place is where noise is raised, the phase which third of the channels is. A noise prior of this kind
is to video what offsets are to images: the noise tells what only it can (Ge et al., "Preserve Your
Own Correlation", 2023).
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
    """Return all marks for noise `[frames, C, h, w]`, of norm 1, as `[starts, 1, C, h, w]`."""
    frames, channels, height, width = shape
    y, x = ((torch.arange(n) + 0.5) / n for n in (height, width))
    start = torch.arange(NUM_STARTS)[:, None]
    place, phase = start // PHASES, start % PHASES
    from_left = (x - (place + 1) / (NUM_STARTS // PHASES + 1))[:, None, :]
    hills = torch.exp(-(from_left**2 + (y[:, None] - 0.5) ** 2) / (2 * RADIUS**2))
    raised = torch.arange(channels) * PHASES // channels == phase
    marked = hills[:, None] * raised[:, :, None, None]
    norm = marked.flatten(1).norm(dim=1) * frames**0.5
    unit: Tensor = marked / norm[:, None, None, None]
    return unit[:, None]
