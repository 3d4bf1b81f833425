"""Whether a published model fits into memory: told with the arithmetic, before a weight is read."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Final

import torch

from streamgen import account_memory, machine
from streamgen.account_cards import CARDS
from streamgen.account_causal import Load
from streamgen.account_memory import USABLE_MEMORY, Memory
from streamgen.config import EngineConfig
from streamgen.errors import OutOfMemory
from streamgen.models.preset import Preset
from streamgen.plan_models import served_model

logger: Final = logging.getLogger(__name__)

GB: Final = 1e9
LOADED_BYTES: Final = 4  # modules are float32 until they are moved to where they run
SIZES: Final = {"fp32": 4, "bf16": 2}
DEFAULT, BY_MEMORY = "default", "memory"  # where a number of sessions came from


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one memory, by what they are for."""

    parts: tuple[tuple[str, float], ...]

    @property
    def total(self) -> float:
        """Return the sum."""
        return sum(size for _, size in self.parts)

    def __str__(self) -> str:
        return ", ".join(f"{name} {size / GB:.1f}" for name, size in self.parts)


def fit_memory(config: EngineConfig, preset: Preset, device: torch.device) -> EngineConfig:
    """Return the options with as many sessions as the device has memory for.

    A number of sessions that was asked for stays. Raises OutOfMemory, with every part of the sum,
    when the model and its sessions do not fit. Options are resolved.
    """
    if preset.published is None:
        return config
    require_loading(config, preset)
    free = machine.free_memory()
    if device.type == "cuda":
        free = round(USABLE_MEMORY * torch.cuda.mem_get_info(device)[0])
    if free is None:
        return config
    sessions = _sessions_that_fit(config, preset, device, free)
    if sessions >= config.max_sessions:
        return config
    if sessions and config.sources.get("max_sessions", DEFAULT) in (DEFAULT, BY_MEMORY):
        logger.info("%s: memory for %s on %s", preset.name, _counted(sessions), device)
        sources = {**config.sources, "max_sessions": BY_MEMORY}
        return dataclasses.replace(config, max_sessions=sessions, sources=sources)
    raise OutOfMemory(_refusal(config, preset, device, free, sessions))


def require_loading(config: EngineConfig, preset: Preset) -> None:
    """Raise OutOfMemory when main memory cannot hold a published model's weights."""
    free = machine.free_memory()
    if preset.published is None or free is None:
        return
    loading = loading_need(config, preset)
    if loading.total > free:
        raise OutOfMemory(
            f"{preset.name} needs {loading.total / GB:.1f} GB of main memory to load ({loading});"
            f" {free / GB:.1f} GB are free"
        )


def require_pages(num_sessions: int, pages: int) -> None:
    """Raise OutOfMemory when main memory cannot hold the cache pages of so many sessions.

    That is the least that is taken: a process that takes more is ended by the system, unasked.
    """
    free = machine.free_memory()
    if free is not None and pages > free:
        raise OutOfMemory(
            f"K/V of {_counted(num_sessions)} take {pages / GB:.1f} GB of memory, and "
            f"{free / GB:.1f} GB are free: fewer sessions, a smaller --window or a smaller --size "
            "need less"
        )


def running_need(config: EngineConfig, preset: Preset, device: torch.device, sessions: int) -> Need:
    """Return what the device holds of a running engine with room for `sessions`."""
    held = _account(config, preset, sessions, has_graphs(config, device))
    parts = [
        ("transformer", held.weights),
        ("decoder", held.vae_weights),
        (f"K/V of {_counted(sessions)}", held.kv),
        ("K/V of texts", held.cross_kv),
        ("decoder state", held.decoder_state),
        ("gathered K/V", held.gathered_kv),
        ("activations and the rest", held.latents + held.runtime),
    ]
    if held.graphs:
        parts.insert(-1, ("CUDA graphs", held.graphs))
    has_text = device.type == "cpu" or config.text_device != "cpu"
    if has_text and config.load_format != "dummy":
        parts.insert(1, ("text encoder", held.text_weights))
    return Need(tuple(parts))


def loading_need(config: EngineConfig, preset: Preset) -> Need:
    """Return what main memory holds when all weights are read."""
    held = _account(config, preset, 1, graphs=False)
    factor = LOADED_BYTES / SIZES.get(config.dtype, 2)
    parts = [("transformer", factor * held.weights), ("decoder", factor * held.vae_weights)]
    if config.load_format != "dummy":
        parts.insert(1, ("text encoder", held.text_weights))
    return Need(tuple(parts))


def has_graphs(config: EngineConfig, device: torch.device) -> bool:
    """Return whether passes are captured there: not where weights come from main memory."""
    return device.type == "cuda" and not (config.enforce_eager or config.offload_layers)


def _account(config: EngineConfig, preset: Preset, sessions: int, graphs: bool) -> Memory:
    size = SIZES.get(config.dtype, 2)
    model = dataclasses.replace(
        served_model(preset, config), element_bytes=size, vae_element_bytes=size
    )
    # Of the card only shapes are asked here, never a peak.
    load = Load(model, CARDS["h100"], graphs=graphs, offloaded=config.offload_layers)
    return account_memory.memory(load, sessions)


def _sessions_that_fit(
    config: EngineConfig, preset: Preset, device: torch.device, free: float
) -> int:
    return account_memory.most_sessions(
        lambda sessions: running_need(config, preset, device, sessions).total, free
    )


def _refusal(
    config: EngineConfig, preset: Preset, device: torch.device, free: float, sessions: int
) -> str:
    """Return the sum that does not fit, for one session if not even that one does."""
    need = running_need(config, preset, device, config.max_sessions if sessions else 1)
    smaller = "a smaller --window or a smaller --size need less"
    if config.decoder != "tiny":
        smaller = f"--decoder tiny, {smaller}"
    if device.type == "cuda" and not config.offload_layers:
        smaller = f"--offload-layers, {smaller}"
    hint = f"--max-sessions {sessions} fits" if sessions else smaller
    return (
        f"{preset.name} needs {need.total / GB:.1f} GB on {device} ({need}); {free / GB:.1f} GB are"
        f" free: {hint}"
    )


def _counted(sessions: int) -> str:
    return f"{sessions} session" + ("" if sessions == 1 else "s")
