"""Wan's transformer in the original layout and in diffusers', and its size read from the shapes."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from streamgen.models.causal_dit import DiTConfig
from streamgen.models.checkpoint_keys import diffusers_name, dit_layouts, original_name
from streamgen.models.dit_size import dit_config_of, infer_dit_config
from streamgen.models.loader import CheckpointError, load_checkpoint
from streamgen.models.wan_vae import WanVAE, WanVAEConfig
from streamgen.parity import run
from tests.reference_fixtures import golden, reported
from tests.streamgen.checkpoints import (
    CONFIG,
    Weights,
    pickled,
    renamed,
    same,
    saved,
    tiny_dit,
    tiny_weights,
    weights_of,
)


def load(path: Path) -> Weights:
    module = tiny_dit()
    load_checkpoint(module, path, layouts=dit_layouts(module.state_dict()))
    return weights_of(module)


@pytest.mark.parametrize("layout", ["original", "diffusers"])
@pytest.mark.parametrize("wrapper", ["", "model._fsdp_wrapped_module."])
def test_both_layouts_give_the_same_tensors(
    tmp_path: Path, layout: str, wrapper: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = tiny_weights()
    held = renamed(wanted, diffusers_name) if layout == "diffusers" else wanted
    path = saved(tmp_path / "toy.safetensors", renamed(held, lambda name: wrapper + name))
    with caplog.at_level(logging.INFO, logger="streamgen.models.loader"):
        assert same(load(path), wanted)
    assert f"layout {layout}" in caplog.text


def test_the_norms_swap_names() -> None:
    """Diffusers' norm2 is the original norm3 and the other way round; nothing else is."""
    assert diffusers_name("blocks.1.norm3.weight") == "blocks.1.norm2.weight"
    assert original_name("blocks.1.norm2.weight") == "blocks.1.norm3.weight"
    assert diffusers_name("blocks.1.norm2.weight") == "blocks.1.norm3.weight"
    assert diffusers_name("blocks.11.ffn.0.bias") == "blocks.11.ffn.net.0.proj.bias"
    assert diffusers_name("head.modulation") == "scale_shift_table"
    assert diffusers_name("blocks.0.modulation") == "blocks.0.scale_shift_table"
    names = list(tiny_weights())
    assert [original_name(diffusers_name(name)) for name in names] == names
    assert len({diffusers_name(name) for name in names}) == len(names)


def test_q42_layouts_may_not_be_mixed(tmp_path: Path) -> None:
    """One tensor under the other layout's name is extra, and its own is missing."""
    held = renamed(tiny_weights(), diffusers_name)
    held["head.head.bias"] = held.pop("proj_out.bias")
    with pytest.raises(CheckpointError) as caught:
        load(saved(tmp_path / "toy.safetensors", held))
    assert "1 missing, first proj_out.bias; 1 extra, first head.head.bias" in str(caught.value)


def test_q42_a_transposed_tensor_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    held = renamed(tiny_weights(), diffusers_name)
    name = "blocks.1.ffn.net.2.weight"
    held[name] = held[name].T
    with pytest.raises(CheckpointError, match="1 of another shape, first") as caught:
        load(saved(tmp_path / "toy.safetensors", held))
    assert f"{name} [40, 24] instead of [24, 40]" in str(caught.value)


@pytest.mark.parametrize("layout", ["original", "diffusers"])
@pytest.mark.parametrize("norms", [True, False])
def test_the_size_shows_in_the_shapes(tmp_path: Path, layout: str, norms: bool) -> None:
    """Any file that can be loaded tells its size: wrapped, in a container, in either layout."""
    config = dataclasses.replace(
        CONFIG, num_layers=3, ffn_dim=56, in_dim=6, qk_norm=norms, cross_attn_norm=norms
    )
    held = weights_of(tiny_dit(config=config))
    held = renamed(held, diffusers_name) if layout == "diffusers" else held
    held = renamed(held, lambda name: f"model._orig_mod.{name}")
    path = pickled(tmp_path / "toy.pt", {"generator_ema": held})
    size = dit_config_of(path, container="generator_ema", head_dim=12, text_len=5)
    assert size == config


@pytest.mark.parametrize(
    ("dim", "ffn_dim", "heads", "layers"), [(1536, 8960, 12, 30), (5120, 13824, 40, 40)]
)
def test_published_sizes_need_no_hint(dim: int, ffn_dim: int, heads: int, layers: int) -> None:
    """1.3B and 14B: heads of 128 and texts of 512, as shapes cannot show."""
    config = DiTConfig(dim=dim, ffn_dim=ffn_dim, num_layers=layers, num_heads=heads)
    with torch.device("meta"):
        module = tiny_dit(config=config)
    shapes = {name: tuple(t.shape) for name, t in module.state_dict().items()}
    assert infer_dit_config(shapes) == config


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"patch_embedding.weight": None}, "it has no patch_embedding.weight"),
        ({"head.head.weight": (24,)}, "head.head.weight has shape [24] and not 2 dimensions"),
        ({"head.head.weight": (17, 24)}, "patches [1, 2, 2] and 17 outputs contradict"),
        ({"patch_embedding.weight": (25, 4, 1, 2, 2)}, "width 25 with heads of 12"),
        ({"patch_embedding.weight": (24, 4, 2, 2, 2)}, "must not span frames"),
        ({"blocks.4.ffn.0.bias": (1,)}, "of 5 blocks 2 are missing, first 2"),
    ],
)
def test_what_is_no_transformer_has_no_size(
    tmp_path: Path, change: dict[str, tuple[int, ...] | None], said: str
) -> None:
    held = tiny_weights()
    for name, shape in change.items():
        held.pop(name, None)
        if shape:
            held[name] = torch.zeros(shape)
    with pytest.raises(CheckpointError) as caught:
        dit_config_of(saved(tmp_path / "toy.safetensors", held), head_dim=12)
    assert said in str(caught.value)
    assert "toy.safetensors is no DiT: " in str(caught.value)


def test_both_layouts_of_the_vae_load(tmp_path: Path) -> None:
    """Whoever has several layouts passes them; the file decides."""
    config = WanVAEConfig(
        dim=4, z_dim=4, dim_mult=(1, 1), num_res_blocks=1, temporal_downsample=(True,),
        latent_mean=(0.0,) * 4, latent_std=(1.0,) * 4,
    )  # fmt: skip
    wanted = {name: torch.rand_like(t) for name, t in WanVAE(config).state_dict().items()}
    module = WanVAE(config)
    layouts = {
        "original": module.original_keys(),
        "diffusers": {name: name.removeprefix("vae.") for name in wanted},
    }
    for layout, keys in layouts.items():
        module = WanVAE(config)
        path = saved(tmp_path / f"{layout}.safetensors", renamed(wanted, keys.__getitem__))
        load_checkpoint(module, path, layouts=layouts)
        assert same(weights_of(module), wanted), layout


def test_parity_sees_a_wrong_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tensors of one shape under each other's names: weights and output are wrong."""
    directory = tmp_path / "swapped"
    shutil.copytree(golden("diffusers_map"), directory)
    directory.chmod(0o755)
    path = directory / "weights_diffusers.safetensors"
    held = load_file(path)
    names = "blocks.0.attn1.to_q.weight", "blocks.0.attn1.to_k.weight"
    held[names[0]], held[names[1]] = held[names[1]], held[names[0]]
    path.unlink()
    save_file(held, path)
    assert run([directory]) == 1
    failed = {words[0]: words[1] for words in reported(capsys)[0] if words[3] == "FAIL"}
    assert failed.keys() == {"swapped/weights.diffusers", "swapped/output"}
    assert failed["swapped/weights.diffusers"] == "2"
