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

RED, BLUE, GREEN = map(TextMix.of, ("red", "blue", "green"))
PLAN = ChunkPlan(chunk_frames=3)


def chunk(
    index: int, draw: int | None = None, epoch: int = 0, plan: ChunkPlan = PLAN, fps: int = 16
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
        pts_s=12 * index / fps,
        fps=fps,
    )


def history(window: WindowConfig, seconds: float, num_chunks: int, fps: int = 16) -> History:
    made = History(window, seconds)
    for index in range(num_chunks):
        made.add(chunk(index, fps=fps))
    return made


def numbers(chunks: object) -> list[int]:
    return [c.index for c in chunks]  # type: ignore[attr-defined]


def test_window_sink_and_the_decoders_memory_are_kept_and_no_more() -> None:
    """A decoder remembers eight latents, so a window of six does not say all."""
    assert numbers(history(WindowConfig(6, 1), 0, 10)) == [0, 7, 8, 9]
    assert numbers(history(WindowConfig(12, 0), 0, 10)) == [6, 7, 8, 9]
    assert numbers(history(WindowConfig(7, 0), 0, 10)) == [7, 8, 9]  # part of a chunk is seen
    assert numbers(history(WindowConfig(None, 0, 99), 0, 10)) == list(range(10))


@pytest.mark.parametrize("fps", [3, 16, 24])
@pytest.mark.parametrize("wanted", [1, 3, 4])
def test_every_chunk_of_the_last_seconds_can_be_gone_back_to(wanted: int, fps: int) -> None:
    """So many chunks play in them, at whatever frame rate."""
    seconds = wanted * 12 / fps
    made = history(WindowConfig(9, 3), seconds, 30, fps)
    for index in range(29 - wanted, 30):
        before = History(made.window, seconds, made)
        assert before.go_back(index).index == index
        assert numbers(before.in_window()) == [0, index - 2, index - 1, index]
    assert len(made) <= wanted + 4


def test_the_oldest_frames_are_let_go_one_chunk_at_a_time() -> None:
    made = history(WindowConfig(9), 36 / 16, 0)
    sizes = []
    for index in range(100):
        made.add(chunk(index))
        sizes.append(len(made))
    assert max(sizes) == sizes[-1] <= 3 + 3 + 1


def test_a_chunk_that_is_not_kept_is_not_found_and_the_range_is_told() -> None:
    made = history(WindowConfig(9), 36 / 16, 20)
    kept = numbers(made)
    for index in (-1, 0, 20, 999):
        with pytest.raises(NotFound, match=rf"chunk {index} .* there is \d+ to 19") as caught:
            made.find(index)
        assert caught.value.param == "to_chunk"
    with pytest.raises(NotFound, match="none yet"):
        History(WindowConfig(9), 36 / 16).find(0)
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


def recaching(index: int) -> ChunkRecord:
    """Return a chunk before which the window was made again under another text."""
    return dataclasses.replace(chunk(index), text=BLUE, kv_text=BLUE, is_recached=True)


def texts(made: History) -> dict[int, str]:
    return {c.index: str(text) for c, text in made.texts_in_window()}


def test_a_recache_changes_the_text_of_what_is_in_view_but_for_a_sink_left_behind() -> None:
    for sink, expected in ((0, {}), (3, {0: "red"})):
        made = history(WindowConfig(9, sink), 480, 10)
        made.add(recaching(10))
        made.add(chunk(11))
        assert texts(made) == expected | {9: "blue", 10: "blue", 11: "red"}
        assert {str(c.text) for c in made if c.index != 10} == {"red"}  # the pictures' own


def test_a_recache_of_all_there_is_makes_the_sink_again_too_and_that_is_remembered() -> None:
    """Also when the chunk that it was made for is let go."""
    made = history(WindowConfig(9, 3), 0, 2)
    made.add(recaching(2))
    assert texts(made) == {0: "blue", 1: "blue", 2: "blue"}
    for index in range(3, 12):
        made.add(chunk(index))
    assert 2 not in numbers(made)
    assert texts(made) == {0: "blue", 9: "red", 10: "red", 11: "red"}


def test_the_newest_of_several_recaches_counts() -> None:
    made = history(WindowConfig(9, 0), 480, 5)
    made.add(recaching(5))
    made.add(dataclasses.replace(recaching(6), text=GREEN, kv_text=GREEN))
    assert texts(made) == {4: "green", 5: "green", 6: "green"}


def test_going_back_before_a_recache_undoes_it() -> None:
    made = history(WindowConfig(9, 0), 480, 5)
    made.add(recaching(5))
    made.add(chunk(6))
    assert texts(made) == {4: "blue", 5: "blue", 6: "red"}
    made.go_back(4)
    assert texts(made) == {2: "red", 3: "red", 4: "red"}
