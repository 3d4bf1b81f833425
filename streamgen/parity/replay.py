"""Run a stream with given noises and prompts through the engine's own runner, pages and steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from kvcache import PageTable, Staging, WindowConfig
from kvcache.staging import cut_rows
from streamgen.model_runner import ModelRunner, Row, RunnerConfig, StepBatch
from streamgen.models.causal_dit import CausalDiT
from streamgen.parity.recording import Call, KeptKV, RecacheRecord, Recording, StreamInputs
from streamgen.sampler import Sampler
from streamgen.step import COMMIT_TIMESTEP, ChunkPlan, ChunkSteps, Pass, PassKind
from streamgen.text import TextMix


@dataclass(frozen=True, slots=True)
class GivenText:
    """A text encoder whose answer is already known: the embeddings of prompt `i` for text `"i"`."""

    prompts: tuple[Tensor, ...]  # each [text_len, text_dim]

    def encode(self, prompts: list[str]) -> Tensor:
        """Return the embeddings `[n, text_len, text_dim]`."""
        return torch.stack([self.prompts[int(prompt)] for prompt in prompts])


@dataclass(frozen=True, slots=True)
class GivenSteps:
    """The steps of a chunk whose latents are given: the commit pass alone."""

    latents: Tensor
    current_pass: Pass
    is_denoised: bool = True


@dataclass(frozen=True, slots=True)
class _Chunk:
    index: int
    first_frame: int  # of the stream; the cache's numbers may have jumped on
    steps: ChunkSteps | GivenSteps
    staging: Staging
    text_slot: int

    @property
    def pass_name(self) -> str:
        if isinstance(self.steps, GivenSteps):
            return "given"
        step = self.steps.current_pass
        return "context" if step.kind is PassKind.COMMIT else f"denoise{step.index}"


class StreamReplay:
    """One session on a runner of its own, as the reference runs it or, `fused`, as the engine does.

    Fused, the commit of a chunk shares a forward with the first pass of the next, as two rows, and
    what nobody reads does not run: the commit that a recache makes superfluous, and in a recache
    the frames whose K/V would be dropped for the kept sink's. K/V of `kept_chunks` are copied once
    committed. Freed pages are poisoned.
    """

    def __init__(
        self,
        model: CausalDiT,
        sampler: Sampler,
        inputs: StreamInputs,
        window: WindowConfig,
        *,
        fused: bool = False,
        rebuild_sink: bool = False,
        kept_chunks: Collection[int] = (),
    ) -> None:
        self.sampler, self.inputs = sampler, inputs
        self.fused, self.rebuild_sink, self.kept_chunks = fused, rebuild_sink, kept_chunks
        self.plan = ChunkPlan(inputs.chunk_frames)
        channels, height, width = inputs.noise.shape[1:]
        reserved = window.reserved_frames(inputs.chunk_frames, fused)
        config = RunnerConfig(
            latent_shape=(channels, height, width),
            chunk_frames=inputs.chunk_frames,
            num_frames=reserved + window.sink_frames,  # those beside the table take dropped K/V
            max_rows=2 + reserved // inputs.chunk_frames,
            text_slots=len(inputs.prompts),
            device=torch.device("cpu"),
            poison_freed=True,
        )
        self.runner = ModelRunner(model, GivenText(inputs.prompts), torch.float32, config)
        self.table = PageTable(self.runner.pool, window, inputs.chunk_frames, fused=fused)
        self.text_slots = [
            self.runner.acquire_text(TextMix.of(f"{i}")) for i in range(len(inputs.prompts))
        ]
        self.prompt = 0  # the index of the one in effect
        self.made_by: dict[int, int] = {}  # frame to prompt
        self.pinned: tuple[int, ...] = ()
        self.num_to_pin = 0  # frames of the chunk in work

    def run(self) -> Recording:
        """Generate every chunk."""
        text, slot = self.runner.text, self.text_slots[0]
        recording = Recording((text.k[:, slot], text.v[:, slot]))
        waiting: list[_Chunk] = []  # denoised, its commit pass rides with the next forward
        for index in range(self.inputs.num_chunks):
            if self._switch(index, recording):
                waiting = []
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
            if self.num_to_pin:
                first = chunk.staging.frame_index
                self.pinned = tuple(range(first, first + self.num_to_pin))
                self.table.pin(self.pinned)
                self.num_to_pin = 0
        return recording

    def _begin(self, index: int) -> _Chunk:
        inputs, first = self.inputs, self.plan.first_frame(index)
        num_frames = self.plan.num_frames(index)
        initial = inputs.noise[first : first + num_frames]

        def draw_noise(pass_index: int) -> Tensor:
            return inputs.renoise[index, pass_index - 1] if pass_index else initial

        steps: ChunkSteps | GivenSteps = ChunkSteps(self.sampler, draw_noise)
        if index == 0 and inputs.given_start is not None:
            commit = Pass(self.sampler.num_passes, PassKind.COMMIT, COMMIT_TIMESTEP)
            steps = GivenSteps(inputs.given_start, commit)
        staging = self.table.begin(num_frames)
        self.made_by |= dict.fromkeys(range(first, first + num_frames), self.prompt)
        return _Chunk(index, first, steps, staging, self.text_slots[self.prompt])

    def _forward(self, chunks: list[_Chunk], recording: Recording) -> None:
        passes = [chunk.steps.current_pass for chunk in chunks]
        rows = [
            Row(chunk.steps.latents, step.timestep, chunk.staging, chunk.text_slot)
            for chunk, step in zip(chunks, passes, strict=True)
        ]
        flows = self.runner.run(StepBatch(tuple(rows)))
        for chunk, step, flow in zip(chunks, passes, flows, strict=True):
            recording.flows[chunk.index, step.index] = flow
            call = self._call(chunk.index, chunk.pass_name, step.timestep, [chunk.staging])
            recording.calls.append(call)
            if isinstance(chunk.steps, ChunkSteps) and not chunk.steps.is_denoised:
                recording.x0s[chunk.index, step.index] = chunk.steps.advance(flow)
            elif chunk.index in self.kept_chunks:
                recording.kv[chunk.index] = self._kv(chunk.staging)

    def _switch(self, index: int, recording: Recording) -> bool:
        """Go to the next prompt if its time has come; return whether the cache was made again."""
        coming = self.inputs.switches[self.prompt :]
        if not coming or self.plan.first_frame(index) < coming[0].frame:
            return False
        self.prompt += 1
        self.num_to_pin = coming[0].pinned_frames
        self.table.skip_to(self.table.next_frame + coming[0].jump)
        fed = self.table.recache_frames(rebuild_sink=self.rebuild_sink)
        if not fed or not coming[0].recache:
            return False
        stagings = self.table.recache(rebuild_sink=self.rebuild_sink)
        rows = [*([] if self.fused else self._dropped_rows(stagings[0])), *stagings]
        latents = recording.output
        slot = self.text_slots[self.prompt]
        batch = StepBatch(
            tuple(Row(latents[_span(row)], COMMIT_TIMESTEP, row, slot) for row in rows)
        )
        flow = torch.cat(self.runner.run(batch))
        self.made_by |= dict.fromkeys(fed, self.prompt)
        made_by = tuple(self.made_by[frame] for frame in self.table.frames)
        record = RecacheRecord(rows[0].frame_index, flow, self._kv(stagings[-1]), made_by)
        recording.recaches.append(record)
        recording.calls.append(self._call(index, "recache", COMMIT_TIMESTEP, rows))
        return True

    def _dropped_rows(self, staging: Staging) -> list[Staging]:
        """Describe the rows of the newest window's frames that the kept sink has the place of.

        The reference runs them and drops their K/V; here these go to pages that nobody reads.
        """
        table, pool = self.table, self.runner.pool
        window = table.config.window_frames or table.num_slots
        frames = range(max(0, table.next_frame - window), table.next_frame)
        held = table.recache_frames(rebuild_sink=self.rebuild_sink)
        rows = cut_rows([f for f in frames if f not in held], self.inputs.chunk_frames)
        spare = iter(range(pool.num_pages - table.config.sink_frames, pool.num_pages))
        return [
            dataclasses.replace(
                staging,
                frame_index=row[0],
                num_frames=len(row),
                write_pages=tuple(next(spare) for _ in row),
            )
            for row in rows
        ]

    def _kv(self, staging: Staging) -> KeptKV:
        """Copy what a row could see, the sink as it is kept, frames ascending."""
        pool, rotation = self.runner.pool, staging.rotation
        homes = (
            dict(zip(rotation.target_pages, rotation.source_pages, strict=True)) if rotation else {}
        )
        pages = zip(staging.visible_frames, staging.visible_pages, strict=True)  # one a frame
        order = [homes.get(page, page) for _, page in sorted(pages)]
        layers = zip(pool.k, pool.v, strict=True)
        kept = [(k[order].flatten(0, 1), v[order].flatten(0, 1)) for k, v in layers]
        return KeptKV(tuple(sorted(staging.visible_frames)), kept)

    def _call(self, chunk: int, name: str, timestep: float, rows: list[Staging]) -> Call:
        """Describe rows of consecutive frames that see the same ones."""
        offset = sum(switch.jump for switch in self.inputs.switches[: self.prompt])
        end = rows[-1].frame_index + rows[-1].num_frames
        visible = sorted(rows[-1].visible_frames)
        return Call(
            chunk=chunk,
            pass_name=name,
            timestep=timestep,
            first_frame=rows[0].frame_index - offset,
            last_frame=end - 1 - offset,
            visible_frames=len(set(rows[-1].visible_pages)),  # a page is a frame
            frame_counter=end - offset,
            held_frames=len(visible),
            position_offset=float(offset),
            pinned_slot=visible.index(self.pinned[0]) if self.pinned else -1,
        )


def _span(staging: Staging) -> slice:
    return slice(staging.frame_index, staging.frame_index + staging.num_frames)
