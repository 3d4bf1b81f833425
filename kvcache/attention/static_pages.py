"""Where the rows of a forward write and read, in tensors whose addresses and shapes never change.

A captured forward, a CUDA graph, reads them again at each replay; what is new is copied into them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvcache.attention.backend import RowPages, check_rows, rotations
from kvcache.errors import GeometryError
from kvcache.pool import KVPool


@dataclass(frozen=True, slots=True)
class StaticTurn:
    """Say how keys are moved on, with the angles as data.

    `table` maps a number of frames to a float32 tensor on the CPU, always of one shape, that of 0
    leaving keys as they are. `apply` turns keys `[n, page_tokens, heads, head_dim]`, each page by
    its own of n tables.
    """

    table: Callable[[int], Tensor]
    apply: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class PageLimits:
    """The most pages a row may read, and the most whose keys it may want rotated."""

    visible: int
    turned: int = 0

    def hold(self, rows: Sequence[RowPages]) -> bool:
        """Return whether rows keep to them, those that share a rotation together."""
        turned = sum(len(rotation.target_pages) for rotation in rotations(rows))
        longest = max((len(row.visible_pages) for row in rows), default=0)
        return longest <= self.visible and turned <= len(rows) * self.turned


def fill_from_host(target: Tensor, values: Sequence[object] | Tensor) -> None:
    """Copy numbers into a tensor in the order of its stream, without waiting for the device.

    Pinned memory comes from torch, which keeps it until the copy is done: the host may run ahead.
    """
    host = torch.as_tensor(values, dtype=target.dtype).reshape(target.shape)
    if target.is_cuda:
        host = host.pin_memory()
    target.copy_(host, non_blocking=True)


class StaticPages:
    """The page lists of forwards of one shape.

    A row's missing writes go to the pool's scratch page, and its missing reads come from it; a row
    without pages reads that page alone, so that what it gives is finite. `turn` is needed only
    where rows have rotations. Update and use it on one stream.
    """

    def __init__(
        self,
        pool: KVPool,
        num_rows: int,
        tokens_per_row: int,
        limits: PageLimits,
        turn: StaticTurn | None = None,
    ) -> None:
        if limits.turned and turn is None:
            raise GeometryError("rows want keys rotated, but no model said how (turn=None)")
        self.pool = pool
        self.tokens_per_row = tokens_per_row
        self.limits = limits
        self.turn = turn
        self.num_tokens = (0,) * num_rows
        pages_per_row = tokens_per_row // pool.geometry.page_tokens
        with torch.inference_mode(False):
            self.write = self._whole_numbers(num_rows * pages_per_row)
            self.read = self._whole_numbers(num_rows, limits.visible)
            # A row's keys are tokens 0 .. ends[row, 1] of what is gathered for it.
            self.ends = self._whole_numbers(num_rows, 2, dtype=torch.int32)
            self.is_visible = self._whole_numbers(
                num_rows, limits.visible * pool.geometry.page_tokens, dtype=torch.bool
            )
            self._places = torch.arange(self.is_visible.shape[1], device=pool.device)
            num_turned = num_rows * limits.turned
            self.turned_from = self._whole_numbers(num_turned)
            self.turned_to = self._whole_numbers(num_turned)
            if turn is not None:
                table = turn.table(0)
                self.tables = table.new_zeros((num_turned, *table.shape), device=pool.device)

    def _whole_numbers(self, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.pool.device)

    def update(self, rows: Sequence[RowPages]) -> None:
        """Hold other rows from now on. Raises GeometryError when they do not fit."""
        check_rows(self.pool, rows, self.tokens_per_row)
        if len(rows) != len(self.num_tokens):
            raise GeometryError(f"{len(rows)} rows are not the {len(self.num_tokens)} planned for")
        if not self.limits.hold(rows):
            raise GeometryError(f"rows read or rotate more pages than {self.limits} allows")
        scratch, page_tokens = self.pool.scratch_page, self.pool.geometry.page_tokens
        num_writes = len(self.write) // len(rows)
        self.num_tokens = tuple(len(row.write_pages) * page_tokens for row in rows)
        reads = [row.visible_pages or (scratch,) for row in rows]
        fill_from_host(self.write, [_padded(r.write_pages, num_writes, scratch) for r in rows])
        fill_from_host(self.read, [_padded(p, self.limits.visible, scratch) for p in reads])
        fill_from_host(self.ends, [(0, len(pages) * page_tokens) for pages in reads])
        torch.lt(self._places, self.ends[:, 1:], out=self.is_visible)
        if self.limits.turned:
            self._update_rotations(rows)

    def _update_rotations(self, rows: Sequence[RowPages]) -> None:
        assert self.turn is not None
        wanted, scratch = rotations(rows), self.pool.scratch_page
        size = len(self.turned_from)
        sources = [page for rotation in wanted for page in rotation.source_pages]
        targets = [page for rotation in wanted for page in rotation.target_pages]
        tables = [self.turn.table(r.num_frames) for r in wanted for _ in r.target_pages]
        tables += [self.turn.table(0)] * (size - len(tables))
        fill_from_host(self.turned_from, _padded(sources, size, scratch))
        fill_from_host(self.turned_to, _padded(targets, size, scratch))
        fill_from_host(self.tables, torch.stack(tables))

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write the K/V of all rows `[rows, tokens, heads, head_dim]`, then rotate."""
        keys, values = self.pool.k_pages[layer], self.pool.v_pages[layer]
        page = keys.values.shape[1:]
        keys.put(self.write, k.reshape(-1, *page))
        values.put(self.write, v.reshape(-1, *page))
        if self.limits.turned:
            # After the writes: one row may bring the keys that another wants rotated.
            assert self.turn is not None
            turned = self.turn.apply(keys.take(self.turned_from), self.tables)
            keys.put(self.turned_to, turned)
            values.move(self.turned_from, self.turned_to)


def _padded(pages: Sequence[int], size: int, scratch: int) -> list[int]:
    return [*pages, *[scratch] * (size - len(pages))]
