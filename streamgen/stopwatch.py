"""Where the time of generation goes, and how much arithmetic the DiT does in its share."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamgen.account import pass_flops
from streamgen.decoder import DecoderStream
from streamgen.engine import StreamEngine
from streamgen.model_runner import ModelRunner, StepBatch
from streamgen.text import Text

STAGES: Final = ("text", "dit", "vae", "encode")
PEAK_SIZE: Final = 2048
PEAK_SECONDS: Final = 1.0


class Stopwatch:
    """Seconds at work by stage, whichever thread works, and the DiT's floating point operations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = defaultdict(float)
        self.dit_flops = 0

    def reset(self) -> None:
        """Start from nothing."""
        with self._lock:
            self._seconds.clear()
            self.dit_flops = 0

    def add(self, stage: str, seconds: float) -> None:
        """Count time for a stage."""
        with self._lock:
            self._seconds[stage] += seconds

    def seconds(self, stage: str) -> float:
        """Return the time a stage was at work."""
        return self._seconds[stage]

    def shares(self) -> dict[str, float]:
        """Return each stage's part of all time at work; they add up to 1."""
        total = sum(self._seconds.values())
        return {stage: self._seconds[stage] / total if total else 0.0 for stage in STAGES}


def watch_engine(engine: StreamEngine, watch: Stopwatch) -> None:
    """Let an engine's text, passes and decodes note their time, at the calls it makes.

    What they compute is unchanged; on a CUDA device each is waited for, so they no longer overlap.
    """
    runner, decoder = engine.runner, engine.decoder
    run, acquire_text, submit = runner.run, runner.acquire_text, decoder.submit
    decoder_free_at = 0.0  # it has one thread, so its decodes follow each other

    def timed_text(text: Text) -> int:
        start = time.perf_counter()
        slot = acquire_text(text)
        watch.add("text", _now(runner.config.device) - start)
        return slot

    def timed_run(batch: StepBatch) -> list[Tensor]:
        start = time.perf_counter()
        flows = run(batch)
        watch.add("dit", _now(runner.config.device) - start)
        watch.dit_flops += batch_flops(runner, batch)
        return flows

    def timed_submit(
        stream: DecoderStream, latents: Tensor, num_frames: int
    ) -> Future[npt.NDArray[np.uint8]]:
        submitted_at = time.perf_counter()

        def note(_: object) -> None:
            nonlocal decoder_free_at
            started_at, decoder_free_at = max(submitted_at, decoder_free_at), time.perf_counter()
            watch.add("vae", decoder_free_at - started_at)

        frames = submit(stream, latents, num_frames)
        frames.add_done_callback(note)
        return frames

    runner.run = timed_run  # type: ignore[method-assign]
    runner.acquire_text = timed_text  # type: ignore[method-assign]
    decoder.submit = timed_submit  # type: ignore[method-assign]


def batch_flops(runner: ModelRunner, batch: StepBatch) -> int:
    """Return the floating point operations of one forward, padding left out."""
    tokens, dit = runner.pool.geometry.tokens_per_frame, runner.dit.config
    return sum(
        pass_flops(dit, row.staging.num_frames, tokens, len(row.staging.visible_frames)).total
        for row in batch.rows
    )


def measure_peak_flops(dtype: torch.dtype, device: torch.device) -> float:
    """Return the operations a second of a large matrix product here: the best of a second's."""
    a = torch.ones(PEAK_SIZE, PEAK_SIZE, dtype=dtype, device=device)
    b = torch.ones_like(a)
    best_s, began = float("inf"), _now(device)
    while (start := time.perf_counter()) - began < PEAK_SECONDS or best_s == float("inf"):
        a @ b
        best_s = min(best_s, _now(device) - start)
    return float(2 * PEAK_SIZE**3 / best_s)


def _now(device: torch.device) -> float:
    """Return the time, once the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
