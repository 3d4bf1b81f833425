"""The text encoder of Wan 2.1: the encoder half of UMT5-XXL, through transformers.

A prompt is cleaned, cut into tokens and encoded without padding; the rows after its tokens are
zeros up to the length that the transformer attends, as Wan pads (its T5 masks the padding inside
the encoder and clears it afterwards, which gives the same rows).
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from streamgen.account_shapes import TextShape
from streamgen.errors import CheckpointError, ConfigError, InvalidPrompt
from streamgen.models.checkpoint_files import read_start
from streamgen.models.checkpoint_keys import Layout
from streamgen.models.loader import load_checkpoint

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HEAD_DIM: Final = 64
CPU: Final = torch.device("cpu")
DTYPE: Final = torch.bfloat16  # of the published file
EXTRA: Final = "streamgen-video[wan]"

_ORIGINAL_LAYER: Final = {
    "layer.0.SelfAttention.q": "attn.q",
    "layer.0.SelfAttention.k": "attn.k",
    "layer.0.SelfAttention.v": "attn.v",
    "layer.0.SelfAttention.o": "attn.o",
    "layer.0.SelfAttention.relative_attention_bias": "pos_embedding.embedding",
    "layer.0.layer_norm": "norm1",
    "layer.1.DenseReluDense.wi_0": "ffn.gate.0",
    "layer.1.DenseReluDense.wi_1": "ffn.fc1",
    "layer.1.DenseReluDense.wo": "ffn.fc2",
    "layer.1.layer_norm": "norm2",
}
_ORIGINAL_OUTER: Final = {"embed_tokens": "token_embedding", "final_layer_norm": "norm"}


class UMT5Encoder:
    """Encode prompts one by one, on one device.

    With `release` the weights stay in main memory and are on the device only while a text is
    encoded.
    """

    def __init__(
        self,
        stack: nn.Module,
        tokenizer: Tokenizer,
        text_len: int,
        *,
        device: torch.device = CPU,
        release: bool = False,
    ) -> None:
        self.text_len = text_len
        self._tokenizer = tokenizer
        self._device, self._release = device, release
        stack.eval().requires_grad_(False)
        self._stack = stack if release else stack.to(device)

    @classmethod
    def load(
        cls,
        weights: Path,
        tokenizer: Path,
        shape: TextShape,
        text_len: int,
        *,
        device: torch.device = CPU,
        release: bool = False,
    ) -> UMT5Encoder:
        """Return the encoder of a weights' file, in Wan's layout or transformers', in bfloat16.

        Raises CheckpointError when a file cannot be read or does not fit, and ConfigError when
        transformers is not installed.
        """
        stack = umt5_stack(shape).to_empty(device="cpu")
        load_checkpoint(stack, weights, layouts=umt5_layouts(stack))
        cut = read_tokenizer(tokenizer, shape.vocabulary)
        return cls(stack, cut, text_len, device=device, release=release)

    def check_text(self, prompt: str) -> None:
        """Raise InvalidPrompt for a prompt of more tokens than the model attends."""
        self._token_ids(prompt)

    @torch.inference_mode()
    def encode(self, prompts: list[str]) -> Tensor:
        """Return embeddings, float32 `[n, text_len, text_dim]` on the CPU, zeros after each text.

        Each prompt is computed on its own. Raises InvalidPrompt as `check_text` does.
        """
        rows = [self._encode(self._token_ids(prompt)) for prompt in prompts]
        return torch.stack([F.pad(row, (0, 0, 0, self.text_len - len(row))) for row in rows])

    def _encode(self, ids: list[int]) -> Tensor:
        tokens = torch.tensor([ids], device=self._device)
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if self._release:
            held = {name: t.to(self._device) for name, t in self._stack.state_dict().items()}
            output = functional_call(self._stack, held, (), inputs)
        else:
            output = self._stack(**inputs)
        row: Tensor = output.last_hidden_state[0].float().cpu()
        return row

    def _token_ids(self, prompt: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(cleaned(prompt)).ids
        if len(ids) > self.text_len:
            raise InvalidPrompt(
                f"the prompt has {len(ids)} tokens and this model reads {self.text_len}, the last"
                " of which marks its end: shorten it",
                param="prompt",
            )
        return ids


def cleaned(prompt: str) -> str:
    """Return a prompt as Wan cleans it: HTML entities read, twice, and white space collapsed.

    Wan also repairs wrongly decoded characters, with ftfy; what came as UTF-8 has none.
    """
    return re.sub(r"\s+", " ", html.unescape(html.unescape(prompt))).strip()


def umt5_stack(shape: TextShape) -> nn.Module:
    """Return the encoder's layers in bfloat16 on the meta device.

    Raises ConfigError when transformers is not installed.
    """
    try:
        from transformers import UMT5Config, UMT5EncoderModel
    except ImportError as error:
        raise ConfigError(
            f"the text encoder needs transformers ({error}): pip install '{EXTRA}'", param="model"
        ) from error
    config = UMT5Config(
        vocab_size=shape.vocabulary,
        d_model=shape.dim,
        d_kv=HEAD_DIM,
        d_ff=shape.ffn_dim,
        num_layers=shape.num_layers,
        num_heads=shape.dim // HEAD_DIM,
        feed_forward_proj="gated-gelu",
    )
    with torch.device("meta"):
        stack: nn.Module = UMT5EncoderModel(config).encoder
    return stack.to(DTYPE)


def umt5_layouts(stack: nn.Module) -> dict[str, Layout]:
    """Return the layouts in which the encoder is published."""
    names = list(stack.state_dict())
    whole = {name: f"encoder.{name}" for name in names}
    return {
        "original": {name: _original_name(name) for name in names},
        "transformers": {**whole, "embed_tokens.weight": "shared.weight"},
        "transformers, embedding in the encoder": whole,
    }


def read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`.

    Raises CheckpointError when it is none, or has tokens that the encoder does not know.
    """
    from tokenizers import Tokenizer

    read_start(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(f"{path} is no tokenizer: {error}") from error
    num_tokens = max(tokenizer.get_vocab().values(), default=-1) + 1
    if num_tokens > vocabulary:
        raise CheckpointError(f"{path} has {num_tokens} tokens, the text encoder {vocabulary}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _original_name(name: str) -> str:
    """Return Wan's name of one of transformers' tensors."""
    block = re.fullmatch(r"block\.(\d+)\.(.+)\.weight", name)
    if block is None:
        return f"{_ORIGINAL_OUTER[name.removesuffix('.weight')]}.weight"
    return f"blocks.{block[1]}.{_ORIGINAL_LAYER[block[2]]}.weight"
