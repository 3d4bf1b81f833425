"""`streamgen bench`: how fast this machine makes video, and where the time goes.

A session's video is made whole: text, DiT, VAE and JPEG of every frame. The engine is warmed up and
one video is thrown away before anything counts. Sessions run together as they do in the server, one
forward for all that are ready; then the same sessions one after another.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch

from streamgen import machine
from streamgen.command_options import BenchConfig
from streamgen.config import EngineConfig
from streamgen.decoder import StreamingDecoder
from streamgen.engine import StreamEngine
from streamgen.generate import count_frames
from streamgen.limits import UNLIMITED
from streamgen.messages import Chunk, Event, Failed
from streamgen.model_runner import fastest_dtype
from streamgen.models.presets import Preset, build, find_preset
from streamgen.session_config import SessionRequest
from streamgen.startup import engine_window, find_device, resolve, runner_config
from streamgen.stopwatch import Stopwatch, TimedRunner, TimedVAE, measure_peak_flops
from transport.options import TransportOptions

DEFAULT_SESSIONS: Final = {"latency": (1,), "sessions": (1, 2, 4, 8)}
OPENINGS: Final = {"latency": 5, "sessions": 0}  # further ones, for the time to the first frame
WARM_UP: Final = "engine warmed up and one video made and thrown away; not counted"
INCLUDED: Final = "text, DiT, VAE and JPEG of every frame; not network"
JPEG_THREADS: Final = 2  # as the server has

Row = dict[str, Any]


def run(
    kind: str, engine: EngineConfig, options: BenchConfig, *, preset: Preset | None = None
) -> int:
    """Measure, print the table and write the files; return 0."""
    counts = options.sessions or DEFAULT_SESSIONS[kind]
    bench = Bench(engine, max(counts), preset or find_preset(engine.model), options.seconds)
    with bench:
        print(f"{bench.title()}\nwarm-up: {WARM_UP}\nincluded: {INCLUDED}", flush=True)
        bench.warm_up()
        rows = []
        print(header(), flush=True)
        for count in counts:
            rows.append(bench.measure(count, OPENINGS[kind]))
            print(line(rows[-1]), flush=True)
    if options.json is not None:
        report = {"machine": bench.machine(), "config": bench.facts(), "rows": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.csv is not None:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(flat(rows[0])))
            writer.writeheader()
            writer.writerows(map(flat, rows))
    return 0


@dataclass(slots=True)
class Take:
    """One session's video while it is made."""

    opened_at: float
    num_frames: int = 0
    first_frame_s: float | None = None  # from opening to its JPEG
    chunk_s: list[float] = field(default_factory=list)
    encodes: list[Future[float]] = field(default_factory=list)


class Bench:
    """An engine that is measured. A context: it ends its threads."""

    def __init__(
        self, config: EngineConfig, num_sessions: int, preset: Preset, seconds: float
    ) -> None:
        config = EngineConfig(**_chosen(config) | {"max_sessions": num_sessions})
        self.config = resolve(config, preset)
        self.preset = preset
        assert self.config.fps is not None
        self.fps = self.config.fps
        self.seconds = seconds
        self.num_frames = count_frames(seconds, self.fps)
        self.watch = Stopwatch()
        self.num_threads = self.config.threads or os.cpu_count() or 1
        self._takes: dict[str, Take] = {}
        self._jpeg = ThreadPoolExecutor(JPEG_THREADS, "jpeg")
        self.engine = self._start()
        self.dtype = self.engine.runner.dtype
        self.peak_flops = measure_peak_flops(self.dtype, self.engine.runner.config.device)

    def _start(self) -> StreamEngine:
        """Build the engine as `start_engine` does, from parts that keep time."""
        config, preset, device = self.config, self.preset, find_device(self.config.device)
        torch.set_num_threads(self.num_threads)
        model = build(preset, dummy=config.load_format == "dummy")
        window = engine_window(config, preset)
        if config.dtype != "auto":
            dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[config.dtype]
        elif config.deterministic:
            dtype = torch.float32
        else:
            dtype, _ = fastest_dtype(model, window, lambda n: runner_config(config, preset, device, n))
        sizes = runner_config(config, preset, device)
        runner = TimedRunner(model.dit, model.text_encoder, dtype, sizes)
        runner.watch = self.watch
        runner.measure_s(window)
        vae = TimedVAE(model.vae.to(device), device, self.watch)
        decoder = StreamingDecoder(vae, device, torch.float32, num_threads=self.num_threads)
        return StreamEngine(config, preset, runner, decoder, self._deliver)
