"""Toy checkpoints: a small transformer's weights, spelled in the ways in which files are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from streamgen.models.causal_dit import CausalDiT, DiTConfig

CONFIG = DiTConfig(
    dim=24, ffn_dim=40, num_layers=2, num_heads=2, text_dim=10, text_len=5, in_dim=4, out_dim=4,
    freq_dim=16,
)  # fmt: skip

Weights = dict[str, Tensor]


def tiny_dit(seed: int = 0, config: DiTConfig = CONFIG) -> CausalDiT:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CausalDiT(config).requires_grad_(False)


def weights_of(module: torch.nn.Module) -> Weights:
    """Return copies."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def tiny_weights(seed: int = 1) -> Weights:
    """Return weights that `tiny_dit()` does not have yet."""
    return weights_of(tiny_dit(seed))


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Return whether two states are equal bit for bit, types and the sign of 0 included."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and torch.equal(_bytes(left[name]), _bytes(right[name]))
        for name in left
    )


def _bytes(tensor: Tensor) -> Tensor:
    """Return what a tensor holds, in whatever order its memory is."""
    return tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def renamed(tensors: Weights, rule: Callable[[str], str]) -> Weights:
    return {rule(name): tensor for name, tensor in tensors.items()}


def saved(path: Path, tensors: Weights, metadata: dict[str, str] | None = None) -> Path:
    save_file({n: t.contiguous() for n, t in tensors.items()}, str(path), metadata)
    return path


def pickled(path: Path, held: object) -> Path:
    torch.save(held, path)
    return path


class Bomb:
    """Leave a marker when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)
