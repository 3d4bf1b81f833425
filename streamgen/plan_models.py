"""From a model's name to the shapes that the account is computed from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from streamgen import account
from streamgen.account_shapes import CAUSAL_MODELS, FEW_STEPS, CausalModel, text_flops
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError
from streamgen.limits import UNLIMITED, check_fps, check_size, check_steps

if TYPE_CHECKING:
    from streamgen.models.presets import Preset

MAX_PIXELS: Final = 4096 * 4096
PROMPT_WORDS: Final = 12  # of a usual prompt, for encoders whose cost follows its length
FLOAT32_BYTES: Final = 4
BFLOAT16_BYTES: Final = 2


def planned_model(config: EngineConfig, element_bytes: tuple[int, int]) -> CausalModel:
    """Return the model at the settings asked for.

    `element_bytes` are those of passes and of decodes. Raises ConfigError or InvalidRequest.
    """
    published = CAUSAL_MODELS.get(config.model)
    model = published or _of_preset_name(config)
    passes, decodes = element_bytes
    model = dataclasses.replace(model, element_bytes=passes, vae_element_bytes=decodes)
    return model if published is None else _with_options(model, config)


def causal_model(preset: Preset) -> CausalModel:
    """Return the shapes of a preset at its own settings."""
    parameters, flops = _text_cost(preset)
    return CausalModel(
        preset.name,
        preset.dit,
        preset.vae,
        parameters,
        flops,
        preset.size,
        preset.fps,
        preset.steps,
        preset.chunks.chunk_frames,
        preset.window_frames,
        preset.sink_frames,
        text_element_bytes=FLOAT32_BYTES if preset.published is None else BFLOAT16_BYTES,
    )


def served_model(preset: Preset, config: EngineConfig) -> CausalModel:
    """Return the shapes of a preset at options that are resolved."""
    from streamgen.session_config import held_frames

    assert config.size is not None
    assert config.fps is not None
    assert config.steps is not None
    assert config.sink is not None
    return dataclasses.replace(
        causal_model(preset),
        vae=preset.decoder(config.decoder),
        size=config.size,
        fps=config.fps,
        steps=config.steps,
        window_frames=held_frames(preset, config),
        sink_frames=config.sink,
        quantized_kv=config.kv_cache_dtype == "fp8",
    )


def _of_preset_name(config: EngineConfig) -> CausalModel:
    # Presets bring torch, which published shapes need not wait for.
    from streamgen.models.presets import NOT_SUPPORTED, PRESETS, find_preset
    from streamgen.startup import resolve

    if config.model not in (*PRESETS, *NOT_SUPPORTED):
        names = ", ".join([*PRESETS, *CAUSAL_MODELS])
        raise ConfigError(f"no model is called {config.model!r}; there is {names}", param="model")
    preset = find_preset(config.model)
    return served_model(preset, resolve(config, preset))


def _with_options(model: CausalModel, config: EngineConfig) -> CausalModel:
    """Return a published model with the options that were given, checked as a preset's are."""
    size = check_size(*(config.size or model.size), MAX_PIXELS)
    fps = check_fps(config.fps or model.fps)
    steps = check_steps(config.steps or model.steps, (1, FEW_STEPS))
    window = model.window_frames if config.window is None else config.window
    if window == UNLIMITED:
        window = _life_frames(config, fps)
    sink = model.sink_frames if config.sink is None else config.sink
    try:
        account.visible_frames(0, model.chunk_frames, window, sink)
    except ValueError as error:
        raise ConfigError(str(error), param="window") from error
    return dataclasses.replace(
        model, size=size, fps=fps, steps=steps, window_frames=window, sink_frames=sink,
        quantized_kv=config.kv_cache_dtype == "fp8",
    )  # fmt: skip


def _life_frames(config: EngineConfig, fps: int) -> int:
    """Return the latent frames of a whole session, all of which an unlimited window keeps."""
    if config.max_session_seconds is None:
        raise ConfigError(
            "--window none keeps every frame: say with --max-session-seconds how long a session is",
            param="window",
        )
    return -(-round(config.max_session_seconds * fps) // 4)


def _text_cost(preset: Preset) -> tuple[int, int]:
    """Return the parameters of a preset's text encoder, and the operations of a usual prompt."""
    if preset.published is not None:
        shape = preset.published.text_shape
        return shape.parameters, text_flops(shape, preset.dit.text_len)
    from torch import nn

    encoder = preset.text_encoder(True)
    assert isinstance(encoder, nn.Module), encoder
    products = sum(
        m.weight.numel() for m in encoder.modules() if isinstance(m, (nn.Linear, nn.Conv1d))
    )
    tokens = preset.dit.text_len + PROMPT_WORDS
    held = [*encoder.parameters(), *encoder.buffers()]
    return sum(tensor.numel() for tensor in held), 2 * products * tokens
