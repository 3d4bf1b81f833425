"""A backend's results against plain torch in float32, before anybody relies on them."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kvcache.attention.backend import AttentionBackend, RowPages
from kvcache.attention.sdpa import fused_kernel
from kvcache.attention.static_pages import PageLimits
from kvcache.geometry import KVGeometry
from kvcache.pool import KVPool

# Values are about 1; those of pages that nobody sees are a hundred times that.
TOLERANCE: Final = {torch.float16: 0.02, torch.bfloat16: 0.06}
FULL_TOLERANCE: Final = 1e-3  # of wider formats
UNSEEN: Final = 100.0
# Two rows, scattered and ragged, and one that is padding. They share pages 1 and 6.
ROWS: Final = (
    RowPages((4, 2), (6, 1, 4, 2)),
    RowPages((7,), (7, 1, 0, 6, 3)),
    RowPages((), ()),
)
NUM_PAGES, PAGES_A_ROW, MOST_VISIBLE = 9, 2, 6


def wrong_by(
    name: str,
    geometry: KVGeometry,
    device: torch.device,
    make: Callable[[str, KVPool, PageLimits], AttentionBackend],
) -> str | None:
    """Return what is wrong with a backend's results on random pages, or None.

    Each query wants one visible key, the last ones included, so that none can be missed unnoticed;
    pages that nobody sees hold the same keys as some that are seen, with other values, so that none
    can be read unnoticed. Only a lost device is raised.
    """
    one_layer = replace(geometry, num_layers=1, tokens_per_frame=geometry.page_tokens)
    q, k, v, pool = _problem(one_layer, device)
    tolerance = TOLERANCE.get(geometry.dtype, FULL_TOLERANCE)
    pages = _written(pool, k, v)
    expected = _reference(pages, q)
    try:
        plan = make(name, pool, PageLimits(MOST_VISIBLE)).plan(ROWS, q.shape[1])
        found = plan(0, q, k, v)
        is_finite = bool(found.isfinite().all())
    except torch.AcceleratorError:
        raise
    except Exception as error:  # a kernel may raise anything: it is the answer
        return f"it raises {type(error).__name__}: {error}"
    if not is_finite:
        return "it gives values that are not finite"
    if not all(torch.equal(a, b) for a, b in zip(_contents(pool), pages, strict=True)):
        return "its K/V are not on the pages they belong to"
    off = _largest_error(found, expected, plan.num_tokens)
    if off > tolerance:
        return f"it is {off:.2g} off the reference on random pages, {tolerance:g} allowed"
    return None


def _problem(geometry: KVGeometry, device: torch.device) -> tuple[Tensor, Tensor, Tensor, KVPool]:
    """Return q, k and v of the rows, and a pool whose other pages are filled."""
    generator = torch.Generator().manual_seed(0)
    pool = KVPool(geometry, NUM_PAGES, device=device)
    shape = (len(ROWS), PAGES_A_ROW * geometry.page_tokens, geometry.num_heads, geometry.head_dim)

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, geometry.dtype)

    k, v = draw(shape), draw(shape)
    pages_k, pages_v = (draw((NUM_PAGES, *pool.k[0].shape[1:])) for _ in range(2))
    pages_k[5], pages_v[5] = pages_k[6], UNSEEN
    pages_k[8], pages_v[8] = pages_k[1], UNSEEN
    for kept, pages in ((pool.k_pages[0], pages_k), (pool.v_pages[0], pages_v)):
        kept.put(slice(0, NUM_PAGES), pages)
    wanted = torch.zeros_like(k)
    for i, row in enumerate(ROWS):
        num_tokens = len(row.write_pages) * geometry.page_tokens
        k[i, num_tokens:].unflatten(0, (-1, geometry.page_tokens))[:] = pages_k[6]
        v[i, num_tokens:] = UNSEEN  # padding, which goes to the scratch page
        new = k[i].reshape(PAGES_A_ROW, *pool.k[0].shape[1:])
        own = {page: new[j] for j, page in enumerate(row.write_pages)}
        if row.visible_pages:
            seen = torch.cat([own.get(page, pages_k[page]) for page in row.visible_pages])
            at = torch.arange(shape[1], device=device) * 7 % len(seen)
            wanted[i] = seen[len(seen) - 1 - at]
    # The wanted key's score is about 12 above the others', whatever the width of a head.
    return wanted * (12 / geometry.head_dim**0.5), k, v, pool


def _written(pool: KVPool, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pages as they should be after the forward."""
    after = copy.deepcopy(pool)
    for kept, new in ((after.k_pages[0], k), (after.v_pages[0], v)):
        for i, row in enumerate(ROWS):
            rows = new[i].reshape(PAGES_A_ROW, *kept.values.shape[1:])
            for j, target in enumerate(row.write_pages):
                kept.put(slice(target, target + 1), rows[j : j + 1])
    return _contents(after)


def _contents(pool: KVPool) -> tuple[Tensor, Tensor]:
    """Return K and V of all pages."""
    everything = slice(0, NUM_PAGES)
    return pool.k_pages[0].take(everything), pool.v_pages[0].take(everything)


def _reference(pages: tuple[Tensor, Tensor], q: Tensor) -> Tensor:
    """Return what the rows should see on these pages, in float32."""
    out = torch.zeros_like(q, dtype=torch.float32)
    for i, row in enumerate(ROWS):
        if row.visible_pages:
            keys, values = (x[list(row.visible_pages)].flatten(0, 1).float() for x in pages)
            out[i] = fused_kernel(q[i].float(), keys, values)
    return out


def _largest_error(found: Tensor, expected: Tensor, num_tokens: tuple[int, ...]) -> float:
    errors = [
        float((found[i, :n].float() - expected[i, :n]).abs().max())
        for i, n in enumerate(num_tokens)
        if n
    ]
    return max(errors)
