import re

import numpy as np
import pytest

from streamgen.pocket.captions import FRAMES, caption, random_drop
from streamgen.pocket.grammar import Writer, inflect, terms
from streamgen.pocket.outside import misspell, outside
from streamgen.pocket.world import ATTRIBUTES, Scene, random_scene

SCENE = Scene("sea", "night", "rain", "star", "red", "drifts")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_same_generator_same_captions():
    first = [caption(SCENE, r)[0] for r in [rng()] for _ in range(50)]
    second = [caption(SCENE, r)[0] for r in [rng()] for _ in range(50)]
    assert first == second


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_captions_vary(split):
    r = rng()
    captions = [caption(SCENE, r, split=split)[0] for _ in range(500)]
    assert len(set(captions)) > 490
    lengths = [len(c.split()) for c in captions]
    assert min(lengths) <= 8
    assert max(lengths) >= 18


def test_a_full_caption_says_every_attribute():
    """Take the words away that any list knows for a value: none of the six lists comes up empty."""
    r = rng(1)
    for _ in range(300):
        scene = random_scene(r)
        text, labels = caption(scene, r)
        assert labels == scene.labels()
        folded = text.casefold()
        for name in ("colour", "shape"):
            words = terms(name, labels[name], "train")
            assert any(w.casefold() in folded for w in words), (name, text)


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_dropped_attributes_are_labelled_none_and_not_said(split, name):
    r = rng(2)
    for _ in range(40):
        _, labels = caption(random_scene(r), r, split=split, drop=(name,))
        assert [key for key, value in labels.items() if value is None] == [name]


def test_every_frame_says_all_that_is_open():
    r = rng(3)
    for split, frames in FRAMES.items():
        for frame in set(frames):
            for _ in range(60):
                scene = random_scene(r)
                dropped = random_drop(r)
                labels = {k: None if k in dropped else v for k, v in scene.labels().items()}
                writer = Writer(labels, r, split)
                frame(writer)
                assert not [n for n in ATTRIBUTES if writer.open(n)], frame.__name__


def test_all_attributes_dropped_still_gives_a_caption():
    r = rng(4)
    for split in ("train", "heldout"):
        for _ in range(50):
            text, labels = caption(SCENE, r, split=split, drop=tuple(ATTRIBUTES))
            assert isinstance(text, str)
            assert set(labels.values()) == {None}


def test_heldout_words_and_frames_are_not_in_train():
    assert not set(FRAMES["train"]) & set(FRAMES["heldout"])
    for name, values in ATTRIBUTES.items():
        for value in values:
            assert len(terms(name, value, "train")) >= 20, (name, value)
            unseen = set(terms(name, value, "heldout"))
            assert unseen, (name, value)
            assert not unseen & set(terms(name, value, "train"))


def test_no_word_stands_for_two_values():
    for name, values in ATTRIBUTES.items():
        owner: dict[str, str] = {}
        for value in values:
            words = {*terms(name, value, "train"), *terms(name, value, "heldout")}
            for word in words:
                assert owner.setdefault(word, value) == value, word


def test_spacing_and_articles():
    r = rng(5)
    for _ in range(300):
        text, _ = caption(random_scene(r), r, drop=random_drop(r))
        assert "  " not in text
        assert not re.search(r"\ba [aeiou]", text), text
        assert not text.startswith((" ", ","))


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("bounce", ("bounces", "bouncing", "bounced")),
        ("hop", ("hops", "hopping", "hopped")),
        ("pass by", ("passes by", "passing by", "passed by")),
        ("fly", ("flies", "flying", "flew")),
        ("lie", ("lies", "lying", "lay")),
        ("go left", ("goes left", "going left", "went left")),
        ("not move", ("does not move", "not moving", "did not move")),
        ("be still", ("is still", "being still", "was still")),
        ("stay", ("stays", "staying", "stayed")),
    ],
)
def test_inflect(verb, forms):
    assert tuple(inflect(verb, form) for form in ("s", "ing", "ed")) == forms
    assert inflect(verb, "base") == verb


def test_misspell_changes_words_but_not_many_letters():
    text = "A crimson sphere bounces across the meadow at midnight"
    slips = [misspell(text, r, 0.5) for r in [rng(6)] for _ in range(50)]
    assert sum(s != text for s in slips) > 45
    assert all(abs(len(s) - len(text)) < 8 for s in slips)
    assert misspell("a red at", rng(), 1.0) == "a red at"  # short words stay


def test_outside_prompts_vary():
    r = rng(7)
    assert len({outside(r) for _ in range(200)}) > 120
