"""The models that can be served, each as one row of facts.

A preset is configuration only: shapes, schedule, window, clock and where the weights are. `build`
turns it into modules. What the engine's options leave open, the preset decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol, cast

import torch
from torch import Tensor, nn

from kvcache import Rotary
from streamgen.errors import ConfigError
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.loader import load_safetensors_strict, require_varied_output
from streamgen.models.taehv import TAEHV, TAEHVConfig
from streamgen.models.taehv_folded import FoldedTAEHV
from streamgen.models.wan_vae import WanVAE, WanVAEConfig
from streamgen.pocket import config as pocket
from streamgen.pocket.text_encoder import ConceptEncoder
from streamgen.sampler import FlowSchedule, Sampler, SamplerKind
from streamgen.step import ChunkPlan

TRAIN_STEPS: Final = 1000


class TextEncoder(Protocol):
    """What a preset's text encoder can do."""

    def encode(self, prompts: list[str]) -> Tensor:
        """Return embeddings `[n, text_len, text_dim]`, each prompt computed on its own."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Everything that belongs to one model.

    `text_encoder(dummy)` builds the encoder, with random weights when `dummy`. `weights` is the
    folder of `dit.safetensors` and `vae.safetensors`; None means random weights, as in tests.
    """

    name: str
    dit: DiTConfig
    vae: TAEHVConfig | WanVAEConfig
    text_encoder: Callable[[bool], TextEncoder]
    weights: Path | None
    shift: float
    sampler: SamplerKind
    steps: int  # denoise passes of a chunk
    step_range: tuple[int, int]  # what else the model was made for, ends included
    size: tuple[int, int]  # width, height in pixels
    max_pixels: int
    fps: int
    chunks: ChunkPlan = field(default_factory=ChunkPlan)
    window_frames: int = 21
    sink_frames: int = 0
    spatial_factor: int = 8
    transition: str = "cut"
    rotary: Rotary = "absolute"  # how far the sink is from the rest, see WindowConfig
    rebuilds_sink: bool = False  # a recache takes new frames for the sink
    suggestions: tuple[str, ...] = ()  # prompts that show what it can do

    def make_sampler(self, steps: int) -> Sampler:
        """Return the sampler of `steps` passes, evenly spaced before the schedule's shift."""
        return _sampler(self.shift, self.sampler, steps)

    def latent_shape(self, width: int, height: int) -> tuple[int, int, int]:
        """Return (channels, height, width) of one latent frame of a `width` x `height` video."""
        return self.dit.in_dim, height // self.spatial_factor, width // self.spatial_factor


@dataclass(frozen=True, slots=True)
class Model:
    """The modules of a preset, loaded and in evaluation mode, in float32 on the CPU."""

    preset: Preset
    dit: CausalDiT
    vae: TAEHV | FoldedTAEHV | WanVAE
    text_encoder: TextEncoder


def build(preset: Preset, *, dummy: bool = False) -> Model:
    """Build a preset's modules and load their weights, or seeded random ones.

    Raises CheckpointError when a file is missing or does not fit exactly.
    """
    dummy = dummy or preset.weights is None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dit = CausalDiT(preset.dit)
        vae = TAEHV(preset.vae) if isinstance(preset.vae, TAEHVConfig) else WanVAE(preset.vae)
        text_encoder = preset.text_encoder(dummy)
        if dummy and isinstance(vae, TAEHV):
            _give_contrast(vae)
    if not dummy and preset.weights is not None:
        load_safetensors_strict(dit, preset.weights / "dit.safetensors")
        load_safetensors_strict(vae, preset.weights / "vae.safetensors")
    modules: tuple[nn.Module, ...] = (dit, vae)
    for module in modules:
        module.eval().requires_grad_(False)
    model = Model(preset, dit, vae, text_encoder)
    if not dummy and preset.weights is not None:
        _self_check(model, preset.weights)
    return model


def served(model: Model) -> Model:
    """Return a model as it is run: no encoder, and a decoder in its fastest form."""
    if not isinstance(model.vae, TAEHV):
        return model
    return dataclasses.replace(model, vae=FoldedTAEHV(model.vae))


@torch.inference_mode()
def _self_check(model: Model, weights: Path) -> None:
    """Run the loaded modules once on a small row; CheckpointError when nothing sensible comes."""
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 2, model.preset.dit.in_dim, 4, 4, generator=generator)
    embeds = model.text_encoder.encode(["a"])
    require_varied_output(embeds, f"the text encoder in {weights}")
    k, v = model.dit.text_kv(embeds)
    flow = model.dit(
        latents,
        torch.full((1, 2), 500.0),
        torch.zeros(1, dtype=torch.int64),
        lambda layer: (k[layer], v[layer]),
        lambda layer, query, key, value: value,  # a token that sees itself alone
    )
    require_varied_output(flow, weights / "dit.safetensors")
    vae = cast("TAEHV", model.vae)  # both kinds decode alike
    frames, _ = vae.decode_step(latents, vae.decoder_state())
    require_varied_output(frames, weights / "vae.safetensors")


def find_preset(name: str) -> Preset:
    """Return the preset of a model name; ConfigError lists the names there are."""
    if name not in PRESETS:
        raise ConfigError(
            f"no model is called {name!r}; there is {', '.join(PRESETS)}", param="model"
        )
    return PRESETS[name]


@torch.no_grad()
def _give_contrast(vae: TAEHV) -> None:
    """Scale a decoder's random weights so that its pictures are neither black nor flat.

    Torch's own make nothing of a latent, so an encoder, a test or an eye would have nothing to see.
    """
    convolutions = [m for m in vae.decoder.modules() if isinstance(m, nn.Conv2d)]
    for convolution in convolutions:
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    latents = torch.randn(1, 4, vae.config.latent_channels, 8, 8)
    pixels, _ = vae.decode_raw(latents, vae.decoder_state())
    last = convolutions[-1]
    assert last.bias is not None
    last.weight.mul_(0.25 / pixels.std())
    last.bias.fill_(0.5)


@lru_cache(maxsize=64)
def _sampler(shift: float, kind: SamplerKind, steps: int) -> Sampler:
    schedule = FlowSchedule(shift, TRAIN_STEPS)
    requested = [round(TRAIN_STEPS * (steps - i) / steps) for i in range(steps)]
    return Sampler(schedule, schedule.warp(requested), kind)


def _concept_encoder(dummy: bool) -> TextEncoder:
    return ConceptEncoder().eval() if dummy else ConceptEncoder.load()


POCKET: Final = Preset(
    name="pocket",
    dit=pocket.DIT,
    vae=pocket.VAE,
    text_encoder=_concept_encoder,
    weights=Path(pocket.__file__).parent / "weights",
    shift=5.0,
    sampler="euler",
    steps=4,
    step_range=(2, 8),
    size=(128, 128),
    max_pixels=256 * 256,
    fps=16,
    chunks=ChunkPlan(pocket.CHUNK_FRAMES),
    window_frames=pocket.WINDOW_FRAMES,
    suggestions=(
        "a red ball bounces on the grass at night",
        "a blue star drifts over the sea",
        "a yellow box bounces in the desert at sunset",
        "a purple heart rests in the falling snow",
    ),
)
PRESETS: Final = {preset.name: preset for preset in (POCKET,)}
