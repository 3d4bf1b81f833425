"""Forwards of the DiT over rows of any sessions, at any passes and positions.

A pass is described by a `StepBatch`; what all passes share lives here: the weights, the pages, the
prompts' cross-attention K/V and the input buffers, which never move.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kvcache import (
    KVGeometry,
    KVPool,
    PageTable,
    RowPages,
    SdpaAttention,
    Staging,
    TextKVPool,
    WindowConfig,
)
from streamgen.models.causal_dit import CausalDiT
from streamgen.models.presets import TextEncoder

WARM_UP_CHUNKS: Final = 8
MEASURED_PASSES: Final = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One session's next pass: its latents `[frames, C, h, w]` and what they may see."""

    latents: Tensor
    timestep: float
    staging: Staging
    text_slot: int


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one forward. Rows may have different numbers of frames; short ones are padded."""

    rows: tuple[Row, ...]

    @property
    def num_frames(self) -> int:
        """Return the frames of the longest row."""
        return max(row.staging.num_frames for row in self.rows)

    def by_length(self) -> dict[int, list[int]]:
        """Return the positions of the rows of each number of frames."""
        groups: dict[int, list[int]] = {}
        for position, row in enumerate(self.rows):
            groups.setdefault(row.staging.num_frames, []).append(position)
        return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """Sizes of a runner's pools and buffers."""

    latent_shape: tuple[int, int, int]  # channels, height, width of a latent frame
    chunk_frames: int  # of the longest chunk
    num_frames: int  # latent frames the pool holds
    max_rows: int
    text_slots: int
    device: torch.device
    deterministic: bool = False
    poison_freed: bool = False


class ModelRunner:
    """Own the DiT and all memory it reads and writes; compute the flow of a batch."""

    def __init__(
        self, dit: CausalDiT, text_encoder: TextEncoder, dtype: torch.dtype, config: RunnerConfig
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.dit = dit.to(config.device, dtype)
        self.dit.deterministic = config.deterministic
        self.text_encoder = text_encoder
        shape, device = dit.config, config.device
        _, height, width = config.latent_shape
        tokens = shape.tokens_per_frame(height, width)
        # A page is a frame: sessions hold whole frames, and longer runs copy faster.
        geometry = KVGeometry(
            shape.num_layers, shape.num_heads, shape.head_dim, tokens, tokens, dtype
        )
        self.pool = KVPool(
            geometry, config.num_frames, device=device, poison_freed=config.poison_freed
        )
        self.text = TextKVPool(
            shape.num_layers, shape.num_heads, shape.head_dim, shape.text_len, config.text_slots,
            dtype, device,
        )  # fmt: skip
        self.attention = SdpaAttention(self.pool)
        rows, frames = config.max_rows, config.chunk_frames
        self._latents = torch.zeros(rows, frames, *config.latent_shape, device=device)
        self._timesteps = torch.zeros(rows, frames, device=device)
        self._frame_index = torch.zeros(rows, dtype=torch.int64, device=device)

    def acquire_text(self, prompt: str) -> int:
        """Return the pinned slot of a prompt's cross-attention K/V, encoding it if it is new."""
        slot = self.text.get(prompt)
        if slot is None:
            with torch.inference_mode():
                embeds = self.text_encoder.encode([prompt]).to(self.config.device)
                k, v = self.dit.text_kv(embeds)
            slot = self.text.put(prompt, k[:, 0], v[:, 0])
        self.text.pin(slot)
        return slot

    def release_text(self, slot: int) -> None:
        """Unpin a slot; it stays until another prompt needs its place."""
        self.text.unpin(slot)

    def run(self, batch: StepBatch) -> list[Tensor]:
        """Return each row's flow, float32 `[frames, C, h, w]`, having written its K/V."""
        if not self.config.deterministic:
            return self._forward(batch)
        # Padding would change the shape of a row's matrix products, and with it the last bits.
        flows: dict[int, Tensor] = {}
        for positions in batch.by_length().values():
            alike = StepBatch(tuple(batch.rows[i] for i in positions))
            flows.update(zip(positions, self._forward(alike), strict=True))
        return [flows[i] for i in range(len(batch.rows))]

    @torch.inference_mode()
    def _forward(self, batch: StepBatch) -> list[Tensor]:
        num_rows, num_frames = len(batch.rows), batch.num_frames
        latents = self._latents[:num_rows, :num_frames]
        for i, row in enumerate(batch.rows):
            latents[i, : row.staging.num_frames].copy_(row.latents)
            latents[i, row.staging.num_frames :].zero_()
            self._timesteps[i].fill_(row.timestep)
            self._frame_index[i].fill_(row.staging.frame_index)
        pages = [RowPages(r.staging.write_pages, r.staging.visible_pages) for r in batch.rows]
        flow = self.dit(
            latents,
            self._timesteps[:num_rows, :num_frames],
            self._frame_index[:num_rows],
            self.text.rows([row.text_slot for row in batch.rows]),
            self.attention.plan(pages, num_frames * self.pool.geometry.tokens_per_frame),
        )
        return [flow[i, : row.staging.num_frames].float() for i, row in enumerate(batch.rows)]

    def measure_s(self, window: WindowConfig) -> float:
        """Return the seconds of one row's pass with a well filled window: the best of a few.

        Serves as warm-up too; leaves no trace in the pool.
        """
        frames = self.config.chunk_frames
        held = window.window_frames or window.max_frames or frames
        num_chunks = min(held // frames, WARM_UP_CHUNKS)
        if window.window_frames is not None:
            num_chunks += MEASURED_PASSES  # on a full window
        table = PageTable(self.pool, window, frames, fused=False)
        slot = self.acquire_text("warm-up")
        times = []
        for _ in range(num_chunks):
            latents = torch.zeros(frames, *self.config.latent_shape)
            batch = StepBatch((Row(latents, 0.0, table.begin(frames), slot),))
            start = time.perf_counter()
            self.run(batch)
            if self.config.device.type == "cuda":
                torch.cuda.synchronize(self.config.device)
            times.append(time.perf_counter() - start)
            table.commit()
        table.release()
        self.release_text(slot)
        return min(times[-MEASURED_PASSES:])
