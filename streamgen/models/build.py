"""From a preset to modules with their weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from streamgen.models.causal_dit import CausalDiT
from streamgen.models.loader import load_safetensors_strict, require_varied_output
from streamgen.models.lora import LoraMerger
from streamgen.models.preset import Preset, TextEncoder
from streamgen.models.published import check_published, load_published
from streamgen.models.random_weights import random_dit
from streamgen.models.taehv import TAEHV, TAEHVConfig
from streamgen.models.taehv_folded import FoldedTAEHV
from streamgen.models.wan_vae import WanVAE
from streamgen.models.weights import DEFAULT_WEIGHTS, WeightOptions, require_own_weights


@dataclass(frozen=True, slots=True)
class Model:
    """The modules of a preset, loaded and in evaluation mode, in float32 on the CPU.

    The text encoder of a published model is in bfloat16, and on a device of its own.
    """

    preset: Preset
    dit: CausalDiT
    vae: TAEHV | FoldedTAEHV | WanVAE
    text_encoder: TextEncoder


def build(
    preset: Preset, *, dummy: bool = False, options: WeightOptions = DEFAULT_WEIGHTS
) -> Model:
    """Build a preset's modules and load their weights, or seeded random ones.

    Raises CheckpointError when a file is missing or does not fit exactly, and ConfigError for
    options that the model has no use for or a package that it needs.
    """
    loras, files = options.loras, None
    if preset.published is not None and not dummy:
        loaded = load_published(preset, preset.published, options)
        model = Model(preset, loaded.dit, loaded.vae, loaded.text_encoder)
        loras, found = loaded.loras, loaded.files
        files = (str(found.text), str(found.transformer), str(found.vae))
    else:
        if preset.published is None:
            require_own_weights(preset, options)
        dummy = dummy or preset.weights is None
        model = _own(preset, dummy, options)
        if not dummy and preset.weights is not None:
            dit, vae = (str(preset.weights / f"{part}.safetensors") for part in ("dit", "vae"))
            files = (f"the text encoder in {preset.weights}", dit, vae)
    if loras:
        LoraMerger(model.dit).load(loras)
    modules: tuple[nn.Module, ...] = (model.dit, model.vae)
    for module in modules:
        module.eval().requires_grad_(False)
    if files is not None:
        _self_check(model, *files)
    return model


def served(model: Model) -> Model:
    """Return a model as it is run: no encoder, and a decoder in its fastest form."""
    if not isinstance(model.vae, TAEHV):
        return model
    return dataclasses.replace(model, vae=FoldedTAEHV(model.vae))


def check_weights(preset: Preset, options: WeightOptions = DEFAULT_WEIGHTS) -> None:
    """Raise what `build` would raise over a published model's files, without reading a weight."""
    if preset.published is not None:
        check_published(preset, preset.published, options)


def _own(preset: Preset, dummy: bool, options: WeightOptions) -> Model:
    """Return a bundled model, or one with random weights."""
    config = preset.decoder(options.decoder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dit = CausalDiT(preset.dit) if preset.published is None else random_dit(preset.dit)
        vae = TAEHV(config) if isinstance(config, TAEHVConfig) else WanVAE(config)
        text_encoder = preset.text_encoder(dummy)
        if dummy and isinstance(vae, TAEHV):
            _give_contrast(vae)
    if not dummy:
        assert preset.weights is not None
        load_safetensors_strict(dit, preset.weights / "dit.safetensors")
        load_safetensors_strict(vae, preset.weights / "vae.safetensors")
    return Model(preset, dit, vae, text_encoder)


@torch.inference_mode()
def _self_check(model: Model, text_file: str, dit_file: str, vae_file: str) -> None:
    """Run the loaded modules once on a small row; CheckpointError when nothing sensible comes."""
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 2, model.preset.dit.in_dim, 4, 4, generator=generator)
    embeds = model.text_encoder.encode(["a"])
    require_varied_output(embeds, text_file)
    k, v = model.dit.text_kv(embeds)
    flow = model.dit(
        latents,
        torch.full((1, 2), 500.0),
        torch.zeros(1, dtype=torch.int64),
        lambda layer: (k[layer], v[layer]),
        lambda layer, query, key, value: value,  # a token that sees itself alone
    )
    require_varied_output(flow, dit_file)
    vae = cast("TAEHV", model.vae)  # both kinds decode alike
    frames, _ = vae.decode_step(latents, vae.decoder_state())
    require_varied_output(frames, vae_file)


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
