"""A published model small enough for tests: its files as authors write them, and its preset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import nn

from streamgen.account_shapes import TextShape
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.checkpoint_keys import diffusers_name
from streamgen.models.preset import HubFile, Preset, Published
from streamgen.models.random_text import random_text
from streamgen.models.taehv import TAEHV, TAEHVConfig
from streamgen.models.umt5 import umt5_layouts, umt5_stack
from streamgen.models.wan_vae import WanVAE, WanVAEConfig
from streamgen.step import ChunkPlan
from tests.streamgen.checkpoints import Weights, pickled, renamed, saved, weights_of

TEXT_LEN, TEXT_DIM = 12, 64
WORDS = ("a", "red", "blue", "ball", "star", "on", "the", "sea", "fox", "&")
SHAPE = TextShape(dim=TEXT_DIM, ffn_dim=32, num_layers=2, vocabulary=len(WORDS) + 6)
TINY_VAE_NAME = "tiny_vae.pth"

PUBLISHED = Published(
    licence="a licence",
    source="a test",
    transformer=HubFile("someone/tiny", "checkpoints/tiny.pt"),
    container="generator_ema",
    vae=HubFile("someone/base", "base_vae.pth"),
    tiny_vae=f"https://example.org/{TINY_VAE_NAME}",
    text=HubFile("someone/base", "text.pth"),
    tokenizer=HubFile("someone/base", "words/tokenizer.json"),
    text_shape=SHAPE,
)
PRESET = Preset(
    name="tiny-published",
    dit=DiTConfig(
        dim=48, ffn_dim=64, num_layers=2, num_heads=2, in_dim=4, out_dim=4,
        text_dim=TEXT_DIM, text_len=TEXT_LEN, freq_dim=32,
    ),
    vae=WanVAEConfig(
        dim=4, z_dim=4, dim_mult=(1, 1, 1, 1), num_res_blocks=1,
        latent_mean=(0.1,) * 4, latent_std=(1.1,) * 4,
    ),
    tiny_vae=TAEHVConfig(latent_channels=4, encoder_width=8, decoder_widths=(16, 8, 8, 8)),
    text_encoder=partial(random_text, TEXT_LEN, TEXT_DIM),
    weights=None,
    shift=5.0,
    sampler="renoise",
    steps=2,
    step_range=(2, 2),
    size=(48, 32),
    max_pixels=128 * 128,
    fps=16,
    chunks=ChunkPlan(1),
    window_frames=6,
    timesteps=(1000.0, 833.3333129882812),
    first_timesteps=(1000.0, 937.5, 833.3333129882812, 625.0),
    published=PUBLISHED,
)  # fmt: skip


def with_published(**changes: object) -> Preset:
    """Return the preset with other files."""
    return dataclasses.replace(PRESET, published=dataclasses.replace(PUBLISHED, **changes))


def seeded(make: Callable[[], nn.Module], seed: int) -> Weights:
    """Return a module's weights, none of them constant."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        weights = weights_of(make())
        return {n: t + 0.1 * torch.randn(t.shape).to(t.dtype) for n, t in weights.items()}


def dit_weights(seed: int = 1) -> Weights:
    return seeded(lambda: CausalDiT(PRESET.dit), seed)


def vae_weights() -> Weights:
    assert isinstance(PRESET.vae, WanVAEConfig)
    return seeded(partial(WanVAE, PRESET.vae), 2)


def tiny_vae_weights() -> Weights:
    return seeded(lambda: TAEHV(PRESET.tiny_vae), 3)


def text_weights() -> Weights:
    """Return the text encoder's weights in bfloat16, by transformers' names."""
    stack = umt5_stack(SHAPE)
    generator = torch.Generator().manual_seed(4)
    return {
        name: (0.3 * torch.randn(tensor.shape, generator=generator)).to(torch.bfloat16)
        for name, tensor in stack.state_dict().items()
    }


def write_tokenizer(path: Path, words: tuple[str, ...] = WORDS) -> None:
    """Write a tokenizer of whole words that ends each text with `</s>`, as T5's does."""
    vocabulary = {word: i for i, word in enumerate(("<pad>", "</s>", "<unk>", *words))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))


def write_original(folder: Path) -> Path:
    """Write a model as it is published: pickles in containers, training's wrappers, Wan's names."""
    folder.mkdir(parents=True, exist_ok=True)
    ema = renamed(dit_weights(), lambda name: f"model._fsdp_wrapped_module.{name}")
    zeros = {name: torch.zeros_like(tensor) for name, tensor in ema.items()}
    (folder / "checkpoints").mkdir(exist_ok=True)
    pickled(folder / "checkpoints/tiny.pt", {"generator": zeros, "generator_ema": ema})
    assert isinstance(PRESET.vae, WanVAEConfig)
    vae_names = WanVAE(PRESET.vae).original_keys()
    pickled(folder / "base_vae.pth", renamed(vae_weights(), vae_names.__getitem__))
    text_names = umt5_layouts(umt5_stack(SHAPE))["original"]
    pickled(folder / "text.pth", renamed(text_weights(), text_names.__getitem__))
    pickled(folder / TINY_VAE_NAME, tiny_vae_weights())
    write_tokenizer(folder / "words/tokenizer.json")
    return folder


def write_diffusers(folder: Path) -> Path:
    """Write the same weights as diffusers and transformers lay them out."""
    for part in ("transformer", "vae", "text_encoder"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    name = "diffusion_pytorch_model.safetensors"
    saved(folder / "transformer" / name, renamed(dit_weights(), diffusers_name))
    saved(folder / "vae" / name, renamed(vae_weights(), lambda n: n.removeprefix("vae.")))
    text_names = umt5_layouts(umt5_stack(SHAPE))["transformers"]
    saved(
        folder / "text_encoder/model.safetensors",
        renamed(text_weights(), text_names.__getitem__),
    )
    write_tokenizer(folder / "tokenizer/tokenizer.json")
    return folder


def write_cache(cache: Path, files: Path, revision: str = "main") -> Path:
    """Lay files of `write_original` out as the Hub's cache has them."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    parts = (PUBLISHED.transformer, PUBLISHED.vae, PUBLISHED.text, PUBLISHED.tokenizer)
    for part in parts:
        root = cache / f"models--{part.repository.replace('/', '--')}"
        target = root / "snapshots" / commit / part.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((files / part.name).read_bytes())
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / revision).write_text(commit)
    return cache
