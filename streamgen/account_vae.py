"""FLOPs, weights and streaming state of the decoders, layer by layer. No tensor, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from streamgen.account_shapes import ImageVAE, TinyVAEShape, WanVAEShape

WAN_HISTORY = 2  # frames that a causal convolution over three keeps of its input


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of `taps` positions, applied `positions` times a decode.

    `state` are the elements that a stream keeps for it; `extra_flops` what no weight takes part in.
    """

    inputs: int
    outputs: int
    taps: int
    positions: int
    has_bias: bool = True
    state: int = 0
    extra_flops: int = 0

    @property
    def flops(self) -> int:
        """Return the operations, a multiply-add counted as two."""
        return 2 * self.inputs * self.outputs * self.taps * self.positions + self.extra_flops

    @property
    def parameters(self) -> int:
        """Return the weights and biases."""
        return self.inputs * self.outputs * self.taps + self.outputs * int(self.has_bias)


@dataclass(frozen=True, slots=True)
class DecoderCost:
    """What the decode of some latents takes: operations, elements of state and of weights."""

    flops: int
    state: int
    parameters: int


def decoder_cost(
    vae: TinyVAEShape | WanVAEShape | ImageVAE, frames: int, height: int, width: int
) -> DecoderCost:
    """Return the cost of decoding `frames` latent frames of `height` x `width`, mid-stream."""
    if isinstance(vae, ImageVAE):
        layers = image_layers(vae, height, width)
    elif hasattr(vae, "decoder_widths"):
        layers = tiny_layers(cast("TinyVAEShape", vae), frames, height, width)
    else:
        layers = wan_layers(vae, frames, height, width)
    return DecoderCost(
        sum(layer.flops for layer in layers),
        sum(layer.state for layer in layers),
        sum(layer.parameters for layer in layers),
    )


def vae_parameters(vae: TinyVAEShape | WanVAEShape) -> int:
    """Return the weights of encoder and decoder, norms left out: both are loaded."""
    decoder = decoder_cost(vae, 1, 1, 1).parameters
    if hasattr(vae, "decoder_widths"):
        tiny = cast("TinyVAEShape", vae)
        w = tiny.encoder_width
        encoder = [Layer(tiny.image_channels, w, 9, 1), Layer(w, tiny.latent_channels, 9, 1)]
        for stride in (2, 2, 1):
            encoder += [Layer(w * stride, w, 1, 1, has_bias=False), Layer(w, w, 9, 1, False)]
            encoder += [layer for _ in range(3) for layer in _memory_block(w, 1, 1)]
        return decoder + sum(layer.parameters for layer in encoder)
    return decoder + sum(layer.parameters for layer in _wan_encoder(vae))


def tiny_layers(vae: TinyVAEShape, frames: int, height: int, width: int) -> list[Layer]:
    """Return the layers of TAEHV's decoder; every frame of a stage goes through all of them."""
    n0, n1, n2, n3 = vae.decoder_widths
    layers = [Layer(vae.latent_channels, n0, 9, frames * height * width)]
    for stage, next_stage, stride in ((n0, n1, 1), (n1, n2, 2), (n2, n3, 2)):
        plane = height * width
        for _ in range(3):
            layers += _memory_block(stage, frames, plane)
        # The 1x1 product comes before the up-sampling that it may change places with.
        layers.append(Layer(stage, stage * stride, 1, frames * plane, has_bias=False))
        frames, height, width = frames * stride, 2 * height, 2 * width
        layers.append(Layer(stage, next_stage, 9, frames * height * width, has_bias=False))
    layers.append(Layer(n3, vae.image_channels, 9, frames * height * width))
    return layers


def wan_layers(vae: WanVAEShape, frames: int, height: int, width: int) -> list[Layer]:
    """Return the layers of Wan's decoder: causal convolutions over three frames of 3x3."""
    widths = [vae.dim * m for m in (vae.dim_mult[-1], *reversed(vae.dim_mult))]
    grows = [*reversed(vae.temporal_downsample), None]
    plane = height * width
    layers = [Layer(vae.z_dim, vae.z_dim, 1, frames * plane)]
    layers += [_causal(vae.z_dim, widths[0], frames, plane), *_middle(widths[0], frames, plane)]
    for stage, (before, after) in enumerate(pairwise(widths)):
        # An up-sampling halves the channels.
        inputs = before if stage == 0 else before // 2
        for _ in range(vae.num_res_blocks + 1):
            layers += _residual(inputs, after, frames, plane)
            inputs = after
        if grows[stage] is None:
            continue
        if grows[stage]:
            layers.append(_causal(after, 2 * after, frames, plane, taps=3))
            frames *= 2
        plane *= 4
        layers.append(Layer(after, after // 2, 9, frames * plane))
    return [*layers, _causal(widths[-1], 3, frames, plane)]


def image_layers(vae: ImageVAE, height: int, width: int) -> list[Layer]:
    """Return the layers of an image decoder."""
    plane, inputs = height * width, vae.widths[0]
    layers = [Layer(vae.latent_channels, inputs, 9, plane)]
    layers += [Layer(inputs, inputs, 9, plane) for _ in range(4)]
    layers.append(Layer(inputs, 4 * inputs, 1, plane, extra_flops=4 * plane**2 * inputs))
    for stage, outputs in enumerate(vae.widths):
        for _ in range(vae.num_res_blocks):
            layers += [Layer(inputs, outputs, 9, plane), Layer(outputs, outputs, 9, plane)]
            if inputs != outputs:
                layers.append(Layer(inputs, outputs, 1, plane))
            inputs = outputs
        if stage + 1 < len(vae.widths):
            plane *= 4
            layers.append(Layer(inputs, inputs, 9, plane))
    return [*layers, Layer(inputs, 3, 9, plane)]


def _memory_block(width: int, frames: int, plane: int) -> list[Layer]:
    """Return TAEHV's residual block, which keeps its last input."""
    return [
        Layer(2 * width, width, 9, frames * plane, state=width * plane),
        Layer(width, width, 9, frames * plane),
        Layer(width, width, 9, frames * plane),
    ]


def _causal(inputs: int, outputs: int, frames: int, plane: int, taps: int = 27) -> Layer:
    return Layer(inputs, outputs, taps, frames * plane, state=WAN_HISTORY * inputs * plane)


def _residual(inputs: int, outputs: int, frames: int, plane: int) -> Iterable[Layer]:
    yield _causal(inputs, outputs, frames, plane)
    yield _causal(outputs, outputs, frames, plane)
    if inputs != outputs:
        yield Layer(inputs, outputs, 1, frames * plane)


def _middle(width: int, frames: int, plane: int) -> Iterable[Layer]:
    """Return two residual blocks and, between them, attention within each frame."""
    yield from _residual(width, width, frames, plane)
    yield Layer(width, 3 * width, 1, frames * plane, extra_flops=4 * frames * plane**2 * width)
    yield Layer(width, width, 1, frames * plane)
    yield from _residual(width, width, frames, plane)


def _wan_encoder(vae: WanVAEShape) -> Iterable[Layer]:
    widths = [vae.dim * m for m in (1, *vae.dim_mult)]
    yield _causal(3, vae.dim, 1, 1)
    for stage, (before, after) in enumerate(pairwise(widths)):
        inputs = before
        for _ in range(vae.num_res_blocks):
            yield from _residual(inputs, after, 1, 1)
            inputs = after
        if stage < len(vae.temporal_downsample):
            yield Layer(after, after, 9, 1)
            if vae.temporal_downsample[stage]:
                yield _causal(after, after, 1, 1, taps=3)
    yield from _middle(widths[-1], 1, 1)
    yield _causal(widths[-1], 2 * vae.z_dim, 1, 1)
    yield Layer(2 * vae.z_dim, 2 * vae.z_dim, 1, 1)
