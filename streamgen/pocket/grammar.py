"""The words and phrases of captions: synonyms, inflected verbs, noun phrases, surroundings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeVar

import numpy as np
import yaml

Split = Literal["train", "heldout"]
Form = Literal["base", "s", "ing", "ed"]
T = TypeVar("T")

_SURROUNDINGS: Final = ("place", "time", "weather")
_PREPOSITIONS: Final = (
    "on",
    "in",
    "over",
    "across",
    "above",
    "near",
    "by",
    "at",
    "along",
    "beside",
)
_DETERMINERS: Final = ("a", "a", "a", "a", "the", "the", "one", "this", "that", "my", "some", "")
_PAST: Final = {
    "sit": "sat", "stand": "stood", "fly": "flew", "sweep": "swept", "swing": "swung", "do": "did",
    "lie": "lay", "go": "went", "spring": "sprang", "keep": "kept", "be": "was", "hold": "held",
    "take": "took", "have": "had", "fall": "fell", "rise": "rose", "sleep": "slept",
    "swim": "swam", "run": "ran", "slide": "slid", "creep": "crept", "hang": "hung",
    "freeze": "froze",
    "leap": "leapt", "eat": "ate", "drink": "drank", "write": "wrote", "fight": "fought",
    "grow": "grew", "shrink": "shrank", "break": "broke", "shake": "shook", "see": "saw",
    "think": "thought", "drive": "drove", "draw": "drew", "build": "built", "catch": "caught",
    "throw": "threw", "speak": "spoke", "shine": "shone", "spin": "spun", "sing": "sang",
    "read": "read", "burn": "burnt",
}  # fmt: skip
_DOUBLED: Final = frozenset(
    ("hop", "bob", "skip", "sit", "swim", "run", "stop", "squat", "slip", "scud", "skim", "chat",
     "hug", "spin", "nap")
)  # fmt: skip


@cache
def _words() -> dict[str, dict[str, str]]:
    text = Path(__file__).with_name("synonyms.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, str]] = yaml.safe_load(text)
    return loaded


@cache
def terms(role: str, value: str, split: Split) -> tuple[str, ...]:
    """Return the words for a value in a role, such as ("colour", "red"); `heldout` may be empty."""
    train, _, heldout = _words()[role][value].partition("|")
    entries = (heldout if split == "heldout" else train).split(",")
    return tuple(entry.strip() for entry in entries if entry.strip())


def inflect(verb: str, form: Form) -> str:
    """Return a verb phrase with its first word inflected: bounce, bounces, bouncing, bounced."""
    first, _, rest = verb.partition(" ")
    if form == "base":
        return verb
    if first in ("not", "never"):
        before = {"s": "does not", "ing": "not", "ed": "did not"}[form]
        return f"{before} {inflect(rest, 'ing') if form == 'ing' else rest}"
    if form == "s":
        word = {"be": "is", "have": "has"}.get(first) or first + "s"
        if first.endswith(("s", "sh", "ch", "x", "z", "go", "do")):
            word = first + "es"
        elif re.search(r"[^aeiou]y$", first):
            word = first[:-1] + "ies"
    elif form == "ing":
        stem = first + first[-1] if first in _DOUBLED else first
        if first == "lie":
            stem = "ly"
        elif first.endswith("e") and not first.endswith(("ee", "be")):
            stem = first[:-1]
        word = stem + "ing"
    elif first in _PAST:
        word = _PAST[first]
    else:
        stem = first + first[-1] if first in _DOUBLED else first.removesuffix("e")
        word = (stem[:-1] + "i" if re.search(r"[^aeiou]y$", stem) else stem) + "ed"
    return f"{word} {rest}".strip()


class Writer:
    """Chooses words for one caption. A label that is None is left out, or filled from outside."""

    def __init__(
        self, labels: dict[str, str | None], rng: np.random.Generator, split: Split
    ) -> None:
        self.labels = labels
        self.rng = rng
        self.split = split
        self.consumed: set[str] = set()
        # Some captions keep to plain words, some fill the gaps with things the world has not.
        self.filler = rng.random() * 0.6
        self.foreign = rng.random() < 0.3

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def outside(self, kind: str) -> str:
        return self.pick(terms("outside", kind, "train"))

    def term(self, attribute: str, suffix: str = "") -> str:
        """Return a word for an attribute, "" when it is left out; it counts as said."""
        value = self.labels[attribute]
        self.consumed.add(attribute)
        if value is None:
            return ""
        if self.split == "heldout" and self.chance(0.4):
            unseen = terms(attribute + suffix, value, "heldout")
            if unseen:
                return self.pick(unseen)
        return self.pick(terms(attribute + suffix, value, "train"))

    def open(self, attribute: str) -> bool:
        """Return whether the caption still has to say this attribute."""
        return attribute not in self.consumed and self.labels[attribute] is not None

    def thing(self, determiner: str | None = None) -> str:
        """Return the object with its colour: "a small red ball", "the ball, crimson"."""
        noun = self.term("shape") or (
            self.outside("nouns") if self.chance(0.7) else self.pick(("thing", "object", "it"))
        )
        if noun == "it":
            noun = "thing"
        colour = self.term("colour")
        words = [self.outside("adjectives")] if self.chance(self.filler) else []
        if self.open("motion") and self.chance(0.12):
            words.append(self.term("motion", "_adjective"))
        after = ""
        if colour and self.chance(0.15):
            frame = self.pick(
                ("that is {}", "coloured {}", "in {}", "of {} colour", ", {},", "painted {}",
                 "with a {} colour", "which is {}", "({})", "all in {}", "of a {} shade")
            )  # fmt: skip
            after = frame.format(colour)
        elif colour:
            words.append(colour)
            if self.chance(self.filler * 0.3):
                words.append(self.outside("adjectives"))
        first = self.pick(_DETERMINERS) if determiner is None else determiner
        return " ".join((first, *words, noun, after))

    def verb(self, form: Form) -> str:
        """Return the motion as an inflected verb; "" when it is said or left out."""
        if self.open("motion"):
            if form != "base" and self.chance(0.12):
                adjective = self.term("motion", "_adjective")
                return {"s": "is ", "ed": "was ", "ing": ""}[form] + adjective
            return inflect(self.term("motion"), form)
        if self.labels["motion"] is None and self.foreign and self.chance(0.5):
            return inflect(self.outside("verbs"), form)
        return {"s": "is", "ed": "was", "base": "be", "ing": ""}[form]

    def place_noun(self) -> str:
        """Return the place with an article and perhaps with the time or weather: "a rainy sea"."""
        value = self.labels["place"]
        noun = self.term("place")
        articles = ("the", "the", "") if noun.startswith("+") else ("the", "the", "a", "a", "")
        words = [self.pick(articles)]
        for attribute in ("weather", "time"):
            if self.open(attribute) and self.chance(0.12):
                words.append(self.term(attribute, "_adjective"))
        if value is not None and self.chance(self.filler * 0.6):
            words.append(self.pick(terms("place_decor", value, "train")))
        return " ".join((*words, noun.removeprefix("+")))

    def joint(self) -> str:
        """Return one phrase for two open attributes, "" when there is none for them."""
        fitting = [key for key in _words()["joint"] if self._joins(key)]
        if not fitting:
            return ""
        key = self.pick(fitting)
        self.consumed.update(name for name in _SURROUNDINGS if self.labels[name] in key.split())
        unseen = terms("joint", key, "heldout")
        if self.split == "heldout" and unseen and self.chance(0.4):
            return self.pick(unseen)
        return self.pick(terms("joint", key, "train"))

    def _joins(self, key: str) -> bool:
        values = {self.labels[name] for name in _SURROUNDINGS if self.open(name)}
        return values.issuperset(key.split())

    def surroundings(self) -> list[str]:
        """Return phrases for what is open of place, time and weather, in any order."""
        phrases = [self.joint()] if self.chance(0.3) else []
        if self.open("time") and self.open("weather") and self.chance(0.2):
            adjective, noun = self.term("weather", "_adjective"), self.term("time", "_noun")
            phrases.append(f"{self.pick(('on', 'in', 'during'))} a {adjective} {noun}")
        if self.open("place"):
            phrases.append(f"{self.pick(_PREPOSITIONS)} {self.place_noun()}")
        elif self.labels["place"] is None and self.foreign and self.chance(0.5):
            phrases.append(self.outside("places"))
        phrases += [self.term(name) for name in ("time", "weather") if self.open(name)]
        if self.chance(0.4):
            self.rng.shuffle(phrases)
        return [phrase for phrase in phrases if phrase]

    def around(self) -> str:
        """Return the surroundings as one run of words."""
        return self.pick((" ", " ", ", ")).join(self.surroundings())

    def pieces(self) -> list[str]:
        """Return bare words for everything open, as in a telegram."""
        parts = []
        if self.open("motion") and self.chance(0.5):
            verb = self.term("motion")
            parts.append(inflect(verb, self.pick(("ing", "s", "base"))))
        elif self.open("motion"):
            parts.append(self.term("motion", "_adjective"))
        for name in ("time", "weather"):
            if self.open(name):
                parts.append(self.term(name, self.pick(("_noun", "_noun", "_adjective"))))
        if self.open("place"):
            parts.append(self.term("place").removeprefix("+"))
        colour, shape = self.term("colour"), self.term("shape")
        parts += [f"{colour} {shape}"] if self.chance(0.7) else [colour, shape]
        self.rng.shuffle(parts)
        return [part for part in parts if part.strip()]
