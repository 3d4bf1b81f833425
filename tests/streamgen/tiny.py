"""A model small enough for tests: the real architecture with seeded random weights.

Its preset has a first chunk shorter than the others, or not, as a test wants it. The text encoder
hashes words, so different prompts give different pictures.
"""

from __future__ import annotations

import dataclasses
import zlib

import torch
from torch import Tensor

from streamgen.config import EngineConfig, engine_config
from streamgen.models.causal_dit import DiTConfig
from streamgen.models.presets import Preset, TextEncoder
from streamgen.models.taehv import TAEHVConfig
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


def tiny_config(**options: object) -> EngineConfig:
    """Return engine options for tests: float32, poisoned pages, one thread, no clock to keep."""
    defaults: dict[str, object] = {
        "model": "tiny", "dtype": "fp32", "threads": 1, "poison_freed_pages": True,
        "max_utilisation": "none", "max_queue": 0,
    }  # fmt: skip
    return engine_config(flags=defaults | options)


def with_chunks(**layout: int) -> Preset:
    """Return the tiny preset with another chunk layout."""
    return dataclasses.replace(TINY, chunks=ChunkPlan(**layout))
