"""Merge LoRAs into a module's weights, and take them out again without a trace.

The sum is made in float32 from a kept copy of the untouched weights, never from merged ones, so
any number of changes leaves no drift. Weights are written in place: their addresses stay, and with
them CUDA graphs that read them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from streamgen.errors import CheckpointError
from streamgen.models.checkpoint_files import open_checkpoint
from streamgen.models.checkpoint_keys import Layout, dit_layouts
from streamgen.models.lora_file import LayerNames, LoraLayer, LoraSource, read_lora

__all__ = ["LoraMerger", "LoraSource"]

logger: Final = logging.getLogger(__name__)


class LoraMerger:
    """The LoRAs merged into one module.

    They are the module's, and so those of every session that uses it. What was computed with the
    weights before, such as the K/V of texts and frames, is not made again: change LoRAs between
    chunks. Nothing else may write the weights meanwhile; moving or casting the module may.
    """

    def __init__(self, module: nn.Module, layouts: Mapping[str, Layout] | None = None) -> None:
        self._module = module
        weights = [name for name in module.state_dict() if name.endswith(".weight")]
        self._names = LayerNames(weights, layouts or dit_layouts(weights))
        self._base: dict[str, Tensor] = {}  # on the CPU: what the touched weights were
        self._loaded: tuple[LoraSource, ...] = ()

    @property
    def loaded(self) -> tuple[LoraSource, ...]:
        """Return what is merged, in the order given."""
        return self._loaded

    def load(self, sources: Sequence[LoraSource | str | Path]) -> None:
        """Replace what is merged by these LoRAs, paths standing for full strength.

        Their changes add up. Raises CheckpointError when a file cannot be read or does not fit;
        then everything is as it was before.
        """
        wanted = tuple(s if isinstance(s, LoraSource) else LoraSource(Path(s)) for s in sources)
        weights = self._weights()
        merged: dict[str, Tensor] = {}
        with ExitStack() as stack, torch.no_grad():
            for weight, layers in self._read(stack, wanted, weights).items():
                merged[weight] = self._merge(weight, weights[weight], layers)
            base = {
                name: self._base[name] if name in self._base else weights[name].to("cpu", copy=True)
                for name in merged
            }
            # From here on there is nothing left that could fail.
            for name, value in ({**self._base, **merged}).items():
                weights[name].copy_(value)
        self._base, self._loaded = base, wanted

    def check(self, sources: Sequence[LoraSource]) -> None:
        """Raise the CheckpointError that `load` would raise for files that do not fit."""
        with ExitStack() as stack:
            self._read(stack, sources, self._weights())

    def unload(self) -> None:
        """Restore the module's own weights, bit for bit."""
        self.load(())

    def _weights(self) -> dict[str, Tensor]:
        return {k: t for k, t in self._module.state_dict().items() if k.endswith(".weight")}

    def _read(
        self, stack: ExitStack, sources: Sequence[LoraSource], weights: Mapping[str, Tensor]
    ) -> Mapping[str, list[LoraLayer]]:
        """Open and check all files, and return what they change by weight."""
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        changes: defaultdict[str, list[LoraLayer]] = defaultdict(list)
        for source in sources:
            opened = open_checkpoint(source.path, container=source.container)
            checkpoint = stack.enter_context(opened)
            layers = read_lora(checkpoint, source, self._names, shapes)
            for layer in layers:
                if layer.factor:  # adding 0 would turn -0 into 0
                    changes[layer.weight].append(layer)
            ranks = sorted({layer.down.shape[0] for layer in layers})
            factors = sorted({round(layer.factor, 6) for layer in layers})
            logger.info(
                "%s: a LoRA of %d layers, ranks %s, factors %s",
                *(checkpoint.source, len(layers), ranks, factors),
            )
        return changes

    def _merge(self, name: str, weight: Tensor, layers: Sequence[LoraLayer]) -> Tensor:
        """Return the weight with these changes, on the CPU and in its own type."""
        total = self._base.get(name, weight).to(weight.device, torch.float32, copy=True)
        for layer in layers:
            total += layer.delta(weight.device)
        merged = total.to("cpu", weight.dtype)
        if not merged.isfinite().all():
            raise CheckpointError(f"with these LoRAs {name} would not be finite")
        return merged
