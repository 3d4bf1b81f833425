import time

import numpy as np
import pytest
import torch

from streamgen.models.loader import CheckpointError
from streamgen.pocket.captions import caption
from streamgen.pocket.outside import misspell
from streamgen.pocket.text_encoder import (
    MAX_WORDS,
    PADDING,
    TEXT_DIM,
    TEXT_LEN,
    WEIGHTS,
    ConceptEncoder,
    codebook,
    codes,
    featurize,
    label_indices,
    split_words,
)
from streamgen.pocket.world import ATTRIBUTES, Scene, random_scene

PROMPT = "a red ball bounces on the grass at night in the rain"
ASKED = {
    "place": "meadow",
    "time": "night",
    "weather": "rain",
    "shape": "ball",
    "colour": "red",
    "motion": "bounces",
}
STRANGE = {
    "empty": "",
    "blank": " \n\t ",
    "punctuation": "...!?,,,",
    "emoji": "🚀🛸👩‍👩‍👧‍👦",
    "chinese": "东京上空的宇宙飞船",
    "arabic": "سفينة فضاء فوق طوكيو",
    "hebrew": "חללית מעל טוקיו",
    "nul": "\0\0\0",
    "lone surrogate": "\ud83d \udc00",
    "combining": "Z̴̢͝a̸̧͠l̷͈̍g̵̱̓o̶͎͊" * 40,
    "digits": "1234567890" * 30,
    "spaceship": "a spaceship over Tokyo",
}


@pytest.fixture(scope="module")
def encoder() -> ConceptEncoder:
    return ConceptEncoder.load()


def understood(encoder: ConceptEncoder, prompt: str) -> dict[str, str | None]:
    return {name: value for name, (value, _) in encoder.attributes(prompt).items()}


def test_codes_are_distinct_and_fixed():
    book = codebook().reshape(-1, TEXT_DIM)
    products = book @ book.T / TEXT_DIM
    torch.testing.assert_close(products, torch.eye(len(book)), atol=1e-5, rtol=0)
    # The video model's weights depend on these very numbers.
    first = torch.tensor([-0.7669, -0.2123, -1.0483, 1.2999])
    torch.testing.assert_close(codebook()[0, 0, :4], first, atol=1e-4, rtol=0)


def test_codes_of_labels():
    scene = Scene("sea", "night", "rain", "star", "red", "drifts")
    embeds = codes([scene, scene.labels(), {**scene.labels(), "colour": None}, {}])
    assert embeds.shape == (4, TEXT_LEN, TEXT_DIM)
    assert torch.equal(embeds[0], embeds[1])
    changed = (embeds[2] != embeds[0]).any(dim=-1)
    assert changed.tolist() == [name == "colour" for name in ATTRIBUTES]
    assert torch.equal(embeds[3], codebook()[:, 0])
    assert label_indices([{}]).tolist() == [[0] * TEXT_LEN]
    with pytest.raises(ValueError, match="colour has no value 'beige'"):
        codes([{"colour": "beige"}])


def test_a_clear_prompt_gives_its_codes(encoder):
    assert understood(encoder, PROMPT) == ASKED
    embeds = encoder.encode([PROMPT])
    assert embeds.dtype == torch.float32
    torch.testing.assert_close(embeds, codes([ASKED]), atol=0.05, rtol=0)


@pytest.mark.parametrize(
    "other",
    [
        "At night, while it rains, a red ball is bouncing on the grass.",
        "rain, night, lawn, bouncing crimson sphere",
        "SHOW ME A SCARLET ORB THAT HOPS OVER THE MEADOW AT MIDNIGHT IN A DOWNPOUR!",
        "It is a rainy night. A red ball jumps up and down in a field.",
    ],
)
def test_paraphrases_are_nearly_the_same(encoder, other):
    first, second = encoder.encode([PROMPT, other])
    assert (first - second).square().mean().sqrt() < 0.1


def test_unseen_wording(encoder):
    rng = np.random.default_rng(31)
    wrong = dict.fromkeys(ATTRIBUTES, 0)
    for _ in range(200):
        text, labels = caption(random_scene(rng), rng, split="heldout")
        seen = understood(encoder, text)
        for name in ATTRIBUTES:
            wrong[name] += seen[name] != labels[name]
    assert max(wrong.values()) <= 10, wrong


def test_typos(encoder):
    rng = np.random.default_rng(32)
    right = total = 0
    for _ in range(100):
        text, labels = caption(random_scene(rng), rng)
        seen = understood(encoder, misspell(text, rng, 0.3))
        right += sum(seen[name] == labels[name] for name in ATTRIBUTES)
        total += len(ATTRIBUTES)
    assert right / total > 0.9


@pytest.mark.parametrize("kind", STRANGE)
def test_strange_prompts_say_nothing(encoder, kind):
    embeds = encoder.encode([STRANGE[kind]])
    assert torch.isfinite(embeds).all()
    values = understood(encoder, STRANGE[kind])
    assert sum(value is None for value in values.values()) >= TEXT_LEN - 1, values


def test_what_is_left_out_is_unspecified(encoder):
    assert understood(encoder, "blue star") == {
        **dict.fromkeys(ATTRIBUTES),
        "shape": "star",
        "colour": "blue",
    }


def test_words_from_outside_leave_the_rest_alone(encoder):
    values = understood(encoder, "a spaceship over the sea at sunset")
    assert (values["place"], values["time"], values["shape"]) == ("sea", "sunset", None)


def test_a_hundred_thousand_characters_take_time_in_proportion(encoder):
    long = PROMPT + " and so on" * 10_000

    def cpu_s(length: int) -> float:
        started = time.process_time()
        for text in (long, "x" * 100_000, "红" * 100_000):
            understood(encoder, text[:length])
        return time.process_time() - started

    cpu_s(1_000)  # what is made once and kept
    assert cpu_s(100_000) < 40 * cpu_s(10_000)  # 10 times; by the square it would be 100
    assert understood(encoder, long)["colour"] == "red"
    assert len(split_words(long)) == MAX_WORDS
    assert featurize(["a " * 100_000]).shape[1] == MAX_WORDS


def test_company_and_repetition_change_nothing(encoder):
    alone = encoder.encode([PROMPT])
    assert torch.equal(encoder.encode(["star", PROMPT, "x " * 200])[1:2], alone)
    assert torch.equal(encoder.encode([PROMPT]), alone)
    assert encoder.encode([]).shape == (0, TEXT_LEN, TEXT_DIM)


def test_forward_ignores_padding(encoder):
    short, wide = featurize([PROMPT]), featurize([PROMPT, "word " * 60])[:1]
    assert (wide == PADDING).sum() > (short == PADDING).sum()
    with torch.no_grad():
        torch.testing.assert_close(encoder(short), encoder(wide), atol=1e-4, rtol=1e-4)


def test_save_and_load(tmp_path, encoder):
    path = tmp_path / "encoder.safetensors"
    encoder.save(path)
    assert path.stat().st_size < 4_000_000
    assert WEIGHTS.stat().st_size < 4_000_000
    assert torch.equal(ConceptEncoder.load(path).encode([PROMPT]), encoder.encode([PROMPT]))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError):
        ConceptEncoder.load(path)


def test_shipped_codes_are_the_codebook(encoder):
    torch.testing.assert_close(encoder.codes, codebook())
