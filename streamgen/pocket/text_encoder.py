"""The text encoder of `pocket`: one token an attribute, a mixture of fixed codes.

The world of `pocket` is described by a few attributes. The encoder reads a prompt of any kind,
decides for each attribute how likely each of its values is (and how likely it is that the prompt
says nothing about it), and hands the video model the matching mixture of fixed codebook vectors. So
the video model is trained on exact codes, without any text, and two prompts that mean the same give
nearly the same embedding.

Words are not looked up in a vocabulary. A word is the sum of hashed vectors of itself and of its
letter groups, which is what lets an unseen inflection or a misspelt word land near the word it came
from.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from streamgen.models.loader import load_safetensors_strict
from streamgen.pocket.world import ATTRIBUTES, Scene

Labels = Mapping[str, str | None]

TEXT_LEN = len(ATTRIBUTES)
TEXT_DIM = 64
WEIGHTS = Path(__file__).parent / "weights" / "text_encoder.safetensors"

MAX_WORDS = 2_000  # as many as the longest prompt has characters
MAX_CHARACTERS = 16 * MAX_WORDS
MAX_WORD_LENGTH = 24
BUCKETS = 20_480
PADDING = BUCKETS

# Each attribute owns nine slots of the codebook: "unspecified" first, then its values in order. A
# value appended to an attribute leaves all earlier codes as they were, so that a video model that
# was trained before stays usable.
_SLOTS = 9
_CODE_SEED = 20_240

_WORD = re.compile(rf"[^\W_]{{1,{MAX_WORD_LENGTH}}}|[^\w\s]")
_IGNORED = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~’‘“”…–—\ufe0f\u200d")


def _orthonormal(size: int, seed: int) -> np.ndarray:
    """Return `size` seeded random orthonormal rows; Gram-Schmidt, so no LAPACK flips a sign."""
    rows = np.random.default_rng(seed).standard_normal((size, size))
    for i in range(size):
        for _ in range(2):  # the second pass removes what rounding left
            rows[i] -= rows[:i].T @ (rows[:i] @ rows[i])
        rows[i] /= np.linalg.norm(rows[i])
    return rows


@lru_cache(maxsize=1)
def codebook() -> Tensor:
    """Return the fixed codes, float32 [TEXT_LEN, 9, TEXT_DIM], root mean square 1.

    Slot 0 of an attribute is "unspecified". Raises ValueError when the world outgrew the codebook.
    """
    if TEXT_LEN * _SLOTS > TEXT_DIM or any(len(v) >= _SLOTS for v in ATTRIBUTES.values()):
        raise ValueError(
            f"the codebook holds {TEXT_DIM // _SLOTS} attributes of {_SLOTS - 1} values, "
            f"but the world has {[len(v) for v in ATTRIBUTES.values()]}"
        )
    rows = _orthonormal(TEXT_DIM, _CODE_SEED)[: TEXT_LEN * _SLOTS] * TEXT_DIM**0.5
    return torch.from_numpy(rows.astype(np.float32)).reshape(TEXT_LEN, _SLOTS, TEXT_DIM)


def label_indices(labels: Sequence[Labels | Scene]) -> Tensor:
    """Return the slot of each attribute's value, int64 [n, TEXT_LEN]; 0 where it is None or absent.

    Raises ValueError for a value that the attribute does not have.
    """
    table = []
    for item in labels:
        row = []
        for name, values in ATTRIBUTES.items():
            value = item.get(name) if isinstance(item, Mapping) else getattr(item, name)
            if value is not None and value not in values:
                raise ValueError(f"{name} has no value {value!r}; it has {', '.join(values)}")
            row.append(0 if value is None else values.index(value) + 1)
        table.append(row)
    return torch.tensor(table, dtype=torch.int64).reshape(len(labels), TEXT_LEN)


def codes(labels: Sequence[Labels | Scene]) -> Tensor:
    """Return the exact embedding of known labels, float32 [n, TEXT_LEN, TEXT_DIM].

    A missing or None value is "unspecified". Raises ValueError for a value that the attribute does
    not have.
    """
    return codebook()[torch.arange(TEXT_LEN), label_indices(labels)]


def split_words(prompt: str) -> list[str]:
    """Return the first 2,000 words of a prompt, folded.

    A symbol such as an emoji is a word, punctuation is none. The work is bounded: no more than the
    first 32,000 characters are read.
    """
    text = unicodedata.normalize("NFKC", prompt[:MAX_CHARACTERS]).casefold()[:MAX_CHARACTERS]
    words = (word for word in _WORD.findall(text) if word not in _IGNORED)
    return [word for word, _ in zip(words, range(MAX_WORDS), strict=False)]


@lru_cache(maxsize=16_384)
def word_features(word: str) -> tuple[int, ...]:
    """Return the hashed features of one word: itself, twice, and its groups of 3 to 5 letters."""
    marked = f"<{word}>"
    groups = {marked[i : i + n] for n in (3, 4, 5) for i in range(len(marked) - n + 1)}
    ordered = [f"={word}", f"~{word}", *sorted(groups)]
    return tuple(zlib.crc32(g.encode("utf-8", "surrogatepass")) % BUCKETS for g in ordered)


def featurize(prompts: Sequence[str]) -> Tensor:
    """Return the features of prompts, int64 [n, words, features], filled up with PADDING.

    There is room for at least one word and one feature.
    """
    words = [[word_features(word) for word in split_words(prompt)] for prompt in prompts]
    longest = max((len(row) for row in words), default=0)
    widest = max((len(features) for row in words for features in row), default=0)
    table = np.full((len(prompts), max(longest, 1), max(widest, 1)), PADDING, dtype=np.int64)
    for i, row in enumerate(words):
        for j, features in enumerate(row):
            table[i, j, : len(features)] = features
    return torch.from_numpy(table)


class _Block(nn.Module):
    """One transformer block over the attribute queries and the words, with norms up front."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm_ffn = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, tokens, dim = x.shape
        q, k, v = (
            self.qkv(self.norm_attention(x))
            .view(n, tokens, 3, self.heads, dim // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        # Spelt out: in training on CPUs the fused kernel's backward pass is many times slower.
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        mixed = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(n, tokens, dim))
        result: Tensor = x + self.down(F.gelu(self.up(self.norm_ffn(x))))
        return result


class ConceptEncoder(nn.Module):
    """Read prompts into one embedding token for each attribute of the world.

    `temperature` below 1 sharpens the mixture, so that paraphrases differ little. All parameters
    are float32 in memory and bfloat16 on disk.
    """

    codes: Tensor
    allowed: Tensor

    def __init__(self, dim: int = 128, hashed_dim: int = 64, temperature: float = 0.25) -> None:
        super().__init__()
        self.temperature = temperature
        self.table = nn.Parameter(torch.randn(BUCKETS + 1, hashed_dim) * 0.5)
        self.project = nn.Linear(hashed_dim, dim)
        # Word order enters only here, through near neighbours: a long prompt is then no different
        # from a short one.
        self.neighbours = nn.Conv1d(dim, dim, 5, padding=2)
        self.queries = nn.Parameter(torch.randn(TEXT_LEN, dim) * 0.5)
        self.blocks = nn.ModuleList(_Block(dim, 4) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.heads = nn.Parameter(torch.randn(TEXT_LEN, _SLOTS, dim) * dim**-0.5)
        self.register_buffer("codes", codebook().clone())
        allowed = torch.tensor([[s <= len(v) for s in range(_SLOTS)] for v in ATTRIBUTES.values()])
        self.register_buffer("allowed", allowed, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits, float32 [n, TEXT_LEN, 9], for hashed features int64 [n, words, features].

        Slots without a value are -inf.
        """
        real = features != PADDING
        count = real.sum(-1, keepdim=True)
        ends = count.flatten().cumsum(0)
        bags = F.embedding_bag(features[real], self.table, ends - count.flatten(), mode="sum")
        hashed = bags.view(*features.shape[:2], -1) / count.clamp(min=1).sqrt()
        words = self.project(hashed) * (count > 0)
        words = words + F.gelu(self.neighbours(words.transpose(1, 2)).transpose(1, 2))
        x = torch.cat([self.queries.expand(len(features), -1, -1), words], dim=1)
        seen = torch.cat([torch.ones(len(x), TEXT_LEN, device=x.device), count[..., 0]], dim=1) > 0
        for block in self.blocks:
            x = block(x, seen[:, None, None, :])
        logits = torch.einsum("nad,asd->nas", self.norm(x[:, :TEXT_LEN]), self.heads)
        return logits.masked_fill(~self.allowed, -torch.inf)

    @torch.no_grad()
    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Return embeddings, float32 [n, TEXT_LEN, TEXT_DIM].

        Each prompt is computed on its own, so that its company does not change it.
        """
        if not prompts:
            return torch.empty(0, TEXT_LEN, TEXT_DIM, device=self.codes.device)
        return torch.cat([self.mixture(self._logits(prompt)) for prompt in prompts])

    def mixture(self, logits: Tensor) -> Tensor:
        """Return the sharpened mixture of codes, float32 [n, TEXT_LEN, TEXT_DIM], for logits."""
        weights = torch.softmax(logits / self.temperature, dim=-1)
        return torch.einsum("nas,asd->nad", weights, self.codes)

    @torch.no_grad()
    def attributes(self, prompt: str) -> dict[str, tuple[str | None, float]]:
        """Return the likeliest value (None: unspecified) of each attribute and its probability."""
        probabilities = torch.softmax(self._logits(prompt)[0], dim=-1)
        best, slots = probabilities.max(dim=-1)
        return {
            name: (values[slot - 1] if slot else None, p)
            for (name, values), slot, p in zip(
                ATTRIBUTES.items(), slots.tolist(), best.tolist(), strict=True
            )
        }

    def _logits(self, prompt: str) -> Tensor:
        logits: Tensor = self(featurize([prompt]).to(self.codes.device))
        return logits

    @classmethod
    def load(cls, path: str | Path = WEIGHTS, device: str | torch.device = "cpu") -> ConceptEncoder:
        """Return the encoder with the weights of a safetensors file.

        Raises CheckpointError when the file is missing or does not fit exactly.
        """
        encoder = cls()
        load_safetensors_strict(encoder, path)
        return encoder.eval().to(device)

    def save(self, path: str | Path) -> None:
        """Write the weights as safetensors in bfloat16, the codebook in float32."""
        state = self.state_dict()
        packed = {k: v if k == "codes" else v.to(torch.bfloat16) for k, v in state.items()}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_file({k: v.detach().cpu().contiguous() for k, v in packed.items()}, str(path))
        Path(path).chmod(0o644)  # safetensors writes for the owner alone; a wheel would keep that
