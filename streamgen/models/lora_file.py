"""LoRA files: which matrices of a module they change, and by how much.

A layer's change is up @ down, times alpha over its rank, times the strength it is given. The files
differ in how they spell the layer's name, the two matrices and alpha:

* PEFT: `base_model.model.<layer>.lora_A.weight` and `lora_B`, perhaps with an adapter's name before
  `weight`; alpha is in `adapter_config.json` beside it, or in the file's metadata;
* original: `diffusion_model.<layer>.lora_down.weight`, `lora_up` and a scalar `<layer>.alpha`;
  or the layer's name with underscores, as in `lora_unet_blocks_0_self_attn_q`.

Layers may have the names of any layout and training's wrappers. Ranks may differ from layer to
layer; where nothing states alpha it is the rank.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from streamgen.errors import CheckpointError, ConfigError, first_names
from streamgen.models.checkpoint_files import Checkpoint, Entry
from streamgen.models.checkpoint_keys import WRAPPERS, Layout
from streamgen.models.loader import FLOATS

_PART: Final = re.compile(
    r"(?P<layer>.+)\.(?:lora_(?P<new>A|B|down|up)|lora\.(?P<old>down|up))(?:\.[^.]+)?\.weight"
    r"|(?P<scaled>.+)\.alpha"
)
_PARTS: Final = {"A": "down", "B": "up", "down": "down", "up": "up"}
_PREFIXES: Final = frozenset({"base_model", "diffusion_model", "transformer", "unet"})
_FLAT: Final = re.compile(r"lora_(?:unet|transformer|dit)_(.+)")
_LARGEST_ALPHA: Final = 1e9
_METADATA: Final = "lora_adapter_metadata"


@dataclass(frozen=True, slots=True)
class LoraSource:
    """A LoRA to merge: its file, how strongly (0: not at all), and what the file leaves open.

    `container` is as for `open_checkpoint`; `alpha` is for files that state none.
    """

    path: Path
    scale: float = 1.0
    container: str | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name in ("scale", "alpha"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ConfigError(
                    f"{name} of LoRA {self.path} must be a finite number, not {value}"
                )


@dataclass(frozen=True, slots=True)
class LoraLayer:
    """The change of one weight of the module: `factor` * up @ down."""

    weight: str
    up: Entry  # [out, rank], with axes of length 1 after them for a convolution
    down: Entry  # [rank, in...]
    factor: float

    def delta(self, device: torch.device) -> Tensor:
        """Return the change in float32, `[out, in...]`."""
        up, down = (e.read().to(device, torch.float32) for e in (self.up, self.down))
        product = up.flatten(1) @ down.flatten(1)
        return product.mul_(self.factor).reshape(-1, *down.shape[1:])


class LayerNames:
    """Find a module's weights by any spelling of their layers' names."""

    def __init__(self, weights: Iterable[str], layouts: Mapping[str, Layout]) -> None:
        self._weights: dict[str, str] = {}
        for weight in weights:
            for layout in layouts.values():
                layer = layout[weight].removesuffix(".weight")
                for spelling in (layer, layer.replace(".", "_")):
                    known = self._weights.setdefault(spelling, weight)
                    assert known == weight, f"{spelling} is both {known} and {weight}"
        parts = {part for name in self._weights for part in name.split(".")}
        self._wrappers, self._prefixes = WRAPPERS - parts, _PREFIXES - parts

    def find(self, layer: str) -> str | None:
        """Return the weight of the layer that a file calls so, or None."""
        if found := _FLAT.fullmatch(layer):
            return self._weights.get(found[1])
        parts = [part for part in layer.split(".") if part not in self._wrappers]
        while parts and parts[0] in self._prefixes:
            del parts[0]
        return self._weights.get(".".join(parts))


def read_lora(
    checkpoint: Checkpoint,
    source: LoraSource,
    names: LayerNames,
    shapes: Mapping[str, tuple[int, ...]],
) -> list[LoraLayer]:
    """Return what a LoRA changes of weights of these shapes; no matrix is read yet.

    Raises CheckpointError, with counts and first names, for a key that is no part of a LoRA, a
    layer that the module lacks, half a pair, a shape that does not fit, or a part given twice.
    """
    parts, complaints = _sort_keys(checkpoint, names)
    alphas = _Alphas(checkpoint, source)
    layers, halves, misshaped = [], [], []
    for weight, held in parts.items():
        if not held.keys() >= {"up", "down"}:
            halves.append(f"{weight} has only {', '.join(sorted(held))}")
        elif wrong := _misfit(held["up"][1], held["down"][1], shapes[weight]):
            misshaped.append(f"{weight} {wrong}")
        else:
            factor = source.scale * alphas.of(weight, held)
            layers.append(LoraLayer(weight, held["up"][1], held["down"][1], factor))
    _complain(complaints, "incomplete", halves)
    _complain(complaints, "of another shape or type", misshaped)
    if complaints:
        raise CheckpointError(f"LoRA {checkpoint.source} does not fit: {'; '.join(complaints)}")
    alphas.require_all_used()
    return layers


_Parts = Mapping[str, tuple[str, Entry]]  # the key and what it holds, by up, down and alpha


def _sort_keys(checkpoint: Checkpoint, names: LayerNames) -> tuple[dict[str, _Parts], list[str]]:
    """Return the parts of each weight's change, and what is wrong with the other keys."""
    parts: defaultdict[str, dict[str, tuple[str, Entry]]] = defaultdict(dict)
    unknown, homeless, twice = [], [], []
    for key, entry in checkpoint.entries.items():
        found = _PART.fullmatch(key)
        if found is None:
            unknown.append(key)
            continue
        part = _PARTS[found["new"] or found["old"]] if found["layer"] else "alpha"
        weight = names.find(found["layer"] or found["scaled"])
        if weight is None:
            homeless.append(key)
        elif part in parts[weight]:
            twice.append(f"{parts[weight][part][0]} and {key}")
        else:
            parts[weight][part] = (key, entry)
    complaints: list[str] = []
    _complain(complaints, "keys that are no part of a LoRA", unknown)
    _complain(complaints, "for layers that the model does not have", homeless)
    _complain(complaints, "parts given twice", twice)
    return dict(parts), complaints


def _complain(complaints: list[str], what: str, names: list[str]) -> None:
    if names:
        complaints.append(f"{len(names)} {what}, first {first_names(names)}")


def _misfit(up: Entry, down: Entry, shape: tuple[int, ...]) -> str:
    """Return why a pair cannot change a weight of this shape; empty when it can."""
    if not {up.dtype, down.dtype} <= FLOATS:
        return f"{up.dtype} and {down.dtype}"
    is_pair = len(shape) >= 2 and up.shape[2:] in ((), (1,) * (len(shape) - 2))
    if is_pair and up.shape[:1] == shape[:1] and down.shape == (*up.shape[1:2], *shape[1:]):
        return "" if down.shape[0] else "rank 0"
    return f"up {list(up.shape)} down {list(down.shape)} for {list(shape)}"


class _Alphas:
    """What a file, or the configuration that belongs to it, says of alpha."""

    def __init__(self, checkpoint: Checkpoint, source: LoraSource) -> None:
        self._checkpoint, self._given = checkpoint, source.alpha
        self._config = _adapter_config(checkpoint)
        self._patterns: Mapping[str, Any] = self._config.get("alpha_pattern") or {}
        self._unused = set(self._patterns)
        unsupported = [name for name in ("use_dora", "fan_in_fan_out") if self._config.get(name)]
        if unsupported:
            raise CheckpointError(
                f"LoRA {checkpoint.source} is of a kind that cannot be merged:"
                f" {', '.join(unsupported)} in its configuration"
            )

    def of(self, weight: str, held: _Parts) -> float:
        """Return alpha over the rank, or what the configuration makes of them."""
        key, down = held["down"]
        rank = down.shape[0]
        if "alpha" in held:
            return self._stored(*held["alpha"]) / rank
        alpha = self._given
        if alpha is None:
            alpha = self._configured(key, rank)
        return alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)

    def require_all_used(self) -> None:
        """Raise CheckpointError when the configuration has an alpha for a layer that is not there.

        Its patterns are taken literally, as names or their ends; more would pass unseen.
        """
        if self._given is None and self._unused:
            raise CheckpointError(
                f"LoRA {self._checkpoint.source}: no layer fits {len(self._unused)} alphas of its"
                f" configuration, first {first_names(sorted(self._unused))}"
            )

    def _stored(self, key: str, entry: Entry) -> float:
        is_number = math.prod(entry.shape) == 1 and entry.dtype in FLOATS | {"int32", "int64"}
        alpha = float(entry.read()) if is_number else math.nan
        if not abs(alpha) < _LARGEST_ALPHA:
            raise CheckpointError(f"LoRA {self._checkpoint.source}: {key} is no finite number")
        if self._given is not None:
            raise CheckpointError(
                f"LoRA {self._checkpoint.source} has alphas of its own, first {key}: give none"
            )
        return alpha

    def _configured(self, key: str, rank: int) -> float:
        layer, alpha = key.partition(".lora")[0], self._config.get("lora_alpha", rank)
        for pattern, own in self._patterns.items():
            name = pattern.removeprefix("^").removesuffix("$")
            if layer == name or layer.endswith(f".{name}"):
                self._unused.discard(pattern)
                alpha = own
        if type(alpha) not in (int, float) or not abs(alpha) < _LARGEST_ALPHA:
            raise CheckpointError(
                f"LoRA {self._checkpoint.source}: its configuration has alpha {alpha!r} for {layer}"
            )
        return float(alpha)


def _adapter_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return PEFT's configuration: in the file's metadata, or beside a file of PEFT's own name."""
    beside = checkpoint.path.with_name("adapter_config.json")
    try:
        if text := checkpoint.metadata.get(_METADATA):
            found = json.loads(text)
        elif checkpoint.path.stem == "adapter_model" and beside.is_file():
            found = json.loads(beside.read_text(encoding="utf-8"))
        else:
            return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"LoRA {checkpoint.source} has a configuration that cannot be read: {error}"
        ) from error
    # diffusers stores one for each part of a pipeline, in one object
    if isinstance(found, dict):
        found = {key.removeprefix("transformer."): value for key, value in found.items()}
    if not isinstance(found, dict) or not isinstance(found.get("alpha_pattern") or {}, dict):
        raise CheckpointError(f"LoRA {checkpoint.source} has a configuration of another form")
    return found
