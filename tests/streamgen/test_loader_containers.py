"""Published files hold the weights in shards, in containers and behind wrappers' names."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from streamgen.models.checkpoint_files import container_of
from streamgen.models.checkpoint_keys import strip_wrappers
from streamgen.models.loader import CheckpointError, load_checkpoint
from tests.streamgen.checkpoints import (
    Weights,
    pickled,
    renamed,
    same,
    saved,
    tiny_dit,
    tiny_weights,
    weights_of,
)


def refusal(path: Path, container: str | None = None) -> str:
    """Return the message of the refusal, after checking that the module kept its weights."""
    module = tiny_dit()
    before = weights_of(module)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(module, path, container=container)
    assert same(weights_of(module), before)
    return str(caught.value)


def loaded(path: Path, container: str | None = None) -> Weights:
    module = tiny_dit()
    load_checkpoint(module, path, container=container)
    return weights_of(module)


def everywhere(wrapper: str) -> Callable[[str], str]:
    """Return a rule that puts a wrapper before every part of a name."""
    return lambda name: ".".join(f"{wrapper}.{part}" for part in name.split("."))


def all_combined(name: str) -> str:
    """Wrap as a compiled, sharded and checkpointed model inside a wrapper class and DDP is."""
    name = name.replace("blocks.", "blocks._fsdp_wrapped_module.", 1) if "blocks" in name else name
    for part in ("self_attn.", "ffn."):
        name = name.replace(part, f"_checkpoint_wrapped_module.{part}_orig_mod.")
    return f"module._orig_mod.model._fsdp_wrapped_module.{name}"


SPELLINGS: dict[str, Callable[[str], str]] = {
    "flat": lambda name: name,
    "model": lambda name: f"model.{name}",
    "module": lambda name: f"module.{name}",
    "_fsdp_wrapped_module at each depth": everywhere("_fsdp_wrapped_module"),
    "_checkpoint_wrapped_module at each depth": everywhere("_checkpoint_wrapped_module"),
    "_orig_mod": lambda name: f"_orig_mod.{name}",
    "model within the name": lambda name: name.replace("blocks.", "blocks.model."),
    "all": all_combined,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kind", ["safetensors", "pt", "pth"])
def test_q43_wrapped_names_give_the_same_tensors(tmp_path: Path, spelling: str, kind: str) -> None:
    wanted = tiny_weights()
    held = renamed(wanted, SPELLINGS[spelling])
    assert (set(held) == set(wanted)) == (spelling == "flat")
    path = tmp_path / f"toy.{kind}"
    assert same(loaded(saved(path, held) if kind == "safetensors" else pickled(path, held)), wanted)


@pytest.mark.parametrize("container", ["generator", "generator_ema", "state_dict", "model"])
def test_q43_a_named_container_is_loaded_and_logged(
    tmp_path: Path, container: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = tiny_weights()
    held = renamed(wanted, SPELLINGS["all"])
    path = pickled(
        tmp_path / "toy.pt", {container: held, "critic": {"x": torch.ones(1)}, "step": 5}
    )
    with caplog.at_level(logging.INFO, logger="streamgen.models.loader"):
        assert same(loaded(path, container), wanted)
    said = caplog.messages[-1]
    assert f"{path}: loaded CausalDiT; container {container}, layout own, wrappers" in said
    assert "_fsdp_wrapped_module, _orig_mod, model, module; 69 tensors in float32 as" in said


def test_q43_a_container_within_a_container(tmp_path: Path) -> None:
    wanted = tiny_weights()
    path = pickled(tmp_path / "toy.pt", {"state_dict": {"generator": wanted}, "epoch": 1})
    assert same(loaded(path, "state_dict.generator"), wanted)
    message = refusal(path, "state_dict")
    assert "(state_dict) holds generator (69 entries): name the container to load" in message


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_q43_raw_and_averaged_weights_are_not_confused(tmp_path: Path, kind: str) -> None:
    """Zeros in `generator`, ones in `generator_ema`: what is asked for is what comes."""
    parts = {
        "generator": {n: torch.zeros_like(t) for n, t in tiny_weights().items()},
        "generator_ema": {n: torch.ones_like(t) for n, t in tiny_weights().items()},
    }
    if kind == "pt":
        path = pickled(tmp_path / "toy.pt", parts)
    else:
        flat = {f"{part}.{name}": t for part, held in parts.items() for name, t in held.items()}
        path = saved(tmp_path / "toy.safetensors", flat)
    assert same(loaded(path, "generator"), parts["generator"])
    assert same(loaded(path, "generator_ema"), parts["generator_ema"])


def test_q43_the_average_that_is_absent_is_an_error(tmp_path: Path) -> None:
    """The raw weights are no substitute; the message names what there is."""
    path = pickled(tmp_path / "toy.pt", {"generator": tiny_weights(), "step": 3})
    assert "has no container 'generator_ema': it holds generator (69 entries), step" in refusal(
        path, "generator_ema"
    )
    assert "has no container 'generator.ema': generator holds " in refusal(path, "generator.ema")
    assert "has no container 'step.x': step holds int" in refusal(path, "step.x")
    flat = pickled(tmp_path / "flat.pt", tiny_weights())
    assert "has no container 'generator_ema': it holds patch_" in refusal(flat, "generator_ema")
    named = saved(tmp_path / "flat.safetensors", tiny_weights())
    assert "has no container 'generator_ema': its names begin with blocks" in refusal(
        named, "generator_ema"
    )


@pytest.mark.parametrize("outer", ["", "state_dict"])
def test_q43_a_container_that_only_names_tell_of(outer: str, tmp_path: Path) -> None:
    """A module of modules, saved whole, has its parts in its names, in a pickle too."""
    weights = tiny_weights()
    other = renamed(tiny_weights(3), lambda name: f"generator.{name}")
    held = renamed(weights, lambda name: f"generator_ema.model.{name}") | other
    path = pickled(tmp_path / "toy.pt", {outer: held} if outer else held)
    name = f"{outer}.generator_ema" if outer else "generator_ema"
    assert same(loaded(path, name), weights)
    assert container_of(path, "generator_ema") == (None if outer else "generator_ema")
    assert "has no container" in refusal(path, f"{name}_2")


@pytest.mark.parametrize("containers", [("generator", "generator_ema"), ("generator",)])
def test_q43_a_choice_that_is_not_made_is_an_error(
    tmp_path: Path, containers: tuple[str, ...]
) -> None:
    """One container alone is not taken either: it may be the wrong one."""
    held = {name: tiny_weights() for name in containers}
    message = refusal(pickled(tmp_path / "toy.pt", {**held, "step": 3}))
    listed = ", ".join(f"{name} (69 entries)" for name in containers)
    assert f"holds {listed}, step: name the container to load" in message


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_q43_two_keys_for_one_tensor_are_an_error(tmp_path: Path, kind: str) -> None:
    held = tiny_weights()
    held["model.head.head.bias"] = held["head.head.bias"] + 1
    path = tmp_path / f"toy.{kind}"
    message = refusal(saved(path, held) if kind == "safetensors" else pickled(path, held))
    assert str(path) in message
    assert "1 names stand for two tensors each once wrappers are taken off" in message
    assert "head.head.bias and model.head.head.bias" in message or (
        "model.head.head.bias and head.head.bias" in message
    )


def test_q43_what_the_module_itself_calls_model_stays() -> None:
    keys = ["module.model.0.weight", "module.model.1.weight"]
    found = strip_wrappers(keys, ["model.0.weight", "model.1.weight"])
    assert found == {"model.0.weight": keys[0], "model.1.weight": keys[1]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_q43_each_tensor_keeps_the_type_the_module_has_for_it(
    tmp_path: Path, dtype: torch.dtype, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Matrices in bfloat16, norms and timestep layers in float32, whatever the file has."""
    held = {name: t.to(dtype) for name, t in tiny_weights().items()}
    path = tmp_path / f"toy.{kind}"
    path = saved(path, held) if kind == "safetensors" else pickled(path, held)
    module = tiny_dit().to(torch.bfloat16)
    kept = [module.time_embedding, module.time_projection]
    kept += [m for name, m in module.named_modules() if "norm" in name.rpartition(".")[2]]
    for layer in kept:
        layer.float()
    wanted = {n: held[n].to(t.dtype) for n, t in module.state_dict().items()}
    assert {t.dtype for t in wanted.values()} == {torch.bfloat16, torch.float32}
    with caplog.at_level(logging.INFO, logger="streamgen.models.loader"):
        load_checkpoint(module, path)
    assert same(weights_of(module), wanted)
    name = str(dtype).removeprefix("torch.")
    assert f"51 tensors in {name} as bfloat16, 18 tensors in {name} as float32" in caplog.text


def sharded(folder: Path, tensors: Weights) -> Path:
    """Write two shards and their index as transformers and diffusers do."""
    names = sorted(tensors)
    shards = {"a-1-of-2.safetensors": names[::2], "a-2-of-2.safetensors": names[1::2]}
    for file, keys in shards.items():
        saved(folder / file, {key: tensors[key] for key in keys})
    index = folder / "a.safetensors.index.json"
    weight_map = {key: file for file, keys in shards.items() for key in keys}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    wanted = tiny_weights()
    index = sharded(tmp_path, renamed(wanted, SPELLINGS["all"]))
    assert same(loaded(index), wanted)
    assert same(loaded(tmp_path), wanted), "the folder is as good"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("no shard", "a-2-of-2.safetensors cannot be read: No such file"),
        ("pointer", "a-2-of-2.safetensors is a Git LFS pointer"),
        ("other shard", "and its shard a-2-of-2.safetensors disagree on 2 tensors, first blocks.0"),
        ("elsewhere", "is in '../a-1-of-2.safetensors', which is no file beside it"),
        ("no text", "is in 5, which is no file beside it"),
        ("no map", "is no index of shards: it has no weight_map"),
        ("no JSON", "is no index of shards: Expecting"),
        ("empty map", "holds no tensors"),
        ("empty", "is empty (0 bytes)"),
    ],
)
def test_q42_damaged_shards_are_refused(tmp_path: Path, damage: str, said: str) -> None:
    index = sharded(tmp_path, tiny_weights())
    shard = tmp_path / "a-2-of-2.safetensors"
    held = json.loads(index.read_text())
    if damage == "no shard":
        shard.unlink()
    elif damage == "pointer":
        shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    elif damage == "other shard":
        tensors = {k: tiny_weights()[k] for k, f in held["weight_map"].items() if f == shard.name}
        first = next(iter(sorted(tensors)))
        tensors[f"{first}.more"] = tensors.pop(first)
        saved(shard, tensors)
    elif damage in ("elsewhere", "no text"):
        held["weight_map"]["head.head.bias"] = (
            5 if damage == "no text" else "../a-1-of-2.safetensors"
        )
        index.write_text(json.dumps(held))
    else:
        texts = {"no map": "{}", "no JSON": "{", "empty map": '{"weight_map": {}}', "empty": ""}
        index.write_text(texts[damage])
    assert said in refusal(index)


@pytest.mark.parametrize("name", ["a\0b", "\ud800.safetensors", "..", "/etc/hosts", 3])
def test_q42_names_of_shards_that_are_none_are_refused(name: object, tmp_path: Path) -> None:
    index = tmp_path / "toy.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"blocks.0": name}}))
    said = refusal(index)
    assert "cannot be" in said or "is no file beside it" in said


def test_a_folder_must_leave_no_doubt(tmp_path: Path) -> None:
    """safetensors comes before torch's files; two of a kind must be told apart by the caller."""
    assert "is a directory without a checkpoint (*.safetensors.index.json" in refusal(tmp_path)
    wanted = tiny_weights()
    pickled(tmp_path / "a.pt", tiny_weights(seed=2))
    assert not same(loaded(tmp_path), wanted)
    saved(tmp_path / "b.safetensors", wanted)
    assert same(loaded(tmp_path), wanted)
    saved(tmp_path / "c.safetensors", wanted)
    assert "holds b.safetensors, c.safetensors: name the one to load" in refusal(tmp_path)
