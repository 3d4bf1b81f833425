"""From options to a warm engine, stage by stage."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

import torch

from kvcache import WindowConfig
from streamgen.config import EngineConfig
from streamgen.decoder import StreamingDecoder
from streamgen.device_state import weight_bytes
from streamgen.engine import StreamEngine
from streamgen.errors import ConfigError
from streamgen.faults import Faults
from streamgen.limits import UNLIMITED, check_fps, check_size, check_steps
from streamgen.lives import Output
from streamgen.machine import keep_freed_memory
from streamgen.measures import Totals
from streamgen.model_runner import ModelRunner, RunnerConfig
from streamgen.models.presets import Preset, build, find_preset
from streamgen.quality import add_sampler, reference_model
from streamgen.session_config import checked_window, held_frames
from streamgen.warm_up import Measured, choose_dtypes, measure

logger: Final = logging.getLogger(__name__)

MAX_SESSIONS_A_PASS: Final = 8
SPARE_TEXT_SLOTS: Final = 8  # beside the one that each session may have in work
DECODER_THREADS: Final = 1  # a decode runs beside passes, which have the other cores

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
) -> StreamEngine:
    """Load the model and warm it up. `report` hears of each stage: its name, and 0 to 1 of it all.

    With what an engine before it `measured`, it is ready sooner. Raises ConfigError,
    InvalidRequest or CheckpointError.
    """
    preset = preset or find_preset(config.model)
    config = resolve(config, preset)
    device = find_device(config.device)
    torch.set_num_threads(config.threads or max(1, num_cores() - DECODER_THREADS))
    if device.type == "cpu":
        keep_freed_memory()
    report("weights", 0.0)
    model = build(preset, dummy=config.load_format == "dummy")
    reference = None if config.sample_quality is None else reference_model(model)
    sizes, window = runner_config(config, preset, device), engine_window(config, preset)
    report("measuring", 0.4)
    one = runner_config(config, preset, device, num_sessions=1)
    dtypes = measured.dtypes if measured else choose_dtypes(config, model, one, window)
    report("warm-up", 0.7)
    runner = ModelRunner(model.dit, model.text_encoder, dtypes[0], sizes)
    model.vae.to(device, dtypes[1])
    measured = measured or measure(runner, model, dtypes[1], window)
    faults = runner.faults = Faults.parse(config.faults)
    decoder = StreamingDecoder(
        model.vae, device, dtypes[1],
        num_threads=DECODER_THREADS, state_bytes=measured.state_bytes, faults=faults,
    )  # fmt: skip
    runner.meter.begin(Totals(runner.text.hits, runner.text.misses))
    engine = StreamEngine(
        config, preset, runner, decoder, measured, output,
        clock=clock, on_decoded=on_decoded, faults=faults,
    )  # fmt: skip
    engine.weight_bytes = weight_bytes(model.dit, model.vae, model.text_encoder)
    if reference is not None:
        add_sampler(engine, reference, one, on_decoded)
    report("ready", 1.0)
    return engine


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
    )


def find_device(name: str) -> torch.device:
    """Return the device of an option's value; ConfigError when the machine has no such device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"device {name!r} is not auto, cpu, cuda or cuda:N", param="device"
        ) from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {name!r}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA "
            "devices here; use cpu, or install a CUDA build of torch",
            param="device",
        )
    return device


def num_cores() -> int:
    """Return the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
