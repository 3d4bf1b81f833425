"""The steps of a stream: which frames a chunk holds and which passes make it.

A chunk is denoised in a few passes and then committed: one more pass over its clean latents, which
leaves their keys and values in the cache. The engine's sessions and `streamgen parity` walk chunks
with the same code.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from streamgen.sampler import Sampler

COMMIT_TIMESTEP: Final = 0.0


class PassKind(enum.Enum):
    """Say what a pass is for."""

    DENOISE = "denoise"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward of the model over a chunk; `timestep` holds for all its frames."""

    index: int
    kind: PassKind
    timestep: float


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Lay a stream's latent frames out in chunks, and count the pixel frames they decode to.

    The first chunk may be shorter, as models with an independent first frame want it. The first
    latent of a stream decodes to one pixel frame, each later one to `temporal_factor`.
    """

    chunk_frames: int = 3
    first_chunk_frames: int | None = None  # None: as long as the others
    temporal_factor: int = 4

    def __post_init__(self) -> None:
        """Raise ValueError unless every length is at least 1."""
        if min(self.chunk_frames, self.num_frames(0), self.temporal_factor) < 1:
            raise ValueError(f"lengths must be at least 1: {self}")

    def num_frames(self, chunk: int) -> int:
        """Return the latent frames of a chunk."""
        if chunk == 0 and self.first_chunk_frames is not None:
            return self.first_chunk_frames
        return self.chunk_frames

    def first_frame(self, chunk: int) -> int:
        """Return the absolute index of a chunk's first latent frame."""
        return self.num_frames(0) + (chunk - 1) * self.chunk_frames if chunk else 0

    def first_pixel_frame(self, chunk: int) -> int:
        """Return the absolute index of a chunk's first pixel frame."""
        return self.pixel_frames(self.first_frame(chunk))

    def pixel_frames(self, latent_frames: int) -> int:
        """Return how many pixel frames a stream's first `latent_frames` latents decode to."""
        return 1 + self.temporal_factor * (latent_frames - 1) if latent_frames else 0

    def chunks_for_latents(self, latent_frames: int) -> int:
        """Return the fewest chunks that hold `latent_frames` latents.

        Raises ValueError when none are asked for.
        """
        if latent_frames < 1:
            raise ValueError(f"{latent_frames} frames asked for; at least 1 is needed")
        later = max(latent_frames - self.num_frames(0), 0)
        return 1 + -(-later // self.chunk_frames)

    def chunks_for_pixels(self, pixel_frames: int) -> int:
        """Return the fewest chunks that decode to at least `pixel_frames` frames.

        Whoever delivers exactly that many cuts the last chunk. Raises ValueError when none are
        asked for.
        """
        if pixel_frames < 1:
            raise ValueError(f"{pixel_frames} frames asked for; at least 1 is needed")
        return self.chunks_for_latents(1 + -(-(pixel_frames - 1) // self.temporal_factor))


class ChunkSteps:
    """Carry one chunk's latents from noise through its denoise passes to the commit pass.

    Run the model on `latents` at `current_pass.timestep`, hand the flow to `advance`, until
    `is_denoised`; then `latents` are the chunk's output. Run the commit pass over them and drop its
    flow. `draw_noise(k)` gives the noise for pass k, shaped as the latents. To retry a chunk, make
    a new one: nothing outside is touched.
    """

    def __init__(self, sampler: Sampler, draw_noise: Callable[[int], Tensor]) -> None:
        self.sampler = sampler
        self.latents = draw_noise(0)
        self._draw_noise = draw_noise
        self._pass_index = 0

    @property
    def is_denoised(self) -> bool:
        """Return whether only the commit pass is left."""
        return self._pass_index == self.sampler.num_passes

    @property
    def passes_left(self) -> int:
        """Return how many denoise passes are still to come."""
        return self.sampler.num_passes - self._pass_index

    @property
    def current_pass(self) -> Pass:
        """Return the pass that `latents` are the input of."""
        if self.is_denoised:
            return Pass(self._pass_index, PassKind.COMMIT, COMMIT_TIMESTEP)
        timestep = self.sampler.timesteps[self._pass_index]
        return Pass(self._pass_index, PassKind.DENOISE, timestep)

    def advance(self, flow: Tensor) -> Tensor:
        """Take the flow of a denoise pass and return its x0, the latents' estimate so far."""
        assert not self.is_denoised, f"all {self.sampler.num_passes} denoise passes are done"
        x0 = self.sampler.x0_from_flow(self.latents, flow, self._pass_index)
        following = self._pass_index + 1
        is_last = following == self.sampler.num_passes
        draws = not is_last and self.sampler.draws_noise(following)
        noise = self._draw_noise(following) if draws else None
        self.latents = self.sampler.next_input(self.latents, flow, x0, self._pass_index, noise)
        self._pass_index = following
        return x0
