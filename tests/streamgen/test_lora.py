"""LoRAs are merged exactly, replaced without drift and taken out without a trace."""

from __future__ import annotations

import hashlib
import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from streamgen.errors import ConfigError
from streamgen.models.causal_dit import CausalDiT
from streamgen.models.loader import CheckpointError
from streamgen.models.lora import LoraMerger, LoraSource
from tests.streamgen.checkpoints import CONFIG, Weights, same, saved, tiny_dit, weights_of

LAYERS = ("blocks.0.self_attn.q", "blocks.0.ffn.2", "blocks.1.cross_attn.o", "text_embedding.0")


def lora(seed: int, layers: tuple[str, ...] = LAYERS, first_rank: int = 2) -> Weights:
    """Return the pairs of a LoRA whose ranks grow from layer to layer, with an alpha each."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: t.shape for name, t in tiny_dit().state_dict().items()}
    tensors: Weights = {}
    for rank, layer in enumerate(layers, first_rank):
        rows, columns = shapes[f"{layer}.weight"]
        tensors[f"{layer}.lora_up.weight"] = torch.randn(rows, rank, generator=generator)
        tensors[f"{layer}.lora_down.weight"] = torch.randn(rank, columns, generator=generator)
        tensors[f"{layer}.alpha"] = torch.tensor(1.5 * rank)
    return {f"diffusion_model.{name}": t for name, t in tensors.items()}


def merged_by_hand(base: Weights, *loras: tuple[Weights, float]) -> Weights:
    """Return the sum in float64."""
    total = {name: t.double() for name, t in base.items()}
    for tensors, scale in loras:
        for name, up in tensors.items():
            if name.endswith(".lora_up.weight"):
                layer = name.removesuffix(".lora_up.weight")
                down, alpha = tensors[f"{layer}.lora_down.weight"], tensors[f"{layer}.alpha"]
                delta = up.double() @ down.double() * float(alpha) / len(down) * scale
                total[f"{layer.removeprefix('diffusion_model.')}.weight"] += delta
    return total


def differences(module: nn.Module, wanted: Weights) -> dict[str, float]:
    found = {
        name: (t.double() - wanted[name]).abs().max() for name, t in module.state_dict().items()
    }
    return {name: float(error) for name, error in found.items() if error}


def state_hash(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        digest.update(tensor.view(torch.uint8).numpy())
    return digest.hexdigest()


@torch.no_grad()
def output_hash(module: CausalDiT) -> str:
    """Return a digest of what the model computes."""
    generator = torch.Generator().manual_seed(5)
    dtype = module.patch_embedding.weight.dtype
    latents = torch.randn(1, 2, CONFIG.in_dim, 4, 6, generator=generator).to(dtype)
    embeds = torch.randn(1, CONFIG.text_len, CONFIG.text_dim, generator=generator)
    k, v = module.text_kv(embeds)
    flow: Tensor = module(
        latents,
        torch.full((1, 2), 500.0),
        torch.zeros(1, dtype=torch.int64),
        lambda layer: (k[layer], v[layer]),
        lambda layer, q, key, value: value,
    )
    return hashlib.sha256(flow.float().numpy().tobytes()).hexdigest()


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return saved(tmp_path / "a.safetensors", lora(1))


@pytest.fixture
def b(tmp_path: Path) -> Path:
    """Return one that shares two layers with `a` and has two others."""
    layers = (*LAYERS[1:3], "blocks.1.ffn.0", "time_embedding.0")
    return saved(tmp_path / "b.safetensors", lora(2, layers, first_rank=3))


def test_q45_the_sum_is_right(a: Path, b: Path) -> None:
    """alpha over each layer's own rank, times the strength; several add up."""
    module = tiny_dit()
    base, merger = weights_of(module), LoraMerger(module)
    merger.load([a])
    wrong = differences(module, merged_by_hand(base, (lora(1), 1.0)))
    assert max(wrong.values(), default=0.0) < 2e-6
    changed = differences(module, {name: t.double() for name, t in base.items()})
    assert changed.keys() == {f"{layer}.weight" for layer in LAYERS}
    assert min(changed.values()) > 1
    merger.load([LoraSource(a, scale=0.5), LoraSource(b, scale=-2.0)])
    second = lora(2, (*LAYERS[1:3], "blocks.1.ffn.0", "time_embedding.0"), first_rank=3)
    wrong = differences(module, merged_by_hand(base, (lora(1), 0.5), (second, -2.0)))
    assert max(wrong.values()) < 8e-6
    assert [source.path for source in merger.loaded] == [a, b]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_q45_unloading_restores_the_base_bit_for_bit(a: Path, dtype: torch.dtype) -> None:
    module = tiny_dit().to(dtype)
    base, before = weights_of(module), output_hash(module)
    merger = LoraMerger(module)
    merger.load([a])
    assert output_hash(module) != before
    merger.unload()
    assert same(weights_of(module), base)
    assert output_hash(module) == before
    assert merger.loaded == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_q45_ten_rounds_leave_no_drift(a: Path, b: Path, dtype: torch.dtype) -> None:
    """A, B, A, none: each time what it was the first time, and in place."""
    module = tiny_dit().to(dtype)
    addresses = {name: t.data_ptr() for name, t in module.state_dict().items()}
    merger, seen = LoraMerger(module), {None: {state_hash(module)}, a: set(), b: set()}
    for path in [a, b, a, None] * 10:
        merger.load([path] if path else [])
        seen[path].add(state_hash(module))
    assert [len(hashes) for hashes in seen.values()] == [1, 1, 1]
    assert len(set.union(*seen.values())) == 3
    assert {name: t.data_ptr() for name, t in module.state_dict().items()} == addresses


def test_q45_what_is_merged_is_rounded_once(a: Path) -> None:
    """In bfloat16 the sum is made in float32: equal to rounding the float32 sum."""
    base = weights_of(tiny_dit().to(torch.bfloat16))
    module, exact = tiny_dit().to(torch.bfloat16), tiny_dit()
    exact.load_state_dict({name: t.float() for name, t in base.items()})
    LoraMerger(module).load([a])
    LoraMerger(exact).load([a])
    assert same(weights_of(module), {n: t.bfloat16() for n, t in weights_of(exact).items()})


def test_q45_the_module_may_be_cast_in_between(a: Path, b: Path) -> None:
    """Models are loaded in float32 and cast at the start; unloading gives the cast base."""
    module = tiny_dit()
    wanted = weights_of(tiny_dit().to(torch.bfloat16))
    merger = LoraMerger(module)
    merger.load([a])
    module.to(torch.bfloat16)
    merger.load([b])
    merger.unload()
    assert same(weights_of(module), wanted)


def failing(how: str, folder: Path) -> LoraSource:
    """Return a LoRA that cannot be loaded."""
    path = folder / "bad.safetensors"
    tensors = lora(2)
    name = f"diffusion_model.{LAYERS[1]}.lora_up.weight"
    if how == "missing file":
        return LoraSource(path)
    if how == "pointer":
        path.write_text("version https://git-lfs.github.com/spec/v1\n")
        return LoraSource(path)
    if how == "wrong shape":
        tensors[name] = tensors[name].T
    elif how == "not finite":
        tensors[name][3, 1] = math.nan
    else:
        assert how == "too large", how
        tensors[name].fill_(3e38)
    return LoraSource(saved(path, tensors))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("missing file", "cannot be read: No such file"),
        ("pointer", "is a Git LFS pointer"),
        ("wrong shape", "1 of another shape or type, first blocks.0.ffn.2.weight up [3, 24] down"),
        ("not finite", "with these LoRAs blocks.0.ffn.2.weight would not be finite"),
        ("too large", "with these LoRAs blocks.0.ffn.2.weight would not be finite"),
    ],
)
@pytest.mark.parametrize("with_a", [True, False])
def test_q45_a_failed_change_leaves_all_as_it_was(
    a: Path, b: Path, tmp_path: Path, how: str, said: str, with_a: bool
) -> None:
    """Entirely A, or entirely the base; a good file beside the bad one changes nothing either."""
    module = tiny_dit()
    base, merger = weights_of(module), LoraMerger(module)
    merger.load([a] if with_a else [])
    before, loaded = weights_of(module), merger.loaded
    bad = failing(how, tmp_path)
    for sources in ([bad], [b, bad], [bad, b]):
        with pytest.raises(CheckpointError) as caught:
            merger.load(sources)
        assert said in str(caught.value)
        assert same(weights_of(module), before)
        assert merger.loaded == loaded
    merger.load([b])
    merger.unload()
    assert same(weights_of(module), base)


def test_q45_strength_0_is_none(a: Path, tmp_path: Path) -> None:
    """Bit for bit, the sign of zeros too; but the file must be good all the same."""
    module = tiny_dit()
    with torch.no_grad():
        module.blocks[0].ffn[2].weight[0] = -0.0
    base, merger = weights_of(module), LoraMerger(module)
    merger.load([LoraSource(a, scale=0.0)])
    assert same(weights_of(module), base)
    assert len(merger.loaded) == 1
    with pytest.raises(CheckpointError, match="of another shape"):
        merger.load([LoraSource(failing("wrong shape", tmp_path).path, scale=0.0)])


def test_q45_a_strength_must_be_a_number(a: Path) -> None:
    for values in ({"scale": math.nan}, {"scale": math.inf}, {"alpha": math.nan}):
        with pytest.raises(ConfigError, match="must be a finite number, not"):
            LoraSource(a, **values)


def test_q45_order_does_not_matter_much(a: Path, b: Path) -> None:
    """Only rounding may differ."""
    results = []
    for paths in itertools.permutations([a, b]):
        module = tiny_dit()
        LoraMerger(module).load(paths)
        results.append(weights_of(module))
    assert max((x - results[1][n]).abs().max() for n, x in results[0].items()) < 4e-6
