"""`streamgen models`: what can be served, what it needs, and whether it is and fits here."""

from __future__ import annotations

import dataclasses

import torch

from streamgen import machine
from streamgen.account import parameters
from streamgen.account_memory import USABLE_MEMORY
from streamgen.config import EngineConfig
from streamgen.errors import CheckpointError
from streamgen.memory_check import GB, loading_need, running_need
from streamgen.models.preset import Preset, Published
from streamgen.models.presets import NOT_SUPPORTED, PRESETS
from streamgen.models.weights import DEFAULT_WEIGHTS, find_files
from streamgen.startup import resolve

OWN_LICENCE = "Apache-2.0"
WEIGHT_FILES = ("dit.safetensors", "vae.safetensors", "text_encoder.safetensors")


def print_models() -> int:
    """Print the models, and return 0."""
    for preset in PRESETS.values():
        width, height = preset.size
        print(
            f"{preset.name}  {width}x{height} at {preset.fps} fps, {_counted(preset.steps)}, "
            f"window {preset.window_frames} latent frames, {weights_state(preset)}"
        )
        licence = preset.published.licence if preset.published else OWN_LICENCE
        size = f"{parameters(preset.dit) / 1e9:.2g} B parameters"
        print(f"    {licence}, {size}{_needs(preset)}")
    for model in NOT_SUPPORTED.values():
        print(f"{model.name}  not supported: {model.reason}")
    return 0


def _counted(steps: int) -> str:
    return f"{steps} step" + ("" if steps == 1 else "s")


def weights_state(preset: Preset) -> str:
    """Return whether a model's files are here."""
    if preset.published is not None:
        return _published_state(preset, preset.published)
    if preset.weights is None:
        return "random weights"
    files = [preset.weights / name for name in WEIGHT_FILES]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        return f"not in {preset.weights}: {', '.join(missing)}"
    return f"weights of {sum(file.stat().st_size for file in files) / 2**20:.1f} MiB"


def _published_state(preset: Preset, published: Published) -> str:
    try:
        files = find_files(preset, published, DEFAULT_WEIGHTS)
    except CheckpointError:
        return f"not downloaded: streamgen download {preset.name}"
    there = (files.transformer, files.vae, files.text, files.tokenizer, files.lora)
    size = sum(file.stat().st_size for file in there if file is not None)
    return f"weights of {size / GB:.1f} GB"


def _needs(preset: Preset) -> str:
    """Return what a session of a published model takes on this machine's device, and if it fits."""
    if preset.published is None:
        return ""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = resolve(dataclasses.replace(EngineConfig(), model=preset.name), preset)
    needed = running_need(config, preset, device, 1).total
    host = machine.total_memory()
    free: float | None = host
    if device.type == "cuda":
        free = USABLE_MEMORY * torch.cuda.get_device_properties(device).total_memory
    text = f", {needed / GB:.1f} GB for one session on {device.type}"
    if host is None or free is None:
        return text
    fits = needed <= free and loading_need(config, preset).total <= host
    return f"{text}: {'fits' if fits else 'does not fit'} this machine ({free / GB:.1f} GB)"
