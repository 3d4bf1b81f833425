"""One chunk of one session in work: from noise through its passes to the cache.

Beginning it stages frames in the session's page table and pins the prompt's text slot. `commit`
makes the frames history. `abort`, at any pass, leaves the session so that it can begin again.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kvcache import Staging
from streamgen.chunk_spec import ChunkSpec
from streamgen.decoder import StreamingDecoder
from streamgen.messages import Applied, Chunk
from streamgen.model_runner import ModelRunner, Row
from streamgen.sampler import chunk_noise
from streamgen.session import Session
from streamgen.step import COMMIT_TIMESTEP, ChunkSteps, Pass, PassKind

COMMIT_ONLY: Final = Pass(0, PassKind.COMMIT, COMMIT_TIMESTEP)


@dataclass(slots=True)
class CommitStep:
    """The one pass of a chunk whose clean latents are known: a rebuild, or a commit tried again."""

    latents: Tensor
    current_pass: Pass = COMMIT_ONLY
    is_denoised: bool = True


@dataclass(slots=True, eq=False)
class ChunkRun:
    """A chunk that has begun. `spec` is None when only its K/V are made again."""

    session: Session
    runner: ModelRunner
    spec: ChunkSpec | None
    steps: ChunkSteps | CommitStep
    staging: Staging
    text_slot: int
    ready_at: float  # when it could have begun

    @property
    def row(self) -> Row:
        """Return its next pass."""
        step = self.steps.current_pass
        return Row(self.steps.latents, step.timestep, self.staging, self.text_slot)

    def advance(self, flow: Tensor) -> bool:
        """Take the flow of a denoise pass; return whether that was the last one."""
        assert isinstance(self.steps, ChunkSteps), self.steps
        self.steps.advance(flow)
        return self.steps.is_denoised

    def commit(self) -> None:
        """Make the chunk history after its commit pass."""
        assert self.session.table is not None
        self.session.table.commit()
        self.session.uncommitted.popleft()
        self._leave()

    def abort(self) -> None:
        """Undo the beginning: the table is as before, and the chunk is still to be made."""
        assert self.session.table is not None
        self.session.table.rollback()
        self._leave()

    def _leave(self) -> None:
        self.runner.release_text(self.text_slot)
        self.session.run = None


@dataclass(frozen=True, slots=True)
class Decode:
    """A denoised chunk on its way to pixels."""

    session: Session
    spec: ChunkSpec
    latents: Tensor
    ready_at: float
    frames: Future[npt.NDArray[np.uint8]]

    def messages(self, frames: npt.NDArray[np.uint8], now: float) -> Iterator[Chunk | Applied]:
        """Yield the chunk, then the second receipt of each control that it is the first to obey."""
        spec, config = self.spec, self.session.config
        latents = self.latents.cpu().numpy()
        latents.flags.writeable = False  # the session keeps them too
        pts_s = spec.first_frame_index / config.fps
        yield Chunk(
            index=spec.index,
            first_frame_index=spec.first_frame_index,
            pts_s=pts_s,
            fps=config.fps,
            prompt_revision=spec.prompt.revision,
            seed=spec.seed,
            frames=frames,
            latents=latents,
            generation_s=now - self.ready_at,
            # A cut is complete with the chunk it begins with.
            started_event_ids=spec.event_ids,
            active_event_ids=spec.event_ids,
            completed_event_ids=spec.event_ids,
        )
        for event_id in spec.event_ids:
            revision = spec.prompt.revision
            yield Applied(event_id, revision, spec.index, spec.first_frame_index, pts_s)


def begin_chunk(
    session: Session, runner: ModelRunner, decoder: StreamingDecoder, now: float
) -> None:
    """Begin what the session has to do next and set its `run`.

    That is the oldest chunk whose K/V are missing, or else the next chunk of the video. Whatever
    is raised, the session is left as if nothing had begun, and no control is lost.
    """
    assert session.table is not None
    if session.uncommitted:
        kept, spec = session.uncommitted[0], None
        prompt, first, num_latents = kept.prompt, kept.first_latent, len(kept.latents)
    else:
        spec = session.next_spec()
        prompt, first, num_latents = spec.prompt, spec.first_latent, spec.num_latents
        if spec.is_reset:
            session.table.reset(0)
            session.kept.clear()
            session.stream = decoder.open()
    slot = runner.acquire_text(prompt.text)
    try:
        steps = CommitStep(kept.latents) if spec is None else _first_step(spec, session, runner)
        session.table.skip_to(first)  # beyond the next frame only when a rebuild leaves out a gap
        staging = session.table.begin(num_latents)
    except BaseException:
        runner.release_text(slot)
        raise
    ready_at, session.ready_at = session.ready_at or now, None
    session.run = ChunkRun(session, runner, spec, steps, staging, slot, ready_at)


def _first_step(spec: ChunkSpec, session: Session, runner: ModelRunner) -> ChunkSteps:
    shape = (spec.num_latents, *runner.config.latent_shape)
    noise = partial(chunk_noise, spec.seed, spec.draw, shape=shape)
    device = runner.config.device
    return ChunkSteps(
        session.preset.make_sampler(spec.steps), lambda index: noise(index).to(device)
    )
