"""From options to a warm engine, stage by stage."""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Callable
from typing import Final

import torch

from kvcache import WindowConfig
from streamgen.config import EngineConfig
from streamgen.cost_table import CostTable
from streamgen.decoder import StreamingDecoder, measure_decode
from streamgen.engine import StreamEngine
from streamgen.errors import ConfigError
from streamgen.faults import Faults
from streamgen.limits import UNLIMITED, check_fps, check_size, check_steps
from streamgen.lives import Output
from streamgen.model_runner import ModelRunner, RunnerConfig
from streamgen.models.presets import Model, Preset, build, find_preset
from streamgen.session_config import checked_window, held_frames

logger: Final = logging.getLogger(__name__)

MAX_SESSIONS_A_PASS: Final = 8
MEASURED_ROWS: Final = (1, 2, 4, 8, 16)
SPARE_TEXT_SLOTS: Final = 8  # beside the one that each session may have in work
DECODER_THREADS: Final = 1  # a decode runs beside passes, which have the other cores
# bf16 has to be clearly faster: at the same speed fp32 is the better picture.
BF16_GAIN: Final = 0.9

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
) -> StreamEngine:
    """Load the model and warm it up. `report` hears of each stage: its name, and 0 to 1 of it all.

    Raises ConfigError, InvalidRequest or CheckpointError.
    """
    preset = preset or find_preset(config.model)
    config = resolve(config, preset)
    device = find_device(config.device)
    torch.set_num_threads(config.threads or max(1, num_cores() - DECODER_THREADS))
    report("weights", 0.0)
    model = build(preset, dummy=config.load_format == "dummy")
    report("measuring", 0.4)
    pass_dtype, decode_dtype = _choose_dtypes(config, model, device)
    report("warm-up", 0.7)
    runner = ModelRunner(
        model.dit, model.text_encoder, pass_dtype, runner_config(config, preset, device)
    )
    faults = Faults.parse(config.faults)
    runner.faults = faults
    costs, state_bytes = measure_costs(config, runner, model, decode_dtype)
    decoder = StreamingDecoder(
        model.vae.to(device, decode_dtype),
        device,
        decode_dtype,
        num_threads=DECODER_THREADS,
        state_bytes=state_bytes,
        faults=faults,
    )
    report("ready", 1.0)
    return StreamEngine(
        config,
        preset,
        runner,
        decoder,
        costs,
        output,
        clock=clock,
        on_decoded=on_decoded,
        faults=faults,
    )


def measure_costs(
    config: EngineConfig, runner: ModelRunner, model: Model, decode_dtype: torch.dtype
) -> tuple[CostTable, int]:
    """Return what passes of each size and a decode cost, and the bytes of a decoder's memory."""
    window, device = engine_window(config, model.preset), runner.config.device
    sizes = [n for n in MEASURED_ROWS if n <= runner.config.max_rows]
    pass_s = runner.measure_s(window, sizes)
    latents = torch.zeros(runner.config.chunk_frames, *runner.config.latent_shape, device=device)
    seconds, state_bytes = measure_decode(
        model.vae.to(device, decode_dtype), latents.to(decode_dtype)
    )
    held = window.window_frames or window.max_frames or runner.config.chunk_frames
    refill = -(-held // runner.config.chunk_frames)
    costs = CostTable(
        pass_s,
        decode_s=seconds,
        recache_s=pass_s[min(pass_s, key=lambda n: abs(n - refill))],
        decode_shares_device=device.type == "cuda",
    )
    logger.info(
        "%s on %s: %s ms a pass, %.1f ms a decode",
        model.preset.name, device,
        ", ".join(f"{n} rows {1000 * s:.1f}" for n, s in pass_s.items()), 1000 * seconds,
    )  # fmt: skip
    return costs, state_bytes


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


def _choose_dtypes(
    config: EngineConfig, model: Model, device: torch.device
) -> tuple[torch.dtype, torch.dtype]:
    """Return the number formats of passes and decodes."""
    preset, window = model.preset, engine_window(config, model.preset)
    room_for_one = runner_config(config, preset, device, num_sessions=1)
    latents = torch.zeros(room_for_one.chunk_frames, *room_for_one.latent_shape, device=device)

    def pass_s(dtype: torch.dtype) -> float:
        dit = copy.deepcopy(model.dit)
        return ModelRunner(dit, model.text_encoder, dtype, room_for_one).measure_s(window)[1]

    def chunk_s(dtype: torch.dtype) -> float:
        return measure_decode(copy.deepcopy(model.vae).to(device, dtype), latents.to(dtype))[0]

    return _choose_dtype(config, "passes", pass_s), _choose_dtype(config, "decodes", chunk_s)


def _choose_dtype(
    config: EngineConfig, work: str, seconds: Callable[[torch.dtype], float]
) -> torch.dtype:
    """Return the format that was asked for, or the one that is faster on this machine."""
    if config.dtype != "auto":
        return {"bf16": torch.bfloat16, "fp32": torch.float32}[config.dtype]
    if config.deterministic:
        return torch.float32  # who asks for every bit wants the better bits
    fp32_s, bf16_s = seconds(torch.float32), seconds(torch.bfloat16)
    dtype = torch.bfloat16 if bf16_s < BF16_GAIN * fp32_s else torch.float32
    logger.info("%s in %s: fp32 %.1f ms, bf16 %.1f ms", work, dtype, 1000 * fp32_s, 1000 * bf16_s)
    return dtype
