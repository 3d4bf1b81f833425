"""Fixtures of kind `diffusers_map`: the same weights under the original names and diffusers'."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from torch import Tensor
from torch.nn import functional as F

from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.checkpoint_keys import diffusers_name, dit_layouts, original_name
from streamgen.models.dit_size import dit_config_of
from streamgen.models.loader import load_checkpoint
from streamgen.parity.check import Check, compare, count_differences
from streamgen.parity.fixture import Fixture, FixtureError, blaming

INPUTS: Final = r"hidden_states|encoder_hidden_states|timestep"

_OUTPUTS: Final = {"original": "output_original", "diffusers": "output"}
_MAP: Final = "key_map original -> diffusers"


def check(fixture: Fixture) -> Iterator[Check]:
    """Load both files, compare names, sizes and weights, and run each model without a cache."""
    config = _config(fixture)
    models = {layout: _load(fixture, config, layout) for layout in _OUTPUTS}
    original = models["original"].state_dict()
    listed = [f"{ours} -> {theirs}" for ours, theirs in fixture.group(_MAP).items()]
    made = [f"{name} -> {diffusers_name(name)}" for name in original]
    yield count_differences("key_map", sorted(made), sorted(listed))
    back = [original_name(diffusers_name(name)) for name in original]
    yield count_differences("key_map.back", back, list(original))
    for layout, model in models.items():
        yield _check_sizes(f"sizes.{layout}", _file(fixture, layout), config)
        weights = model.state_dict().items()
        wrong = [name for name, weight in weights if not weight.equal(original[name])]
        yield count_differences(f"weights.{layout}", wrong, [])
        tolerance = fixture.number("tolerance", _OUTPUTS[layout], "max_abs_err")
        output = fixture.tensor(_OUTPUTS[layout])
        yield compare(_OUTPUTS[layout], _forward(fixture, model), output, tolerance)


def _check_sizes(name: str, path: Path, config: DiTConfig) -> Check:
    """Compare what is read from the shapes; some of the model does not show in any."""
    found = dit_config_of(path, head_dim=config.head_dim, text_len=config.text_len)
    got, expected = (
        dataclasses.asdict(c) for c in (found, dataclasses.replace(config, eps=found.eps))
    )
    return count_differences(name, list(got.items()), list(expected.items()))


def _config(fixture: Fixture) -> DiTConfig:
    patch_size = fixture.sizes("config", "patch_size")
    if len(patch_size) != 3:
        raise FixtureError(f"config.patch_size has not 3 entries: {list(patch_size)}")
    qk_norm = fixture.value("config", "qk_norm")
    if qk_norm not in (None, "rms_norm_across_heads"):
        raise FixtureError(f"config.qk_norm is not supported: {qk_norm!r}")
    names = "dim ffn_dim num_layers text_dim text_len freq_dim"
    sizes: dict[str, Any] = {name: fixture.size("config", name) for name in names.split()}
    with blaming("config"):
        return DiTConfig(
            **sizes,
            num_heads=fixture.size("config", "num_attention_heads"),
            in_dim=fixture.size("config", "in_channels"),
            out_dim=fixture.size("config", "out_channels"),
            patch_size=(patch_size[0], patch_size[1], patch_size[2]),
            qk_norm=qk_norm is not None,
            cross_attn_norm=fixture.flag("config", "cross_attn_norm"),
            eps=fixture.number("config", "eps"),
        )


def _file(fixture: Fixture, layout: str) -> Path:
    return fixture.directory / f"weights_{layout}.safetensors"


def _load(fixture: Fixture, config: DiTConfig, layout: str) -> CausalDiT:
    model = CausalDiT(config)
    load_checkpoint(model, _file(fixture, layout), layouts=dit_layouts(model.state_dict()))
    return model.requires_grad_(False)


def _forward(fixture: Fixture, model: CausalDiT) -> Tensor:
    """Return the flow, `[batch, channel, frame, h, w]`, every token seeing every other."""
    config = model.config
    latents = fixture.tensor("hidden_states", None, config.in_dim, None, None, None)
    batch, _, frames, height, width = latents.shape
    if height % config.patch_size[1] or width % config.patch_size[2]:
        raise FixtureError(f"latents of {height}x{width} are no patches {config.patch_size}")
    t = fixture.tensor("timestep", batch)
    embeds = fixture.tensor("encoder_hidden_states", batch, config.text_len, config.text_dim)
    k, v = model.text_kv(embeds)
    flow = model(
        latents.transpose(1, 2),
        t[:, None].expand(-1, frames),
        t.new_zeros(batch).long(),
        lambda layer: (k[layer], v[layer]),
        _see_all,
    )
    transposed: Tensor = flow.transpose(1, 2)
    return transposed


def _see_all(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # heads first
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
