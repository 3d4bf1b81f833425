"""Prompts that say nothing about the world, and slips of the pen: what an encoder must bear."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from streamgen.pocket.grammar import terms


def outside(rng: np.random.Generator) -> str:
    """Return a prompt that says nothing about the world: other things, chat, other scripts."""
    kind = rng.random()
    if kind < 0.35:
        pick = [
            str(rng.choice(terms("outside", kind, "train")))
            for kind in ("adjectives", "nouns", "verbs", "places")
        ]
        return " ".join(("a", *pick))
    if kind < 0.55:
        return str(rng.choice(terms("outside", "sentences", "train")))
    return " ".join(random_word(rng) for _ in range(int(rng.integers(0, 12))))


# First and last code point of scripts and symbols that say nothing to this world.
_SCRIPTS: Final = (
    (0x4E00, 0x9FA5), (0x3041, 0x3096), (0xAC00, 0xD7A3), (0x0430, 0x044F), (0x0627, 0x064A),
    (0x05D0, 0x05EA), (0x03B1, 0x03C9), (0x0905, 0x0939), (0x1F600, 0x1F64F), (0x1F680, 0x1F6C5),
    (0x0E01, 0x0E2E), (0x00E0, 0x00FF), (0x1F400, 0x1F43F), (0x0030, 0x0039),
)  # fmt: skip


def random_word(rng: np.random.Generator) -> str:
    """Return a made-up word: syllables, letters, or characters of another script."""
    kind = rng.random()
    if kind < 0.5:
        onset, vowel = (
            "b br c ch d dr f fl g gr h j k l m n p pl pr qu r s sh st t tr v w z",
            "aeiouy",
        )
        parts = [
            str(rng.choice(onset.split())) + str(rng.choice(list(vowel)))
            for _ in range(int(rng.integers(1, 4)))
        ]
        return "".join(parts) + str(rng.choice(["", "n", "s", "r", "t", "ng", "ld", "ck", "m"]))
    if kind < 0.7:
        return "".join(chr(int(c)) for c in rng.integers(97, 123, int(rng.integers(1, 10))))
    first, last = _SCRIPTS[int(rng.integers(len(_SCRIPTS)))]
    return "".join(chr(int(c)) for c in rng.integers(first, last + 1, int(rng.integers(1, 8))))


def misspell(text: str, rng: np.random.Generator, rate: float = 0.3) -> str:
    """Return the text with one slip in a share `rate` of its words of four letters and more."""
    return re.sub(
        r"[^\W\d_]{4,}", lambda m: _slip(m[0], rng) if rng.random() < rate else m[0], text
    )


def _slip(word: str, rng: np.random.Generator) -> str:
    i = int(rng.integers(1, len(word) - 1))
    kind = int(rng.integers(4))
    if kind == 0:  # two letters swapped
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if kind == 1:  # a letter lost
        return word[:i] + word[i + 1 :]
    if kind == 2:  # a letter twice
        return word[:i] + word[i] + word[i:]
    return word[:i] + chr(int(rng.integers(97, 123))) + word[i + 1 :]
