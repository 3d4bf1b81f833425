"""Run a stream with given noises and prompt through the engine's own runner, pages and steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvcache import PageTable, Staging, WindowConfig
from streamgen.model_runner import ModelRunner, Row, RunnerConfig, StepBatch
from streamgen.models.causal_dit import CausalDiT
from streamgen.sampler import Sampler
from streamgen.step import ChunkPlan, ChunkSteps, PassKind

LayerKV = list[tuple[Tensor, Tensor]]
"""K and V of each layer, `[tokens, heads, head_dim]`, frames ascending."""


@dataclass(frozen=True, slots=True)
class StreamInputs:
    """What a stream is made from: no batch axis.

    `noise` is `[frames, C, h, w]`; `renoise` `[chunk, pass, frame, C, h, w]`, entry [i, k] mixed in
    after pass k of chunk i; `prompt_embeds` `[text_len, text_dim]`.
    """

    noise: Tensor
    renoise: Tensor
    prompt_embeds: Tensor
    chunk_frames: int

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks."""
        return len(self.noise) // self.chunk_frames


@dataclass(frozen=True, slots=True)
class Call:
    """One row of one forward; `held_frames` counts what the cache holds after it."""

    chunk: int
    pass_name: str
    timestep: float
    first_frame: int
    last_frame: int
    visible_frames: int
    frame_counter: int
    held_frames: int


@dataclass(slots=True)
class Recording:
    """What a replay saw. Keys are (chunk, pass); the pass after the last denoise is the commit."""

    text_kv: tuple[Tensor, Tensor]  # each [layers, text_len, heads, head_dim]
    flows: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    x0s: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    kv: dict[int, LayerKV] = field(default_factory=dict)  # after the commit of a chunk

    @property
    def output(self) -> Tensor:
        """Return the latents of the whole stream, `[frames, C, h, w]`."""
        return torch.cat(self.outputs)


@dataclass(frozen=True, slots=True)
class GivenText:
    """A text encoder whose answer is already known."""

    embeds: Tensor  # [text_len, text_dim]

    def encode(self, prompts: list[str]) -> Tensor:
        """Return the embeddings once a prompt, `[n, text_len, text_dim]`."""
        return self.embeds.expand(len(prompts), -1, -1)


@dataclass(frozen=True, slots=True)
class _Chunk:
    index: int
    steps: ChunkSteps
    staging: Staging


class StreamReplay:
    """One session on a runner of its own.

    `fused` runs the commit of a chunk in one forward with the first pass of the next, as two rows.
    K/V of `kept_chunks` are copied once committed. Freed pages are poisoned.
    """

    def __init__(
        self,
        model: CausalDiT,
        sampler: Sampler,
        inputs: StreamInputs,
        window: WindowConfig,
        *,
        fused: bool = False,
        kept_chunks: Collection[int] = (),
    ) -> None:
        self.sampler, self.inputs = sampler, inputs
        self.fused, self.kept_chunks = fused, kept_chunks
        self.plan = ChunkPlan(inputs.chunk_frames)
        channels, height, width = inputs.noise.shape[1:]
        config = RunnerConfig(
            latent_shape=(channels, height, width),
            chunk_frames=inputs.chunk_frames,
            num_frames=window.reserved_frames(inputs.chunk_frames, fused),
            max_rows=2 if fused else 1,
            text_slots=1,
            device=torch.device("cpu"),
            poison_freed=True,
        )
        self.runner = ModelRunner(model, GivenText(inputs.prompt_embeds), torch.float32, config)
        self.table = PageTable(self.runner.pool, window, inputs.chunk_frames, fused=fused)
        self.text_slot = self.runner.acquire_text("the given prompt")

    def run(self) -> Recording:
        """Generate every chunk."""
        text = self.runner.text
        recording = Recording((text.k[:, self.text_slot], text.v[:, self.text_slot]))
        waiting: list[_Chunk] = []  # denoised, its commit pass rides with the next forward
        for index in range(self.inputs.num_chunks):
            chunk = self._begin(index)
            while not chunk.steps.is_denoised:
                self._forward([*waiting, chunk], recording)
                waiting = []
            self.table.commit()
            recording.outputs.append(chunk.steps.latents)
            waiting = [chunk]
            if not self.fused or index == self.inputs.num_chunks - 1:
                self._forward(waiting, recording)
                waiting = []
        return recording

    def _begin(self, index: int) -> _Chunk:
        inputs, first = self.inputs, self.plan.first_frame(index)
        num_frames = self.plan.num_frames(index)
        initial = inputs.noise[first : first + num_frames]

        def draw_noise(pass_index: int) -> Tensor:
            return inputs.renoise[index, pass_index - 1] if pass_index else initial

        steps = ChunkSteps(self.sampler, draw_noise)
        return _Chunk(index, steps, self.table.begin(num_frames))

    def _forward(self, chunks: list[_Chunk], recording: Recording) -> None:
        passes = [chunk.steps.current_pass for chunk in chunks]
        rows = [
            Row(chunk.steps.latents, step.timestep, chunk.staging, self.text_slot)
            for chunk, step in zip(chunks, passes, strict=True)
        ]
        flows = self.runner.run(StepBatch(tuple(rows)))
        for chunk, step, flow in zip(chunks, passes, flows, strict=True):
            recording.flows[chunk.index, step.index] = flow
            recording.calls.append(self._call(chunk))
            if step.kind is PassKind.DENOISE:
                recording.x0s[chunk.index, step.index] = chunk.steps.advance(flow)
            elif chunk.index in self.kept_chunks:
                recording.kv[chunk.index] = self._history(chunk.staging)

    def _call(self, chunk: _Chunk) -> Call:
        step, staging = chunk.steps.current_pass, chunk.staging
        is_commit = step.kind is PassKind.COMMIT
        end = staging.frame_index + staging.num_frames
        return Call(
            chunk=chunk.index,
            pass_name="context" if is_commit else f"denoise{step.index}",
            timestep=step.timestep,
            first_frame=staging.frame_index,
            last_frame=end - 1,
            visible_frames=len(staging.visible_pages) // self.runner.pool.geometry.pages_per_frame,
            frame_counter=end,
            held_frames=len(staging.visible_frames),
        )

    def _history(self, staging: Staging) -> LayerKV:
        """Copy what a chunk left in the cache, frames ascending."""
        pool = self.runner.pool
        step = pool.geometry.pages_per_frame
        first_page = {f: i * step for i, f in enumerate(staging.visible_frames)}
        pages = [
            page
            for frame in sorted(first_page)
            for page in staging.visible_pages[first_page[frame] : first_page[frame] + step]
        ]
        layers = zip(pool.k, pool.v, strict=True)
        return [(k[pages].flatten(0, 1), v[pages].flatten(0, 1)) for k, v in layers]
