"""Denoised chunks on their way to pixels, and the messages that they leave as."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamgen.chunk_spec import ChunkSpec
from streamgen.decoder import StreamingDecoder
from streamgen.messages import Applied, Chunk
from streamgen.record import ChunkRecord
from streamgen.session import Session
from streamgen.sharing import next_lineage
from streamgen.work import ChunkWork, latents_of

Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Denoised:
    """A chunk that is history, and not yet seen."""

    session: Session
    spec: ChunkSpec
    record: ChunkRecord
    latents: Tensor
    ready_at: float

    @classmethod
    def of(cls, work: ChunkWork) -> Denoised:
        """Finish a chunk whose last pass is done: its pages are history, its latents are kept."""
        lineage = next_lineage(work.session, work.spec)
        work.finish()
        latents = work.steps.latents
        kept = latents.cpu().numpy()
        kept.flags.writeable = False  # records are shared
        record = work.session.keep(work.spec, kept, lineage)
        return cls(work.session, work.spec, record, latents, work.ready_at)

    @classmethod
    def adopted(
        cls, session: Session, spec: ChunkSpec, other: Session, made: ChunkRecord
    ) -> Denoised:
        """Finish a chunk that another session of the same lineage has made, on its pages."""
        assert session.table is not None
        assert other.table is not None
        lineage = next_lineage(session, spec)
        session.table.skip_to(spec.first_latent)
        session.table.adopt(other.table, spec.num_latents)
        newest = other.history.chunks[-1]
        session.commit = other.commit if newest is made else None
        ready_at, session.ready_at = session.ready_at, None
        record = session.keep(spec, made.latents, lineage)
        assert ready_at is not None
        return cls(session, spec, record, latents_of(made), ready_at)

    def messages(self, frames: Frames, now: float, overload: int) -> Iterator[Chunk | Applied]:
        """Yield the chunk, then the second receipt of each control that it is the first to obey."""
        spec = self.spec
        yield Chunk(
            index=spec.index,
            first_frame_index=spec.first_frame_index,
            pts_s=spec.pts_s,
            fps=spec.fps,
            prompt_revision=spec.revision,
            seed=spec.seed,
            frames=frames,
            record=self.record,
            generation_s=now - self.ready_at,
            started_event_ids=spec.event_ids,
            active_event_ids=spec.active_event_ids,
            completed_event_ids=spec.completed_event_ids,
            overload=overload,
        )
        for event_id in spec.event_ids:
            yield Applied(event_id, spec.revision, spec.index, spec.first_frame_index, spec.pts_s)


class Decoding:
    """The chunks that are being decoded, in the order they were denoised."""

    def __init__(self, decoder: StreamingDecoder, on_decoded: Callable[[], None]) -> None:
        self.decoder = decoder
        self._on_decoded = on_decoded  # called in the decoder's thread
        self._waiting: deque[tuple[Denoised, Future[Frames]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, denoised: Denoised) -> None:
        """Send a chunk's latents to the decoder. Its frames leave before its commit."""
        stream, num_frames = denoised.session.stream, denoised.spec.num_frames
        frames = self.decoder.submit(stream, denoised.latents, num_frames)
        self._waiting.append((denoised, frames))
        frames.add_done_callback(lambda _: self._on_decoded())

    def begin_again(self, session: Session) -> None:
        """Give a session a decoder stream that remembers what its history says, and no more."""
        session.stream = self.decoder.open()
        is_reset = session.spec is not None and session.spec.is_reset
        chunks = [] if is_reset else session.history.recent_latents()
        if chunks:
            self.decoder.prime(session.stream, torch.cat([latents_of(c) for c in chunks]))

    def finished(self, wait_for: int) -> Iterator[tuple[Denoised, Frames | Exception]]:
        """Yield what is decoded, or the error it ended with; wait for the oldest `wait_for`."""
        while self._waiting and (wait_for > 0 or self._waiting[0][1].done()):
            wait_for -= 1
            denoised, frames = self._waiting.popleft()
            error = frames.exception()
            if isinstance(error, torch.AcceleratorError):
                raise error
            if error is not None and not isinstance(error, Exception):
                raise error
            yield denoised, frames.result() if error is None else error
