"""Strict loading: a checkpoint fits the module exactly, or nothing is loaded.

All names, shapes and types are compared before a single weight is read, so a refused file leaves
the module as it was. There is no lenient mode.

Each tensor keeps the type that the module has for it, whatever the file's: floating types are
converted one by one, anything else must agree. A module that holds norms in float32 beside
matrices in bfloat16 goes on doing so. What was converted is logged, with the container and layout.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from streamgen.errors import CheckpointError, first_names
from streamgen.models.checkpoint_files import (
    Checkpoint,
    open_checkpoint,
    open_safetensors,
    safetensors_entries,
)
from streamgen.models.checkpoint_keys import Layout, find_layout, strip_wrappers, wrappers_in

logger: Final = logging.getLogger(__name__)

HARMLESS_BUFFERS: Final = frozenset({"freqs", "inv_freq", "num_batches_tracked", "position_ids"})
"""Last name parts of buffers that the model computes itself: missing or extra, they change nothing.

A parameter of such a name is not excused.
"""

FLOATS: Final = frozenset({"float64", "float32", "float16", "bfloat16"})
"""Types that are converted to the module's own."""


def load_checkpoint(
    module: nn.Module,
    path: str | Path,
    *,
    container: str | None = None,
    layouts: Mapping[str, Layout] | None = None,
) -> None:
    """Load a published checkpoint that has exactly the module's tensors.

    `path` and `container` are those of `open_checkpoint`. Names may carry training's wrappers at
    any depth, and be those of one of `layouts` (such as `dit_layouts`); by default the module's
    own. Raises CheckpointError, naming counts and first names, before the module is touched.
    """
    with _unwrapped(module, path, container, layouts) as found:
        converted = _load(module, found.checkpoint, found.layout)
    logger.info(
        "%s: loaded %s; container %s, layout %s, wrappers %s; %s",
        *(found.checkpoint.path, type(module).__name__, container or "none", found.name),
        *(found.wrappers or "none", converted),
    )


def check_checkpoint(
    module: nn.Module,
    path: str | Path,
    *,
    container: str | None = None,
    layouts: Mapping[str, Layout] | None = None,
) -> None:
    """Raise the CheckpointError that `load_checkpoint` would raise; reads no weight.

    The module may be on the meta device.
    """
    with _unwrapped(module, path, container, layouts) as found:
        _require_fit(module, found.checkpoint, found.layout)


def load_safetensors_strict(
    module: nn.Module,
    path: str | Path,
    *,
    file_keys: Layout | None = None,
) -> None:
    """Load a safetensors file that has exactly the module's tensors, under their own names.

    `file_keys` maps the module's tensor names to the file's where they differ. Raises
    CheckpointError as `load_checkpoint` does.
    """
    own = {name: (file_keys or {}).get(name, name) for name in module.state_dict()}
    with open_safetensors(path) as file:
        checkpoint = Checkpoint(Path(path), None, safetensors_entries(file))
        converted = _load(module, checkpoint, own)
    logger.info("%s: loaded %s; %s", path, type(module).__name__, converted)


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


@dataclass(frozen=True, slots=True)
class _Found:
    """An open checkpoint by its tensors' names without wrappers, and the layout of those names."""

    checkpoint: Checkpoint
    name: str
    layout: Layout
    wrappers: str


@contextmanager
def _unwrapped(
    module: nn.Module,
    path: str | Path,
    container: str | None,
    layouts: Mapping[str, Layout] | None,
) -> Iterator[_Found]:
    own = list(module.state_dict())
    layouts = layouts or {"own": {name: name for name in own}}
    known = [key for layout in layouts.values() for key in layout.values()]
    with open_checkpoint(path, container=container) as checkpoint:
        try:
            keys = strip_wrappers(checkpoint.entries, known)
        except CheckpointError as error:
            raise CheckpointError(f"{checkpoint.source}: {error}") from error
        name = find_layout(layouts, keys)
        named = {name: checkpoint.entries[key] for name, key in keys.items()}
        bare = Checkpoint(checkpoint.path, container, named)
        yield _Found(bare, name, layouts[name], ", ".join(wrappers_in(keys)))


def _load(module: nn.Module, checkpoint: Checkpoint, layout: Layout) -> str:
    """Copy all tensors and return the types they had and have; CheckpointError before the first."""
    targets = _require_fit(module, checkpoint, layout)
    assert not any(t.is_meta for t in targets.values()), "module is on the meta device"
    types: Counter[str] = Counter()
    with torch.no_grad():
        for key, target in targets.items():
            if (entry := checkpoint.entries.get(key)) is not None:
                target.copy_(entry.read())
                types[f"{entry.dtype} as {_type_name(target)}"] += 1
    return ", ".join(f"{count} tensors in {what}" for what, count in sorted(types.items()))


def _require_fit(module: nn.Module, checkpoint: Checkpoint, layout: Layout) -> dict[str, Tensor]:
    """Return the module's tensors by the file's names; CheckpointError if they are not the same."""
    targets = {layout[name]: tensor for name, tensor in module.state_dict().items()}
    assert len(targets) == len(module.state_dict()), "layout maps two tensors to one name"
    parameters = {layout[name] for name, _ in module.named_parameters()}
    if complaints := _compare(checkpoint, targets, parameters):
        name = type(module).__name__
        raise CheckpointError(f"{checkpoint.source} does not fit {name}: {'; '.join(complaints)}")
    return targets


def _compare(
    checkpoint: Checkpoint, targets: Mapping[str, Tensor], parameters: set[str]
) -> list[str]:
    held = checkpoint.entries
    missing = [k for k in targets if k not in held and (k in parameters or not _is_harmless(k))]
    extra = [k for k in sorted(held) if k not in targets and not _is_harmless(k)]
    misshaped, mistyped = [], []
    for key in (k for k in targets if k in held):
        entry, target = held[key], targets[key]
        if entry.shape != tuple(target.shape):
            misshaped.append(f"{key} {list(entry.shape)} instead of {list(target.shape)}")
        floating = entry.dtype in FLOATS and target.is_floating_point()
        if not floating and entry.dtype != _type_name(target):
            mistyped.append(f"{key} {entry.dtype} instead of {_type_name(target)}")
    complaints = [
        f"{len(names)} {what}, first {first_names(names)}"
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


def _type_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _is_harmless(key: str) -> bool:
    return key.rpartition(".")[2] in HARMLESS_BUFFERS


def _common_prefix(missing: list[str], extra: list[str]) -> str:
    """Return what, put before every missing name, gives the extra ones; empty when nothing does."""
    if not missing or len(missing) != len(extra):
        return ""
    shortest = min(missing, key=len)
    candidates = {key.removesuffix(shortest) for key in extra if key.endswith(shortest)}
    fits = (p for p in candidates if p and {p + key for key in missing} == set(extra))
    return next(fits, "")
