from itertools import pairwise

import pytest
import torch

from kvcache import (
    KVGeometry,
    KVPool,
    PageTable,
    WindowConfig,
    WindowError,
)

GEOMETRY = KVGeometry(1, 1, 1, 2, 1, torch.float32)  # two pages a frame
CHUNK = 3


def new_pool(num_frames: int) -> KVPool:
    return KVPool(GEOMETRY, num_frames * GEOMETRY.pages_per_frame, poison_freed=True)


def num_runs(pages: tuple[int, ...]) -> int:
    return 1 + sum(right != left + 1 for left, right in pairwise(pages))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("config", "attended"),
    [
        (WindowConfig(12, 0), {*range(21, 33)}),
        (WindowConfig(12, 3), {0, 1, 2, *range(24, 33)}),
        (WindowConfig(12, 1), {0, *range(22, 33)}),
        (WindowConfig(None, 0, 33), {*range(33)}),
        (WindowConfig(6, 3), {0, 1, 2, 30, 31, 32}),
        (WindowConfig(7, 0), {*range(26, 33)}),
        (WindowConfig(8, 2), {0, 1, *range(27, 33)}),
        (WindowConfig(3, 0), {30, 31, 32}),
    ],
)
def test_attended_frames_at_frame_30(config: WindowConfig, attended: set[int], fused: bool) -> None:
    """The window counts the sink and the chunk itself; a setting without effect would show."""
    table = PageTable(new_pool(40), config, CHUNK, fused=fused)
    for _ in range(10):
        table.begin(CHUNK)
        table.commit()
    staging = table.begin(CHUNK)
    assert staging.frame_index == 30
    assert set(staging.visible_frames) == attended
    assert len(staging.visible_frames) == len(attended)


def test_a_window_of_sinks_only_is_refused() -> None:
    pool = new_pool(40)
    with pytest.raises(WindowError, match=r"6 \+ chunk_frames 3 = 9 > window_frames 6"):
        PageTable(pool, WindowConfig(6, 6), CHUNK)
    assert pool.num_reserved == 0


@pytest.mark.parametrize(
    ("window", "sink", "held"),
    [
        (6, 0, [3, 6, 6, 6, 6, 6, 6, 6]),
        (6, 3, [3, 6, 6, 6, 6, 6, 6, 6]),
        (9, 3, [3, 6, 9, 9, 9, 9, 9, 9]),
    ],
)
def test_frames_held_as_in_the_published_local_windows(
    window: int, sink: int, held: list[int]
) -> None:
    """Column 'frames of keys attended' of the sf_local fixture, chunk by chunk."""
    table = PageTable(new_pool(12), WindowConfig(window, sink), CHUNK)
    for expected in held:
        assert len(table.begin(CHUNK).visible_frames) == expected
        table.commit()
        assert len(table.frames) == expected


@pytest.mark.parametrize("num_frames", [21, 22, 24, 200])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_runs_past_its_window_for_ever(num_frames: int, chunk: int) -> None:
    table = PageTable(new_pool(24), WindowConfig(21), chunk)
    while table.next_frame < num_frames:
        table.begin(min(chunk, num_frames - table.next_frame))
        table.commit()
    assert table.frames == tuple(range(num_frames))[-21:]


def test_unlimited_refuses_the_frame_past_its_limit_and_stays_usable() -> None:
    table = PageTable(new_pool(21), WindowConfig(None, 0, 8), CHUNK)
    for _ in range(2):
        table.begin(CHUNK)
        table.commit()
    with pytest.raises(WindowError, match=r"6 frames held \+ 3 new = 9 > max_frames 8"):
        table.begin(CHUNK)
    assert table.begin(2).visible_frames == tuple(range(8))


def test_first_chunk_and_steady_chunk_may_differ() -> None:
    """One frame first, then threes, as a causal VAE likes it; nothing need be a multiple."""
    table = PageTable(new_pool(12), WindowConfig(7, 1), CHUNK)
    frames = []
    for num_frames in (1, 3, 3, 3, 2, 3):
        frames.append(sorted(table.begin(num_frames).visible_frames))
        table.commit()
    assert frames == [
        [0],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5, 6],
        [0, 4, 5, 6, 7, 8, 9],
        [0, 6, 7, 8, 9, 10, 11],
        [0, 9, 10, 11, 12, 13, 14],
    ]


@pytest.mark.parametrize("num_frames", [-1, 0, 4])
def test_a_chunk_has_its_size(num_frames: int) -> None:
    table = PageTable(new_pool(12), WindowConfig(6), CHUNK)
    with pytest.raises(WindowError, match=rf"num_frames {num_frames} is outside 1 \.\. 3"):
        table.begin(num_frames)


def test_frame_numbers_have_no_limit() -> None:
    table = PageTable(new_pool(24), WindowConfig(21, 3), CHUNK, first_frame=10**9)
    for _ in range(500):
        table.begin(CHUNK)
        table.commit()
    last = 10**9 + 1500
    assert table.frames == (10**9, 10**9 + 1, 10**9 + 2, *range(last - 18, last))


def test_turns_are_kept() -> None:
    table = PageTable(new_pool(12), WindowConfig(6), CHUNK)
    with pytest.raises(WindowError, match="nothing is staged"):
        table.commit()
    table.rollback()
    table.begin(CHUNK)
    with pytest.raises(WindowError, match=r"\[0, 1, 2\] are still staged"):
        table.begin(CHUNK)
    with pytest.raises(WindowError, match="cannot skip"):
        table.skip_to(9)
    table.commit()
    with pytest.raises(WindowError, match="cannot skip to frame 2 at frame 3"):
        table.skip_to(2)


def test_a_rebuild_leaves_a_gap_behind_the_sink() -> None:
    table = PageTable(new_pool(9), WindowConfig(6, 2), CHUNK)
    table.begin(2)
    table.commit()
    table.skip_to(20)
    staging = table.begin(CHUNK)
    assert staging.frame_index == 20
    table.commit()
    assert table.frames == (0, 1, 20, 21, 22)
    assert sorted(table.begin(CHUNK).visible_frames) == [0, 1, 22, 23, 24, 25]


@pytest.mark.parametrize("fused", [False, True])
def test_pages_are_neighbours(fused: bool) -> None:
    """A full window is the whole run, or, beside a spare chunk, the run with one hole."""
    for window in range(1, 13):
        for chunk in range(1, min(window, 4) + 1):
            for sink in range(window - chunk + 1):
                table = PageTable(new_pool(16), WindowConfig(window, sink), chunk, fused=fused)
                for _ in range(30):
                    assert num_runs(table.begin(chunk).visible_pages) <= 1 + fused
                    table.commit()


def test_a_frame_stays_where_it_was_written() -> None:
    table = PageTable(new_pool(15), WindowConfig(12, 1), CHUNK)
    homes: dict[int, tuple[int, ...]] = {}
    for _ in range(40):
        staging = table.begin(CHUNK)
        table.commit()
        assert staging.write_pages == tuple(
            page for frame in range(staging.frame_index, table.next_frame)
            for page in table.pages_of(frame)
        )  # fmt: skip
        for frame in table.frames:
            assert homes.setdefault(frame, table.pages_of(frame)) == table.pages_of(frame)


def test_the_commit_row_of_a_fused_forward_keeps_its_pages() -> None:
    """What chunk n + 1 evicts is still read by the commit row of chunk n, so it is not reused."""
    table = PageTable(new_pool(9), WindowConfig(6), CHUNK, fused=True)
    staging = table.begin(CHUNK)
    for _ in range(20):
        table.commit()
        following = table.begin(CHUNK)
        assert not set(following.write_pages) & set(staging.visible_pages)
        staging = following


@pytest.mark.parametrize("config", [WindowConfig(12), WindowConfig(12, 3), WindowConfig(7, 1)])
def test_rollback_leaves_no_trace(config: WindowConfig) -> None:
    table = PageTable(new_pool(15), config, CHUNK, fused=True)
    for _ in range(12):
        frames = table.frames
        pages = [table.pages_of(frame) for frame in frames]
        attempt = table.begin(CHUNK)
        table.rollback()
        assert table.frames == frames
        assert [table.pages_of(frame) for frame in frames] == pages
        assert table.begin(CHUNK) == attempt
        table.commit()


def test_rollback_without_the_spare_chunk_loses_only_what_was_evicted() -> None:
    table = PageTable(new_pool(6), WindowConfig(6), CHUNK, fused=False)
    for _ in range(3):
        table.begin(CHUNK)
        table.commit()
    attempt = table.begin(CHUNK)
    table.rollback()
    assert table.frames == (6, 7, 8)
    retry = table.begin(CHUNK)
    assert set(retry.visible_frames) == set(attempt.visible_frames)
    assert retry.write_pages == attempt.write_pages


def test_reset_is_as_good_as_new() -> None:
    pool = new_pool(9)
    table = PageTable(pool, WindowConfig(6), CHUNK, first_frame=4)
    first = table.begin(CHUNK)
    for _ in range(5):
        table.commit()
        table.begin(CHUNK)
    table.reset()
    assert (table.frames, table.next_frame) == ((), 4)
    assert table.begin(CHUNK) == first
    table.reset(100)
    assert table.begin(CHUNK).frame_index == 100
    pool.allocator.audit()


@pytest.mark.parametrize("fused", [False, True])
def test_pinned_frames_stay_like_the_sink(fused: bool) -> None:
    """A shot's first frames are passed over when others leave, until other ones are pinned."""
    table = PageTable(new_pool(30), WindowConfig(12, 3), CHUNK, fused=fused)
    for chunk in range(9):
        table.begin(CHUNK)
        table.commit()
        if chunk in (3, 6):
            table.pin(range(3 * chunk, 3 * chunk + 2))
    assert table.frames == (0, 1, 2, 18, 19, *range(20, 27))
    child = table.fork()
    for _ in range(4):
        for each in (table, child):
            each.begin(CHUNK)
            each.commit()
    assert table.frames == child.frames == (0, 1, 2, 18, 19, *range(32, 39))
    assert table.recache_frames() == table.frames[3:]
    child.pin(())
    child.begin(CHUNK)
    child.commit()
    assert child.frames == (0, 1, 2, *range(33, 42))
    table.recache(rebuild_sink=True)
    for _ in range(4):
        table.begin(CHUNK)
        table.commit()
    assert table.frames == (27, 28, 29, *range(42, 51))


def test_pins_that_leave_no_room_are_refused() -> None:
    table = PageTable(new_pool(10), WindowConfig(7, 2), CHUNK)
    for _ in range(2):
        table.begin(CHUNK)
        table.commit()
    table.pin([3, 4])
    with pytest.raises(WindowError, match=r"2 \+ 3 pinned \+ chunk_frames 3 = 8 > window_frames 7"):
        table.pin([3, 4, 5])
    with pytest.raises(WindowError, match="frame 9 is not among the frames held"):
        table.pin([9])
    for _ in range(3):
        table.begin(CHUNK)
        table.commit()
    assert table.frames == (0, 1, 3, 4, 12, 13, 14)
