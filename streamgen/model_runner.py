"""Forwards of the DiT over rows of any sessions, at any passes and positions.

A pass is described by a `StepBatch`; what all passes share lives here: the weights, the pages, the
prompts' cross-attention K/V and the input buffers, which never move.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
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
from streamgen.embeds import blended, mixed
from streamgen.faults import NO_FAULTS, Faults
from streamgen.measures import Meter
from streamgen.models.causal_dit import CausalDiT
from streamgen.models.presets import TextEncoder
from streamgen.models.rope import frame_turn
from streamgen.text import Text, TextBlend, TextMix

WARM_UP_CHUNKS: Final = 8
MEASURED_PASSES: Final = 3
KEPT_EMBEDS: Final = 64  # texts whose embeddings are remembered


@dataclass(frozen=True, slots=True)
class Row:
    """One session's next pass: its latents `[frames, C, h, w]` and what they may see."""

    latents: Tensor
    timestep: float
    staging: Staging
    text_slot: int


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one forward. Rows may have different numbers of frames; short ones are padded.

    A row may read what another one writes: a chunk's first pass its predecessor's commit, the rows
    of a recache one another.
    """

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

    def alike(self) -> list[list[int]]:
        """Return the positions of rows of one length, rows before those that read what they write.

        Rows that read from one another, or along a chain, are not taken apart: those are a group.
        """
        writers = {p: i for i, row in enumerate(self.rows) for p in row.staging.write_pages}
        sources = [
            {writers[page] for page in row.staging.read_pages if page in writers} - {i}
            for i, row in enumerate(self.rows)
        ]
        together = _chains(sources)
        bound: set[int] = set().union(*together)
        groups = [[i for i in group if i not in bound] for group in self.by_length().values()]
        halves = (
            [i for i in group if bool(sources[i]) is reads]
            for reads in (False, True)
            for group in groups
        )
        return [*(sorted(chain) for chain in together), *(half for half in halves if half)]


def _chains(sources: list[set[int]]) -> list[set[int]]:
    """Return the rows that hang together and among which one reads what a reader wrote."""
    components: list[set[int]] = []
    for row, read in enumerate(sources):
        touched = [c for c in components if c & (read | {row})]
        components = [c for c in components if c not in touched]
        components.append(set().union({row}, read, *touched))
    return [c for c in components if any(sources[i] for row in c for i in sources[row])]


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
        self,
        dit: CausalDiT,
        text_encoder: TextEncoder,
        dtype: torch.dtype,
        config: RunnerConfig,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.dit = dit.to(config.device, dtype)
        self.dit.deterministic = config.deterministic
        self.text_encoder = text_encoder
        self.faults = faults
        self.meter = Meter()
        self._embeds: dict[str, Tensor] = {}
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
        turn = partial(frame_turn, head_dim=shape.head_dim, device=self.pool.device)
        self.attention = SdpaAttention(self.pool, turn=turn)
        rows, frames = config.max_rows, config.chunk_frames
        self._latents = torch.zeros(rows, frames, *config.latent_shape, device=device)
        self._timesteps = torch.zeros(rows, frames, device=device)
        self._frame_index = torch.zeros(rows, dtype=torch.int64, device=device)

    def acquire_text(self, text: Text) -> int:
        """Return the pinned slot of a text's cross-attention K/V, encoding it if it is new."""
        slot = self.text.get(text)
        if slot is None:
            began = time.perf_counter()
            with torch.inference_mode():
                embeds = self._embed(text)[None].to(self.config.device)
                k, v = self.dit.text_kv(embeds)
            slot = self.text.put(text, k[:, 0], v[:, 0])
            self.meter.stage("text", time.perf_counter() - began)
        self.text.pin(slot)
        return slot

    def _embed(self, text: Text) -> Tensor:
        """Return what the model is conditioned on, `[text_len, text_dim]`."""
        if isinstance(text, TextBlend):
            return blended(self._embed(text.start), self._embed(text.end), text.at, text.curve)
        parts = [self._encode(part) for part, _ in text.parts]
        if len(parts) == 1:
            return parts[0]
        return mixed(torch.stack(parts), tuple(weight for _, weight in text.parts))

    def _encode(self, text: str) -> Tensor:
        """Encode one text, or remember it: a blend asks for the same two at each of its chunks."""
        embeds = self._embeds.pop(text, None)
        if embeds is None:
            self.faults.hit("text.encode")
            embeds = self.text_encoder.encode([text])[0]
        self._embeds[text] = embeds  # the newest is last
        while len(self._embeds) > KEPT_EMBEDS:
            del self._embeds[next(iter(self._embeds))]
        return embeds

    def release_text(self, slot: int) -> None:
        """Unpin a slot; it stays until another prompt needs its place."""
        self.text.unpin(slot)

    def run(self, batch: StepBatch) -> list[Tensor]:
        """Return each row's flow, float32 `[frames, C, h, w]`, having written its K/V."""
        if not self.config.deterministic:
            return self._forward(batch)
        # Padding would change the shape of a row's matrix products, and with it the last bits.
        flows: dict[int, Tensor] = {}
        for positions in batch.alike():
            alike = StepBatch(tuple(batch.rows[i] for i in positions))
            flows.update(zip(positions, self._forward(alike), strict=True))
        return [flows[i] for i in range(len(batch.rows))]

    @torch.inference_mode()
    def _forward(self, batch: StepBatch) -> list[Tensor]:
        num_rows, num_frames = len(batch.rows), batch.num_frames
        assert num_rows <= self.config.max_rows, (num_rows, self.config.max_rows)
        self.meter.shape(num_rows, num_frames)
        latents = self._latents[:num_rows, :num_frames]
        for i, row in enumerate(batch.rows):
            latents[i, : row.staging.num_frames].copy_(row.latents)
            latents[i, row.staging.num_frames :].zero_()
            self._timesteps[i].fill_(row.timestep)
            self._frame_index[i].fill_(row.staging.frame_index)
        stagings = [row.staging for row in batch.rows]
        pages = [RowPages(s.write_pages, s.visible_pages, s.rotation) for s in stagings]
        flow = self.dit(
            latents,
            self._timesteps[:num_rows, :num_frames],
            self._frame_index[:num_rows],
            self.text.rows([row.text_slot for row in batch.rows]),
            self.attention.plan(pages, num_frames * self.pool.geometry.tokens_per_frame),
        )
        return [flow[i, : row.staging.num_frames].float() for i, row in enumerate(batch.rows)]

    def measure_s(self, window: WindowConfig, sizes: Sequence[int] = (1,)) -> dict[int, float]:
        """Return the seconds of passes of so many rows with a well filled window: the best of some.

        Serves as warm-up too; leaves no trace in the pool.
        """
        frames = self.config.chunk_frames
        held = window.window_frames or window.max_frames or frames
        table = PageTable(self.pool, window, frames, fused=False)
        slot = self.acquire_text(TextMix.of("warm-up"))
        latents = torch.zeros(frames, *self.config.latent_shape)
        for _ in range(min(held // frames, WARM_UP_CHUNKS) - 1):
            self.run(StepBatch((Row(latents, 0.0, table.begin(frames), slot),)))
            table.commit()
        staging = table.begin(frames)
        # All rows read what the one table holds, and each writes to pages of its own.
        num_pages = len(staging.write_pages)
        own = self.pool.allocate(self.pool.allocator.num_free // num_pages * num_pages)
        writes = [staging.write_pages]
        writes += [tuple(own[i : i + num_pages]) for i in range(0, len(own), num_pages)]
        rows = [
            Row(latents, 0.0, dataclasses.replace(staging, write_pages=pages), slot)
            for pages in writes
        ]
        seconds = {n: self._measured_s(StepBatch(tuple(rows[:n]))) for n in sizes if n <= len(rows)}
        self.pool.free(own)
        table.release()
        self.release_text(slot)
        return seconds

    def _measured_s(self, batch: StepBatch) -> float:
        times = []
        for _ in range(1 + MEASURED_PASSES):
            start = time.perf_counter()
            self.run(batch)
            if self.config.device.type == "cuda":
                torch.cuda.synchronize(self.config.device)
            times.append(time.perf_counter() - start)
        return min(times[1:])
