"""The tiny decoder as it is served: what is linear between two non-linearities is one convolution.

`Grow` (a 1x1 convolution and nearest-neighbour upsampling) and the 3x3 convolution after it are one
linear map, which can be computed before the upsampling: each of the four pixels that come of one
has a 2x2 kernel of its own over the small picture, less than half of the products. That leaves out
two passes over the large picture and gives the matrix units wide products. After the last growth
pixels stay side by side in channels to the end, where three numbers each are all that has to be
moved.

All four kernels are one convolution over the small picture with a border of one pixel. It gives
one place more than there are pixels each way; place p holds, side by side, pixels 2p - 1 and 2p of
the large picture, so that its first and last pixel lie outside.
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
        self.last = nn.ModuleList(
            _conv(ConvReLU, w, 1) for w in grown_weights(last_grow, last_conv)
        )
        bias = to_pixels.bias.detach().repeat(PHASES**2)
        self.to_pixels = _conv(nn.Conv2d, _beside(to_pixels.weight.detach()), 0, bias)
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
        grown = [_without_outside(spatial(conv, x)) for conv in self.last]
        apart = torch.stack([spatial(self.to_pixels, each) for each in grown], 1)
        phases = apart.unflatten(-1, (PHASES, PHASES, -1))  # [time', stride, batch, h, w, a, b, 3]
        frames: Tensor = phases.permute(2, 0, 1, 7, 3, 5, 4, 6).flatten(1, 2)
        return frames.flatten(3, 4).flatten(4, 5)


class GrowConv(nn.Module):
    """A `Grow` and the convolution after it; `weights` has one for each frame that comes of one."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.stride = len(weights)
        self.conv = _conv(nn.Conv2d, torch.cat(weights), 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [time, batch, h, w, C] to [time * stride, batch, 2h, 2w, C'], earlier first."""
        time, batch, height, width, _ = x.shape
        places = spatial(self.conv, x).unflatten(-1, (self.stride, PHASES, PHASES, -1))
        grown = x.new_empty(time, self.stride, batch, 2 * height, 2 * width, places.shape[-1])
        for a in range(PHASES):
            for b in range(PHASES):
                # Pixels 2p - 1 begin with the second place, pixels 2p end with the last but one.
                of_phase = places[:, :, 1 - a :, 1 - b :, :, a, b][:, :, :height, :width]
                grown[:, :, :, 1 - a :: 2, 1 - b :: 2] = of_phase.permute(0, 4, 1, 2, 3, 5)
        return grown.flatten(0, 1)


def grown_weights(grow: Grow, conv: nn.Conv2d) -> list[Tensor]:
    """Return a weight `[4 C', C, 2, 2]` for each frame that a growth makes of one.

    Outputs are ordered (row phase, column phase, channel); phase 0 is pixel 2p - 1. A tap of the
    large picture at row 2p - 1 + a + u reads the small one at p - 1 + (a + u + 1) // 2.
    """
    mix = grow.conv.weight.detach().float().flatten(1).unflatten(0, (grow.stride, -1))
    taps = conv.weight.detach().float()
    phases = taps.new_zeros(PHASES, PHASES, *taps.shape[:2], 2, 2)
    for a, b, u, v in _taps():
        row, column = (a + u + 1) // PHASES, (b + v + 1) // PHASES
        phases[a, b, :, :, row, column] += taps[:, :, u + 1, v + 1]
    return [
        torch.einsum("abomhw,mi->aboihw", phases, each).flatten(0, 2).to(conv.weight.dtype)
        for each in mix
    ]


def _beside(taps: Tensor) -> Tensor:
    """Return a 2x2 kernel from places to pixels 2i and 2i + 1, `[4 C', 4 C, 2, 2]`.

    A tap at pixel 2i + a + u is at place i + (a + u + 1) // 2.
    """
    outputs, inputs = taps.shape[:2]
    wide = taps.new_zeros(PHASES, PHASES, outputs, PHASES, PHASES, inputs, 2, 2)
    for a, b, u, v in _taps():
        (row, of_row), (column, of_column) = divmod(a + u + 1, PHASES), divmod(b + v + 1, PHASES)
        wide[a, b, :, of_row, of_column, :, row, column] = taps[:, :, u + 1, v + 1]
    return wide.flatten(0, 2).flatten(1, 3)


def _taps() -> list[tuple[int, int, int, int]]:
    """Return (row phase, column phase, row offset, column offset) of a 3x3 kernel."""
    phases, offsets = range(PHASES), (-1, 0, 1)
    return [(a, b, u, v) for a in phases for b in phases for u in offsets for v in offsets]


def _without_outside(places: Tensor) -> Tensor:
    """Make zero what lies outside of the large picture, as its padding is; in place."""
    x = places.unflatten(-1, (PHASES, PHASES, -1))  # [time, batch, h + 1, w + 1, a, b, C]
    for at, phase in ((0, 0), (-1, 1)):
        x[:, :, at, :, phase] = 0
        x[:, :, :, at, :, phase] = 0
    return places


def _conv(
    kind: type[nn.Conv2d], weight: Tensor, padding: int, bias: Tensor | None = None
) -> nn.Conv2d:
    outputs, inputs, size, _ = weight.shape
    conv = kind(inputs, outputs, size, padding=padding, bias=bias is not None, dtype=weight.dtype)
    _set(conv.weight, weight)
    if bias is not None:
        _set(cast(Tensor, conv.bias), bias)
    return conv


@torch.no_grad()
def _set(parameter: Tensor, value: Tensor) -> None:
    parameter.data = value.to(memory_format=torch.channels_last) if value.ndim == 4 else value
