"""Faults reported of comparable systems: the cache's part of the cases, by their numbers."""

import random
import time

import pytest
import torch

from kvcache import KVGeometry, KVPool, OwnershipError, PageTable, PoolExhausted, WindowConfig
from kvcache.errors import WindowError
from tests.kvcache.toy_model import CHUNK, DenseToy, Toy, new_pool

TINY = KVGeometry(1, 1, 1, 1, 1, torch.float32)


@pytest.mark.parametrize("num_frames", [21, 22, 24, 200])
@pytest.mark.parametrize("config", [WindowConfig(21), WindowConfig(21, 3), WindowConfig(20, 1)])
def test_q35_running_past_the_cache_slides(config: WindowConfig, num_frames: int) -> None:
    """A pool of 21 frames makes streams of any length; every shape fits."""
    pool = new_pool(21)
    toy = Toy.open(config, pool=pool)
    while toy.table.next_frame < num_frames:
        toy.chunk(min(CHUNK, num_frames - toy.table.next_frame))
    frames, newest = range(num_frames), (config.window_frames or 0) - config.sink_frames
    expected = {*frames[: config.sink_frames], *frames[-newest:]}
    assert toy.table.frames == tuple(sorted(expected))


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (WindowConfig(None), WindowError, "needs max_frames"),
        (WindowConfig(None, 0, 22), PoolExhausted, "44 of 42 pages requested, 42 available"),
        (WindowConfig(24), PoolExhausted, "48 of 42 pages requested, 42 available"),
        (WindowConfig(21, 3, rotary="relative"), PoolExhausted, "48 of 42 pages requested"),
        (WindowConfig(21, 21), WindowError, r"21 \+ chunk_frames 3 = 24 > window_frames 21"),
        (WindowConfig(6, 7), WindowError, r"7 \+ chunk_frames 3 = 10 > window_frames 6"),
        (WindowConfig(2), WindowError, r"0 \+ chunk_frames 3 = 3 > window_frames 2"),
    ],
)
def test_q35_impossible_settings_are_refused_at_admission(
    config: WindowConfig, error: type[Exception], message: str
) -> None:
    """With the arithmetic, and nothing of the pool taken."""
    pool = new_pool(21)
    with pytest.raises(error, match=message):
        PageTable(pool, config, CHUNK, fused=False)
    assert (pool.num_reserved, pool.allocator.num_used) == (0, 0)


def test_q35_an_unlimited_window_says_where_it_ends() -> None:
    """The frame past the limit is refused each time it is asked for, never half written."""
    toy = Toy.open(WindowConfig(None, 0, 21), pool=new_pool(21))
    for _ in range(7):
        toy.chunk()
    for _ in range(3):
        with pytest.raises(WindowError, match=r"21 frames held \+ 3 new = 24 > max_frames 21"):
            toy.chunk()
    assert toy.table.frames == tuple(range(21))


@pytest.mark.parametrize("rotary", ["absolute", "relative"])
@pytest.mark.parametrize("rebuild_sink", [False, True])
@pytest.mark.parametrize("sink", [3, 0])
@pytest.mark.parametrize("first_switch", [20, 1, 2])
def test_q37_the_sink_after_a_prompt_switch_is_its_policys(
    rotary: str, rebuild_sink: bool, sink: int, first_switch: int
) -> None:
    """Through three switches it equals a computation from scratch, and no frame of it is empty.

    Kept, it stays the same to the last bit, unless the stream's start is still in view.
    """
    config = WindowConfig(12, sink, rotary=rotary)  # type: ignore[arg-type]
    toy, dense = Toy.open(config), DenseToy(config)
    switches = {first_switch, first_switch + 5, first_switch + 10}
    for chunk in range(first_switch + 15):
        if chunk in switches:
            before = toy.sink() if sink else torch.zeros(0)
            kept = not rebuild_sink and chunk * CHUNK > 12
            for session in (toy, dense):
                session.recache(2 + chunk, rebuild_sink=rebuild_sink)
            if sink:
                assert torch.equal(toy.sink(), before) == kept
        torch.testing.assert_close(toy.chunk(), dense.chunk(), atol=1e-3, rtol=1e-4)
        if sink:
            torch.testing.assert_close(toy.sink(), dense.sink(), atol=1e-3, rtol=1e-4)
            assert toy.sink().unflatten(2, (sink, -1)).flatten(3).norm(dim=3).min() > 0.5
    first = 3 * (first_switch + 10) - 12 if rebuild_sink else 0
    assert toy.table.frames[:sink] == tuple(range(max(first, 0), max(first, 0) + sink))


def test_q37_a_sink_that_is_not_full_yet_is_made_again_as_far_as_it_is() -> None:
    config = WindowConfig(12, 4)
    toy, dense = Toy.open(config), DenseToy(config)
    for session in (toy, dense):
        session.chunk()
        session.recache(2)
    for _ in range(6):
        torch.testing.assert_close(toy.chunk(), dense.chunk(), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(toy.sink(), dense.sink(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "attended"),
    [
        (WindowConfig(12, 0), {*range(21, 33)}),
        (WindowConfig(12, 3), {0, 1, 2, *range(24, 33)}),
        (WindowConfig(12, 1), {0, *range(22, 33)}),
        (WindowConfig(None, 0, 33), {*range(33)}),
        (WindowConfig(12, 3, rotary="relative"), {0, 1, 2, *range(24, 33)}),
    ],
)
def test_q39_sink_and_window_take_effect(config: WindowConfig, attended: set[int]) -> None:
    """At latent frame 30 the listed frames are attended: each of them shows in the output."""
    toy = Toy.open(config, fused=True)
    for _ in range(10):
        toy.chunk()
    staging = toy.table.begin(CHUNK)
    assert sorted(staging.visible_frames) == sorted(attended)
    expected = toy.noisy_pass(staging)
    for frame in attended - {30, 31, 32}:
        pages = list(toy.table.pages_of(frame))
        for layer in toy.table.pool.v:
            layer[pages] += 1.0
        assert not torch.allclose(toy.noisy_pass(staging), expected, atol=1e-4), frame
        for layer in toy.table.pool.v:
            layer[pages] -= 1.0


def test_q39_sink_six_of_window_six_is_refused() -> None:
    with pytest.raises(WindowError, match=r"6 \+ chunk_frames 3 = 9 > window_frames 6"):
        PageTable(new_pool(20), WindowConfig(6, 6), CHUNK)


@pytest.mark.parametrize("rotary", ["absolute", "relative"])
@pytest.mark.parametrize("leaves", ["released", "reset"])
def test_q41_a_session_on_used_pages_is_a_fresh_one(leaves: str, rotary: str) -> None:
    """After another of other size and prompt, released or reset: equal to the last bit."""
    config = WindowConfig(7, 1, rotary=rotary)  # type: ignore[arg-type]
    reference = Toy.open(config)
    expected = [reference.chunk() for _ in range(6)]

    pool = new_pool(12)
    first = Toy.open(config if leaves == "reset" else WindowConfig(12, 3), pool=pool)
    first.prompt = 5
    for _ in range(7):
        first.chunk()
    first.recache(6)
    first.table.begin(CHUNK)
    if leaves == "reset":
        first.table.reset()
        second = Toy(first.table, first.backend)
    else:
        first.table.release()
        second = Toy.open(config, pool=pool)
    assert all(torch.equal(second.chunk(), output) for output in expected)


def test_q41_ten_thousand_random_operations() -> None:
    """Pages have one owner, the books balance, nothing that fits fails, and no step gets slow."""
    rng = random.Random(41)
    pool = KVPool(TINY, 120)
    tables: list[PageTable] = []
    seconds: list[float] = []
    for step in range(10_000):
        action = rng.choice(["start", "extend", "extend", "extend", "recache", "reset", "leave"])
        config = WindowConfig(
            rng.choice([6, 12, 21]), rng.choice([0, 3]), rotary=rng.choice(["absolute", "relative"])
        )
        table = rng.choice(tables) if tables else None
        before = time.thread_time()  # it stands still while others have the core
        if action == "start" or table is None:
            if config.reserved_frames(CHUNK, fused=True) <= pool.num_unreserved:
                tables.append(PageTable(pool, config, CHUNK))
        elif action == "extend":
            table.begin(CHUNK)
            table.commit()
        elif action == "recache":
            table.recache(rebuild_sink=step % 2 == 0)
        elif action == "reset":
            table.reset()
        else:
            tables.remove(table)
            table.release()
        seconds.append(time.thread_time() - before)
        owned = [p for t in tables for pages in (*t._slots, t._rotated.pages) for p in pages]
        assert len(owned) == len(set(owned)) == pool.allocator.num_used == pool.num_reserved
        pool.allocator.audit()
    for table in tables:
        pages = table.pages_of(table.frames[0]) if table.frames else ()
        table.release()
        if pages:
            with pytest.raises(OwnershipError):
                pool.free(pages)
    assert pool.allocator.num_free == pool.num_pages
    early, late = (sorted(part)[-50] for part in (seconds[:5000], seconds[5000:]))
    assert late < 5 * early + 1e-3
