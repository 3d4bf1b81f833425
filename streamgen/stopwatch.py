"""Where the time of generation goes, and how much arithmetic the DiT does in its share.

The engine's own parts are measured at their seams: a runner and a decoder's VAE that note how long
they were at work. Nothing here changes what they compute.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from streamgen.decoder import VideoVAE
from streamgen.model_runner import ModelRunner, StepBatch
from streamgen.models.causal_dit import DiTConfig

STAGES: Final = ("text", "dit", "vae", "encode")
PEAK_SIZE: Final = 2048
PEAK_SECONDS: Final = 1.0


class Stopwatch:
    """Seconds at work by stage, whichever thread works, and the DiT's floating point operations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: Counter[str] = Counter()
        self.dit_flops = 0

    def reset(self) -> None:
        """Start from nothing."""
        with self._lock:
            self._seconds.clear()
            self.dit_flops = 0

    @contextmanager
    def running(self, stage: str, device: torch.device | None = None) -> Iterator[None]:
        """Add the time of the block to a stage; what it started on a CUDA device is waited for."""
        start = time.perf_counter()
        yield
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        elapsed = time.perf_counter() - start
        with self._lock:
            self._seconds[stage] += elapsed

    def seconds(self, stage: str) -> float:
        """Return the time a stage was at work."""
        return self._seconds[stage]

    def shares(self) -> dict[str, float]:
        """Return each stage's part of all time at work; they add up to 1."""
        total = sum(self._seconds.values())
        return {stage: self._seconds[stage] / total if total else 0.0 for stage in STAGES}


class TimedRunner(ModelRunner):
    """A runner that notes its time and its arithmetic."""

    watch: Stopwatch

    def acquire_text(self, prompt: str) -> int:
        """Return the pinned slot of a prompt."""
        with self.watch.running("text", self.config.device):
            return super().acquire_text(prompt)

    def run(self, batch: StepBatch) -> list[Tensor]:
        """Return each row's flow."""
        with self.watch.running("dit", self.config.device):
            flows = super().run(batch)
        tokens = self.pool.geometry.tokens_per_frame
        for row in batch.rows:
            frames = len(row.staging.write_pages) * self.pool.geometry.page_tokens // tokens
            keys = len(row.staging.visible_pages) * self.pool.geometry.page_tokens
            self.watch.dit_flops += pass_flops(self.dit.config, frames, frames * tokens, keys)
        return flows


class TimedVAE:
    """A VAE that notes the time of its decoding."""

    def __init__(self, vae: VideoVAE, device: torch.device, watch: Stopwatch) -> None:
        self._vae = vae
        self._device = device
        self._watch = watch

    def decoder_state(self) -> Any:
        """Return the state before the first latent."""
        return self._vae.decoder_state()

    def decode_step(self, latents: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Decode."""
        with self._watch.running("vae", self._device):
            return self._vae.decode_step(latents, state)


def pass_flops(dit: DiTConfig, num_frames: int, num_tokens: int, num_keys: int) -> int:
    """Return the floating point operations of one row's pass, a multiply-add counted as two.

    Counted are the matrix products: 2 * parameters * tokens of the linear layers, and
    4 * tokens * keys * width in each layer's self-attention and cross-attention. Left out are norms,
    softmax, rotation and the prompt's own keys, which are made once.
    """
    d, layers = dit.dim, dit.num_layers
    patch = dit.patch_size[1] * dit.patch_size[2]
    # q, k, v and o of the self-attention, q and o of the cross-attention, and the MLP.
    per_token = layers * (6 * d * d + 2 * d * dit.ffn_dim) + patch * d * (dit.in_dim + dit.out_dim)
    per_frame = dit.freq_dim * d + 7 * d * d  # the timestep's embedding and projection
    attention = 4 * num_tokens * (num_keys + dit.text_len) * d * layers
    return 2 * per_token * num_tokens + 2 * per_frame * num_frames + attention


def measure_peak_flops(dtype: torch.dtype, device: torch.device) -> float:
    """Return the operations a second of a large matrix product here: the best of a second's."""
    a = torch.ones(PEAK_SIZE, PEAK_SIZE, dtype=dtype, device=device)
    b = torch.ones_like(a)
    watch, best_s, started = Stopwatch(), float("inf"), time.perf_counter()
    while time.perf_counter() - started < PEAK_SECONDS or best_s == float("inf"):
        watch.reset()
        with watch.running("dit", device):
            a @ b
        best_s = min(best_s, watch.seconds("dit"))
    return float(2 * PEAK_SIZE**3 / best_s)
