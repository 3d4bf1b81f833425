"""What the account is computed from: shapes of models and facts of cards. No tensor, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol


class DiTShape(Protocol):
    """What the account asks of a causal DiT; `models.causal_dit.DiTConfig` fits."""

    @property
    def dim(self) -> int:
        """Return the width."""

    @property
    def ffn_dim(self) -> int:
        """Return the width inside the MLP."""

    @property
    def num_layers(self) -> int:
        """Return the number of blocks."""

    @property
    def num_heads(self) -> int:
        """Return the attention heads of a block."""

    @property
    def text_dim(self) -> int:
        """Return the width of a text token as the encoder gives it."""

    @property
    def text_len(self) -> int:
        """Return the text tokens that are attended."""

    @property
    def in_dim(self) -> int:
        """Return the channels of a latent."""

    @property
    def out_dim(self) -> int:
        """Return the channels of the flow."""

    @property
    def freq_dim(self) -> int:
        """Return the width of the timestep's sinusoids."""

    @property
    def patch_size(self) -> tuple[int, int, int]:
        """Return the latents of a token: frames, rows, columns."""


class TinyVAEShape(Protocol):
    """What the account asks of the tiny VAE; `models.taehv.TAEHVConfig` fits."""

    @property
    def latent_channels(self) -> int:
        """Return the channels of a latent."""

    @property
    def image_channels(self) -> int:
        """Return the channels of a pixel."""

    @property
    def encoder_width(self) -> int:
        """Return the channels inside the encoder."""

    @property
    def decoder_widths(self) -> tuple[int, int, int, int]:
        """Return the channels of the decoder's stages."""


class WanVAEShape(Protocol):
    """What the account asks of the full VAE; `models.wan_vae.WanVAEConfig` fits."""

    @property
    def dim(self) -> int:
        """Return the channels at full resolution."""

    @property
    def z_dim(self) -> int:
        """Return the channels of a latent."""

    @property
    def dim_mult(self) -> tuple[int, ...]:
        """Return each stage's channels, in multiples of `dim`, encoder order."""

    @property
    def num_res_blocks(self) -> int:
        """Return the residual blocks of an encoder stage; the decoder has one more."""

    @property
    def temporal_downsample(self) -> tuple[bool, ...]:
        """Return which down-samplings halve time too, encoder order."""


@dataclass(frozen=True, slots=True)
class WanDiT:
    """The DiT of Wan 2.1 at any width."""

    dim: int
    ffn_dim: int
    num_layers: int
    num_heads: int
    text_dim: int = 4096
    text_len: int = 512
    in_dim: int = 16
    out_dim: int = 16
    freq_dim: int = 256
    patch_size: tuple[int, int, int] = (1, 2, 2)


@dataclass(frozen=True, slots=True)
class FluxDiT:
    """The DiT of FLUX.1: blocks with weights of their own for text and image, then shared ones."""

    dim: int = 3072
    double_blocks: int = 19
    single_blocks: int = 38
    mlp_ratio: int = 4
    in_dim: int = 64  # 16 channels of a 2x2 patch
    text_dim: int = 4096
    text_len: int = 512
    pooled_dim: int = 768  # of CLIP's one vector
    freq_dim: int = 256
    has_guidance: bool = True  # the distilled guidance scale is an input


@dataclass(frozen=True, slots=True)
class TextShape:
    """A T5 encoder: q, k, v, o and a gated MLP of three matrices a layer."""

    dim: int = 4096
    ffn_dim: int = 10240
    num_layers: int = 24
    vocabulary: int = 32128

    @property
    def layer_parameters(self) -> int:
        """Return the parameters that a token passes through."""
        return self.num_layers * (4 * self.dim**2 + 3 * self.dim * self.ffn_dim)

    @property
    def parameters(self) -> int:
        """Return all of them."""
        return self.layer_parameters + self.vocabulary * self.dim


@dataclass(frozen=True, slots=True)
class TinyVAE:
    """The published tiny VAE (TAEHV)."""

    latent_channels: int = 16
    image_channels: int = 3
    encoder_width: int = 64
    decoder_widths: tuple[int, int, int, int] = (256, 128, 64, 64)


@dataclass(frozen=True, slots=True)
class FullVAE:
    """The VAE of Wan 2.1."""

    dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temporal_downsample: tuple[bool, ...] = (False, True, True)


@dataclass(frozen=True, slots=True)
class ImageVAE:
    """The decoder of FLUX.1's VAE, plane convolutions only."""

    latent_channels: int = 16
    widths: tuple[int, ...] = (512, 512, 256, 128)  # decoder order
    num_res_blocks: int = 3


@dataclass(frozen=True, slots=True)
class Reference:
    """A published many-step model that makes one picture or clip at a time."""

    name: str
    dit: FluxDiT | WanDiT
    vae: ImageVAE | FullVAE
    text: TextShape
    size: tuple[int, int]  # width, height in pixels
    frames: int
    steps: int
    guided: bool  # two passes a step, with the prompt and without

    @property
    def is_few_step(self) -> bool:
        """Return whether it was distilled to a few steps."""
        return self.steps <= FEW_STEPS


@dataclass(frozen=True, slots=True)
class CausalModel:
    """A few-step causal model as it is served: its shapes, and what a session of it is."""

    name: str
    dit: DiTShape
    vae: TinyVAEShape | WanVAEShape
    text_parameters: int
    text_flops: int  # of one prompt
    size: tuple[int, int]
    fps: int
    steps: int
    chunk_frames: int  # latent frames
    window_frames: int
    sink_frames: int = 0
    element_bytes: int = 2  # of weights, activations and, unless they are quantised, K/V
    text_element_bytes: int = 2
    vae_element_bytes: int = 2
    quantized_kv: bool = False  # pages of K/V in 8 bits


FEW_STEPS: Final = 8  # no published many-step sampler has so few

WAN_1_3B: Final = WanDiT(dim=1536, ffn_dim=8960, num_layers=30, num_heads=12)
WAN_14B: Final = WanDiT(dim=5120, ffn_dim=13824, num_layers=40, num_heads=40)
T5_XXL: Final = TextShape()
UMT5_XXL: Final = TextShape(vocabulary=256384)

REFERENCES: Final = {
    reference.name: reference
    for reference in (
        Reference(
            "flux-1-dev", FluxDiT(), ImageVAE(), T5_XXL, (1024, 1024), 1, steps=28, guided=False
        ),
        Reference(
            "flux-schnell", FluxDiT(has_guidance=False), ImageVAE(), T5_XXL, (1024, 1024), 1,
            steps=4, guided=False,
        ),
        Reference(
            "wan-14b-720p", WAN_14B, FullVAE(), UMT5_XXL, (1280, 720), 81, steps=50, guided=True
        ),
    )
}  # fmt: skip


def text_flops(shape: TextShape, tokens: int) -> int:
    """Return the operations of encoding a text of so many tokens."""
    return 2 * shape.layer_parameters * tokens + 4 * shape.num_layers * tokens**2 * shape.dim


CAUSAL_MODELS: Final = {
    model.name: model
    for model in (
        CausalModel(
            name, dit, FullVAE(), UMT5_XXL.parameters, text_flops(UMT5_XXL, dit.text_len),
            (832, 480), fps=16, steps=4, chunk_frames=3, window_frames=21,
        )
        for name, dit in (("causal-wan-1.3b", WAN_1_3B), ("causal-wan-14b", WAN_14B))
    )
}  # fmt: skip
