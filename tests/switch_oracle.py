"""The dense reference of streams whose prompt changes and whose cache is made again under it.

Nothing is ever overwritten: an entry is a frame as it was once computed, under its prompt, having
seen certain entries at certain distances. A pass is one forward over all entries there have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.oracle import DenseDiT


@dataclass(frozen=True)
class Entry:
    """One frame as it was computed once; `seen` maps entries to where they lay."""

    frame: int
    latents: Tensor
    t: float
    prompt: Tensor
    seen: dict[int, int]


@dataclass
class DenseSwitches:
    """Generate a stream: noise [frames, C, h, w], renoise [chunk, pass, ...].

    `prompts` follow one another at `switch_frames`, each with a recache of what is in view.
    """

    model: DenseDiT
    prompts: Sequence[Tensor]
    switch_frames: Sequence[int]
    noise: Tensor
    renoise: Tensor
    chunk_frames: int
    timesteps: Sequence[float]
    sigmas: Sequence[float]
    window_frames: int
    sink_frames: int = 0
    relative: bool = False
    rebuild_sink: bool = False
    causal: bool = False
    entries: list[Entry] = field(default_factory=list)
    view: list[int] = field(default_factory=list)  # entries in the cache, frames ascending

    def run(self) -> Tensor:
        """Return the latents."""
        clean = self.noise[:0]
        current = 0
        for chunk in range(len(self.noise) // self.chunk_frames):
            first = chunk * self.chunk_frames
            if self.switch_frames[current:] and first >= self.switch_frames[current]:
                current += 1
                self.recache(clean, self.prompts[current])
            x = self.noise[first : first + self.chunk_frames]
            new = range(first, first + self.chunk_frames)
            evicted = max(0, len(self.view) + len(new) - self.window_frames)
            del self.view[self.sink_frames : self.sink_frames + evicted]
            for k, (t, sigma) in enumerate(zip(self.timesteps, self.sigmas, strict=True)):
                flow = self.compute(self.make(new, x, t, self.prompts[current]))
                x = (x.double() - sigma * flow).float()
                if k + 1 < len(self.sigmas):
                    following = self.sigmas[k + 1]
                    x = (1 - following) * x + following * self.renoise[chunk, k]
            self.add(self.make(new, x, 0.0, self.prompts[current]))
            clean = torch.cat([clean, x])
        return clean

    def recache(self, clean: Tensor, prompt: Tensor) -> None:
        """Make the newest frames again; a kept sink stays unless the stream's start is in view."""
        frames = range(max(0, len(clean) - self.window_frames), len(clean))
        if self.rebuild_sink or frames.start == 0:
            self.view = []
        else:
            frames = range(frames.start + self.sink_frames, frames.stop)
            self.view = self.view[: self.sink_frames]
        if not self.causal:
            self.add(self.make(frames, clean[frames.start :], 0.0, prompt))
            return
        for stop in range(frames.stop - len(frames) // self.chunk_frames * self.chunk_frames,
                          frames.stop + 1, self.chunk_frames):  # fmt: skip
            row = range(max(frames.start, stop - self.chunk_frames), stop)
            if row:
                self.add(self.make(row, clean[row.start : row.stop], 0.0, prompt))

    def make(self, frames: range, latents: Tensor, t: float, prompt: Tensor) -> list[Entry]:
        """Return entries for frames that see the view and one another."""
        ids = [*self.view, *range(len(self.entries), len(self.entries) + len(frames))]
        numbers = [self.entries[i].frame for i in self.view] + list(frames)
        sink, gap = self.sink_frames, 0
        if self.relative and sink and len(ids) > sink:
            gap = numbers[sink] - numbers[sink - 1] - 1
        at = [number + gap * (i < sink) for i, number in enumerate(numbers)]
        seen = dict(zip(ids, at, strict=True))
        pairs = zip(frames, latents, strict=True)
        return [Entry(frame, frame_latents, t, prompt, seen) for frame, frame_latents in pairs]

    def add(self, entries: list[Entry]) -> None:
        self.view += range(len(self.entries), len(self.entries) + len(entries))
        self.entries += entries

    def compute(self, entries: list[Entry]) -> Tensor:
        """Return the flow of new entries."""
        everything = [*self.entries, *entries]
        visible = torch.zeros(len(everything), len(everything), dtype=torch.bool)
        positions = torch.tensor([entry.frame for entry in everything]).repeat(len(everything), 1)
        for i, entry in enumerate(everything):
            for seen, at in entry.seen.items():
                visible[i, seen], positions[i, seen] = True, at
        flow = self.model.flow(
            torch.stack([entry.latents for entry in everything]),
            torch.tensor([entry.t for entry in everything], dtype=torch.float64),
            torch.stack([entry.prompt for entry in everything]),
            visible,
            positions,
        )
        return flow[-len(entries) :]
