"""Forwards of the DiT over rows of any sessions, at any passes and positions.

A pass is described by a `StepBatch`; what all passes share lives here: the weights, the pages, the
prompts' cross-attention K/V and the input buffers, which never move.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import torch
from torch import Tensor

from kvcache import (
    AttentionBackend,
    KVGeometry,
    KVPool,
    PageLimits,
    PageTable,
    SdpaAttention,
    StaticTurn,
    TextKVPool,
    WindowConfig,
    build,
    choose,
)
from streamgen.account_memory import GRAPH_ROWS
from streamgen.cuda_graph import Graph, GraphRunner
from streamgen.embeds import EmbedCache, blended, mixed
from streamgen.errors import Unsupported
from streamgen.faults import NO_FAULTS, Faults
from streamgen.measures import Meter
from streamgen.models.causal_dit import CausalDiT
from streamgen.models.lora import LoraMerger, LoraSource
from streamgen.models.presets import TextEncoder
from streamgen.models.rope import frame_table, frame_turn, turn_pages
from streamgen.offload import OffloadedBlocks, offload
from streamgen.pass_inputs import InputBuffers, PassInputs
from streamgen.step_batch import Row, StepBatch
from streamgen.text import Text, TextBlend, TextMix

__all__ = ["ModelRunner", "Row", "RunnerConfig", "StepBatch"]

logger: Final = logging.getLogger(__name__)

WARM_UP_CHUNKS: Final = 8
MEASURED_PASSES: Final = 5


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
    attention_backend: str = "auto"
    quantized_kv: bool = False  # pages in 8 bits
    offload_layers: bool = False  # blocks' weights stay in main memory
    # On CUDA: the most frames a row sees, and of those rotated for it. Other rows run eagerly.
    visible_frames: int = 0
    turned_frames: int = 0


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
        if config.offload_layers:
            offload(dit, config.device, dtype)
        self.dit = dit.to(config.device, dtype)
        self.dit.deterministic = config.deterministic
        self.text_encoder = text_encoder
        self.faults = faults
        self.meter = Meter()
        self.embeds = EmbedCache()
        self._loras: LoraMerger | None = None
        shape, device = dit.config, config.device
        _, height, width = config.latent_shape
        tokens = shape.tokens_per_frame(height, width)
        # A page is a frame: sessions hold whole frames, and longer runs copy faster.
        geometry = KVGeometry(
            shape.num_layers, shape.num_heads, shape.head_dim, tokens, tokens, dtype,
            config.quantized_kv,
        )  # fmt: skip
        self.pool = KVPool(
            geometry, config.num_frames, device=device, poison_freed=config.poison_freed
        )
        self.text = TextKVPool(
            shape.num_layers, shape.num_heads, shape.head_dim, shape.text_len, config.text_slots,
            dtype, device,
        )  # fmt: skip
        self.inputs = InputBuffers(config, self.text, tokens)
        turn = partial(frame_turn, head_dim=shape.head_dim, device=self.pool.device)
        self.attention = SdpaAttention(self.pool, turn=turn)
        self.static_attention = self._static_attention()
        self.graphs = GraphRunner()
        self.num_eager = 0  # passes that no graph was captured for

    def _static_attention(self) -> AttentionBackend | None:
        """Return attention over static inputs on CUDA, None elsewhere. Raises BackendError."""
        wanted, device = self.config.attention_backend, self.pool.device
        choice = choose(wanted, self.pool.geometry, device)
        if device.type != "cuda":
            return None
        logger.info("attention: %s (%s)", choice.name, choice.reason)
        return build(choice.name, self.pool, self.page_limits, self.static_turn)

    @property
    def page_limits(self) -> PageLimits:
        """Return the most pages that static attention has room for."""
        return PageLimits(self.config.visible_frames, self.config.turned_frames)

    @property
    def static_turn(self) -> StaticTurn:
        """Return how keys are moved on, the angles as data."""
        return StaticTurn(partial(frame_table, head_dim=self.dit.config.head_dim), turn_pages)

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
        embeds = self.embeds.get(text)
        if embeds is None:
            embeds = self.encode(text)
            self.embeds.put(text, embeds)
        return embeds

    def encode(self, text: str) -> Tensor:
        """Return the embeddings of a text, `[text_len, text_dim]`; in any thread, one at a time."""
        self.faults.hit("text.encode")
        return self.text_encoder.encode([text])[0]

    def release_text(self, slot: int) -> None:
        """Unpin a slot; it stays until another prompt needs its place."""
        self.text.unpin(slot)

    def set_loras(self, sources: Sequence[LoraSource | str | Path]) -> None:
        """Merge these LoRAs, and no others, into the weights of all sessions; none restores them.

        They are written in place, so that captured passes go by them from their next replay on,
        and K/V of texts are made again. Raises CheckpointError, or OwnershipError while a chunk is
        under way; then all is as it was. Raises Unsupported where layers are offloaded.
        """
        if isinstance(self.dit.blocks, OffloadedBlocks):
            raise Unsupported(
                "layers are in main memory (offload_layers): give LoRAs when the engine starts",
                param="lora",
            )
        self.text.require_unread()
        if self._loras is None:
            self._loras = LoraMerger(self.dit)
        self._loras.load(sources)
        self.text.clear()

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
        rows, num_frames = batch.rows, batch.num_frames
        assert len(rows) <= self.config.max_rows, (len(rows), self.config.max_rows)
        self.meter.shape(len(rows), num_frames)
        static = self.static_attention
        if static is not None and not self.page_limits.hold([row.pages for row in rows]):
            static = None
        size = None
        if static is not None and num_frames == self.config.chunk_frames:
            size = self.graphs.size_for(len(rows))
        inputs = self.inputs.fill(
            rows, size or len(rows), num_frames, static or self.attention,
            is_static=static is not None,
        )  # fmt: skip
        if size is not None:
            flow = self.graphs.run(size)
        else:
            flow = self._flow(inputs)
            self.num_eager += 1
        return [
            flow[i, : row.staging.num_frames].to(torch.float32, copy=size is not None)
            for i, row in enumerate(rows)
        ]

    def _flow(self, inputs: PassInputs) -> Tensor:
        flow: Tensor = self.dit(
            inputs.latents, inputs.timesteps, inputs.frame_index, inputs.text, inputs.attention
        )
        return flow

    @torch.inference_mode()
    def capture_graphs(self, new_graph: Callable[[], Graph], faults: Faults = NO_FAULTS) -> None:
        """Capture passes of full chunks, so many rows at a time; say so when that fails.

        Rows of padding are captured: they leave no trace in the pool.
        """
        static, frames = self.static_attention, self.config.chunk_frames
        assert static is not None, "only static inputs can be captured"

        def forward_of(size: int) -> Callable[[], Tensor]:
            inputs = self.inputs.fill((), size, frames, static, is_static=True)
            return lambda: self._flow(inputs)

        sizes = [size for size in GRAPH_ROWS if size <= self.config.max_rows]
        problem = self.graphs.capture(sizes, forward_of, new_graph, faults)
        if problem is not None:
            logger.warning("passes run eagerly, as capturing them failed at %s", problem)

    def measure_s(self, window: WindowConfig, sizes: Sequence[int] = (1,)) -> dict[int, float]:
        """Return the seconds that passes of so many rows usually take with a well filled window.

        The median of some: the best would let in more than can be played.
        """
        return {n: median(times) for n, times in self.sample_s(window, sizes).items()}

    def sample_s(self, window: WindowConfig, sizes: Sequence[int]) -> dict[int, list[float]]:
        """Return the seconds of each of some passes of so many rows with a well filled window.

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
        seconds = {n: self._sampled_s(StepBatch(tuple(rows[:n]))) for n in sizes if n <= len(rows)}
        self.pool.free(own)
        table.release()
        self.release_text(slot)
        return seconds

    def _sampled_s(self, batch: StepBatch) -> list[float]:
        times = []
        for _ in range(1 + MEASURED_PASSES):
            start = time.perf_counter()
            self.run(batch)
            if self.config.device.type == "cuda":
                torch.cuda.synchronize(self.config.device)
            times.append(time.perf_counter() - start)
        return times[1:]
