"""Who looks at chunks as they leave the engine: its meter, its log, and the sampler of quality."""

from __future__ import annotations

import logging
from typing import Final, Protocol

import torch

from streamgen.decoding import Denoised, Frames
from streamgen.measures import Meter

# Its lines are for machines: a text log has them only at the level "debug".
trace: Final = logging.getLogger("streamgen.trace")


class Sampler(Protocol):
    """Who makes chunks again, to see how good they are."""

    def offer(self, denoised: Denoised, frames: Frames, now: float) -> None:
        """Take a chunk, or let it pass."""

    def step(self) -> bool:
        """Do some of the work; return False when there is none for now."""

    @property
    def nbytes(self) -> int:
        """Return the bytes held for it."""

    def close(self) -> None:
        """End."""


class ChunkWatch:
    """Counts what leaves an engine, and works for the sampler while the engine has nothing to do.

    `sampler` is there when the engine was told to sample.
    """

    def __init__(self, meter: Meter) -> None:
        self.sampler: Sampler | None = None
        self.is_traced = True
        self._meter = meter

    def left(
        self, denoised: Denoised, frames: Frames, now: float, slack_s: float | None, overload: int
    ) -> None:
        """Note a chunk that leaves: how early it was, if it had to be anywhere."""
        if slack_s is not None:
            self._meter.slack(slack_s)
        if self.sampler is not None and not overload:  # what is traded shows, and is meant to
            self.sampler.offer(denoised, frames, now)
        if self.is_traced and trace.isEnabledFor(logging.INFO):
            self._trace(denoised, now, slack_s, overload)

    def failed(self, error: Exception) -> None:
        """Note an error of a pass."""
        if isinstance(error, torch.OutOfMemoryError):
            self._meter.oom()

    def step(self) -> bool:
        """Do some of what waits for idle time; return False when nothing does."""
        return self.sampler is not None and self.sampler.step()

    def close(self) -> None:
        """End what was begun beside the engine."""
        if self.sampler is not None:
            self.sampler.close()

    @staticmethod
    def _trace(denoised: Denoised, now: float, slack_s: float | None, overload: int) -> None:
        session_id, index = denoised.session.id, denoised.spec.index
        trace.info(
            "session %s: chunk %d made in %.1f ms",
            session_id, index, 1000 * (now - denoised.ready_at),
            extra={
                "trace_id": f"{session_id}/{index}",
                "session": session_id,
                "chunk": index,
                "frames": denoised.spec.num_frames,
                "prompt_revision": denoised.spec.revision,
                "steps": denoised.spec.steps,
                "generation_ms": round(1000 * (now - denoised.ready_at), 3),
                "slack_ms": None if slack_s is None else round(1000 * slack_s, 1),
                "overload": overload,
            },
        )  # fmt: skip
