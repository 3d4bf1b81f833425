"""K or V of all pages in one layer, as they are kept: in the model's number format or in 8 bits.

In 8 bits (E4M3) each head of a page has a scale of its own, found when the page is written: the
smallest power of two with which its largest value is within the format. So nothing overflows, the
format's own rounding is the only one, and what is read and written again stays the same. Pages are
written whole: what one holds depends on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kvcache.geometry import KVGeometry

EIGHT_BITS: Final = torch.float8_e4m3fn
LARGEST: Final = torch.finfo(EIGHT_BITS).max
SMALLEST_SCALE: Final = 1e-12  # of a head of zeros


def quantized(pages: Tensor) -> tuple[Tensor, Tensor]:
    """Return pages `[n, page_tokens, heads, head_dim]` in 8 bits and their scales.

    These are float32, `[n, 1, heads, 1]`: values * scale = pages.
    """
    least = pages.abs().amax(dim=(1, 3), keepdim=True).float() / LARGEST
    scale = least.clamp(min=SMALLEST_SCALE).log2().ceil().exp2()
    return (pages.float() / scale).to(EIGHT_BITS), scale


class Pages:
    """Pages as they come: `values` is `[num_pages, page_tokens, heads, head_dim]`."""

    def __init__(self, geometry: KVGeometry, num_pages: int, device: torch.device) -> None:
        shape = (num_pages, geometry.page_tokens, geometry.num_heads, geometry.head_dim)
        self.values = torch.zeros(shape, dtype=geometry.page_dtype, device=device)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all of them."""
        return self.values.nbytes

    def poison(self, page: int) -> None:
        """Fill a page with NaN."""
        self.values[page].fill_(torch.nan)

    def put(self, pages: slice | Tensor, new: Tensor) -> None:
        """Write pages, a run of them or those of an int64 index."""
        _copy(self.values, pages, new)

    def move(self, sources: slice | Tensor, targets: slice | Tensor) -> None:
        """Copy pages to others as they are."""
        _copy(self.values, targets, self.values[sources])

    def take(self, pages: slice | Tensor) -> Tensor:
        """Return pages in the model's number format: a run's in place, others in a copy."""
        return self.values[pages]

    def read(self, pages: slice | Tensor, scratch: Scratch, out: Tensor) -> Tensor:
        """Return pages in the model's number format: a run's in place, others' in `out`."""
        if isinstance(pages, slice):
            return self.values[pages]
        return torch.index_select(self.values, 0, pages, out=out)


class EightBitPages(Pages):
    """Pages in 8 bits: `scale` is float32 `[num_pages, 1, heads, 1]`.

    They are indexed as bytes: torch has no such operation for 8-bit floats on every device.
    """

    def __init__(self, geometry: KVGeometry, num_pages: int, device: torch.device) -> None:
        super().__init__(geometry, num_pages, device)
        self.dtype = geometry.dtype
        self.scale = torch.zeros(num_pages, 1, geometry.num_heads, 1, device=device)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    def poison(self, page: int) -> None:
        super().poison(page)
        self.scale[page].fill_(torch.nan)

    def put(self, pages: slice | Tensor, new: Tensor) -> None:
        values, scale = quantized(new)
        _copy(_as_bytes(self.values), pages, _as_bytes(values))
        _copy(self.scale, pages, scale)

    def move(self, sources: slice | Tensor, targets: slice | Tensor) -> None:
        for kept in (_as_bytes(self.values), self.scale):
            _copy(kept, targets, kept[sources])

    def take(self, pages: slice | Tensor) -> Tensor:
        values = _as_bytes(self.values)[pages].view(EIGHT_BITS)
        return values.to(self.dtype).mul_(self.scale[pages])

    def read(self, pages: slice | Tensor, scratch: Scratch, out: Tensor) -> Tensor:
        if isinstance(pages, slice):
            return out.copy_(self.values[pages]).mul_(self.scale[pages])
        assert scratch.raw is not None
        raw = scratch.raw[: len(pages)]
        torch.index_select(_as_bytes(self.values), 0, pages, out=raw)
        return out.copy_(raw.view(EIGHT_BITS)).mul_(self.scale.index_select(0, pages))


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a row's pages are brought together: `k` and `v` in the model's number format.

    Those in 8 bits come through `raw`, K and V in turn.
    """

    k: Tensor
    v: Tensor
    raw: Tensor | None

    @classmethod
    def of(cls, geometry: KVGeometry, num_pages: int, device: torch.device) -> Scratch:
        """Make room for so many pages of one layer."""
        shape = (num_pages, geometry.page_tokens, geometry.num_heads, geometry.head_dim)
        with torch.inference_mode(False):
            k, v = (torch.zeros(shape, dtype=geometry.dtype, device=device) for _ in range(2))
            raw = None
            if geometry.is_quantized:
                raw = torch.zeros(shape, dtype=torch.uint8, device=device)
        return cls(k, v, raw)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return all of it."""
        return (self.k, self.v) if self.raw is None else (self.k, self.v, self.raw)

    @property
    def nbytes(self) -> int:
        """Return its bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


def _as_bytes(values: Tensor) -> Tensor:
    return values.view(torch.uint8)


def _copy(kept: Tensor, pages: slice | Tensor, new: Tensor) -> None:
    if isinstance(pages, slice):
        kept[pages].copy_(new)
    else:
        kept.index_copy_(0, pages, new)
