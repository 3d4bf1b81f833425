"""Pages among sessions: admission, forks, copies, leaving."""

import random

import pytest
import torch

from kvcache import (
    KVGeometry,
    KVPool,
    OwnershipError,
    PageTable,
    PoolExhausted,
    WindowConfig,
    WindowError,
)

GEOMETRY = KVGeometry(1, 1, 1, 2, 1, torch.float32)  # two pages a frame
CHUNK = 3


def new_pool(num_frames: int) -> KVPool:
    return KVPool(GEOMETRY, num_frames * GEOMETRY.pages_per_frame, poison_freed=True)


def test_admission_counts_reservations() -> None:
    pool = new_pool(50)
    tables = [PageTable(pool, WindowConfig(21), CHUNK) for _ in range(2)]
    with pytest.raises(PoolExhausted, match="48 of 100 pages requested, 4 available"):
        PageTable(pool, WindowConfig(21), CHUNK)
    for _ in range(20):
        for table in tables:
            table.begin(CHUNK)
            table.commit()
    tables[0].release()
    PageTable(pool, WindowConfig(21), CHUNK)


def test_fork_shares_pages_and_then_goes_its_own_way() -> None:
    pool = new_pool(18)
    parent = PageTable(pool, WindowConfig(6, 1), CHUNK)
    for _ in range(2):
        parent.begin(CHUNK)
        parent.commit()
    staged = parent.begin(CHUNK)
    child = parent.fork()
    assert child.frames == tuple(range(6))
    assert child.next_frame == 6
    parent.commit()
    shared = child.pages_of(0)
    assert shared == parent.pages_of(0)
    assert pool.allocator.refcount(shared[0]) == 2
    own = child.begin(CHUNK)
    assert sorted(own.visible_frames) == sorted(staged.visible_frames)
    assert not set(own.write_pages) & set(staged.write_pages)
    parent.release()
    assert pool.allocator.refcount(shared[0]) == 1
    child.commit()
    child.release()
    assert pool.allocator.num_free == pool.num_pages
    assert pool.num_reserved == 0


@pytest.mark.parametrize("sink", [0, 1, 3])
def test_a_fork_of_a_table_whose_window_is_shorter_for_now_has_room_for_the_whole_one(
    sink: int,
) -> None:
    whole, shorter = WindowConfig(9, sink), WindowConfig(6, sink)
    pool = new_pool(24)
    parent = PageTable(pool, whole, CHUNK)
    for _ in range(4):
        parent.begin(CHUNK)
        parent.commit()
    parent.config = shorter
    parent.begin(CHUNK)
    parent.commit()
    child = parent.fork()
    assert child.config == shorter
    assert child.frames == parent.frames
    assert pool.num_unreserved == 0
    for table in (parent, child):
        table.config = whole
        for _ in range(4):
            staging = table.begin(CHUNK)
            assert len(staging.write_pages) == CHUNK * GEOMETRY.pages_per_frame
            table.commit()
        assert len(table.frames) == 9
    for table in (parent, child):
        table.release()
    assert pool.allocator.num_free == pool.num_unreserved == pool.num_pages


def test_fork_without_room_leaves_the_parent_untouched() -> None:
    pool = new_pool(17)
    parent = PageTable(pool, WindowConfig(6), CHUNK)
    parent.begin(CHUNK)
    parent.commit()
    pages = parent.pages_of(1)
    with pytest.raises(PoolExhausted, match="18 of 34 pages requested, 16 available"):
        parent.fork()
    assert parent.pages_of(1) == pages
    assert pool.allocator.refcount(pages[0]) == 1
    pool.allocator.audit()


def test_a_recache_of_shared_frames_leaves_them_to_the_others() -> None:
    """A write to a shared page goes to a page of its own, and what the other sees stays."""
    pool = new_pool(18)
    parent = PageTable(pool, WindowConfig(6), CHUNK)
    staging = parent.begin(CHUNK)
    for tensor in (*pool.k, *pool.v):
        tensor[list(staging.write_pages)] = 7
    parent.commit()
    child = parent.fork()
    [row] = child.recache()
    assert not set(row.write_pages) & set(staging.write_pages)
    assert child.recache() == [row]
    for tensor in (*pool.k, *pool.v):
        assert (tensor[list(staging.write_pages)] == 7).all()
    assert parent.recache()[0].write_pages == staging.write_pages  # alone on them by now
    pool.allocator.audit()


def test_release_is_idempotent_and_final() -> None:
    pool = new_pool(9)
    table = PageTable(pool, WindowConfig(6), CHUNK)
    table.begin(CHUNK)
    table.release()
    table.release()
    assert pool.num_reserved == 0
    assert pool.allocator.num_free == pool.num_pages
    for use in (lambda: table.begin(1), table.fork, table.reset, table.recache):
        with pytest.raises(WindowError, match="the page table was released"):
            use()
    with pytest.raises(WindowError, match="frame 0 is not among the frames held"):
        table.pages_of(0)


def test_pages_of_a_table_cannot_be_freed_twice() -> None:
    pool = new_pool(9)
    table = PageTable(pool, WindowConfig(6), CHUNK)
    pages = table.begin(CHUNK).write_pages
    table.release()
    with pytest.raises(OwnershipError, match="freed 1 times but held 0 times"):
        pool.free(pages)


@pytest.mark.parametrize("leave", ["committed", "staged", "rolled back", "reset", "forked"])
def test_a_hundred_sessions_leave_nothing_behind(leave: str) -> None:
    """Whatever state a session is in when it goes, its pages come back at once."""
    pool = new_pool(27)
    for _ in range(100):
        tables = [PageTable(pool, WindowConfig(6), CHUNK)]
        for _ in range(2):
            tables[0].begin(CHUNK)
            tables[0].commit()
        if leave != "committed":
            tables[0].begin(CHUNK)
        if leave == "rolled back":
            tables[0].rollback()
        if leave == "reset":
            tables[0].reset()
        if leave == "forked":
            tables += [tables[0].fork(), tables[0].fork()]
        for table in tables:
            table.release()
        pool.allocator.audit()
        assert (pool.allocator.num_free, pool.num_reserved) == (pool.num_pages, 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_ten_thousand_random_operations(seed: int) -> None:
    """Sessions of different windows start, extend, fork, reset and leave; the books balance."""
    rng = random.Random(seed)
    pool = new_pool(160)
    tables: list[PageTable] = []
    for _ in range(10_000):
        action = rng.choice(
            ["start", "extend", "extend", "extend", "abort", "fork", "reset", "leave"]
        )
        if action == "start" or not tables:
            config = WindowConfig(rng.choice([6, 12, 21]), rng.choice([0, 1, 3]))
            fused = rng.random() < 0.5
            needed = config.reserved_frames(CHUNK, fused) * GEOMETRY.pages_per_frame
            if needed <= pool.num_unreserved:
                tables.append(PageTable(pool, config, CHUNK, fused=fused))
            else:
                with pytest.raises(PoolExhausted):
                    PageTable(pool, config, CHUNK, fused=fused)
            continue
        table = rng.choice(tables)
        if action in ("extend", "abort"):
            staging = table.begin(rng.randint(1, CHUNK))
            assert all(pool.allocator.refcount(page) == 1 for page in staging.write_pages)
            table.commit() if action == "extend" else table.rollback()
        elif action == "fork" and table.num_slots * 2 <= pool.num_unreserved:
            tables.append(table.fork())
        elif action == "reset":
            table.reset()
        elif action == "leave":
            tables.remove(table)
            table.release()
        pool.allocator.audit()
        assert pool.allocator.num_used <= pool.num_reserved
    for table in tables:
        table.release()
    assert pool.allocator.num_free == pool.num_pages
