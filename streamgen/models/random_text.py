"""Embeddings without a text encoder, for models whose weights are random as well."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

TOKENS_A_WORD = 2


@dataclass(frozen=True, slots=True)
class RandomText:
    """Embed each prompt as noise that its bytes seed, as long as its words, then zeros."""

    text_len: int
    text_dim: int

    def encode(self, prompts: list[str]) -> Tensor:
        """Return embeddings, float32 `[n, text_len, text_dim]`."""
        embeds = torch.zeros(len(prompts), self.text_len, self.text_dim)
        for i, prompt in enumerate(prompts):
            num_tokens = min(TOKENS_A_WORD * len(prompt.split()), self.text_len)
            generator = torch.Generator().manual_seed(zlib.crc32(prompt.encode()))
            embeds[i, :num_tokens] = torch.randn(num_tokens, self.text_dim, generator=generator)
        return embeds


def random_text(text_len: int, text_dim: int, dummy: bool) -> RandomText:
    """Return the stand-in for a published model's text encoder; bind the sizes with `partial`."""
    assert dummy, "a published model's text encoder is read with its other files"
    return RandomText(text_len, text_dim)
