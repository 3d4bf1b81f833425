"""Which chunks of a session are kept, and which of them it can go back to."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kvcache import WindowConfig
from streamgen.errors import NotFound
from streamgen.history import History
from streamgen.record import ChunkRecord
from streamgen.step import ChunkPlan
from streamgen.text import TextMix

RED, BLUE = TextMix.of("red"), TextMix.of("blue")
PLAN = ChunkPlan(chunk_frames=3)


def chunk(
    index: int, draw: int | None = None, epoch: int = 0, plan: ChunkPlan = PLAN
) -> ChunkRecord:
    draw = index if draw is None else draw
    return ChunkRecord(
        index=index,
        epoch=epoch,
        draw=draw,
        first_latent=plan.first_frame(draw),
        latents=np.zeros((plan.num_frames(draw), 1, 1, 1), np.float32),
        text=RED,
        kv_text=RED,
        revision=0,
        seed=0,
        steps=2,
        first_frame_index=12 * index,
        num_frames=12,
        pts_s=0.0,
        fps=16,
    )


def history(window: WindowConfig, num_frames: int, num_chunks: int) -> History:
    made = History(window, num_frames)
    for index in range(num_chunks):
        made.add(chunk(index))
    return made


def numbers(chunks: object) -> list[int]:
    return [c.index for c in chunks]  # type: ignore[attr-defined]


def test_window_sink_and_the_decoders_memory_are_kept_and_no_more() -> None:
    """A decoder remembers eight latents, so a window of six does not say all."""
    assert numbers(history(WindowConfig(6, 1), 0, 10)) == [0, 7, 8, 9]
    assert numbers(history(WindowConfig(12, 0), 0, 10)) == [6, 7, 8, 9]
    assert numbers(history(WindowConfig(7, 0), 0, 10)) == [7, 8, 9]  # part of a chunk is seen
    assert numbers(history(WindowConfig(None, 0, 99), 0, 10)) == list(range(10))


@pytest.mark.parametrize("num_frames", [12, 36, 48])
def test_every_chunk_of_the_last_frames_can_be_gone_back_to(num_frames: int) -> None:
    made = history(WindowConfig(9, 3), num_frames, 30)
    wanted = num_frames // 12
    for index in range(29 - wanted, 30):
        before = History(made.window, num_frames, made)
        assert before.go_back(index).index == index
        assert numbers(before.in_window()) == [0, index - 2, index - 1, index]
    assert len(made) <= wanted + 4


def test_the_oldest_frames_are_let_go_one_chunk_at_a_time() -> None:
    made = history(WindowConfig(9), 36, 0)
    sizes = []
    for index in range(100):
        made.add(chunk(index))
        sizes.append(len(made))
    assert max(sizes) == sizes[-1] <= 3 + 3 + 1


def test_a_chunk_that_is_not_kept_is_not_found_and_the_range_is_told() -> None:
    made = history(WindowConfig(9), 36, 20)
    kept = numbers(made)
    for index in (-1, 0, 20, 999):
        with pytest.raises(NotFound, match=rf"chunk {index} .* there is \d+ to 19") as caught:
            made.find(index)
        assert caught.value.param == "to_chunk"
    with pytest.raises(NotFound, match="none yet"):
        History(WindowConfig(9), 36).find(0)
    # Those at the edge are kept for others' windows: their own is gone.
    with pytest.raises(NotFound):
        made.find(kept[0])
    assert numbers(made) == kept


def test_going_back_lets_go_of_what_came_after() -> None:
    made = history(WindowConfig(9), 480, 8)
    made.go_back(4)
    assert numbers(made) == [0, 1, 2, 3, 4]
    made.add(chunk(8, draw=5))
    assert numbers(made.in_window()) == [3, 4, 8]
    with pytest.raises(NotFound):
        made.find(6)


def test_a_window_never_reaches_across_a_reset() -> None:
    made = history(WindowConfig(9, 3), 480, 6)
    made.add(chunk(6, draw=0, epoch=1))
    made.add(chunk(7, draw=1, epoch=1))
    assert numbers(made.in_window()) == [6, 7]
    assert numbers(made.recent_latents()) == [6, 7]
    made.go_back(5)
    assert numbers(made.in_window()) == [0, 3, 4, 5]


def test_the_decoder_has_forgotten_the_sink_when_there_is_a_gap() -> None:
    made = history(WindowConfig(9, 3), 0, 10)
    assert numbers(made.in_window()) == [0, 7, 8, 9]
    assert numbers(made.recent_latents()) == [7, 8, 9]
    assert numbers(history(WindowConfig(9, 3), 0, 3).recent_latents()) == [0, 1, 2]


def test_a_shorter_first_chunk_belongs_to_the_sink_like_any_other() -> None:
    plan = ChunkPlan(chunk_frames=3, first_chunk_frames=1)
    made = History(WindowConfig(9, 3), 0)
    for index in range(10):
        made.add(chunk(index, plan=plan))
    assert numbers(made.in_window()) == [0, 1, 7, 8, 9]


@pytest.mark.parametrize(("sink", "kept_sink"), [(0, []), (3, [0])])
def test_a_recache_changes_the_text_of_the_cache_and_not_of_the_pictures(
    sink: int, kept_sink: list[int]
) -> None:
    """Chunks out of view keep theirs, and so does a sink that is kept."""
    made = history(WindowConfig(9, sink), 480, 10)
    before = [dataclasses.replace(c) for c in made]
    made.recached(BLUE)
    changed = [c.index for c in made if c.kv_text == BLUE]
    assert changed == [7, 8, 9]
    assert [c.kv_text for c in made if c.index in kept_sink] == [RED] * len(kept_sink)
    assert {str(c.text) for c in made} == {"red"}
    assert numbers(made) == numbers(before)
