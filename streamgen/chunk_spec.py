"""What decides one chunk, and what is kept of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and its place in the order of accepted prompts; the opening one is 0."""

    text: str
    revision: int
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkSpec:
    """All that decides a chunk, fixed when its first pass starts and never changed after.

    `index` and the pixel frame numbers are the stream's and never go back; `draw`, which keys the
    noise, and `first_latent` are the model's and start again at a reset.
    """

    index: int
    first_frame_index: int
    num_frames: int  # pixel frames to deliver
    draw: int
    first_latent: int
    num_latents: int
    prompt: Prompt
    seed: int
    steps: int
    is_reset: bool
    is_last: bool
    event_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeptChunk:
    """Clean latents `[n, C, h, w]` from which K/V can be made again, under their own prompt."""

    first_latent: int
    latents: Tensor
    prompt: Prompt
