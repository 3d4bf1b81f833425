"""A model of nothing but attention, rotary positions and residuals, and its dense reference.

Deep layers' K/V depend on all that was seen when they were made, as in a real one. Projections are
elementwise: unlike a matrix product, they round alike in every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvcache import KVGeometry, KVPool, PageTable, RowPages, SdpaAttention, Staging, WindowConfig

LAYERS, HEADS, HEAD_DIM, FRAME_TOKENS = 3, 2, 8, 4
CHUNK = 3
WEIGHTS = torch.randn(LAYERS, 3, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(0))
SPEEDS = 0.7 ** torch.arange(HEAD_DIM // 2, dtype=torch.float64)  # radians a frame


def rotate(x: Tensor, frames: Tensor) -> Tensor:
    """Rotate [tokens, heads, head_dim] to the places of frames [tokens]."""
    turn = torch.polar(torch.ones((), dtype=torch.float64), frames[:, None, None] * SPEEDS)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * turn
    return torch.view_as_real(pairs).flatten(-2).to(x.dtype)


def turn(num_frames: int) -> Callable[[Tensor], Tensor]:
    angles = num_frames * SPEEDS
    cos, sin = angles.cos(), angles.sin()

    def turned(keys: Tensor) -> Tensor:
        real, imag = keys.double().unflatten(-1, (-1, 2)).unbind(-1)
        pairs = torch.stack([real * cos - imag * sin, real * sin + imag * cos], dim=-1)
        return pairs.flatten(-2).to(keys.dtype)

    return turned


def new_pool(num_frames: int, page_tokens: int = 2, dtype: torch.dtype = torch.float32) -> KVPool:
    geometry = KVGeometry(LAYERS, HEADS, HEAD_DIM, FRAME_TOKENS, page_tokens, dtype)
    return KVPool(geometry, num_frames * geometry.pages_per_frame, poison_freed=True)


def token_frames(frames: Sequence[int]) -> Tensor:
    return torch.tensor(frames).repeat_interleave(FRAME_TOKENS).double()


def clean(frame: int) -> Tensor:
    """Return the latents of a frame, [tokens, heads, head_dim]."""
    generator = torch.Generator().manual_seed(1000 + frame)
    return torch.randn(FRAME_TOKENS, HEADS, HEAD_DIM, generator=generator)


def model_input(frames: Sequence[int], prompt: int, noise: float = 0.0) -> Tensor:
    """Return what a pass is given: the latents, drowned in noise or not, and a prompt."""
    shift = torch.randn(HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(prompt))
    return torch.cat([clean(frame) + noise * clean(-1 - frame) for frame in frames]) + shift


def forward(
    backend: SdpaAttention, stagings: Sequence[Staging], inputs: Sequence[Tensor]
) -> list[Tensor]:
    """Run rows, short ones padded with garbage, and return what comes out of the last layer."""
    longest = max(len(x) for x in inputs)
    x = torch.full((len(inputs), longest, HEADS, HEAD_DIM), 1e3)
    at = torch.zeros(len(inputs), longest, dtype=torch.float64)
    for i, (staging, tokens) in enumerate(zip(stagings, inputs, strict=True)):
        x[i, : len(tokens)] = tokens
        frames = range(staging.frame_index, staging.frame_index + staging.num_frames)
        at[i, : len(tokens)] = token_frames(frames)
    rows = [RowPages(s.write_pages, s.visible_pages, s.rotation) for s in stagings]
    plan = backend.plan(rows, longest)
    for layer in range(LAYERS):
        q, k, v = (x * weight for weight in WEIGHTS[layer])
        q, k = (torch.stack(list(map(rotate, y, at))) for y in (q, k))
        x = x + plan(layer, q, k, v)
        assert x.isfinite().all()
    return [x[i, : len(tokens)] for i, tokens in enumerate(inputs)]


@dataclass
class Toy:
    """A session on pages."""

    table: PageTable
    backend: SdpaAttention
    prompt: int = 1

    @classmethod
    def open(cls, config: WindowConfig, *, fused: bool = False, pool: KVPool | None = None) -> Toy:
        pool = pool or new_pool(40)
        return cls(PageTable(pool, config, CHUNK, fused=fused), SdpaAttention(pool, turn=turn))

    def chunk(self, num_frames: int = CHUNK) -> Tensor:
        """Generate and commit a chunk; return what its noisy pass gave."""
        staging = self.table.begin(num_frames)
        out = self.noisy_pass(staging)
        frames = range(staging.frame_index, staging.frame_index + num_frames)
        forward(self.backend, [staging], [model_input(frames, self.prompt)])
        self.table.commit()
        return out

    def noisy_pass(self, staging: Staging) -> Tensor:
        frames = range(staging.frame_index, staging.frame_index + staging.num_frames)
        [out] = forward(self.backend, [staging], [model_input(frames, self.prompt, noise=1.0)])
        return out

    def recache(self, prompt: int, *, rebuild_sink: bool = False, causal: bool = False) -> None:
        self.prompt = prompt
        stagings = self.table.recache(rebuild_sink=rebuild_sink, causal=causal)
        spans = [range(s.frame_index, s.frame_index + s.num_frames) for s in stagings]
        forward(self.backend, stagings, [model_input(span, prompt) for span in spans])

    def sink(self) -> Tensor:
        """Return K and V of the sink's frames, [2, layers, frames * tokens, heads, head_dim]."""
        frames = self.table.frames[: self.table.config.sink_frames]
        pages = [page for frame in frames for page in self.table.pages_of(frame)]
        pool = self.table.pool
        sides = (torch.stack([layer[pages].flatten(0, 1) for layer in x]) for x in (pool.k, pool.v))
        return torch.stack(list(sides))


@dataclass
class DenseToy:
    """The same session from a plain list of K and V, in float64, by the policy's words alone."""

    config: WindowConfig
    prompt: int = 1
    next_frame: int = 0
    kv: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    view: list[int] = field(default_factory=list)

    def run(self, frames: Sequence[int], x: Tensor) -> Tensor:
        """Compute frames that see the view and one another."""
        x = x.double()
        seen = sorted({*self.view, *frames})
        places = list(seen)
        sink = self.config.sink_frames
        if self.config.rotary == "relative" and 0 < sink < len(seen):
            places = [seen[sink] - sink + i for i in range(sink)] + seen[sink:]
        for frame in frames:
            self.kv[frame] = []
        for layer in range(LAYERS):
            q, k, v = (x * weight.double() for weight in WEIGHTS[layer])
            pairs = zip(k.split(FRAME_TOKENS), v.split(FRAME_TOKENS), strict=True)
            for frame, pair in zip(frames, pairs, strict=True):
                self.kv[frame].append(pair)
            keys, values = (torch.cat([self.kv[f][layer][i] for f in seen]) for i in range(2))
            keys = rotate(keys, token_frames(places))
            own = [places[seen.index(frame)] for frame in frames]
            scores = torch.einsum("qhd,khd->hqk", rotate(q, token_frames(own)), keys)
            weights = (scores / HEAD_DIM**0.5).softmax(-1)
            x = x + torch.einsum("hqk,khd->qhd", weights, values)
        return x.float()

    def chunk(self, num_frames: int = CHUNK) -> Tensor:
        frames = range(self.next_frame, self.next_frame + num_frames)
        window, sink = self.config.window_frames, self.config.sink_frames
        assert window is not None
        evicted = max(0, len(self.view) + num_frames - window)
        del self.view[sink : sink + evicted]
        out = self.run(frames, model_input(frames, self.prompt, noise=1.0))
        self.run(frames, model_input(frames, self.prompt))
        self.view += frames
        self.next_frame += num_frames
        return out

    def recache(self, prompt: int, *, rebuild_sink: bool = False, causal: bool = False) -> None:
        self.prompt = prompt
        window, sink = self.config.window_frames, self.config.sink_frames
        assert window is not None
        frames = list(range(max(0, self.next_frame - window), self.next_frame))
        if not rebuild_sink and frames and frames[0] > 0:
            self.view, frames = self.view[:sink], frames[sink:]
        else:
            self.view = []
        starts = range(len(frames) % CHUNK - CHUNK, len(frames), CHUNK) if causal else [0]
        for start in starts:
            row = frames[max(start, 0) : start + CHUNK] if causal else frames
            if row:
                self.run(row, model_input(row, prompt))
                self.view += row

    def sink(self) -> Tensor:
        """Return the sink's K, at its own frames, and V, as `Toy.sink`."""
        frames = self.view[: self.config.sink_frames]
        sides = [
            [torch.cat([self.kv[f][layer][i] for f in frames]) for layer in range(LAYERS)]
            for i in range(2)
        ]
        sides[0] = [rotate(k, token_frames(frames)) for k in sides[0]]
        return torch.stack([torch.stack(side) for side in sides]).float()
