"""A model small enough for tests: the real architecture with seeded random weights.

Its preset has a first chunk shorter than the others, or not, as a test wants it. The text encoder
hashes words, so different prompts give different pictures.
"""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import torch
from torch import Tensor

from streamgen.config import EngineConfig, engine_config
from streamgen.messages import Chunk, Event
from streamgen.models.causal_dit import DiTConfig
from streamgen.models.presets import Preset, TextEncoder
from streamgen.models.taehv import TAEHVConfig
from streamgen.session import Session
from streamgen.session_config import SessionRequest
from streamgen.startup import start_engine
from streamgen.step import ChunkPlan

TEXT_LEN, TEXT_DIM = 4, 16


class HashEncoder:
    """Embed a prompt as noise seeded by its bytes."""

    num_calls = 0

    def encode(self, prompts: list[str]) -> Tensor:
        self.num_calls += 1
        return torch.stack([self._embed(prompt) for prompt in prompts])

    def _embed(self, prompt: str) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(prompt.encode()))
        return torch.randn(TEXT_LEN, TEXT_DIM, generator=generator)


def hash_encoder(dummy: bool) -> TextEncoder:
    return HashEncoder()


TINY = Preset(
    name="tiny",
    dit=DiTConfig(
        dim=48, ffn_dim=64, num_layers=2, num_heads=2, in_dim=4, out_dim=4,
        text_dim=TEXT_DIM, text_len=TEXT_LEN, freq_dim=32,
    ),
    vae=TAEHVConfig(latent_channels=4, encoder_width=8, decoder_widths=(16, 8, 8, 8)),
    text_encoder=hash_encoder,
    weights=None,
    shift=3.0,
    sampler="renoise",
    steps=2,
    step_range=(1, 4),
    size=(48, 32),
    max_pixels=128 * 128,
    fps=16,
    chunks=ChunkPlan(chunk_frames=3),
    window_frames=9,
)  # fmt: skip


class FakeClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def tiny_config(**options: object) -> EngineConfig:
    """Return engine options for tests: float32, poisoned pages, one thread."""
    defaults: dict[str, object] = {
        "model": "tiny", "dtype": "fp32", "threads": 1, "poison_freed_pages": True,
    }  # fmt: skip
    return engine_config(flags=defaults | options)


class Studio:
    """An engine over random weights, and viewers that play every chunk as soon as it is there."""

    def __init__(self, preset: Preset = TINY, **options: object) -> None:
        self.clock = FakeClock()
        self.chunks: dict[str, list[Chunk]] = {}
        self.events: dict[str, list[Event]] = {}
        self.engine = start_engine(
            tiny_config(**options), self._deliver, preset=preset, clock=self.clock
        )
        self.pool = self.engine.runner.pool

    def __enter__(self) -> Studio:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.decoder.close()

    def open(self, prompt: str = "a red ball", seed: int = 42, **fields: object) -> Session:
        return self.engine.open(SessionRequest(prompt=prompt, seed=seed, **fields))

    def step(self) -> bool:
        """Run one pass, and all decodes that were begun before it."""
        self.clock.now += 0.01
        waiting = self.engine.num_decoding
        ran = self.engine.step()
        self.engine.emit_decoded(wait_for=waiting)
        return ran or waiting > 0

    def make(self, session: Session, num_chunks: int) -> list[Chunk]:
        """Step until the session has so many chunks, and return them."""
        while len(self.chunks.get(session.id, [])) < num_chunks:
            assert self.step(), f"{session.state}: nothing more comes of {session.id}"
        return self.chunks[session.id][:num_chunks]

    def audit(self) -> int:
        """Check the books of the pool and return how many pages nobody has."""
        self.pool.allocator.audit()
        return self.pool.allocator.num_free

    def _deliver(self, session_id: str, item: Chunk | Event) -> None:
        if not isinstance(item, Chunk):
            self.events.setdefault(session_id, []).append(item)
            return
        self.chunks.setdefault(session_id, []).append(item)
        self.engine.played(session_id, item.first_frame_index + len(item.frames) - 1)


def assert_same(some: list[Chunk], others: list[Chunk]) -> None:
    """Require the same chunks to the last bit."""
    assert [c.index for c in some] == [c.index for c in others]
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one.latents, other.latents, f"latents of {one.index}")
        np.testing.assert_array_equal(one.frames, other.frames, f"frames of {one.index}")


def with_chunks(**layout: int) -> Preset:
    """Return the tiny preset with another chunk layout."""
    return dataclasses.replace(TINY, chunks=ChunkPlan(**layout))
