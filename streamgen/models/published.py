"""Load a published model: its transformer, decoder and text encoder, each in any known layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from streamgen.account import parameters
from streamgen.errors import CheckpointError
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.checkpoint_files import container_of
from streamgen.models.checkpoint_keys import Layout, dit_layouts
from streamgen.models.dit_size import dit_config_of
from streamgen.models.loader import check_checkpoint, load_checkpoint
from streamgen.models.lora import LoraMerger, LoraSource
from streamgen.models.preset import Preset, Published
from streamgen.models.random_weights import unfilled_dit
from streamgen.models.taehv import TAEHV, TAEHVConfig
from streamgen.models.umt5 import UMT5Encoder, read_tokenizer, umt5_layouts, umt5_stack
from streamgen.models.wan_vae import WanVAE
from streamgen.models.weights import ModelFiles, WeightOptions, find_files


@dataclass(frozen=True, slots=True)
class PublishedModules:
    """What was loaded, from where, and the LoRAs that are still to be merged."""

    dit: CausalDiT
    vae: TAEHV | WanVAE
    text_encoder: UMT5Encoder
    files: ModelFiles
    loras: tuple[LoraSource, ...]


def load_published(
    preset: Preset, published: Published, options: WeightOptions
) -> PublishedModules:
    """Load all parts of a model, strictly. Raises CheckpointError, or ConfigError for a package."""
    files = find_files(preset, published, options)
    dit = unfilled_dit(preset.dit).to_empty(device="cpu")
    _fill(load_checkpoint, dit, preset, files, _container(published, files, options))
    vae = _decoder(preset, options)
    load_checkpoint(vae, files.vae, layouts=_vae_layouts(vae))
    text = UMT5Encoder.load(
        files.text, files.tokenizer, published.text_shape, preset.dit.text_len,
        device=options.device if options.text_device != "cpu" else torch.device("cpu"),
        release=options.text_device == "release",
    )  # fmt: skip
    return PublishedModules(dit, vae, text, files, _loras(published, files, options))


def check_published(preset: Preset, published: Published, options: WeightOptions) -> None:
    """Compare all files' names and shapes with the model's, and its words, reading no weight.

    Raises the errors that `load_published` would raise for them.
    """
    files = find_files(preset, published, options)
    dit = unfilled_dit(preset.dit)
    _fill(check_checkpoint, dit, preset, files, _container(published, files, options))
    LoraMerger(dit).check(_loras(published, files, options))
    with torch.device("meta"):
        vae = _decoder(preset, options)
    check_checkpoint(vae, files.vae, layouts=_vae_layouts(vae))
    stack = umt5_stack(published.text_shape)
    check_checkpoint(stack, files.text, layouts=umt5_layouts(stack))
    read_tokenizer(files.tokenizer, published.text_shape.vocabulary)


def _decoder(preset: Preset, options: WeightOptions) -> TAEHV | WanVAE:
    config = preset.decoder(options.decoder)
    return TAEHV(config) if isinstance(config, TAEHVConfig) else WanVAE(config)


def _vae_layouts(vae: TAEHV | WanVAE) -> dict[str, Layout]:
    if isinstance(vae, TAEHV):
        return {"published": {name: name for name in vae.state_dict()}}
    own = {name: name.removeprefix("vae.") for name in vae.state_dict()}
    return {"original": vae.original_keys(), "diffusers": own}


def _container(published: Published, files: ModelFiles, options: WeightOptions) -> str | None:
    """Return the part of the transformer's file: as asked for, or as its authors play it."""
    if options.container is not None or published.container is None:
        return options.container
    return container_of(files.transformer, published.container)


def _loras(
    published: Published, files: ModelFiles, options: WeightOptions
) -> tuple[LoraSource, ...]:
    """Return the model's own LoRA, if it has one, and those that were asked for."""
    if files.lora is None:
        return options.loras
    name = published.lora_container
    container = container_of(files.lora, name) if name else None
    return (LoraSource(files.lora, container=container), *options.loras)


def _fill(
    action: Callable[..., None],
    dit: CausalDiT,
    preset: Preset,
    files: ModelFiles,
    container: str | None,
) -> None:
    """Load or check the transformer; a refusal says so when it is one of another size."""
    path, layouts = files.transformer, dit_layouts(dit.state_dict())
    try:
        action(dit, path, container=container, layouts=layouts)
    except CheckpointError as error:
        held = _held_size(preset.dit, path, container)
        if held is None or held == _size(preset.dit):
            raise
        raise CheckpointError(
            f"{error}; it holds a transformer of {held}, {preset.name} is one of"
            f" {_size(preset.dit)}"
        ) from error


def _held_size(config: DiTConfig, path: Path, container: str | None) -> str | None:
    """Return the size of the transformer in a file that was refused; None if it holds none."""
    try:
        held = dit_config_of(
            path, container=container, head_dim=config.head_dim, text_len=config.text_len
        )
    except CheckpointError:  # the refusal before it says more
        return None
    return _size(held)


def _size(config: DiTConfig) -> str:
    return (
        f"{parameters(config) / 1e9:.3g} B parameters, width {config.dim}, {config.num_layers}"
        f" layers, {config.in_dim} channels"
    )
