"""The memory of the cache: one K and one V tensor a layer, cut into pages."""

from collections.abc import Iterable

import torch

from kvcache.allocator import PageAllocator
from kvcache.errors import GeometryError, PoolExhausted
from kvcache.geometry import KVGeometry
from kvcache.pages import EightBitPages, Pages


class KVPool:
    """Hold the pages of all sessions.

    `k_pages[layer]` and `v_pages[layer]` keep them; `k[layer]` and `v[layer]` are their tensors,
    [num_pages + 1, page_tokens, heads, head_dim], at addresses that never change. The last page,
    `scratch_page`, takes the writes of padded tokens; nobody reads it.

    Whoever wants pages reserves them first and never holds more references than it reserved. Pages
    in use are then never more than pages reserved, so an allocation inside a reservation cannot
    fail, however pages are shared.

    With `poison_freed`, pages nobody may read hold NaN: a test mode in which reading one shows.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        num_pages: int,
        *,
        device: torch.device | str = "cpu",
        poison_freed: bool = False,
    ) -> None:
        if num_pages < 1:
            raise GeometryError(f"a pool needs at least one page, not {num_pages}")
        self.geometry = geometry
        self.num_pages = num_pages
        self.device = torch.device(device)
        self.poison_freed = poison_freed
        self.allocator = PageAllocator(num_pages)
        self.scratch_page = num_pages
        self.num_reserved = 0
        kind = EightBitPages if geometry.is_quantized else Pages
        # Ordinary tensors even when built under inference mode: both kinds of caller write to them.
        with torch.inference_mode(False):
            self.k_pages, self.v_pages = (
                [kind(geometry, num_pages + 1, self.device) for _ in range(geometry.num_layers)]
                for _ in range(2)
            )
        self.k, self.v = ([p.values for p in side] for side in (self.k_pages, self.v_pages))
        self.forget(range(num_pages))

    @classmethod
    def from_bytes(
        cls,
        geometry: KVGeometry,
        budget_bytes: int,
        *,
        device: torch.device | str = "cpu",
        poison_freed: bool = False,
    ) -> "KVPool":
        """Build the largest pool that fits in `budget_bytes`, its scratch page included.

        Raises GeometryError when not even one page fits.
        """
        num_pages = budget_bytes // geometry.page_bytes - 1
        if num_pages < 1:
            raise GeometryError(
                f"{budget_bytes} bytes hold no page: a page and the scratch page take "
                f"2 * {geometry.page_bytes}"
            )
        return cls(geometry, num_pages, device=device, poison_freed=poison_freed)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages, without the scratch page."""
        return self.num_pages * self.geometry.page_bytes

    @property
    def scratch_nbytes(self) -> int:
        return self.geometry.page_bytes

    @property
    def num_unreserved(self) -> int:
        return self.num_pages - self.num_reserved

    def reserve(self, num_pages: int) -> None:
        """Set pages aside. Raises PoolExhausted, reserving nothing, when too few are left."""
        if num_pages > self.num_unreserved:
            raise PoolExhausted(num_pages, self.num_unreserved, f"of {self.num_pages} pages")
        self.num_reserved += num_pages

    def unreserve(self, num_pages: int) -> None:
        """Give a reservation back."""
        assert num_pages <= self.num_reserved, (num_pages, self.num_reserved)
        self.num_reserved -= num_pages

    def allocate(self, num_pages: int) -> list[int]:
        """Take pages inside a reservation."""
        return self.allocator.allocate(num_pages)

    def free(self, pages: Iterable[int]) -> None:
        """Drop one reference of each page. Raises OwnershipError on a double free."""
        self.forget(self.allocator.free(pages))

    @torch.no_grad()
    def forget(self, pages: Iterable[int]) -> None:
        """Declare the contents of pages dead; they become NaN when poisoning is on."""
        if self.poison_freed:
            for page in pages:
                for kept in (*self.k_pages, *self.v_pages):
                    kept.poison(page)
