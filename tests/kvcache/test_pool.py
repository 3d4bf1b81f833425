import pickle

import pytest
import torch

from kvcache import GeometryError, KVGeometry, KVPool, PoolExhausted

GEOMETRY = KVGeometry(3, 4, 32, 24, 6, torch.bfloat16)


def test_bytes_are_exact() -> None:
    """The tensors take the bytes the geometry promises, and one scratch page, told apart."""
    pool = KVPool(GEOMETRY, 10)
    allocated = sum(tensor.nbytes for tensor in (*pool.k, *pool.v))
    assert pool.nbytes == 10 * 6 * 2 * (4 * 32) * 3 * 2
    assert pool.nbytes + pool.scratch_nbytes == allocated
    assert pool.k[0].shape == (11, 6, 4, 32)
    assert pool.scratch_page == 10


def test_from_bytes_fills_the_budget() -> None:
    page_bytes = GEOMETRY.page_bytes
    assert KVPool.from_bytes(GEOMETRY, 11 * page_bytes).num_pages == 10
    assert KVPool.from_bytes(GEOMETRY, 11 * page_bytes - 1).num_pages == 9
    with pytest.raises(GeometryError, match="hold no page"):
        KVPool.from_bytes(GEOMETRY, 2 * page_bytes - 1)


def test_needs_a_page() -> None:
    with pytest.raises(GeometryError, match="at least one page, not 0"):
        KVPool(GEOMETRY, 0)


def test_reservations_are_never_exceeded() -> None:
    pool = KVPool(GEOMETRY, 10)
    pool.reserve(7)
    with pytest.raises(PoolExhausted, match="4 of 10 pages requested, 3 available"):
        pool.reserve(4)
    assert (pool.num_reserved, pool.num_unreserved) == (7, 3)
    pool.reserve(3)
    pool.unreserve(7)
    assert pool.num_unreserved == 7


def test_poison_marks_what_nobody_may_read() -> None:
    pool = KVPool(GEOMETRY, 4, poison_freed=True)
    assert all(tensor[:4].isnan().all() for tensor in (*pool.k, *pool.v))
    assert all(tensor[pool.scratch_page].isfinite().all() for tensor in (*pool.k, *pool.v))
    pages = pool.allocate(2)
    pool.allocator.share(pages[:1])
    for tensor in (*pool.k, *pool.v):
        tensor[pages] = 1
    pool.free(pages)
    for tensor in (*pool.k, *pool.v):
        assert (tensor[pages[0]] == 1).all()  # somebody else still holds it
        assert tensor[pages[1]].isnan().all()


def test_a_pool_built_under_inference_mode_can_be_written_outside() -> None:
    with torch.inference_mode():
        pool = KVPool(GEOMETRY, 2, poison_freed=True)
    pool.forget([0])
    with torch.inference_mode():
        pool.forget([1])


def test_refusals_cross_process_borders() -> None:
    refusal = pickle.loads(pickle.dumps(PoolExhausted(4, 3, "pages")))
    assert str(refusal) == "4 pages requested, 3 available"
    assert (refusal.requested, refusal.available) == (4, 3)
