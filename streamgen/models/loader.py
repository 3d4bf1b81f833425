"""Strict loading of safetensors checkpoints: a file fits the module exactly, or nothing is loaded.

The whole file is compared with the module by its header, before a single weight is read. Pickles
are refused: reading one can run code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from streamgen.errors import ConfigError

HARMLESS_BUFFERS: Final = frozenset({"freqs", "inv_freq", "num_batches_tracked", "position_ids"})
"""Last name parts of buffers that the model computes itself: missing or extra, they change nothing.

A parameter of such a name is not excused.
"""

_LFS_POINTER: Final = b"version https://git-lfs"
_PICKLE_MAGICS: Final = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLE_SUFFIXES: Final = frozenset({".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"})
_FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16"})  # converted to the module's own type
_WHOLE_NUMBERS: Final = {
    "BOOL": torch.bool,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "I8": torch.int8,
    "U8": torch.uint8,
}
_NUM_NAMED: Final = 3


class CheckpointError(ConfigError):
    """The checkpoint is missing, is no safetensors file, does not fit the model or misbehaves."""


def load_safetensors_strict(
    module: nn.Module,
    path: str | Path,
    *,
    file_keys: Mapping[str, str] | None = None,
) -> None:
    """Load a safetensors file that has exactly the module's tensors.

    `file_keys` maps the module's tensor names to the file's where they differ. Floating types are
    converted to the module's; anything else must agree. Raises CheckpointError, naming counts and
    first names, before the module is touched.
    """
    path = Path(path)
    targets = {(file_keys or {}).get(name, name): t for name, t in module.state_dict().items()}
    assert len(targets) == len(module.state_dict()), "file_keys maps two tensors to one name"
    assert not any(t.is_meta for t in targets.values()), "module is on the meta device"
    parameters = {(file_keys or {}).get(name, name) for name, _ in module.named_parameters()}
    with open_safetensors(path) as file:
        complaints = _compare(file, targets, parameters)
        if complaints:
            name = type(module).__name__
            raise CheckpointError(f"{path} does not fit {name}: {'; '.join(complaints)}")
        with torch.no_grad():
            for key in set(file.keys()) & targets.keys():
                targets[key].copy_(file.get_tensor(key))


def open_safetensors(path: str | Path) -> AbstractContextManager[Any]:
    """Open a safetensors file, or raise CheckpointError saying what the file really is."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
        size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if not start:
        raise CheckpointError(f"{path} is empty (0 bytes)")
    if start == _LFS_POINTER:
        raise CheckpointError(f"{path} is a Git LFS pointer, not the weights: run `git lfs pull`")
    if path.suffix in _PICKLE_SUFFIXES or start.startswith(_PICKLE_MAGICS):
        raise CheckpointError(
            f"{path} is a pickle, and reading a pickle can run code: convert it to safetensors"
        )
    try:
        opened: AbstractContextManager[Any] = safe_open(str(path), framework="pt", device="cpu")
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} is truncated or no safetensors file ({size} bytes): {error}"
        ) from error
    return opened


def require_varied_output(output: Tensor, source: str | Path) -> None:
    """Raise CheckpointError when a freshly loaded model's output is not finite or is constant."""
    num_bad = int((~torch.isfinite(output)).sum())
    if num_bad:
        raise CheckpointError(
            f"{source} loads, but {num_bad} of {output.numel()} outputs of the self check are not"
            " finite"
        )
    if output.numel() and output.min() == output.max():
        raise CheckpointError(
            f"{source} loads, but every output of the self check is {output.flatten()[0]:.4g}"
        )


def _compare(file: Any, targets: Mapping[str, Tensor], parameters: set[str]) -> list[str]:
    held = set(file.keys())
    missing = [k for k in targets if k not in held and (k in parameters or not _is_harmless(k))]
    extra = [k for k in sorted(held) if k not in targets and not _is_harmless(k)]
    misshaped, mistyped = [], []
    for key in (k for k in targets if k in held):
        entry, target = file.get_slice(key), targets[key]
        shape, dtype = tuple(entry.get_shape()), entry.get_dtype()
        if shape != tuple(target.shape):
            misshaped.append(f"{key} {list(shape)} instead of {list(target.shape)}")
        floating = dtype in _FLOATS and target.is_floating_point()
        if not floating and _WHOLE_NUMBERS.get(dtype) != target.dtype:
            mistyped.append(f"{key} {dtype} instead of {str(target.dtype).removeprefix('torch.')}")
    complaints = [
        f"{len(names)} {what}, first {_first(names)}"
        for what, names in (
            ("missing", missing),
            ("extra", extra),
            ("of another shape", misshaped),
            ("of another type", mistyped),
        )
        if names
    ]
    prefix = _common_prefix(missing, extra)
    if prefix:
        complaints.append(f"the file's names carry the prefix {prefix!r}")
    return complaints


def _is_harmless(key: str) -> bool:
    return key.rpartition(".")[2] in HARMLESS_BUFFERS


def _first(names: Iterable[str]) -> str:
    named = list(names)
    more = ", ..." if len(named) > _NUM_NAMED else ""
    return ", ".join(named[:_NUM_NAMED]) + more


def _common_prefix(missing: list[str], extra: list[str]) -> str:
    """Return what, put before every missing name, gives the extra ones; empty when nothing does."""
    if not missing or len(missing) != len(extra):
        return ""
    shortest = min(missing, key=len)
    candidates = {key.removesuffix(shortest) for key in extra if key.endswith(shortest)}
    fits = (p for p in candidates if p and {p + key for key in missing} == set(extra))
    return next(fits, "")
