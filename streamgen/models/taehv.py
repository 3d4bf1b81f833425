"""The tiny causal video auto-encoder (TAEHV): plane convolutions with one frame of memory.

A latent frame becomes four pixel frames; the first three of a stream are start-up frames and are
dropped, so n latents give 4n - 3 frames. Layer indices inside `encoder` and `decoder` are those of
the published checkpoints, and so are the weight names. An identity stands where those have a layer
without weights that is done by its neighbour here.

Whole clips and streams run the same code: a `TAEHVState` carries what the memory blocks saw last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamgen.models.fused import ConvReLU

FRAMES_PER_LATENT: Final = 4
STARTUP_FRAMES: Final = FRAMES_PER_LATENT - 1
SPATIAL_FACTOR: Final = 8


@dataclass(frozen=True, slots=True)
class TAEHVConfig:
    """Channel widths of the tiny auto-encoder; the defaults are the published ones."""

    latent_channels: int = 16
    image_channels: int = 3
    encoder_width: int = 64
    decoder_widths: tuple[int, int, int, int] = (256, 128, 64, 64)


@dataclass(slots=True)
class TAEHVState:
    """What one stream carries from call to call: the blocks' last inputs and unfinished frames.

    `memory` has one entry a memory block, None before the first frame; `pending` holds fewer than
    four pixel frames that wait for their latent (encoder only).
    """

    memory: list[Tensor | None]
    pending: list[Tensor] = field(default_factory=list)
    started: bool = False

    @property
    def nbytes(self) -> int:
        """Return the bytes held on the device."""
        held = [t for t in (*self.memory, *self.pending) if t is not None]
        return sum(t.numel() * t.element_size() for t in held)


class MemoryBlock(nn.Module):
    """Residual block that sees the current frame beside its own previous input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            _conv_relu(2 * width, width),
            nn.Identity(),
            _conv_relu(width, width),
            nn.Identity(),
            _conv_relu(width, width),  # after the block's input is added
        )

    def forward(self, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the block's output and its new memory; `x` is [time, batch, h, w, C]."""
        first = torch.zeros_like(x[:1]) if last is None else last
        past = torch.cat([first, x[:-1]])
        inner = spatial(self.conv[:-1], torch.cat([x, past], dim=-1))
        out = spatial(self.conv[-1], inner, x)
        return out, x[-1:].detach().clone()  # a view would hold all frames


class TimePool(nn.Module):
    """Merge `stride` consecutive frames into one by a 1x1 convolution."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(width * stride, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [time, batch, h, w, C] to [time / stride, batch, h, w, C]."""
        groups = x.unflatten(0, (-1, self.stride)).permute(0, 2, 3, 4, 1, 5)
        return spatial(self.conv, groups.flatten(-2))


class Grow(nn.Module):
    """Split one frame into `stride` consecutive ones, each of twice the height and width.

    The 1x1 convolution and nearest-neighbour upsampling may change places: convolving first is a
    quarter of the work.
    """

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(width, width * stride, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [time, batch, h, w, C] to [time * stride, batch, 2h, 2w, C], earlier frames first."""
        grown: Tensor = spatial(self.conv, x).unflatten(-1, (self.stride, -1))
        frames = grown.permute(0, 4, 1, 2, 3, 5).flatten(0, 1)
        return spatial(_upsampled, frames)


class SoftClamp(nn.Module):
    """Bound latents smoothly to (-3, 3)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return 3 tanh(x / 3)."""
        return torch.tanh(x / 3) * 3


class TAEHV(nn.Module):
    """Encode and decode video, whole or as a stream.

    Pixels are RGB in [0, 1], `[batch, frames, 3, H, W]`; latents `[batch, n, C, H/8, W/8]`.
    """

    def __init__(self, config: TAEHVConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or TAEHVConfig()
        w, (n0, n1, n2, n3) = config.encoder_width, config.decoder_widths
        encoder: list[nn.Module] = [_conv_relu(config.image_channels, w), nn.Identity()]
        for time_stride in (2, 2, 1):
            encoder += [TimePool(w, time_stride), _conv(w, w, stride=2, bias=False)]
            encoder += [MemoryBlock(w) for _ in range(3)]
        encoder.append(_conv(w, config.latent_channels))
        decoder: list[nn.Module] = [SoftClamp(), _conv_relu(config.latent_channels, n0)]
        decoder.append(nn.Identity())
        for width, next_width, time_stride in ((n0, n1, 1), (n1, n2, 2), (n2, n3, 2)):
            decoder += [MemoryBlock(width) for _ in range(3)]
            decoder += [nn.Identity(), Grow(width, time_stride)]
            decoder.append(_conv(width, next_width, bias=False))
        decoder[-1] = _conv_relu(n2, n3, bias=False)
        decoder += [nn.Identity(), _conv(n3, config.image_channels)]
        self.encoder = nn.ModuleList(encoder)
        self.decoder = nn.ModuleList(decoder)
        # Of the weights, too, or each call brings them to it. (torch's types leave it out.)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def decoder_state(self) -> TAEHVState:
        """Return the state of a stream that has decoded nothing yet."""
        return TAEHVState([None] * sum(isinstance(m, MemoryBlock) for m in self.decoder))

    def encoder_state(self) -> TAEHVState:
        """Return the state of a stream that has encoded nothing yet."""
        return TAEHVState([None] * sum(isinstance(m, MemoryBlock) for m in self.encoder))

    def decode(self, latents: Tensor) -> Tensor:
        """Decode a whole clip: n latents to 4n - 3 frames, clamped to [0, 1]."""
        return self.decode_step(latents, self.decoder_state())[0]

    def decode_step(self, latents: Tensor, state: TAEHVState) -> tuple[Tensor, TAEHVState]:
        """Decode the next n >= 1 latents of a stream: 4n frames, or 4n - 3 at its start.

        The given state is left as it was, so a caller may retry from it.
        """
        frames, memory = self.decode_raw(latents, state)
        if not state.started:
            frames = frames[:, STARTUP_FRAMES:]
        return frames.clamp(0, 1), TAEHVState(memory, started=True)

    def decode_raw(self, latents: Tensor, state: TAEHVState) -> tuple[Tensor, list[Tensor | None]]:
        """Return the decoder's own output, 4n unclamped frames, and the new block memories."""
        return _run(self.decoder, latents, state.memory)

    def encode(self, video: Tensor) -> Tensor:
        """Encode a whole clip to ceil(frames / 4) latents; the last frame fills the last group."""
        latents, state = self.encode_step(video, self.encoder_state())
        return torch.cat([latents, self.encode_flush(state)], dim=1)

    def encode_step(self, frames: Tensor, state: TAEHVState) -> tuple[Tensor, TAEHVState]:
        """Encode the next frames of a stream; a latent appears with its fourth frame.

        Returns latents `[batch, n >= 0, C, h, w]` and the new state.
        """
        waiting = torch.cat([*state.pending, frames], dim=1)
        whole = waiting.shape[1] // FRAMES_PER_LATENT * FRAMES_PER_LATENT
        rest = [waiting[:, whole:]] if whole < waiting.shape[1] else []
        if whole == 0:
            batch, _, _, height, width = frames.shape
            size = (height // SPATIAL_FACTOR, width // SPATIAL_FACTOR)
            shape = (batch, 0, self.config.latent_channels, *size)
            return frames.new_empty(shape), TAEHVState(state.memory, rest)
        latents, memory = _run(self.encoder, waiting[:, :whole], state.memory)
        return latents, TAEHVState(memory, rest, started=True)

    def encode_flush(self, state: TAEHVState) -> Tensor:
        """Return the latent of unfinished frames `[batch, 0 or 1, C, h, w]`.

        Raises ValueError when the stream has not begun: there is no size to tell.
        """
        if not state.started and not state.pending:
            raise ValueError("encode_flush before any frame was encoded")
        if not state.pending:
            last = next(m for m in reversed(state.memory) if m is not None)
            _, batch, height, width, _ = last.shape
            return last.new_empty(batch, 0, self.config.latent_channels, height, width)
        missing = FRAMES_PER_LATENT - state.pending[0].shape[1]
        filler = state.pending[0][:, -1:].expand(-1, missing, -1, -1, -1)
        return self.encode_step(filler, state)[0]


def _run(
    layers: nn.ModuleList, x: Tensor, memory: list[Tensor | None]
) -> tuple[Tensor, list[Tensor | None]]:
    # Inside, time leads and channels come last: a frame's predecessor is one step up, joining
    # frames or channels copies nothing twice, and convolutions get the layout they are fastest in.
    x = x.permute(1, 0, 3, 4, 2).contiguous()
    new_memory: list[Tensor | None] = []
    for layer in layers:
        if isinstance(layer, MemoryBlock):
            x, last = layer(x, memory[len(new_memory)])
            new_memory.append(last)
        elif isinstance(layer, (TimePool, Grow, nn.Identity)):
            x = layer(x)
        else:
            x = spatial(layer, x)
    return x.permute(1, 0, 4, 2, 3), new_memory


def _upsampled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2)


def spatial(layer: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
    """Apply a layer on [n, C, h, w] to every frame of [time, batch, h, w, C]."""
    out = layer(*(each.flatten(0, 1).permute(0, 3, 1, 2) for each in (x, *others)))
    frames: Tensor = out.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])
    return frames


def _conv(inputs: int, outputs: int, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=bias)


def _conv_relu(inputs: int, outputs: int, *, bias: bool = True) -> ConvReLU:
    return ConvReLU(inputs, outputs, 3, padding=1, bias=bias)
