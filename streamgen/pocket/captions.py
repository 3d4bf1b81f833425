"""A grammar that describes scenes in varied English: word order, length, style, synonyms, gaps.

The same scene can become "red ball", "A crimson sphere hops across the lawn at midnight." or
"night, sea, drizzle, violet heart drifting". Words come from `synonyms.yaml`. A frame says all that
its writer has to say, in one word order. The `heldout` split uses frames and some words that the
`train` split never uses. Everything is a pure function of the generator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

import numpy as np

from streamgen.pocket.grammar import Split, Writer
from streamgen.pocket.world import ATTRIBUTES, Scene

Frame = Callable[[Writer], str]


def _statement(w: Writer) -> str:
    return f"{w.thing()} {w.verb('s')} {w.around()}"


def _past(w: Writer) -> str:
    return f"{w.thing()} {w.verb('ed')} {w.around()}"


def _fronted(w: Writer) -> str:
    phrases = w.surroundings() or [""]
    return f"{phrases[0]}, {w.thing()} {w.verb('s')} {' '.join(phrases[1:])}"


def _participle(w: Writer) -> str:
    return f"{w.thing()} {w.verb('ing')} {w.around()}"


def _progressive(w: Writer) -> str:
    return f"{w.thing()} is {w.verb('ing')} {w.around()}"


def _relative(w: Writer) -> str:
    return f"{w.thing()} {w.pick(('that', 'which', 'who'))} {w.verb('s')} {w.around()}"


def _inner(w: Writer) -> str:
    thing, around = w.thing(), w.around()
    return f"{thing} {around} {w.verb('s')}"


def _command(w: Writer) -> str:
    order = (
        "show", "show me", "draw", "make", "generate", "animate", "create", "render", "give me",
        "play", "display", "paint", "film", "I want", "let me see", "we need", "watch", "add",
        "put", "bring", "start with", "look at", "find", "visualise",
    )  # fmt: skip
    return f"{w.pick(order)} {w.thing()} {w.verb('ing')} {w.around()}"


def _let(w: Writer) -> str:
    return f"{w.pick(('make', 'let', 'have', 'see'))} {w.thing()} {w.verb('base')} {w.around()}"


def _video_of(w: Writer) -> str:
    kind = w.pick(
        ("video", "clip", "animation", "scene", "shot", "movie", "short film", "picture", "view",
         "footage", "cartoon", "loop", "gif", "close-up", "wide shot", "drawing", "story")
    )  # fmt: skip
    return f"{w.pick(('a', 'the', 'short', ''))} {kind} of {w.thing()} {w.verb('ing')} {w.around()}"


def _there_is(w: Writer) -> str:
    return f"{w.pick(('there is', 'here is', 'we see'))} {w.thing()} {w.verb('ing')} {w.around()}"


def _telegram(w: Writer) -> str:
    return w.pick((", ", ", ", " ", " ", " - ", "; ", ". ", "\n", " / ")).join(w.pieces())


def _two_sentences(w: Writer) -> str:
    thing = f"{w.thing()} {w.verb('s')} {w.around() if w.chance(0.3) else ''}"
    around = w.around()
    scene = f"{w.pick(('it is', 'it happens', 'everything is', 'we are', ''))} {around}"
    if not around:
        return thing
    return f"{scene}. {thing}" if w.chance(0.5) else f"{thing}. {scene}"


def _scene_first(w: Writer) -> str:
    time, weather = w.term("time", "_noun"), w.term("weather", "_adjective")
    place = w.place_noun() if w.open("place") else ""
    opening = " ".join((weather, time, f"{w.pick(('at', 'in', 'on', 'over', ','))} {place}"))
    return f"{opening if place else f'{weather} {time}'}. {w.thing()} {w.verb('s')}"


def _key_values(w: Writer) -> str:
    keys = {
        "place": ("place", "where", "location", "background", "setting", "ground"),
        "time": ("time", "when", "time of day", "light"),
        "weather": ("weather", "sky", "conditions"),
        "shape": ("shape", "object", "what", "subject", "form"),
        "colour": ("colour", "color", "paint"),
        "motion": ("motion", "movement", "action", "it"),
    }
    lines = []
    for name, options in keys.items():
        if w.open(name):
            value = w.term(name, "_noun" if name in ("time", "weather") else "").removeprefix("+")
            lines.append(f"{w.pick(options)}{w.pick((':', ' =', ' is', ':'))} {value}")
    w.rng.shuffle(lines)
    return w.pick((", ", "; ", "\n", " ")).join(lines)


def _question(w: Writer) -> str:
    start = w.pick(("can you show", "could we have", "how about", "may I see", "would you draw"))
    return f"{start} {w.thing()} {w.verb('ing')} {w.around()}?"


def _with_thing(w: Writer) -> str:
    around = w.around()
    return f"{around} {w.pick(('with', 'and', ':', '- there is'))} {w.thing()} {w.verb('ing')}"


def _change(w: Writer) -> str:
    """Only what changes, as people write when they steer a running stream."""
    parts = []
    if w.open("colour"):
        colour = w.term("colour")
        start = ("make it", "turn it", "now", "change the colour to", "it becomes", "paint it")
        parts.append(f"{w.pick(start)} {colour}")
    if w.open("shape"):
        start = (
            "turn it into a",
            "now a",
            "change it to a",
            "it becomes a",
            "instead, a",
            "make a",
        )
        parts.append(f"{w.pick(start)} {w.term('shape')}")
    if w.open("motion"):
        parts.append(
            f"{w.pick(('let it', 'make it', 'now it should', 'it will'))} {w.verb('base')}"
        )
    for phrase in w.surroundings():
        first = ("now", "move", "go", "switch to", "and now", "let it be", "suddenly", "make it be")
        parts.append(f"{w.pick(first)} {phrase}")
    w.rng.shuffle(parts)
    return w.pick((", ", " and ", ". ", " then ")).join(parts)


def _wish(w: Writer) -> str:
    return f"I would like to see {w.thing()} {w.verb('ing')} {w.around()}"


def _imagine(w: Writer) -> str:
    phrases = " and ".join(w.surroundings())
    return f"imagine {phrases or 'this'}, where {w.thing()} {w.verb('s')}"


def _aside(w: Writer) -> str:
    phrases = w.surroundings() or [""]
    return f"{w.thing()} - {w.verb('ing')} - {phrases[0]}; {', '.join(phrases[1:])}"


def _should(w: Writer) -> str:
    return f"what about {w.thing()}? It should {w.verb('base')} {w.around()}"


def _reversed_telegram(w: Writer) -> str:
    return w.pick((" + ", " | ", " & ", " * ", " → ")).join(w.pieces())


def _have_it(w: Writer) -> str:
    thing, around = w.thing(), w.around()
    return f"kindly place {thing} {around} and get it to {w.verb('base')}"


def _trailing_subject(w: Writer) -> str:
    verb = w.verb("s")
    return f"it {verb} {w.around()}: {w.thing()}"


def _camera(w: Writer) -> str:
    around = w.around()
    return f"the camera opens {around} and finds {w.thing()} {w.verb('ing')}"


def _heading(w: Writer) -> str:
    place = w.place_noun() if w.open("place") else "title"
    return f"{place}: {w.thing('')}, {w.verb('ing')}, {w.around()}"


FRAMES: Final[dict[Split, tuple[Frame, ...]]] = {
    "train": (
        _statement, _statement, _statement, _past, _fronted, _fronted, _participle, _participle,
        _progressive, _relative, _inner, _command, _command, _let, _video_of, _there_is, _telegram,
        _telegram, _telegram, _two_sentences, _two_sentences, _scene_first, _key_values, _question,
        _with_thing, _change, _change,
    ),
    "heldout": (
        _wish, _imagine, _aside, _should, _reversed_telegram, _have_it, _trailing_subject, _camera,
        _heading,
    ),
}  # fmt: skip


def caption(
    scene: Scene,
    rng: np.random.Generator,
    *,
    split: Split = "train",
    drop: Collection[str] = (),
) -> tuple[str, dict[str, str | None]]:
    """Describe a scene in English; return the caption and the label of each attribute.

    Attributes named in `drop` are left out, and their label is None.
    """
    labels: dict[str, str | None] = {
        name: None if name in drop else value for name, value in scene.labels().items()
    }
    writer = Writer(labels, rng, split)
    frame = writer.pick(FRAMES[split])
    text = frame(writer)
    missing = [name for name in ATTRIBUTES if writer.open(name)]
    if missing:
        raise AssertionError(f"the frame {frame.__name__} left out {missing}: {text!r}")
    return _finish(text, writer), labels


def random_drop(rng: np.random.Generator) -> tuple[str, ...]:
    """Draw which attributes a caption leaves out: often none, sometimes nearly all."""
    if rng.random() < 0.35:
        return ()
    p = rng.random()
    return tuple(name for name in ATTRIBUTES if rng.random() < p)


def _finish(text: str, writer: Writer) -> str:
    """Mend spaces and articles, then choose letter case, punctuation and perhaps a style tail."""
    if writer.chance(0.12):
        text += f", {writer.outside('tails')}"
    text = re.sub(r"\s+([,.;:!?)])", r"\1", re.sub(r"[ \t]+", " ", text))
    text = re.sub(r",+([,.;:?!])", r"\1", text).strip(" ,")
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    style = writer.rng.random()
    if style < 0.35:
        text = re.sub(r"(^|[.!?] )([a-z])", lambda m: m[1] + m[2].upper(), text)
    elif style < 0.40:
        text = text.upper()
    elif style < 0.45:
        text = text.title()
    if text[-1:] not in ".?!":
        text += writer.pick(("", "", "", ".", ".", "!", "..."))
    return text
