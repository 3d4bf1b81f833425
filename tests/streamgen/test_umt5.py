"""The text encoder gives what Wan's own pipeline gives, in either layout of its file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import UMT5Config, UMT5EncoderModel

from streamgen.errors import CheckpointError, ConfigError, InvalidPrompt
from streamgen.models import umt5
from streamgen.models.umt5 import UMT5Encoder, cleaned, umt5_layouts, umt5_stack
from tests.streamgen.checkpoints import pickled, renamed, saved
from tests.streamgen.published import (
    SHAPE,
    TEXT_DIM,
    TEXT_LEN,
    WORDS,
    text_weights,
    write_tokenizer,
)


def load(folder: Path, layout: str = "original", **options: object) -> UMT5Encoder:
    weights = renamed(text_weights(), umt5_layouts(umt5_stack(SHAPE))[layout].__getitem__)
    path = pickled(folder / "text.pth", weights)
    write_tokenizer(folder / "tokenizer.json")
    return UMT5Encoder.load(path, folder / "tokenizer.json", SHAPE, TEXT_LEN, **options)


def test_padding_is_masked_inside_and_cleared_afterwards(tmp_path: Path) -> None:
    """Wan encodes 512 tokens with the padding masked, then sets its rows to zero."""
    encoder = load(tmp_path)
    config = UMT5Config(
        vocab_size=SHAPE.vocabulary, d_model=TEXT_DIM, d_kv=64, d_ff=32, num_layers=2, num_heads=1,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    whole = UMT5EncoderModel(config).to(torch.bfloat16).eval()
    whole.encoder.load_state_dict(text_weights())
    ids = [3, 4, 6, 1]  # a red ball </s>
    tokens = torch.tensor([[*ids, *[0] * (TEXT_LEN - len(ids))]])
    with torch.no_grad():
        wanted = whole(tokens, attention_mask=(tokens != 0).long()).last_hidden_state[0].float()
    (got,) = encoder.encode(["a red ball"])
    assert got.shape == (TEXT_LEN, TEXT_DIM)
    assert got.dtype == torch.float32
    assert torch.allclose(got[: len(ids)], wanted[: len(ids)], atol=0.05, rtol=0.05)
    assert (got[len(ids) :] == 0).all()
    assert got[: len(ids)].std() > 0.1


@pytest.mark.parametrize("layout", ["transformers", "transformers, embedding in the encoder"])
def test_each_layout_gives_the_same_encoder(layout: str, tmp_path: Path) -> None:
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
    left, right = load(tmp_path / "left"), load(tmp_path / "right", layout)
    prompts = ["a red ball", "a blue star on the sea"]
    assert torch.equal(left.encode(prompts), right.encode(prompts))


def test_wans_names_are_all_there(tmp_path: Path) -> None:
    """As in the published file, whose layers are called so."""
    names = set(umt5_layouts(umt5_stack(SHAPE))["original"].values())
    block = {
        f"blocks.{i}.{name}.weight"
        for i in range(2)
        for name in (
            "norm1", "attn.q", "attn.k", "attn.v", "attn.o", "norm2", "ffn.gate.0", "ffn.fc1",
            "ffn.fc2", "pos_embedding.embedding",
        )
    }  # fmt: skip
    assert names == block | {"token_embedding.weight", "norm.weight"}


def test_a_prompt_is_encoded_on_its_own(tmp_path: Path) -> None:
    encoder = load(tmp_path)
    together = encoder.encode(["a red ball", "fox"])
    assert torch.equal(together[1], encoder.encode(["fox"])[0])


def test_released_weights_give_the_same_and_are_in_main_memory(tmp_path: Path) -> None:
    kept, released = load(tmp_path), load(tmp_path, release=True)
    assert torch.equal(kept.encode(["a fox"]), released.encode(["a fox"]))


def test_prompts_are_cleaned_as_wan_does() -> None:
    assert cleaned("  a\n\tred &amp;amp; blue   ball ") == "a red & blue ball"


def test_a_prompt_that_would_be_cut_off_is_refused_with_the_numbers(tmp_path: Path) -> None:
    encoder = load(tmp_path)
    longest = " ".join(["fox"] * (TEXT_LEN - 1))
    encoder.check_text(longest)
    assert encoder.encode([longest])[0, -1].any()
    for refuse in (encoder.check_text, lambda text: encoder.encode([text])):
        with pytest.raises(InvalidPrompt, match="has 13 tokens and this model reads 12"):
            refuse(f"{longest} fox")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"needs transformers .* pip install 'streamgen-video"):
        umt5_stack(SHAPE)


def test_a_tokenizer_that_is_none_or_does_not_belong_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(CheckpointError, match="is no tokenizer"):
        umt5.read_tokenizer(path, SHAPE.vocabulary)
    write_tokenizer(path, (*WORDS, *(f"word{i}" for i in range(9))))
    with pytest.raises(CheckpointError, match="has 22 tokens, the text encoder 16"):
        umt5.read_tokenizer(path, SHAPE.vocabulary)


def test_weights_of_another_encoder_are_refused(tmp_path: Path) -> None:
    weights = text_weights()
    del weights["final_layer_norm.weight"]
    write_tokenizer(tmp_path / "tokenizer.json")
    path = saved(tmp_path / "text.safetensors", renamed(weights, lambda name: f"encoder.{name}"))
    with pytest.raises(CheckpointError, match=r"1 missing, first encoder\.final_layer_norm"):
        UMT5Encoder.load(path, tmp_path / "tokenizer.json", SHAPE, TEXT_LEN)
