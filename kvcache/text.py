"""Cross-attention K/V of prompts, computed once and kept."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from kvcache.errors import GeometryError, OwnershipError, PoolExhausted

TextRows = Callable[[int], tuple[Tensor, Tensor]]
"""Map a layer to K and V, each [rows, text_tokens, heads, head_dim]."""


class TextKVPool:
    """Keep the text K/V of the last prompts in `num_slots` slots.

    `k` and `v` are [layers, slots, text_tokens, heads, head_dim]. A key is opaque and names its
    content for ever: equal keys, equal K/V.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        text_tokens: int,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        if num_slots < 1:
            raise GeometryError(f"a text pool needs at least one slot, not {num_slots}")
        self.num_slots = num_slots
        shape = (num_layers, num_slots, text_tokens, num_heads, head_dim)
        with torch.inference_mode(False):
            self.k = torch.zeros(shape, dtype=dtype, device=device)
            self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.hits = 0
        self.misses = 0
        self._slots: OrderedDict[Hashable, int] = OrderedDict()  # least recently used first
        self._empty = list(reversed(range(num_slots)))
        self._pins = [0] * num_slots

    @property
    def num_pinned(self) -> int:
        """Return how many slots somebody reads."""
        return sum(pins > 0 for pins in self._pins)

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def get(self, key: Hashable) -> int | None:
        """Return the slot of a key, now the most recently used, or None; count hit or miss."""
        if key not in self._slots:
            self.misses += 1
            return None
        self.hits += 1
        self._slots.move_to_end(key)
        return self._slots[key]

    @torch.no_grad()
    def put(self, key: Hashable, k: Tensor, v: Tensor) -> int:
        """Store K/V, each [layers, text_tokens, heads, head_dim], and return the slot.

        Evicts the least recently used slot that is not pinned. A key already stored keeps its slot
        and content. Raises PoolExhausted when every slot is pinned, GeometryError on another shape.
        """
        expected = self.k[:, 0].shape
        if k.shape != expected or v.shape != expected:
            raise GeometryError(
                f"text K/V must be {tuple(expected)}, not {tuple(k.shape)} and {tuple(v.shape)}"
            )
        if key not in self._slots:
            slot = self._empty.pop() if self._empty else self._evict()
            self.k[:, slot].copy_(k)
            self.v[:, slot].copy_(v)
            self._slots[key] = slot
        self._slots.move_to_end(key)
        return self._slots[key]

    def pin(self, slot: int) -> None:
        """Protect a slot from eviction, once more. Raises OwnershipError when it is empty."""
        if slot not in self._slots.values():
            raise OwnershipError(f"text slot {slot} holds nothing to pin")
        self._pins[slot] += 1

    def unpin(self, slot: int) -> None:
        """Undo one pin. Raises OwnershipError when there is none."""
        if not 0 <= slot < self.num_slots or not self._pins[slot]:
            raise OwnershipError(f"text slot {slot} is not pinned")
        self._pins[slot] -= 1

    def rows(self, slots: Sequence[int]) -> TextRows:
        """Return a callable from a layer to the K/V of these slots, one a row.

        A view when the slots are equal or ascending neighbours, else a gathered copy.
        """
        first, num_rows = slots[0], len(slots)
        if all(slot == first for slot in slots):
            return lambda layer: (
                self.k[layer, first].expand(num_rows, -1, -1, -1),
                self.v[layer, first].expand(num_rows, -1, -1, -1),
            )
        if list(slots) == list(range(first, first + num_rows)):
            stop = first + num_rows
            return lambda layer: (self.k[layer, first:stop], self.v[layer, first:stop])
        index = torch.tensor(slots, device=self.k.device)
        return lambda layer: (self.k[layer][index], self.v[layer][index])

    def gathered(self, index: Tensor) -> TextRows:
        """Return the same for slots in an int64 tensor [rows], which is read at each call."""
        return lambda layer: (
            self.k[layer].index_select(0, index),
            self.v[layer].index_select(0, index),
        )

    def require_unread(self) -> None:
        """Raise OwnershipError while somebody reads a slot."""
        if self.num_pinned:
            raise OwnershipError(f"{self.num_pinned} text slots are being read")

    def clear(self) -> None:
        """Forget all texts. Raises OwnershipError while somebody reads one."""
        self.require_unread()
        self._empty += reversed(self._slots.values())
        self._slots.clear()

    def _evict(self) -> int:
        for key, slot in self._slots.items():
            if not self._pins[slot]:
                return self._slots.pop(key)
        raise PoolExhausted(1, 0, "unpinned text slots")
