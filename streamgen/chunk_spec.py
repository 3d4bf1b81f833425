"""What decides one chunk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamgen.messages import Control
from streamgen.record import ChunkRecord
from streamgen.text import Text


@dataclass(frozen=True, slots=True)
class ChunkSpec:
    """All that decides a chunk, fixed when its first pass starts and never changed after.

    `index` and the pixel frame numbers are the stream's and never go back; `epoch` counts resets;
    `draw`, which keys the noise, and `first_latent` are the model's and start again at a reset.
    `controls` begin to act with this chunk; the event ids are of those that are under way in it and
    of those that are complete after it.
    """

    index: int
    first_frame_index: int
    num_frames: int  # pixel frames to deliver
    pts_s: float
    fps: int
    epoch: int
    draw: int
    first_latent: int
    num_latents: int
    text: Text
    revision: int
    seed: int
    steps: int
    is_reset: bool
    is_recached: bool
    is_last: bool
    controls: tuple[Control, ...]
    active_event_ids: tuple[str, ...]
    completed_event_ids: tuple[str, ...]

    @property
    def event_ids(self) -> tuple[str, ...]:
        """Return the events that begin to act with this chunk, each once."""
        return tuple(dict.fromkeys(c.event_id for c in self.controls if c.event_id is not None))

    def record(self, latents: npt.NDArray[np.float32]) -> ChunkRecord:
        """Return what is kept of the chunk once it is denoised to `latents`."""
        return ChunkRecord(
            index=self.index,
            epoch=self.epoch,
            draw=self.draw,
            first_latent=self.first_latent,
            latents=latents,
            text=self.text,
            kv_text=self.text,
            revision=self.revision,
            seed=self.seed,
            steps=self.steps,
            first_frame_index=self.first_frame_index,
            num_frames=self.num_frames,
            pts_s=self.pts_s,
            fps=self.fps,
            controls=self.controls,
            is_recached=self.is_recached,
        )
