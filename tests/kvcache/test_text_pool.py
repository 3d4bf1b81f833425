import pytest
import torch
from torch import Tensor

from kvcache import GeometryError, OwnershipError, PoolExhausted, TextKVPool

LAYERS, HEADS, HEAD_DIM, TOKENS = 2, 3, 4, 5


def new_pool(num_slots: int) -> TextKVPool:
    return TextKVPool(LAYERS, HEADS, HEAD_DIM, TOKENS, num_slots, torch.float32)


def text_kv(value: float) -> tuple[Tensor, Tensor]:
    k = torch.full((LAYERS, TOKENS, HEADS, HEAD_DIM), value)
    return k, -k


def test_bytes_are_exact() -> None:
    assert new_pool(7).nbytes == 2 * (HEADS * HEAD_DIM) * LAYERS * 4 * TOKENS * 7


def test_a_prompt_is_computed_once() -> None:
    pool = new_pool(2)
    assert pool.get("a") is None
    slot = pool.put("a", *text_kv(1))
    assert pool.get("a") == slot
    assert (pool.hits, pool.misses) == (1, 1)


def test_a_stored_key_keeps_slot_and_content() -> None:
    """Two sessions may miss the same prompt and both compute it; the second result is dropped."""
    pool = new_pool(2)
    slot = pool.put("a", *text_kv(1))
    assert pool.put("a", *text_kv(2)) == slot
    assert (pool.k[:, slot] == 1).all()


def test_evicts_the_least_recently_used() -> None:
    pool = new_pool(2)
    first = pool.put("a", *text_kv(1))
    pool.put("b", *text_kv(2))
    pool.get("a")
    pool.put("c", *text_kv(3))
    assert pool.get("b") is None
    assert pool.get("a") == first
    assert pool.get("c") is not None


def test_pinned_slots_stay() -> None:
    pool = new_pool(2)
    pinned = pool.put("a", *text_kv(1))
    pool.pin(pinned)
    pool.pin(pinned)
    pool.put("b", *text_kv(2))
    pool.put("c", *text_kv(3))
    assert pool.get("a") == pinned
    assert (pool.k[:, pinned] == 1).all()
    pool.unpin(pinned)
    pool.put("d", *text_kv(4))
    assert pool.get("a") == pinned  # still pinned once
    pool.unpin(pinned)
    pool.put("e", *text_kv(5))
    pool.put("f", *text_kv(6))
    assert pool.get("a") is None


def test_full_of_pins_refuses_and_changes_nothing() -> None:
    pool = new_pool(1)
    slot = pool.put("a", *text_kv(1))
    pool.pin(slot)
    with pytest.raises(PoolExhausted, match="1 unpinned text slots requested, 0 available"):
        pool.put("b", *text_kv(2))
    assert pool.get("a") == slot
    assert (pool.k[:, slot] == 1).all()


def test_pins_must_pair() -> None:
    pool = new_pool(2)
    with pytest.raises(OwnershipError, match="holds nothing to pin"):
        pool.pin(0)
    slot = pool.put("a", *text_kv(1))
    for unpinned in (slot, 1 - slot, -1, 2):
        with pytest.raises(OwnershipError, match="is not pinned"):
            pool.unpin(unpinned)


@pytest.mark.parametrize("slots", [[0], [3], [2, 2, 2], [1, 2, 3], [3, 0, 3], [1, 0]])
def test_rows_carry_their_slots(slots: list[int]) -> None:
    pool = new_pool(4)
    values = {pool.put(value, *text_kv(value)): float(value) for value in (10, 20, 30, 40)}
    rows = pool.rows(slots)
    for layer in range(LAYERS):
        k, v = rows(layer)
        assert k.shape == v.shape == (len(slots), TOKENS, HEADS, HEAD_DIM)
        for row, slot in enumerate(slots):
            assert (k[row] == values[slot]).all()
            assert (v[row] == -values[slot]).all()


@pytest.mark.parametrize("slots", [[2], [2, 2, 2], [1, 2, 3]])
def test_equal_or_neighbouring_slots_are_read_in_place(slots: list[int]) -> None:
    pool = new_pool(4)
    k, v = pool.rows(slots)(1)
    assert k.data_ptr() == pool.k[1, slots[0]].data_ptr()
    assert v.data_ptr() == pool.v[1, slots[0]].data_ptr()


def test_other_shapes_are_refused() -> None:
    pool = new_pool(1)
    k, v = text_kv(1)
    with pytest.raises(GeometryError, match=r"must be \(2, 5, 3, 4\)"):
        pool.put("a", k[:, :4], v)
    with pytest.raises(GeometryError, match="at least one slot"):
        new_pool(0)
