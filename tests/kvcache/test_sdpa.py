"""The mechanics of the plain torch backend; its results are held in test_attention_oracles.py."""

import pytest
import torch

from kvcache import (
    GeometryError,
    KVGeometry,
    KVPool,
    PageTable,
    RowPages,
    SdpaAttention,
    Staging,
    WindowConfig,
)
from kvcache.attention.sdpa import explicit_kernel, fastest_kernel, fused_kernel, segments

LAYERS, HEADS, HEAD_DIM, FRAME_TOKENS = 3, 2, 8, 4
CHUNK = 3


def new_pool(num_frames: int = 40, page_tokens: int = 2) -> KVPool:
    geometry = KVGeometry(LAYERS, HEADS, HEAD_DIM, FRAME_TOKENS, page_tokens, torch.float32)
    return KVPool(geometry, num_frames * geometry.pages_per_frame, poison_freed=True)


def pages(staging: Staging) -> RowPages:
    return RowPages(staging.write_pages, staging.visible_pages)


def test_a_full_window_is_read_in_place_and_a_gather_reuses_its_buffer() -> None:
    pool = new_pool()
    backend = SdpaAttention(pool)
    whole = PageTable(pool, WindowConfig(6), CHUNK, fused=False)
    holed = PageTable(pool, WindowConfig(6), CHUNK, fused=True)
    for table in [whole, holed] * 5:
        table.begin(CHUNK)
        table.commit()
    plan = backend.plan([pages(whole.begin(CHUNK))], CHUNK * FRAME_TOKENS)
    assert plan.rows[0].pages == slice(0, 12)
    plans = []
    for _ in range(9):  # the hole goes round the ring three times
        plans.append(backend.plan([pages(holed.begin(CHUNK))], CHUNK * FRAME_TOKENS))
        holed.commit()
    gathering = [plan for plan in plans if not isinstance(plan.rows[0].pages, slice)]
    assert len(gathering) == 3
    assert len({plan.buffer.k.data_ptr() for plan in gathering}) == 1


def test_padding_reaches_no_page() -> None:
    pool = new_pool(page_tokens=2)
    backend = SdpaAttention(pool)
    plan = backend.plan([RowPages((), ()), RowPages((4,), (4,))], 6)
    assert plan.num_tokens == (0, 2)
    x = torch.randn(2, 6, HEADS, HEAD_DIM)
    out = plan(0, x, x, x)
    assert (out[0] == 0).all()
    assert (out[1, 2:] == 0).all()
    for layer in range(LAYERS):
        for tensor in (pool.k[layer], pool.v[layer]):
            written = [p for p in range(pool.num_pages) if not tensor[p].isnan().all()]
            assert written == ([4] if layer == 0 else [])


def test_reading_a_page_nobody_wrote_would_show() -> None:
    """The poison works: this is what every other test here would see."""
    pool = new_pool(page_tokens=2)
    x = torch.randn(1, 2, HEADS, HEAD_DIM)
    plan = SdpaAttention(pool).plan([RowPages((4,), (4, 9))], 2)
    assert plan(0, x, x, x).isnan().all()


def test_gradients_and_inference_mode_are_neither_needed_nor_kept() -> None:
    with torch.inference_mode():
        pool = new_pool()
        backend = SdpaAttention(pool)
        backend.plan([RowPages((), ()), RowPages((0,), (0, 2))], FRAME_TOKENS)  # makes a buffer
    row = RowPages((4, 5), (4, 5, 8))
    x = torch.randn(1, FRAME_TOKENS, HEADS, HEAD_DIM, requires_grad=True)
    out = backend.plan([row], FRAME_TOKENS)(0, x, x, x)
    assert not out.requires_grad
    assert not pool.k[0].requires_grad


@pytest.mark.parametrize(
    ("rows", "tokens_per_row", "message"),
    [
        ([RowPages((0,), (0,))], 3, "3 tokens a row are not whole pages of 2"),
        ([RowPages((0, 1), (0, 1))], 2, "2 pages of 2 tokens exceed 2 tokens a row"),
        ([RowPages((0,), (0,)), RowPages((0,), (0,))], 2, r"write the same page: \[0, 0\]"),
        ([RowPages((0,), ())], 2, "a row with tokens sees no page"),
        ([RowPages((80,), (80,))], 2, "page 80 is not among the 80"),
        ([RowPages((0,), (-1,))], 2, "page -1 is not among the 80"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    rows: list[RowPages], tokens_per_row: int, message: str
) -> None:
    with pytest.raises(GeometryError, match=message):
        SdpaAttention(new_pool(page_tokens=2)).plan(rows, tokens_per_row)


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-6), (torch.float64, 1e-12), (torch.bfloat16, 2e-2)]
)
def test_both_kernels_agree(dtype: torch.dtype, atol: float) -> None:
    q, k, v = (torch.randn(n, 4, 32, dtype=torch.float64) for n in (72, 504, 504))
    expected = fused_kernel(q, k, v)
    for kernel in (fused_kernel, explicit_kernel):
        output = kernel(q.to(dtype), k.to(dtype), v.to(dtype))
        assert output.dtype == dtype
        torch.testing.assert_close(output.double(), expected, atol=atol, rtol=0)


def test_the_kernel_for_bf16_is_measured_once_and_kept() -> None:
    geometry = KVGeometry(1, 2, 8, 4, 4, torch.bfloat16)
    pool = KVPool(geometry, 12)
    row = RowPages((0, 1, 2), (0, 1, 2))
    fastest_kernel.cache_clear()
    chosen = {SdpaAttention(pool).plan([row], 12).rows[0].kernel for _ in range(5)}
    assert len(chosen) == 1
    assert chosen <= {fused_kernel, explicit_kernel}
    assert fastest_kernel.cache_info().misses == 1
    assert SdpaAttention(pool, explicit_kernel).plan([row], 12).rows[0].kernel is explicit_kernel


def test_a_score_matrix_too_big_is_never_tried() -> None:
    assert fastest_kernel(1 << 16, 1 << 20, 12, 128) is fused_kernel


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([], []),
        ([5], [(5, 1)]),
        ([5, 6, 7], [(5, 3)]),
        ([7, 6, 5], [(7, 1), (6, 1), (5, 1)]),
        ([0, 1, 4, 5, 3], [(0, 2), (4, 2), (3, 1)]),
    ],
)
def test_segments_are_runs_of_neighbours(
    listed: list[int], expected: list[tuple[int, int]]
) -> None:
    assert segments(listed) == expected
