"""Attention by FlashInfer's kernels, which read pages of any size where they lie."""

from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor

from kvcache.attention.backend import RowPages
from kvcache.attention.static_pages import PageLimits, StaticPages, StaticTurn
from kvcache.pool import KVPool

WORKSPACE_BYTES: Final = 128 << 20  # as FlashInfer recommends


class FlashInferAttention:
    """Attend to pages in place, all rows in one launch.

    A plan is updated, not rebuilt: it holds until the next one of its shape is made. Keep calls on
    one stream.
    """

    def __init__(self, pool: KVPool, limits: PageLimits, *, turn: StaticTurn | None = None) -> None:
        self.pool = pool
        self.limits = limits
        self.turn = turn
        self._plans: dict[tuple[int, int], FlashInferPlan] = {}
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=pool.device)

    @property
    def scratch_nbytes(self) -> int:
        """Return the bytes of the workspace."""
        return self._workspace.nbytes

    def plan(self, rows: Sequence[RowPages], tokens_per_row: int) -> "FlashInferPlan":
        shape = (len(rows), tokens_per_row)
        plan = self._plans.get(shape)
        if plan is None:
            pages = StaticPages(self.pool, *shape, self.limits, self.turn)
            plan = FlashInferPlan(pages, self._workspace)
        plan.update(rows)
        self._plans[shape] = plan
        return plan


class FlashInferPlan:
    """Run forwards of one shape.

    FlashInfer plans on the host, outside a graph, and copies what it found to buffers that its
    kernels read. Its pinned memory is used again by the next plan, which therefore waits until the
    device has copied the last one: the host runs no more than a forward ahead.
    """

    def __init__(self, pages: StaticPages, workspace: Tensor) -> None:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        self.pages = pages
        self._copied = torch.cuda.Event()
        num_rows = len(pages.num_tokens)

        def buffer(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=workspace.device)

        self._wrapper: Any = BatchPrefillWithPagedKVCacheWrapper(
            workspace,
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf=buffer(num_rows + 1),
            paged_kv_indptr_buf=buffer(num_rows + 1),
            paged_kv_indices_buf=buffer(num_rows * pages.limits.visible),
            paged_kv_last_page_len_buf=buffer(num_rows),
        )

    @property
    def num_tokens(self) -> tuple[int, ...]:
        return self.pages.num_tokens

    def update(self, rows: Sequence[RowPages]) -> None:
        """Plan other rows."""
        self.pages.update(rows)
        geometry, num_rows = self.pages.pool.geometry, len(rows)
        reads = [row.visible_pages or (self.pages.pool.scratch_page,) for row in rows]
        starts = [0]
        for pages in reads:
            starts.append(starts[-1] + len(pages))
        self._copied.synchronize()
        self._wrapper.plan(
            _int32(range(0, (num_rows + 1) * self.pages.tokens_per_row, self.pages.tokens_per_row)),
            _int32(starts),
            _int32([page for pages in reads for page in pages]),
            _int32([geometry.page_tokens] * num_rows),
            geometry.num_heads,
            geometry.num_heads,
            geometry.head_dim,
            geometry.page_tokens,
            q_data_type=geometry.dtype,
            kv_data_type=geometry.dtype,
            # A graph keeps the launches it was captured with, whatever the lengths are later.
            disable_split_kv=True,
        )
        self._copied.record()

    @torch.no_grad()
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pages.store(layer, k, v)
        pool = self.pages.pool
        out = self._wrapper.run(q.flatten(0, 1), (pool.k[layer], pool.v[layer]))
        return cast(Tensor, out).view_as(q)


def _int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)
