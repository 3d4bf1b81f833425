"""From options to a warm engine, stage by stage."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from typing import Final

import torch

from kvcache import BackendError, KVGeometry, WindowConfig, choose
from streamgen import offload, quantize
from streamgen.card_memory import memory_parts
from streamgen.config import EngineConfig
from streamgen.cuda_graph import compile_blocks, cuda_graphs
from streamgen.decoder import StreamingDecoder
from streamgen.device import DeviceFacts, find_device, idle_card, require_memory
from streamgen.device_state import weight_bytes
from streamgen.encoding import Encoding
from streamgen.engine import StreamEngine
from streamgen.errors import ConfigError
from streamgen.faults import Faults
from streamgen.limits import UNLIMITED, check_fps, check_size, check_steps
from streamgen.lives import Output
from streamgen.machine import keep_freed_memory
from streamgen.measures import Totals
from streamgen.memory_check import fit_memory, has_graphs, require_loading, require_pages
from streamgen.model_runner import ModelRunner, RunnerConfig
from streamgen.models.presets import Model, Preset, build, check_weights, find_preset, served
from streamgen.models.weights import WeightOptions, require_own_weights
from streamgen.quality import add_sampler, reference_model
from streamgen.session_config import checked_window, held_frames
from streamgen.warm_up import (
    DECODER_THREADS,
    Measured,
    choose_dtypes,
    fixed_dtype,
    measure,
)

logger: Final = logging.getLogger(__name__)

MAX_SESSIONS_A_PASS: Final = 8
SPARE_TEXT_SLOTS: Final = 8  # beside the one that each session may have in work

Report = Callable[[str, float], None]


def resolve(config: EngineConfig, preset: Preset) -> EngineConfig:
    """Return the options with the preset's values where none was given, all checked.

    Raises InvalidRequest or ConfigError with the rule that is broken.
    """
    config = config.resolved(
        {
            "size": preset.size,
            "fps": preset.fps,
            "steps": preset.steps,
            "window": preset.window_frames,
            "sink": preset.sink_frames,
        }
    )
    assert config.size is not None
    check_size(*config.size, preset.max_pixels)
    check_fps(config.fps)
    check_steps(config.steps, preset.step_range)
    engine_window(config, preset)
    if preset.published is not None and config.dtype == "auto":
        # In fp32 such a model takes twice the memory, and its authors play it in bf16.
        sources = {**config.sources, "dtype": "preset"}
        config = dataclasses.replace(config, dtype="bf16", sources=sources)
    return config


def checked_options(config: EngineConfig, preset: Preset) -> EngineConfig:
    """Return the options as `resolve` does, after all that can be known before the engine starts.

    For a published model that is whether its files hold what they should, without reading a weight,
    and whether main memory holds it. Raises ConfigError, InvalidRequest, CheckpointError or
    OutOfMemory.
    """
    config = resolve(config, preset)
    device = find_device(config.device)
    if config.pixel_format == "auto":
        sources = {**config.sources, "pixel_format": "device"}
        pixel_format = "i420" if device.type == "cuda" else "rgb"
        config = dataclasses.replace(config, pixel_format=pixel_format, sources=sources)
    if device.type == "cpu":  # a card is asked by the engine's own process
        check_device(config, preset, runner_config(config, preset, device))
    if preset.published is None:
        require_own_weights(preset, weight_options(config, device))
        return config
    if device.type == "cpu":
        config = fit_memory(config, preset, device)
    else:  # the card is asked by the engine's own process: asking takes some of its memory
        require_loading(config, preset)
    if config.load_format != "dummy":
        check_weights(preset, weight_options(config, device))
    return config


def engine_window(config: EngineConfig, preset: Preset) -> WindowConfig:
    """Return the window a session has when it asks for none."""
    assert config.window is not None
    assert config.sink is not None
    longest = max(preset.chunks.chunk_frames, preset.chunks.num_frames(0))
    held = held_frames(preset, config)
    if config.window == UNLIMITED:
        return checked_window(WindowConfig(None, config.sink, held, preset.rotary), longest)
    return checked_window(WindowConfig(config.window, config.sink, rotary=preset.rotary), longest)


def start_engine(
    config: EngineConfig,
    output: Output,
    *,
    preset: Preset | None = None,
    report: Report = lambda stage, progress: None,
    clock: Callable[[], float] = time.monotonic,
    on_decoded: Callable[[], None] = lambda: None,
    measured: Measured | None = None,
    encode_beside: bool = False,
    pixel_format: str = "rgb",
) -> StreamEngine:
    """Load the model and warm it up. `report` hears of each stage: its name, and 0 to 1 of it all.

    With what an engine before it `measured`, it is ready sooner. `encode_beside`: passes do not
    wait for texts. Frames are RGB, or as `pixel_format` says. Raises ConfigError, InvalidRequest,
    CheckpointError or OutOfMemory.
    """
    preset = preset or find_preset(config.model)
    device = find_device(config.device)
    config = fit_memory(resolve(config, preset), preset, device)
    options = weight_options(config, device)
    sizes, window = runner_config(config, preset, device), engine_window(config, preset)
    check_device(config, preset, sizes)
    _set_up(config, device)
    report("weights", 0.0)
    model = build(preset, dummy=config.load_format == "dummy", options=options)
    reference = None if config.sample_quality is None else reference_model(model)
    model = served(model)
    report("measuring", 0.4)
    one = runner_config(config, preset, device, num_sessions=1)
    dtypes = measured.dtypes if measured else choose_dtypes(config, model, one, window)
    report("warm-up", 0.7)
    faults = Faults.parse(config.faults)
    runner = _new_runner(config, model, dtypes[0], sizes, window, faults)
    model.vae.to(device, dtypes[1])
    measured = measured or measure(runner, model, dtypes[1], window)
    runner.faults = faults
    decoder = StreamingDecoder(
        model.vae, device, dtypes[1],
        num_threads=DECODER_THREADS, pixel_format=pixel_format,
        state_bytes=measured.state_bytes, faults=faults,
    )  # fmt: skip
    runner.meter.begin(Totals(runner.text.hits, runner.text.misses))
    engine = StreamEngine(
        config, preset, runner, decoder, measured, output,
        clock=clock, on_decoded=on_decoded, faults=faults,
        encoding=Encoding(runner, on_decoded) if encode_beside else None,
    )  # fmt: skip
    engine.weight_bytes = weight_bytes(model.dit, model.vae, model.text_encoder)
    if reference is not None:
        add_sampler(engine, reference, one, on_decoded)
    report("ready", 1.0)
    return engine


def _new_runner(
    config: EngineConfig,
    model: Model,
    dtype: torch.dtype,
    sizes: RunnerConfig,
    window: WindowConfig,
    faults: Faults,
) -> ModelRunner:
    """Return a runner with all that options ask for, and log what the lossy ones cost."""
    preset = model.preset
    one = runner_config(config, preset, sizes.device, num_sessions=1)
    unquantized = quantize.plain_sample(model, dtype, one, window)
    runner = ModelRunner(model.dit, model.text_encoder, dtype, sizes)
    if unquantized is not None:
        psnr = quantize.psnr_db(quantize.sample(runner, preset, window), unquantized)
        logger.info("fp8 K/V: latents of two chunks have a PSNR of %.1f dB to %s", psnr, dtype)
    if config.quantization != "none":
        psnr = quantize.quantize(runner, preset, window)
        logger.info("fp8: latents of two chunks have a PSNR of %.1f dB against %s", psnr, dtype)
    if config.compile:
        compile_blocks(runner.dit)
    if has_graphs(config, sizes.device):
        runner.capture_graphs(cuda_graphs(), faults)
    return runner


def check_device(config: EngineConfig, preset: Preset, sizes: RunnerConfig) -> None:
    """Refuse what the device cannot do, before weights are read.

    Raises ConfigError, or OutOfMemory with the sum of what would not fit.
    """
    device, dit = sizes.device, preset.dit
    if config.compile and device.type != "cuda":
        raise ConfigError(f"compile is for CUDA, and the device is {device}", param="compile")
    dtype = fixed_dtype(config, device) or torch.float32
    if config.offload_layers and (why := offload.refusal(config, device)):
        raise ConfigError(f"offload_layers: {why}", param="offload_layers")
    if config.quantization != "none" and (why := quantize.refusal(device, dtype)):
        raise ConfigError(f"quantization {config.quantization}: {why}", param="quantization")
    tokens = dit.tokens_per_frame(*sizes.latent_shape[1:])
    geometry = KVGeometry(
        dit.num_layers, dit.num_heads, dit.head_dim, tokens, tokens, dtype, sizes.quantized_kv
    )
    try:
        choose(config.attention_backend, geometry, device)
    except BackendError as error:
        raise ConfigError(str(error), param="attention_backend") from error
    if device.type == "cpu" and preset.published is None:  # else `fit_memory` counts them
        # A format that is measured first may be the smaller one.
        smallest = sizes.num_frames * geometry.frame_bytes
        is_known = sizes.quantized_kv or fixed_dtype(config, device) is not None
        require_pages(config.max_sessions, smallest if is_known else smallest // 2)
    if device.type == "cuda":
        parts = memory_parts(
            preset, sizes, config.max_sessions, dtype.itemsize, graphs=has_graphs(config, device)
        )
        require_memory(parts, DeviceFacts.here().cards[device.index or 0])


def _set_up(config: EngineConfig, device: torch.device) -> None:
    """Give the process the threads that passes need, and its memory's manner."""
    torch.set_num_threads(config.threads or max(1, num_cores() - DECODER_THREADS))
    if device.type == "cpu":
        keep_freed_memory()
        if config.device == "auto" and (why := idle_card(DeviceFacts.here())):
            logger.warning("running on the CPU: %s", why)
    elif device.index is not None:
        torch.cuda.set_device(device)  # of this thread, which is the passes'


def runner_config(
    config: EngineConfig, preset: Preset, device: torch.device, num_sessions: int | None = None
) -> RunnerConfig:
    """Return the sizes of a runner with room for `num_sessions`, by default all of them."""
    assert config.size is not None
    num_sessions = num_sessions or config.max_sessions
    window = engine_window(config, preset)
    chunk_frames = max(preset.chunks.chunk_frames, preset.chunks.num_frames(0))
    held = window.window_frames or window.max_frames or chunk_frames
    refill = -(-held // chunk_frames) + 1  # rows of a forward that makes a window's K/V again
    return RunnerConfig(
        latent_shape=preset.latent_shape(*config.size),
        chunk_frames=chunk_frames,
        num_frames=num_sessions * window.reserved_frames(chunk_frames, fused=True),
        max_rows=max(2 * min(num_sessions, MAX_SESSIONS_A_PASS), refill),
        text_slots=2 * num_sessions + refill + SPARE_TEXT_SLOTS,
        device=device,
        deterministic=config.deterministic,
        poison_freed=config.poison_freed_pages,
        attention_backend=config.attention_backend,
        quantized_kv=config.kv_cache_dtype == "fp8",
        offload_layers=config.offload_layers,
        visible_frames=held,
        turned_frames=window.sink_frames if window.rotary == "relative" else 0,
    )


def weight_options(config: EngineConfig, device: torch.device) -> WeightOptions:
    """Return which weights an engine loads, and where its text encoder goes.

    Raises ConfigError when that is a device which the engine does not run on.
    """
    if config.text_device != "cpu" and device.type == "cpu":
        raise ConfigError(
            f"text_device {config.text_device}: the engine runs on cpu; leave --text-device out",
            param="text_device",
        )
    return WeightOptions.of(config, device)


def num_cores() -> int:
    """Return the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
