"""Attention over pages with plain torch: the reference for every device, and the one CPUs use."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from kvcache.attention.backend import RowPages, Turn, check_rows, rotations
from kvcache.errors import GeometryError
from kvcache.pages import Pages, Scratch
from kvcache.pool import KVPool

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q [n, heads, head_dim], k and v [m, heads, head_dim] -> [n, heads, head_dim]."""

MAX_EXPLICIT_SCORES = 1 << 26  # beyond, the score matrix costs more memory than it can save time


def fused_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with torch's own kernel."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def explicit_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend as softmax(q k^T / sqrt(head_dim)) v, two matrix products."""
    q = (q * q.shape[-1] ** -0.5).transpose(0, 1)
    k = k.transpose(0, 1).contiguous()  # the product of strided keys costs more than this copy
    weights = (q @ k.transpose(1, 2)).softmax(dim=-1)
    return (weights @ v.transpose(0, 1)).transpose(0, 1)


@cache
def fastest_kernel(num_q: int, num_k: int, num_heads: int, head_dim: int) -> Kernel:
    """Return the faster kernel for bf16 on this CPU, measured once for a shape.

    torch's kernel wins unless the other one is clearly (a tenth) faster.
    """
    if num_heads * num_q * num_k > MAX_EXPLICIT_SCORES:
        return fused_kernel
    q = torch.ones(num_q, num_heads, head_dim, dtype=torch.bfloat16)
    k = torch.ones(num_k, num_heads, head_dim, dtype=torch.bfloat16)

    def best_s(kernel: Kernel) -> float:
        times = []
        for _ in range(4):  # the first one warms up
            start = time.perf_counter()
            kernel(q, k, k)
            times.append(time.perf_counter() - start)
        return min(times[1:])

    return explicit_kernel if best_s(explicit_kernel) < 0.9 * best_s(fused_kernel) else fused_kernel


def segments(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Split pages into runs of ascending neighbours, as (first, number)."""
    cuts = [i + 1 for i, (left, right) in enumerate(pairwise(pages)) if right != left + 1]
    return [(pages[a], b - a) for a, b in pairwise([0, *cuts, len(pages)])] if pages else []


def copies(sources: Sequence[int], targets: Sequence[int]) -> list[tuple[slice, slice]]:
    """Pair runs of target pages with the runs of source pages that go there, one to one."""
    pairs = list(zip(sources, targets, strict=True))
    cuts = [i + 1 for i, (a, b) in enumerate(pairwise(pairs)) if b != (a[0] + 1, a[1] + 1)]
    runs = [pairs[a:b] for a, b in pairwise([0, *cuts, len(pairs)])] if pairs else []
    return [(slice(run[0][1], run[-1][1] + 1), slice(run[0][0], run[-1][0] + 1)) for run in runs]


@dataclass(frozen=True, slots=True)
class SdpaRow:
    """Hold what one row needs in every layer: where its pages lie and which kernel to use."""

    num_tokens: int
    pages: slice | Tensor  # one run is read in place; others are gathered
    num_pages: int
    kernel: Kernel


@dataclass(frozen=True, slots=True)
class SdpaRotation:
    """Hold where the keys of some pages go, and how they are turned on the way."""

    moves: tuple[tuple[slice, slice], ...]
    turn: Callable[[Tensor], Tensor]


class SdpaAttention:
    """Attend row by row, each row on its own, so that no result depends on the company.

    A row whose visible pages are one ascending run reads them in place; other pages, and those in 8
    bits, are brought into one buffer that all rows, layers and forwards reuse. Keep calls on one
    stream.

    `kernel` fixes the arithmetic; by default bf16 on a CPU uses whichever kernel was measured
    faster in this process, and everything else torch's own. `turn` is the model's, and needed only
    for rows with a rotation.
    """

    def __init__(
        self, pool: KVPool, kernel: Kernel | None = None, *, turn: Turn | None = None
    ) -> None:
        self.pool = pool
        self.kernel = kernel
        self.turn = turn
        self._buffer = Scratch.of(pool.geometry, 0, pool.device)

    def plan(self, rows: Sequence[RowPages], tokens_per_row: int) -> "SdpaPlan":
        check_rows(self.pool, rows, tokens_per_row)
        planned = tuple(self._plan_row(row) for row in rows)
        is_read_in_place = not self.pool.geometry.is_quantized
        gathered = max(
            (
                row.num_pages
                for row in planned
                if not (is_read_in_place and isinstance(row.pages, slice))
            ),
            default=0,
        )
        if gathered > len(self._buffer.k):
            self._buffer = Scratch.of(self.pool.geometry, gathered, self.pool.device)
        writes, turned = self._writes(rows, tokens_per_row), self._rotations(rows)
        return SdpaPlan(self.pool, planned, writes, turned, self._buffer)

    def _plan_row(self, row: RowPages) -> SdpaRow:
        pages = row.visible_pages
        num_tokens = len(row.write_pages) * self.pool.geometry.page_tokens
        where: slice | Tensor
        if len(segments(pages)) == 1:
            where = slice(pages[0], pages[0] + len(pages))
        else:
            where = torch.tensor(pages, dtype=torch.int64, device=self.pool.device)
        return SdpaRow(num_tokens, where, len(pages), self._kernel_for(row))

    def _kernel_for(self, row: RowPages) -> Kernel:
        geometry = self.pool.geometry
        if self.kernel is not None:
            return self.kernel
        on_cpu_in_bf16 = self.pool.device.type == "cpu" and geometry.dtype == torch.bfloat16
        if not on_cpu_in_bf16 or not row.write_pages:
            return fused_kernel
        num_q = len(row.write_pages) * geometry.page_tokens
        num_k = len(row.visible_pages) * geometry.page_tokens
        return fastest_kernel(num_q, num_k, geometry.num_heads, geometry.head_dim)

    def _writes(
        self, rows: Sequence[RowPages], tokens_per_row: int
    ) -> tuple[tuple[slice, slice], ...]:
        """Pair runs of pages with the pages of the flattened K/V that go there.

        Padding is left out: run eagerly, it need not go anywhere, not even to the scratch page.
        """
        pages_per_row = tokens_per_row // self.pool.geometry.page_tokens
        starts = range(0, len(rows) * pages_per_row, pages_per_row)
        return tuple(
            copy
            for start, row in zip(starts, rows, strict=True)
            for copy in copies(range(start, start + len(row.write_pages)), row.write_pages)
        )

    def _rotations(self, rows: Sequence[RowPages]) -> tuple[SdpaRotation, ...]:
        wanted = rotations(rows)
        if not wanted:
            return ()
        if self.turn is None:
            raise GeometryError("rows want keys rotated, but no model said how (turn=None)")
        return tuple(
            SdpaRotation(tuple(copies(r.source_pages, r.target_pages)), self.turn(r.num_frames))
            for r in wanted
        )


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    """Run one planned forward."""

    pool: KVPool
    rows: tuple[SdpaRow, ...]
    writes: tuple[tuple[slice, slice], ...]
    rotations: tuple[SdpaRotation, ...]
    buffer: Scratch

    @property
    def num_tokens(self) -> tuple[int, ...]:
        return tuple(row.num_tokens for row in self.rows)

    @torch.no_grad()
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.pool.k_pages[layer], self.pool.v_pages[layer]
        page = keys.values.shape[1:]
        for pages, new in ((keys, k.reshape(-1, *page)), (values, v.reshape(-1, *page))):
            for target, source in self.writes:
                pages.put(target, new[source])
        # After the writes: one row may bring the keys that another wants rotated.
        for rotation in self.rotations:
            for target, source in rotation.moves:
                keys.put(target, rotation.turn(keys.take(source)))
                values.move(source, target)
        out = torch.empty_like(q)
        for i, row in enumerate(self.rows):
            n = row.num_tokens
            if n:
                visible_k = self._read(keys, row, self.buffer.k)
                visible_v = self._read(values, row, self.buffer.v)
                out[i, :n] = row.kernel(q[i, :n], visible_k, visible_v)
            out[i, n:] = 0
        return out

    def _read(self, side: Pages, row: SdpaRow, buffer: Tensor) -> Tensor:
        """Return the visible K or V of a row, [tokens, heads, head_dim]."""
        return side.read(row.pages, self.buffer, buffer[: row.num_pages]).flatten(0, 1)
