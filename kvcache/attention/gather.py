"""Attention by a kernel that cannot read scattered pages: each row's are gathered first.

Into one static scratch, a row after the other, so that it is as large as one row's window and no
result depends on the company. The gather moves each visible byte twice where the kernel reads it
once for every tile of queries: a few per cent of a pass at video sizes. Pages in 8 bits become the
model's number format on the way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from kvcache.attention.backend import RowPages
from kvcache.attention.static_pages import PageLimits, StaticPages, StaticTurn
from kvcache.pages import Scratch
from kvcache.pool import KVPool


@dataclass(frozen=True, slots=True)
class RowLengths:
    """How much of one row's inputs counts, in tensors that keep their addresses.

    `query_ends` and `key_ends` are int32 `[2]`, 0 and the number of tokens; `is_visible` says the
    same of each gathered key, bool.
    """

    query_ends: Tensor
    key_ends: Tensor
    is_visible: Tensor


RowKernel = Callable[[Tensor, Tensor, Tensor, RowLengths], Tensor]
"""q [n, heads, head_dim], k and v [m, heads, head_dim] -> [n, heads, head_dim]."""


def masked_kernel(q: Tensor, k: Tensor, v: Tensor, lengths: RowLengths) -> Tensor:
    """Attend with torch's product, keys that do not count masked."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=lengths.is_visible[None, None, None])
    return out[0].transpose(0, 1)


def varlen_kernel() -> RowKernel:
    """Return torch's own FlashAttention for sequences of any length."""
    from torch.nn.attention.varlen import varlen_attn

    def kernel(q: Tensor, k: Tensor, v: Tensor, lengths: RowLengths) -> Tensor:
        ends = lengths.query_ends, lengths.key_ends
        return cast(Tensor, varlen_attn(q, k, v, *ends, len(q), len(k)))

    return kernel


def flash_attn_kernel() -> RowKernel:
    """Return the flash-attn package's kernel for sequences of any length."""
    from flash_attn import flash_attn_varlen_func

    def kernel(q: Tensor, k: Tensor, v: Tensor, lengths: RowLengths) -> Tensor:
        ends = lengths.query_ends, lengths.key_ends
        return cast(Tensor, flash_attn_varlen_func(q, k, v, *ends, len(q), len(k)))

    return kernel


class GatherAttention:
    """Attend row by row over pages gathered into one scratch.

    A plan is updated, not rebuilt: it holds until the next one of its shape is made. Keep calls on
    one stream.
    """

    def __init__(
        self,
        pool: KVPool,
        kernel: RowKernel,
        limits: PageLimits,
        *,
        turn: StaticTurn | None = None,
    ) -> None:
        self.pool = pool
        self.kernel = kernel
        self.limits = limits
        self.turn = turn
        self._plans: dict[tuple[int, int], GatherPlan] = {}
        self.scratch = Scratch.of(pool.geometry, limits.visible, pool.device)

    @property
    def scratch_nbytes(self) -> int:
        """Return the bytes of the scratch."""
        return self.scratch.nbytes

    def plan(self, rows: Sequence[RowPages], tokens_per_row: int) -> "GatherPlan":
        shape = (len(rows), tokens_per_row)
        plan = self._plans.get(shape)
        if plan is None:
            pages = StaticPages(self.pool, *shape, self.limits, self.turn)
            plan = GatherPlan(pages, self.kernel, self.scratch)
        plan.pages.update(rows)
        self._plans[shape] = plan
        return plan


class GatherPlan:
    """Run forwards of one shape."""

    def __init__(self, pages: StaticPages, kernel: RowKernel, scratch: Scratch) -> None:
        self.pages = pages
        self.kernel = kernel
        self.scratch = scratch
        # Padded queries run along: what they give is finite, and a graph has one shape.
        ends = torch.tensor([0, pages.tokens_per_row], dtype=torch.int32).to(pages.pool.device)
        self.lengths = [
            RowLengths(ends, key_ends, is_visible)
            for key_ends, is_visible in zip(pages.ends, pages.is_visible, strict=True)
        ]

    @property
    def num_tokens(self) -> tuple[int, ...]:
        return self.pages.num_tokens

    @torch.no_grad()
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pages.store(layer, k, v)
        pool, scratch = self.pages.pool, self.scratch
        out = torch.empty_like(q)
        for i, lengths in enumerate(self.lengths):
            keys = pool.k_pages[layer].read(self.pages.read[i], scratch, scratch.k)
            values = pool.v_pages[layer].read(self.pages.read[i], scratch, scratch.v)
            out[i] = self.kernel(q[i], keys.flatten(0, 1), values.flatten(0, 1), lengths)
        return out
