"""What a replayed stream is made from, and what it leaves for comparison."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Switch:
    """A prompt that takes over with the first chunk that begins at `frame` or later.

    With `recache` the K/V in view are made again under it before that chunk. A cut to a new shot
    moves all later positions on by `jump` and pins the first frames of its first chunk.
    """

    frame: int
    prompt_embeds: Tensor
    recache: bool = True
    jump: int = 0
    pinned_frames: int = 0


@dataclass(frozen=True, slots=True)
class StreamInputs:
    """What a stream is made from: no batch axis.

    `noise` is `[frames, C, h, w]`; `renoise` `[chunk, pass, frame, C, h, w]`, entry [i, k] mixed in
    after pass k of chunk i; `prompt_embeds` `[text_len, text_dim]`. With `given_start` the first
    chunk is not generated but these latents.
    """

    noise: Tensor
    renoise: Tensor
    prompt_embeds: Tensor
    chunk_frames: int
    switches: tuple[Switch, ...] = ()
    given_start: Tensor | None = None

    @property
    def num_chunks(self) -> int:
        """Return the number of chunks."""
        return len(self.noise) // self.chunk_frames

    @property
    def prompts(self) -> tuple[Tensor, ...]:
        """Return the prompts in the order in which they act."""
        return (self.prompt_embeds, *(switch.prompt_embeds for switch in self.switches))


@dataclass(frozen=True, slots=True)
class Call:
    """One row of one forward, or all rows of a recache; the last four describe the cache after it.

    `pinned_slot` is the place, in frames, of the first pinned frame among those held; -1 without.
    """

    chunk: int
    pass_name: str
    timestep: float
    first_frame: int
    last_frame: int
    visible_frames: int
    frame_counter: int
    held_frames: int
    position_offset: float
    pinned_slot: int


@dataclass(frozen=True, slots=True)
class KeptKV:
    """K and V of each layer, `[tokens, heads, head_dim]`, of frames ascending."""

    frames: tuple[int, ...]
    layers: list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class RecacheRecord:
    """One recache: the flow of the frames that ran, and what the cache held right after it.

    `made_by` is the index of the prompt under which each of the frames held was made.
    """

    first_frame: int
    flow: Tensor  # [frames, C, h, w]
    kv: KeptKV
    made_by: tuple[int, ...]


@dataclass(slots=True)
class Recording:
    """What a replay saw. Keys are (chunk, pass); the pass after the last denoise is the commit."""

    text_kv: tuple[Tensor, Tensor]  # of the first prompt, each [layers, text_len, heads, head_dim]
    flows: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    x0s: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    kv: dict[int, KeptKV] = field(default_factory=dict)  # after the commit of a chunk
    recaches: list[RecacheRecord] = field(default_factory=list)

    @property
    def output(self) -> Tensor:
        """Return the latents of the whole stream, `[frames, C, h, w]`."""
        return torch.cat(self.outputs)
