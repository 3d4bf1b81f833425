"""The text encoder gives what Wan's own pipeline gives, in either layout of its file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import UMT5Config, UMT5EncoderModel

from streamgen.errors import CheckpointError, ConfigError, InvalidPrompt
from streamgen.models import umt5
from streamgen.models.umt5 import UMT5Encoder, cleaned, read_tokenizer, umt5_layouts, umt5_stack
from tests.streamgen.checkpoints import Weights, pickled, renamed, saved
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


def test_a_token_beyond_the_encoders_is_refused_however_few_there_are(tmp_path: Path) -> None:
    """It would be an index error, at the first prompt that has it."""
    path = tmp_path / "tokenizer.json"
    write_tokenizer(path)
    held = json.loads(path.read_text())
    held["model"]["vocab"]["fox"] = 99_999
    path.write_text(json.dumps(held))
    with pytest.raises(CheckpointError, match="has 100000 tokens, the text encoder 16"):
        read_tokenizer(path, SHAPE.vocabulary)


def test_weights_of_another_encoder_are_refused(tmp_path: Path) -> None:
    weights = text_weights()
    del weights["final_layer_norm.weight"]
    write_tokenizer(tmp_path / "tokenizer.json")
    path = saved(tmp_path / "text.safetensors", renamed(weights, lambda name: f"encoder.{name}"))
    with pytest.raises(CheckpointError, match=r"1 missing, first encoder\.final_layer_norm"):
        UMT5Encoder.load(path, tmp_path / "tokenizer.json", SHAPE, TEXT_LEN)


def wans_encoder(weights: Weights, ids: list[int]) -> Tensor:
    """Compute the encoder from tensors by Wan's names, written down from its published layers."""
    x = weights["token_embedding.weight"][ids]
    distance = torch.arange(len(ids)) - torch.arange(len(ids))[:, None]
    bucket = distance.abs() + 16 * (distance > 0)  # exact for the first 8, and no text is longer
    for i in range(SHAPE.num_layers):
        w = {n.removeprefix(f"blocks.{i}."): t for n, t in weights.items()}
        h = normed(x, w["norm1.weight"])
        q, k, v = (h @ w[f"attn.{part}.weight"].T for part in "qkv")
        bias = w["pos_embedding.embedding.weight"][bucket][..., 0]
        x = x + (q @ k.T + bias).softmax(-1) @ v @ w["attn.o.weight"].T
        h = normed(x, w["norm2.weight"])
        gate = functional.gelu(h @ w["ffn.gate.0.weight"].T, approximate="tanh")
        x = x + (gate * (h @ w["ffn.fc1.weight"].T)) @ w["ffn.fc2.weight"].T
    return normed(x, weights["norm.weight"])


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def test_wans_tensors_are_in_their_places(tmp_path: Path) -> None:
    """A gate taken for the matrix beside it would load, and give other pictures."""
    encoder = load(tmp_path)
    encoder._stack.float()
    layout = umt5_layouts(umt5_stack(SHAPE))["original"]
    weights = {layout[name]: tensor.float() for name, tensor in text_weights().items()}
    (got,) = encoder.encode(["a red ball on the sea"])
    wanted = wans_encoder(weights, [3, 4, 6, 8, 9, 10, 1])
    assert torch.allclose(got[:7], wanted, atol=1e-4)
    swapped = {
        n.replace("gate.0", "x").replace("fc1", "gate.0").replace("x.", "fc1."): t
        for n, t in weights.items()
    }
    assert not torch.allclose(got[:7], wans_encoder(swapped, [3, 4, 6, 8, 9, 10, 1]), atol=1e-2)
