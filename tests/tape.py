"""A stand-in for a CUDA graph on a CPU: it sees a forward's operations and does them again.

As with the real one no Python runs at a replay: operations find their inputs where those were, and
leave their results where they were the first time. What a forward decided from values on the host,
or read from a tensor that was replaced since, is therefore stale, and shows.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Record operations. `record=False` keeps their names only, and no tensor."""

    def __init__(self, *, record: bool = True) -> None:
        super().__init__()
        self.record = record
        self.names: list[str] = []
        self.devices: set[str] = set()
        self.made: list[weakref.ref[Tensor]] = []
        self._steps: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.names.append(str(func))
        tensors = [x for x in tree_leaves((args, kwargs, out)) if issubclass(type(x), Tensor)]
        self.devices |= {x.device.type for x in tensors}
        self.made += [weakref.ref(x) for x in tree_leaves(out) if issubclass(type(x), Tensor)]
        if self.record:
            self._steps.append((func, args, kwargs, out))
        return out

    def kept(self) -> set[int]:
        """Return the memory of what was made and is still there."""
        gc.collect()
        living = [made() for made in self.made]
        return {x.untyped_storage().data_ptr() for x in living if x is not None}

    def replay(self) -> None:
        for func, args, kwargs, out in self._steps:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def storages() -> set[int]:
    """Return the memory of all tensors that there are; torch itself may hold sparse ones."""
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor)]
    return {x.untyped_storage().data_ptr() for x in tensors if x.layout is torch.strided}


class TapeGraph:
    """What `GraphRunner` takes in place of a CUDA graph."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.replays = 0

    def capture(self, forward: Callable[[], Tensor]) -> Tensor:
        forward()
        with self.tape:
            return forward()

    def replay(self) -> None:
        self.replays += 1
        with torch.inference_mode():
            self.tape.replay()
