"""Three-axis rotary position embedding of Wan 2.1: frame, row and column share a head's lanes.

Adjacent pairs (2i, 2i + 1) of a head are complex numbers. Of `head_dim / 2` lanes a third each goes
to row and column, the rest to the frame axis; axis angle = position * 10000^(-2j / axis width).
Angles are computed in float64 from the absolute frame number: no table, no limit on its size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

import torch
from torch import Tensor

from streamgen.models.norm import inverse_rms, times

BASE: Final = 10_000.0


def lanes(head_dim: int) -> tuple[int, int, int]:
    """Return the number of complex lanes of the frame, row and column axis."""
    if head_dim % 2:
        raise ValueError(f"head_dim must be even to hold rotary pairs, not {head_dim}")
    third = head_dim // 2 // 3
    return head_dim // 2 - 2 * third, third, third


def axis_angles(positions: Tensor, num_lanes: int) -> Tensor:
    """Return float64 angles `[..., lanes]` of integer positions `[...]` on one axis."""
    exponent = torch.arange(num_lanes, dtype=torch.float64, device=positions.device) / num_lanes
    return positions.double()[..., None] * BASE**-exponent


@lru_cache(maxsize=32)
def _grid_angles(height: int, width: int, num_lanes: int, device: torch.device) -> Tensor:
    rows = axis_angles(torch.arange(height, device=device), num_lanes)
    columns = axis_angles(torch.arange(width, device=device), num_lanes)
    grid = torch.cat(
        [
            rows[:, None, :].expand(height, width, num_lanes),
            columns[None, :, :].expand(height, width, num_lanes),
        ],
        dim=-1,
    )
    return grid.flatten(0, 1)  # [height * width, 2 * lanes]


def rotation(frames: Tensor, height: int, width: int, head_dim: int) -> Tensor:
    """Return cosines and sines, float32 `[rows, frames * height * width, 1, head_dim / 2, 2]`.

    `frames` holds absolute frame numbers, integer `[rows, frames]`; `height` and `width` count
    tokens. Tokens are ordered frame, row, column.
    """
    frame_lanes, row_lanes, _ = lanes(head_dim)
    time = axis_angles(frames, frame_lanes)[:, :, None, :].expand(-1, -1, height * width, -1)
    grid = _grid_angles(height, width, row_lanes, frames.device)
    space = grid.expand(*frames.shape, -1, -1)
    angles = torch.cat([time, space], dim=-1).flatten(1, 2)[:, :, None, :]
    return torch.stack([angles.cos(), angles.sin()], dim=-1).float()


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate `[rows, tokens, heads, head_dim]` by a `rotation` in float32; keep the dtype."""
    pairs = x.float().unflatten(-1, (-1, 2))
    if not torch.compiler.is_compiling():
        # A complex product is one pass over memory where its four real ones are eight.
        turned = torch.view_as_complex(pairs) * torch.view_as_complex(turn)
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)
    (real, imag), (cos, sin) = pairs.unbind(-1), turn.unbind(-1)  # compilers know no complex kind
    turned = torch.stack([real * cos - imag * sin, real * sin + imag * cos], dim=-1)
    return turned.flatten(-2).to(x.dtype)


def rotate_normed(x: Tensor, weight: Tensor, eps: float, turn: Tensor) -> Tensor:
    """Rotate the root-mean-square norm of `[rows, tokens, width]`; the result is in heads.

    A norm scales a token as a whole, so its turn may be scaled in its place: that leaves out five
    passes over memory of thirteen. Equals `rotate(norm(x).unflatten(-1, heads), turn)`.
    """
    exact = x.to(torch.float32, copy=True)
    scaled_turn = torch.view_as_complex(turn) * inverse_rms(exact, eps)[..., None]
    pairs = times(exact, weight.float()).unflatten(-1, (-1, *turn.shape[-2:]))
    turned = times(torch.view_as_complex(pairs), scaled_turn)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


@lru_cache(maxsize=256)
def frame_table(num_frames: int, head_dim: int) -> Tensor:
    """Return the cosines and sines that move keys on by `num_frames`, float32 `[head_dim / 2, 2]`.

    Angles add: turned by n, the key of a token at frame f is that of frame f + n.
    """
    angles = torch.zeros(head_dim // 2, dtype=torch.float64)
    frame_lanes, _, _ = lanes(head_dim)
    angles[:frame_lanes] = axis_angles(torch.tensor(num_frames), frame_lanes)
    return torch.stack([angles.cos(), angles.sin()], dim=-1).float()


@lru_cache(maxsize=256)
def frame_turn(num_frames: int, head_dim: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the function that moves rotated keys `[..., heads, head_dim]` on by `num_frames`."""
    return partial(rotate, turn=frame_table(num_frames, head_dim).to(device))


def turn_pages(keys: Tensor, tables: Tensor) -> Tensor:
    """Move keys `[n, page_tokens, heads, head_dim]` on, each page by its `frame_table` of n."""
    return rotate(keys, tables[:, None, None])
