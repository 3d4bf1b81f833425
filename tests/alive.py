"""How much memory the tensors of a computation take at most, without the computation."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AliveBytes(TorchDispatchMode):
    """Follow what is made while it lasts: `now` is alive, `most` was at one time.

    Inputs are not counted. On the meta device nothing is computed, so that shapes may be large.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._sizes: dict[int, int] = {}  # by storage
        self._holders: dict[int, int] = {}  # tensors over each
        self._given: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            storage = tensor.untyped_storage()._cdata
            if storage not in self._sizes:
                self._given.add(storage)
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self._hold(tensor)
        self.most = max(self.most, self.now)
        return out

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()._cdata
        if storage in self._given:
            return
        if storage not in self._sizes:
            self._sizes[storage] = tensor.untyped_storage().nbytes()
            self._holders[storage] = 0
            self.now += self._sizes[storage]
        self._holders[storage] += 1
        weakref.finalize(tensor, self._let_go, storage)

    def _let_go(self, storage: int) -> None:
        self._holders[storage] -= 1
        if not self._holders[storage]:
            self.now -= self._sizes.pop(storage)
            del self._holders[storage]


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
