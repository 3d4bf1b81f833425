"""Recache and rebuild: K/V made again, in one forward or more, the sink kept or made anew."""

import pytest
import torch

from kvcache import PageTable, SdpaAttention, Staging, WindowConfig, WindowError
from tests.kvcache.toy_model import CHUNK, DenseToy, Toy, forward, model_input, new_pool, turn


def filled(config: WindowConfig, num_chunks: int, *, fused: bool = False) -> PageTable:
    table = PageTable(new_pool(40), config, CHUNK, fused=fused)
    for _ in range(num_chunks):
        table.begin(CHUNK)
        table.commit()
    return table


def spans(stagings: list[Staging]) -> list[list[int]]:
    return [list(range(s.frame_index, s.frame_index + s.num_frames)) for s in stagings]


@pytest.mark.parametrize(
    ("config", "num_chunks", "kept", "rebuilt"),
    [
        (WindowConfig(9, 3), 4, range(6, 12), range(3, 12)),  # as LongLive's switch at frame 12
        (WindowConfig(9, 3), 2, range(6), range(6)),  # the stream's start is still in view
        (WindowConfig(9, 3), 3, range(9), range(9)),
        (WindowConfig(7, 2), 4, range(7, 12), range(5, 12)),
        (WindowConfig(6, 0), 4, range(6, 12), range(6, 12)),
        (WindowConfig(6, 3), 1, range(3), range(3)),
        (WindowConfig(None, 0, 24), 5, range(15), range(15)),
        (WindowConfig(6, 3), 0, range(0), range(0)),
    ],
)
def test_which_frames_are_made_again(
    config: WindowConfig, num_chunks: int, kept: range, rebuilt: range
) -> None:
    """The newest window of frames, without those whose places the kept sink has."""
    for rebuild_sink, frames in ((False, kept), (True, rebuilt)):
        table = filled(config, num_chunks)
        sink = () if rebuild_sink or frames.start == 0 else tuple(range(config.sink_frames))
        assert table.recache_frames(rebuild_sink=rebuild_sink) == tuple(frames)
        stagings = table.recache(rebuild_sink=rebuild_sink)
        assert [frame for span in spans(stagings) for frame in span] == list(frames)
        assert table.frames == (*sink, *frames)
        for staging in stagings:
            assert sorted(staging.visible_frames) == [*sink, *frames]
        assert table.next_frame == 3 * num_chunks


def test_rows_are_chunks_counted_from_the_newest() -> None:
    """With a short first chunk, rows still fall together with the chunks."""
    table = PageTable(new_pool(12), WindowConfig(9), CHUNK)
    for num_frames in (1, 3, 3):
        table.begin(num_frames)
        table.commit()
    assert spans(table.recache()) == [[0], [1, 2, 3], [4, 5, 6]]
    causal = table.recache(causal=True)
    assert [max(staging.visible_frames) for staging in causal] == [0, 3, 6]
    table.begin(CHUNK)
    table.commit()
    assert spans(table.recache()) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_frames_with_a_gap_between_them_are_in_different_rows() -> None:
    """A row's frames are consecutive, and a resumed stream's sink is kept."""
    table = PageTable(new_pool(12), WindowConfig(9, 2), CHUNK)
    for first in (0, 2, 20):
        table.skip_to(first)
        table.begin(2)
        table.commit()
    assert table.frames == (0, 1, 2, 3, 20, 21)
    assert spans(table.recache()) == [[2, 3], [20, 21]]


def test_a_rebuilt_sink_is_the_sink_from_then_on() -> None:
    """It stays while the window moves on, and a later recache keeps it or rebuilds it again."""
    table = filled(WindowConfig(9, 3), 4)
    table.recache(rebuild_sink=True)
    for _ in range(4):
        table.begin(CHUNK)
        table.commit()
    assert table.frames == (3, 4, 5, *range(18, 24))
    assert table.recache_frames() == tuple(range(18, 24))
    assert table.recache_frames(rebuild_sink=True) == tuple(range(15, 24))


def test_a_recache_tried_again_is_the_same() -> None:
    table = filled(WindowConfig(9, 3), 5, fused=True)
    for rebuild_sink in (False, True):
        first = table.recache(rebuild_sink=rebuild_sink)
        assert table.recache(rebuild_sink=rebuild_sink) == first


def test_nothing_may_be_staged() -> None:
    table = filled(WindowConfig(9, 3), 5)
    table.begin(CHUNK)
    with pytest.raises(WindowError, match=r"\[15, 16, 17\] are still staged"):
        table.recache()
    table.rollback()
    assert len(table.recache()) == 1  # without a spare chunk, what was hidden is gone


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rebuild_sink", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        WindowConfig(9, 3),
        WindowConfig(7, 2),
        WindowConfig(7, 4),
        WindowConfig(6, 0),
        WindowConfig(6, 3),
        WindowConfig(9, 3, rotary="relative"),
        WindowConfig(7, 2, rotary="relative"),
        WindowConfig(7, 4, rotary="relative"),
    ],
)
def test_recache_is_a_dense_forward_over_the_same_latents(
    config: WindowConfig, rebuild_sink: bool, causal: bool
) -> None:
    """Oracle 5: through early, late and repeated switches, what is generated after them agrees."""
    toy, dense = Toy.open(config), DenseToy(config)
    for chunk in range(12):
        if chunk in (1, 2, 5, 6, 10):
            for session in (toy, dense):
                session.recache(chunk, rebuild_sink=rebuild_sink, causal=causal)
        torch.testing.assert_close(toy.chunk(), dense.chunk(), atol=1e-3, rtol=1e-4)
        if config.sink_frames:
            torch.testing.assert_close(toy.sink(), dense.sink(), atol=1e-3, rtol=1e-4)


def test_the_commit_before_a_recache_need_not_run() -> None:
    """Its frames are made again anyway: what follows is equal to the last bit."""
    outputs = []
    for commits in (True, False):
        toy = Toy.open(WindowConfig(9, 3))
        for _ in range(4):
            toy.chunk()
        staging = toy.table.begin(CHUNK)
        if not commits:
            for tensor in (*toy.table.pool.k, *toy.table.pool.v):
                tensor[list(staging.write_pages)] = 7.0
            toy.table.commit()
        else:
            toy.table.rollback()
            toy.chunk()
        toy.recache(2)
        outputs.append(toy.chunk())
    assert torch.equal(*outputs)


def test_a_fork_recached_leaves_the_other_as_it_was() -> None:
    pool = new_pool(40)
    config = WindowConfig(9, 3, rotary="relative")
    parent, alone = Toy.open(config, pool=pool), Toy.open(config)
    for _ in range(5):
        parent.chunk()
        alone.chunk()
    child = Toy(parent.table.fork(), parent.backend)
    child.recache(2, rebuild_sink=True)
    for _ in range(3):
        child.chunk()
        assert torch.equal(parent.chunk(), alone.chunk())
    pool.allocator.audit()


@pytest.mark.parametrize("rotary", ["absolute", "relative"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_rebuild_fills_any_window_from_its_chunks(
    rotary: str, fused: bool, at_once: bool
) -> None:
    """Rows never meet on a page, hold what the stream held, and see nothing later than themselves.

    Chunks of the window's whole reach are given, as whoever kept them has them.
    """
    pool = new_pool(40)
    backend = SdpaAttention(pool, turn=turn)
    for window in range(3, 13):
        for sink in range(window - CHUNK + 1):
            config = WindowConfig(window, sink, rotary=rotary)  # type: ignore[arg-type]
            table = PageTable(pool, config, CHUNK, fused=fused)
            for _ in range(8):
                table.begin(CHUNK)
                table.commit()
            held = table.frames
            chunks = [range(f, f + CHUNK) for f in range(0, 24, CHUNK)]
            chunks = [c for c in chunks if c.start < sink or c.stop > 24 - window]
            stagings = table.rebuild(chunks)
            assert (table.frames, table.next_frame) == (held, 24)
            assert sorted(f for span in spans(stagings) for f in span) == list(held)
            for staging, span in zip(stagings, spans(stagings), strict=True):
                assert any(set(span) <= set(chunk) for chunk in chunks)
                assert sorted(staging.visible_frames) == [f for f in held if f <= span[-1]]
            inputs = [model_input(span, prompt) for prompt, span in enumerate(spans(stagings))]
            if at_once:
                forward(backend, stagings, inputs)
            else:
                for staging, given in zip(stagings, inputs, strict=True):
                    forward(backend, [staging], [given])
            forward(backend, [table.begin(CHUNK)], [model_input(range(24, 27), 1)])
            table.release()


def test_a_rebuild_is_a_dense_forward_with_causal_lists() -> None:
    """Oracle 5: each chunk under its own text, whatever was in the table before."""
    config = WindowConfig(9, 3, rotary="relative")
    toy, dense = Toy.open(config), DenseToy(config)
    for _ in range(5):
        toy.chunk()
    chunks = [range(3), range(24, 27), range(27, 30)]
    stagings = toy.table.rebuild(chunks)
    assert spans(stagings) == [list(chunk) for chunk in chunks]
    forward(toy.backend, stagings, [model_input(chunk, chunk.start) for chunk in chunks])
    for chunk in chunks:
        dense.run(chunk, model_input(chunk, chunk.start))
        dense.view += chunk
    dense.next_frame = 30
    for _ in range(3):
        torch.testing.assert_close(toy.chunk(), dense.chunk(), atol=1e-4, rtol=1e-5)


def test_a_rebuild_of_a_stream_still_whole_is_its_commits() -> None:
    """Nothing was evicted, so nothing is forgotten: equal to the last bit."""
    toy, again = Toy.open(WindowConfig(9, 3)), Toy.open(WindowConfig(9, 3))
    for _ in range(3):
        toy.chunk()
    for staging in again.table.rebuild([range(3), range(3, 6), range(6, 9)]):
        span = range(staging.frame_index, staging.frame_index + CHUNK)
        forward(again.backend, [staging], [model_input(span, 1)])
    assert torch.equal(toy.sink(), again.sink())
    assert torch.equal(toy.chunk(), again.chunk())


def test_a_rebuild_that_an_unlimited_window_cannot_hold_is_refused() -> None:
    table = filled(WindowConfig(None, 0, 6), 2)
    with pytest.raises(WindowError, match=r"9 frames held \+ 0 new = 9 > max_frames 6"):
        table.rebuild([range(9)])
    assert table.frames == tuple(range(6))
    assert table.rebuild([]) == []
    assert (table.frames, table.next_frame) == ((), 0)
