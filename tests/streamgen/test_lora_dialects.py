"""LoRA files of every dialect give the same weights; what is none of them is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from streamgen.models.checkpoint_keys import diffusers_name
from streamgen.models.loader import CheckpointError
from streamgen.models.lora import LoraMerger, LoraSource
from tests.streamgen.checkpoints import Weights, pickled, same, saved, tiny_dit, weights_of

LAYERS = {
    "blocks.0.self_attn.q": 2,
    "blocks.1.cross_attn.o": 3,
    "blocks.1.ffn.0": 4,
    "head.head": 5,
}
"""Layers and their ranks; none has an alpha of its own."""

Pairs = dict[str, tuple[torch.Tensor, torch.Tensor]]


def pairs() -> Pairs:
    generator = torch.Generator().manual_seed(3)
    state = tiny_dit().state_dict()
    return {
        layer: (
            torch.randn(len(state[f"{layer}.weight"]), rank, generator=generator),
            torch.randn(rank, state[f"{layer}.weight"].shape[1], generator=generator),
        )
        for layer, rank in LAYERS.items()
    }


def spelled(up: str, down: str, rule: Callable[[str], str] = lambda layer: layer) -> Weights:
    """Return the pairs with `rule(layer)` and these ends for names."""
    held: Weights = {}
    for layer, (up_matrix, down_matrix) in pairs().items():
        held[f"{rule(layer)}.{up}"], held[f"{rule(layer)}.{down}"] = up_matrix, down_matrix
    return held


def merged(source: LoraSource | Path) -> Weights:
    module = tiny_dit()
    LoraMerger(module).load([source])
    return weights_of(module)


def wanted(factors: dict[str, float] | float = 1.0) -> Weights:
    """Return what comes of adding `factor` * up @ down to each layer."""
    state = weights_of(tiny_dit())
    for layer, (up, down) in pairs().items():
        factor = factors if isinstance(factors, float) else factors[layer]
        state[f"{layer}.weight"] += (up @ down) * factor
    return state


def refusal(source: LoraSource | Path) -> str:
    module = tiny_dit()
    before = weights_of(module)
    with pytest.raises(CheckpointError) as caught:
        LoraMerger(module).load([source])
    assert same(weights_of(module), before)
    return str(caught.value)


PEFT = ("lora_B.weight", "lora_A.weight")
ORIGINAL = ("lora_up.weight", "lora_down.weight")
DIALECTS: dict[str, Weights] = {
    "PEFT": spelled(*PEFT, lambda layer: f"base_model.model.{layer}"),
    "PEFT with an adapter's name": spelled(
        "lora_B.default.weight", "lora_A.default.weight", lambda layer: f"base_model.model.{layer}"
    ),
    "PEFT of a wrapped model": spelled(
        *PEFT, lambda layer: f"base_model.model.model._fsdp_wrapped_module.{layer}"
    ),
    "diffusers": spelled(*PEFT, lambda layer: f"transformer.{diffusers_name(layer)}"),
    "diffusers, older": spelled("lora.up.weight", "lora.down.weight", diffusers_name),
    "bare": spelled(*ORIGINAL),
    "original": spelled(*ORIGINAL, lambda layer: f"diffusion_model.{layer}"),
    "original, wrapped twice": spelled(*ORIGINAL, lambda layer: f"model.diffusion_model.{layer}"),
    "A and B with a prefix": spelled(*PEFT, lambda layer: f"diffusion_model.{layer}"),
    "underscores": spelled(*ORIGINAL, lambda layer: f"lora_unet_{layer.replace('.', '_')}"),
    "underscores of diffusers": spelled(
        *ORIGINAL, lambda layer: f"lora_transformer_{diffusers_name(layer).replace('.', '_')}"
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_every_dialect_gives_the_same_weights(tmp_path: Path, dialect: str, kind: str) -> None:
    """Nothing states alpha, so it is the rank: the product itself is added, whatever the rank."""
    path = tmp_path / f"a.{kind}"
    held = DIALECTS[dialect]
    path = saved(path, held) if kind == "safetensors" else pickled(path, held)
    assert same(merged(path), wanted())


def test_a_container_is_named(tmp_path: Path) -> None:
    """A training checkpoint holds the generator's LoRA beside the critic's."""
    held = {"generator_lora": DIALECTS["PEFT"], "critic_lora": {"x": torch.ones(1)}, "step": 2}
    path = pickled(tmp_path / "lora.pt", held)
    assert same(merged(LoraSource(path, container="generator_lora")), wanted())
    assert "holds generator_lora (8 entries), critic_lora (1 entries), step: name" in refusal(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_matrices_of_other_types_are_multiplied_in_float32(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    held = {name: t.to(dtype) for name, t in DIALECTS["original"].items()}
    state = weights_of(tiny_dit())
    for layer, (up, down) in pairs().items():
        state[f"{layer}.weight"] += up.to(dtype).float() @ down.to(dtype).float()
    assert same(merged(saved(tmp_path / "a.safetensors", held)), state)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("dialect", ["original", "underscores", "PEFT"])
def test_stored_alphas_count_over_each_rank(
    tmp_path: Path, dialect: str, shape: tuple[int, ...]
) -> None:
    """Each layer its own; one without keeps its rank."""
    held = dict(DIALECTS[dialect])
    layers = sorted({name.partition(".lora_")[0] for name in held})
    for layer in layers:
        if "head" not in layer:
            held[f"{layer}.alpha"] = torch.full(shape, 6.0)
    factors = {layer: 1.0 if "head" in layer else 6.0 / rank for layer, rank in LAYERS.items()}
    result, right = merged(saved(tmp_path / "a.safetensors", held)), wanted(factors)
    assert max((t - right[name]).abs().max() for name, t in result.items()) < 2e-6


@pytest.mark.parametrize("where", ["beside", "metadata"])
@pytest.mark.parametrize(
    ("config", "factor"),
    [
        ({"lora_alpha": 6, "r": 2}, lambda layer, rank: 6 / rank),
        ({"lora_alpha": 6, "use_rslora": True}, lambda layer, rank: 6 / math.sqrt(rank)),
        (
            {"lora_alpha": 6, "alpha_pattern": {"ffn.0": 8, "head.head": 10.0}},
            lambda layer, rank: {"blocks.1.ffn.0": 8, "head.head": 10}.get(layer, 6) / rank,
        ),
    ],
)
def test_alpha_comes_from_the_configuration(
    tmp_path: Path, where: str, config: dict[str, Any], factor: Callable[[str, int], float]
) -> None:
    """PEFT writes it beside the file, diffusers into it."""
    path = tmp_path / "adapter_model.safetensors"
    if where == "beside":
        saved(path, DIALECTS["PEFT"])
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    else:
        text = json.dumps({f"transformer.{name}": value for name, value in config.items()})
        path = saved(tmp_path / "a.safetensors", DIALECTS["PEFT"], {"lora_adapter_metadata": text})
    right = wanted({layer: factor(layer, rank) for layer, rank in LAYERS.items()})
    assert max((t - right[name]).abs().max() for name, t in merged(path).items()) < 2e-6


def test_a_given_alpha_is_for_files_that_state_none(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.safetensors", DIALECTS["PEFT"])
    right = wanted({layer: 7.0 / rank * 0.5 for layer, rank in LAYERS.items()})
    result = merged(LoraSource(path, alpha=7.0, scale=0.5))
    assert max((t - right[name]).abs().max() for name, t in result.items()) < 2e-6
    held = DIALECTS["original"] | {"diffusion_model.head.head.alpha": torch.tensor(2.0)}
    path = saved(tmp_path / "b.safetensors", held)
    assert "has alphas of its own, first diffusion_model.head.head.alpha: give none" in refusal(
        LoraSource(path, alpha=7.0)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "has a configuration that cannot be read: Expecting"),
        ("[]", "has a configuration of another form"),
        ('{"alpha_pattern": [1]}', "has a configuration of another form"),
        ('{"use_dora": true}', "cannot be merged: use_dora in its configuration"),
        ('{"fan_in_fan_out": true}', "cannot be merged: fan_in_fan_out in its configuration"),
        ('{"lora_alpha": "8"}', "its configuration has alpha '8' for "),
        ('{"lora_alpha": true}', "its configuration has alpha True for "),
        ('{"lora_alpha": NaN}', "its configuration has alpha nan for "),
        ('{"lora_alpha": 1' + 400 * "0" + "}", "its configuration has alpha 1000"),
        ('{"alpha_pattern": {"ffn.7": 2}}', "no layer fits 1 alphas of its configuration, first f"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_an_error(
    tmp_path: Path, text: str, said: str
) -> None:
    path = saved(tmp_path / "adapter_model.safetensors", DIALECTS["PEFT"])
    (tmp_path / "adapter_config.json").write_text(text)
    assert said in refusal(path)


def test_the_patch_convolution_is_a_matrix_too(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(4)
    down = torch.randn(3, 4, 1, 2, 2, generator=generator)
    up = torch.randn(24, 3, 1, 1, 1, generator=generator)
    held = {"patch_embedding.lora_down.weight": down, "patch_embedding.lora_up.weight": up}
    state = weights_of(tiny_dit())
    right = torch.einsum("or,rcfhw->ocfhw", up.flatten(1).double(), down.double())
    right += state["patch_embedding.weight"]
    result = merged(saved(tmp_path / "a.safetensors", held))["patch_embedding.weight"]
    assert (result - right).abs().max() < 2e-6


LAYER = "diffusion_model.blocks.0.self_attn.q"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({f"{LAYER}.dora_scale": torch.ones(24)}, "1 keys that are no part of a LoRA, first diff"),
        ({f"{LAYER}.lora_B.bias": torch.ones(24)}, "1 keys that are no part of a LoRA, first diff"),
        (
            {
                f"diffusion_model.blocks.{i}.ffn.0.lora_up.weight": torch.ones(1)
                for i in range(2, 6)
            },
            "4 for layers that the model does not have, first"
            " diffusion_model.blocks.2.ffn.0.lora_up.weight,"
            " diffusion_model.blocks.3.ffn.0.lora_up.weight, ",
        ),
        ({"lora_te_layer.alpha": torch.ones(1)}, "1 for layers that the model does not have"),
        ({f"{LAYER}.lora_up.weight": None}, "1 incomplete, first blocks.0.self_attn.q.weight has"),
        ({"blocks.0.ffn.2.alpha": torch.ones(1)}, "first blocks.0.ffn.2.weight has only alpha"),
        (
            {"model.blocks.0.self_attn.q.lora_up.weight": torch.ones(24, 2)},
            f"1 parts given twice, first {LAYER}.lora_up.weight and model.blocks.0.self_attn.q.",
        ),
        ({f"{LAYER}.lora_A.x.weight": torch.ones(2, 24)}, "1 parts given twice, first"),
        (
            {f"{LAYER}.lora_up.weight": torch.ones(24, 3)},
            "1 of another shape or type, first blocks.0.self_attn.q.weight up [24, 3] down [2, 24]",
        ),
        ({f"{LAYER}.lora_down.weight": torch.ones(2, 25)}, "down [2, 25] for [24, 24]"),
        ({f"{LAYER}.lora_up.weight": torch.ones(24, 2, 1)}, "up [24, 2, 1] down [2, 24]"),
        ({f"{LAYER}.lora_up.weight": torch.ones(48)}, "up [48] down [2, 24]"),
        (
            {f"{LAYER}.lora_up.weight": torch.ones(24, 2, dtype=torch.int8)},
            "first blocks.0.self_attn.q.weight int8 and float32",
        ),
        (
            {
                f"{LAYER}.lora_up.weight": torch.ones(24, 0),
                f"{LAYER}.lora_down.weight": torch.ones(0, 24),
            },
            "first blocks.0.self_attn.q.weight rank 0",
        ),
        (
            {
                "blocks.0.norm3.lora_up.weight": torch.ones(24, 1),
                "blocks.0.norm3.lora_down.weight": torch.ones(1, 1),
            },
            "first blocks.0.norm3.weight up [24, 1] down [1, 1] for [24]",
        ),
        ({f"{LAYER}.alpha": torch.tensor(math.nan)}, f"{LAYER}.alpha is no finite number"),
        ({f"{LAYER}.alpha": torch.ones(2)}, f"{LAYER}.alpha is no finite number"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, change: dict[str, torch.Tensor | None], said: str
) -> None:
    held = dict(DIALECTS["original"])
    for name, tensor in change.items():
        held.pop(name, None)
        if tensor is not None:
            held[name] = tensor
    message = refusal(saved(tmp_path / "a.safetensors", held))
    assert said in message
    assert "a.safetensors" in message


def test_a_whole_checkpoint_is_no_lora(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.safetensors", weights_of(tiny_dit()))
    assert "69 keys that are no part of a LoRA, first " in refusal(path)
