"""The tiny decoder as it is served: what is linear between two non-linearities is one convolution.

`Grow` (a 1x1 convolution and nearest-neighbour upsampling) and the 3x3 convolution after it are one
linear map, which can be computed before the upsampling: each of the four pixels that come of one
has a 3x3 kernel of its own over the small picture. That leaves out two passes over the large
picture and gives the matrix units wide products. After the last growth pixels stay side by side
in channels to the end, where three numbers each are all that has to be moved.
"""

from __future__ import annotations

import copy
from typing import Final, cast

import torch
from torch import Tensor, nn

from streamgen.models.fused import ConvReLU
from streamgen.models.taehv import (
    STARTUP_FRAMES,
    TAEHV,
    Grow,
    MemoryBlock,
    TAEHVState,
    spatial,
)

PHASES: Final = 2  # pixels that come of one, each way


class FoldedTAEHV(nn.Module):
    """Decode streams as `TAEHV.decode_step` does, from a copy of its decoder's weights.

    States are interchangeable with those of the original.
    """

    def __init__(self, vae: TAEHV) -> None:
        super().__init__()
        self.config = vae.config
        layers = [copy.deepcopy(x) for x in vae.decoder if not isinstance(x, nn.Identity)]
        *body, last_grow, last_conv, to_pixels = layers
        self.body = nn.ModuleList()
        for layer in body:
            before = self.body[-1] if len(self.body) else None
            if isinstance(before, Grow):
                assert isinstance(layer, nn.Conv2d), layer
                self.body[-1] = GrowConv(grown_weights(before, layer))
            else:
                self.body.append(layer)
        assert isinstance(last_grow, Grow)
        assert isinstance(last_conv, nn.Conv2d)
        assert isinstance(to_pixels, nn.Conv2d)
        assert to_pixels.bias is not None
        self.last = nn.ModuleList(_conv(w, None) for w in grown_weights(last_grow, last_conv))
        bias = to_pixels.bias.detach().repeat(PHASES**2)
        self.to_pixels = _conv(_beside(to_pixels.weight.detach()), bias, is_last=True)
        self.eval().requires_grad_(False)

    def decoder_state(self) -> TAEHVState:
        """Return the state of a stream that has decoded nothing yet."""
        return TAEHVState([None] * sum(isinstance(m, MemoryBlock) for m in self.body))

    def decode_step(self, latents: Tensor, state: TAEHVState) -> tuple[Tensor, TAEHVState]:
        """Decode the next n >= 1 latents of a stream: 4n frames, or 4n - 3 at its start.

        The given state is left as it was, so a caller may retry from it.
        """
        x = latents.permute(1, 0, 3, 4, 2).contiguous()
        memory: list[Tensor | None] = []
        for layer in self.body:
            if isinstance(layer, MemoryBlock):
                x, last = layer(x, state.memory[len(memory)])
                memory.append(last)
            elif isinstance(layer, GrowConv):
                x = layer(x)
            else:
                x = spatial(layer, x)
        frames = self._pixels(x)
        if not state.started:
            frames = frames[:, STARTUP_FRAMES:]
        return frames.clamp_(0, 1), TAEHVState(memory, started=True)

    def _pixels(self, x: Tensor) -> Tensor:
        """Return the frames `[batch, time, 3, 2h, 2w]` of features `[time', batch, h, w, C]`."""
        apart = torch.stack([spatial(self.to_pixels, spatial(conv, x)) for conv in self.last], 1)
        frames = _interleaved(apart)
        return frames.permute(1, 0, 4, 2, 3)


class GrowConv(nn.Module):
    """A `Grow` and the convolution after it; `weights` has one for each frame that comes of one."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.stride = len(weights)
        weight = torch.cat(weights)
        self.conv = nn.Conv2d(
            weight.shape[1], weight.shape[0], 3, padding=1, bias=False, dtype=weight.dtype
        )
        _set(self.conv.weight, weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map [time, batch, h, w, C] to [time * stride, batch, 2h, 2w, C'], earlier first."""
        grown = spatial(self.conv, x).unflatten(-1, (self.stride, -1))
        return _interleaved(grown.permute(0, 4, 1, 2, 3, 5))


def grown_weights(grow: Grow, conv: nn.Conv2d) -> list[Tensor]:
    """Return a weight `[4 C', C, 3, 3]` for each frame that a growth makes of one.

    Outputs are ordered (row phase, column phase, channel). A tap of the large picture at row
    2 i + a + u reads the small one at i + floor((a + u) / 2).
    """
    mix = grow.conv.weight.detach().float().flatten(1).unflatten(0, (grow.stride, -1))
    taps = conv.weight.detach().float()
    phases = taps.new_zeros(PHASES, PHASES, *taps.shape)
    for a, b, u, v in _taps():
        row, column = (a + u) // PHASES, (b + v) // PHASES
        phases[a, b, :, :, row + 1, column + 1] += taps[:, :, u + 1, v + 1]
    return [
        torch.einsum("abomhw,mi->aboihw", phases, each).flatten(0, 2).to(conv.weight.dtype)
        for each in mix
    ]


def _beside(taps: Tensor) -> Tensor:
    """Return a 3x3 kernel for pixels that lie side by side in channels, `[4 C', 4 C, 3, 3]`."""
    outputs, inputs = taps.shape[:2]
    wide = taps.new_zeros(PHASES, PHASES, outputs, PHASES, PHASES, inputs, 3, 3)
    for a, b, u, v in _taps():
        (row, of_row), (column, of_column) = divmod(a + u, PHASES), divmod(b + v, PHASES)
        wide[a, b, :, of_row, of_column, :, row + 1, column + 1] = taps[:, :, u + 1, v + 1]
    return wide.flatten(0, 2).flatten(1, 3)


def _taps() -> list[tuple[int, int, int, int]]:
    """Return (row phase, column phase, row offset, column offset) of a 3x3 kernel."""
    phases, offsets = range(PHASES), (-1, 0, 1)
    return [(a, b, u, v) for a in phases for b in phases for u in offsets for v in offsets]


def _interleaved(x: Tensor) -> Tensor:
    """Map [time, stride, batch, h, w, 4 C] to [time * stride, batch, 2h, 2w, C]."""
    apart = x.unflatten(-1, (PHASES, PHASES, -1))  # [time, stride, batch, h, w, a, b, C]
    frames: Tensor = apart.permute(0, 1, 2, 3, 5, 4, 6, 7).flatten(0, 1)
    return frames.flatten(2, 3).flatten(3, 4)


def _conv(weight: Tensor, bias: Tensor | None, *, is_last: bool = False) -> nn.Conv2d:
    kind = nn.Conv2d if is_last else ConvReLU
    outputs, inputs = weight.shape[:2]
    conv = kind(inputs, outputs, 3, padding=1, bias=bias is not None, dtype=weight.dtype)
    _set(conv.weight, weight)
    if bias is not None:
        _set(cast(Tensor, conv.bias), bias)
    return conv


@torch.no_grad()
def _set(parameter: Tensor, value: Tensor) -> None:
    parameter.data = value.to(memory_format=torch.channels_last) if value.ndim == 4 else value
