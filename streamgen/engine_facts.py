"""What an engine runs on and what it makes, as benchmarks tell it."""

from __future__ import annotations

from typing import Any

import torch

from streamgen import machine
from streamgen.config import EngineConfig
from streamgen.engine import StreamEngine
from streamgen.limits import UNLIMITED
from streamgen.models.presets import Preset
from streamgen.startup import num_cores


def engine_facts(engine: StreamEngine) -> dict[str, Any]:
    """Return what an engine of this process runs on."""
    device = engine.runner.config.device
    return {
        "cpu": machine.cpu_name(),
        "cores": num_cores(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": str(engine.runner.dtype).removeprefix("torch."),
        "commit": machine.commit(),
    }


def video_facts(config: EngineConfig, preset: Preset) -> dict[str, Any]:
    """Return what is made under options that are resolved."""
    assert config.size is not None
    return {
        "model": preset.name,
        "size": "{}x{}".format(*config.size),
        "fps": config.fps,
        "steps": config.steps,
        "window": "none" if config.window == UNLIMITED else config.window,
        "sink": config.sink,
    }
