"""Branching off: at the newest chunk exactly, at an earlier one closely."""

from __future__ import annotations

import numpy as np
import pytest

from streamgen.errors import Capacity, NotFound
from streamgen.messages import Rewind, SetPrompt, Update
from streamgen.overload import SHORTER_WINDOW
from streamgen.text import TextBlend, TextMix
from tests.streamgen.studio import (
    PASSES,
    Studio,
    alone,
    assert_numbered,
    assert_same,
    psnr_db,
)

# What is made again from latents is close to what was: 69 to 77 dB were measured with this model,
# where neighbouring chunks are 21 dB apart.
CLOSE_DB = 60.0
RED = TextMix.of("a red ball")


@pytest.mark.parametrize(("window", "sink"), [(9, 0), (7, 0), (9, 1), (12, 2)])
@pytest.mark.parametrize("num_steps", range(2 * PASSES + 1))
def test_a_fork_now_and_its_parent_both_go_on_exactly(
    num_steps: int, window: int, sink: int
) -> None:
    """At any pass: the child has its own next chunks to make, which are the parent's."""
    with Studio(deterministic=True, window=window, sink=sink) as studio:
        expected = studio.make(studio.open(), 10)
    with Studio(deterministic=True, window=window, sink=sink) as studio:
        session = studio.open()
        studio.rest(session, 5)
        for _ in range(num_steps):
            studio.step()
        child = studio.engine.fork(session.id)
        first = child.num_chunks
        studio.engine.control(child.id, Update(paused=True))  # so that it takes nothing over
        assert_same(studio.make(session, 9), expected[:9])
        studio.engine.close(session.id)
        studio.engine.control(child.id, Update(paused=False))
        chunks = studio.make(child, 10 - first)
        assert_same(chunks, expected[first:])
        assert_numbered(chunks, first, expected[first].first_frame_index)


def test_a_fork_and_its_parent_do_not_notice_each_others_prompts() -> None:
    expected = alone(9)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 5)
        studio.engine.control(session.id, SetPrompt("a star"))
        branch = studio.make(session, 9)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 5)
        child = studio.engine.fork(session.id)
        studio.engine.control(child.id, SetPrompt("a star"))
        assert_same(studio.make(child, 4), branch[5:])
        assert_same(studio.make(session, 9), expected)


@pytest.mark.parametrize("sink", [0, 3])
def test_a_fork_of_an_earlier_chunk_is_made_again_and_close(sink: int) -> None:
    with Studio(deterministic=True, sink=sink) as studio:
        session = studio.open()
        chunks = studio.make(session, 12)
        for at in (0, 4, 9):
            child = studio.engine.fork(session.id, at)
            made = studio.make(child, 3)
            first_frame = chunks[at].first_frame_index + len(chunks[at].frames)
            assert_numbered(made, at + 1, first_frame)
            for chunk in made:
                if chunk.index < 12:
                    assert psnr_db(chunk, chunks[chunk.index]) > CLOSE_DB
            studio.engine.close(child.id)


def test_a_fork_begins_with_what_was_in_effect_at_its_chunk() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, SetPrompt("a star"))
        studio.engine.control(session.id, Update(seed=7, steps=4, fps=8))
        studio.rest(session, 6)
        for at, text, seed, fps, revision in ((2, "a red ball", 42, 16, 0), (3, "a star", 7, 8, 1)):
            child = studio.engine.fork(session.id, at)
            chunk = studio.make(child, 1)[0]
            assert (str(chunk.record.text), chunk.seed, chunk.fps) == (text, seed, fps)
            assert chunk.prompt_revision == revision
            studio.engine.close(child.id)


def test_what_was_asked_of_the_parent_is_not_asked_of_the_child() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        for n in range(3):
            studio.engine.control(session.id, SetPrompt(f"scene {n}"))
        studio.engine.control(session.id, Update(paused=True, seed=7))
        child = studio.engine.fork(session.id)
        chunk = studio.make(child, 1)[0]
        assert (str(chunk.record.text), chunk.seed, chunk.prompt_revision) == ("a red ball", 42, 0)
        assert studio.engine.control(child.id, SetPrompt("a star")).prompt_revision == 1


def test_a_fork_inside_a_blend_goes_on_with_it() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, SetPrompt("a star", "blend", 4))
        studio.rest(session, 5)
        child = studio.engine.fork(session.id)
        mine, parents = studio.make(child, 3), studio.make(session, 8)[5:]
        assert isinstance(mine[0].record.text, TextBlend)
        assert [str(c.record.text) for c in mine[1:]] == ["a star"] * 2
        for chunk, parent in zip(mine, parents, strict=True):
            assert psnr_db(chunk, parent) > CLOSE_DB


def test_a_suspended_session_can_be_forked() -> None:
    expected = alone(5)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 2)
        studio.engine.suspend(session.id)
        child = studio.engine.fork(session.id)
        assert_same(studio.make(child, 1), expected[2:3])  # nothing was evicted yet
        assert session.state.value == "suspended"


def test_a_fork_that_cannot_be_leaves_the_parent_as_it_was() -> None:
    expected = alone(6)
    with Studio(deterministic=True, max_sessions=1) as studio:
        session = studio.open()
        studio.rest(session, 3)
        with pytest.raises(Capacity):
            studio.engine.fork(session.id)
        with pytest.raises(NotFound, match="chunk 9 is not kept; there is 0 to 2"):
            studio.engine.fork(session.id, 9)
        with pytest.raises(NotFound):
            studio.engine.fork("session-0")
        assert_same(studio.make(session, 6), expected)


@pytest.mark.parametrize("at_chunk", [None, 0])
def test_a_fork_takes_no_place_before_who_waits(at_chunk: int | None) -> None:
    with Studio(deterministic=True, max_sessions=2, max_queue=1) as studio:
        session, other = studio.open(), studio.open("other")
        studio.rest(session, 2)
        waits = studio.open("waits")
        assert waits.state.value == "queued"
        studio.engine.close(other.id)
        with pytest.raises(Capacity, match="others wait"):
            studio.engine.fork(session.id, at_chunk)
        studio.step()
        assert waits.state.value != "queued"


def test_a_fork_of_a_session_whose_recache_waits_for_room_shares_no_unwritten_page() -> None:
    """Eight begin one at once, and a pass has room for some: the others' pages are empty then."""
    with Studio(max_sessions=16, window=18) as studio:
        sessions = [studio.open(f"scene {n}", seed=n) for n in range(8)]
        for session in sessions:
            studio.rest(session, 6)
            studio.engine.control(session.id, Update(paused=True))
        while studio.step():
            pass
        for session in sessions:
            studio.engine.control(session.id, SetPrompt("a star", "recache"))
            studio.engine.control(session.id, Update(paused=False))
        studio.step()
        children = [studio.engine.fork(session.id) for session in sessions]
        for n, child in enumerate(children):
            chunk = studio.make(child, 1)[0]
            assert str(chunk.record.text) == f"scene {n}"
            assert np.isfinite(chunk.latents).all()


@pytest.mark.parametrize("place", ["at_s", "at_chunk"])
def test_a_fork_of_an_earlier_chunk_follows_the_score_from_there_on(place: str) -> None:
    """What the parent has left behind is still to come for the child; and what it gave away is."""
    places = {"at_s": (1.0, 2.0, 4.0, 60.0), "at_chunk": (2, 3, 6, 80)}[place]
    score = [{place: at, "prompt": f"scene {n}"} for n, at in enumerate(places)]
    with Studio(history_seconds=30, max_sessions=4) as studio:
        session = studio.open(score=score)
        expected = [str(c.record.text) for c in studio.make(session, 9)]
        assert expected[2:4] == ["scene 0", "scene 1"]
        assert expected[-1] == "scene 2"
        child = studio.engine.fork(session.id, 2)
        assert [str(c.record.text) for c in studio.make(child, 6)] == expected[3:]
        assert len(child.script) == 1
        grandchild = studio.engine.fork(child.id, 2)  # of a past that it had from its parent
        assert [str(c.record.text) for c in studio.make(grandchild, 6)] == expected[3:]


@pytest.mark.parametrize("sink", [0, 3])
def test_a_fork_of_a_session_that_was_paused_under_overload_has_its_whole_window(sink: int) -> None:
    """Its window was shortened, and nothing has been made since that was over."""
    with Studio(max_sessions=2, window=9, sink=sink, max_utilisation=0.85, max_queue=1) as studio:
        session = studio.open()
        studio.make(session, 4)
        studio.engine.admissions.ladder._rung = SHORTER_WINDOW
        studio.more(session, 2)
        studio.engine.control(session.id, Update(paused=True))
        while studio.step():
            pass
        studio.engine.admissions.ladder._rung = 0
        child = studio.engine.fork(session.id)
        studio.engine.control(session.id, Update(paused=False))
        for one in (session, child):
            assert all(np.isfinite(chunk.latents).all() for chunk in studio.more(one, 4))
            studio.rest(one)
            assert one.table is not None
            assert len(one.table.frames) == 9
            studio.engine.close(one.id)
        assert studio.audit() == studio.pool.num_pages == studio.pool.num_unreserved


@pytest.mark.parametrize("transition", ["recache", "reset"])
@pytest.mark.parametrize("num_steps", range(PASSES + 2))
def test_a_fork_in_the_middle_of_a_transition_goes_on_without_it(
    num_steps: int, transition: str
) -> None:
    """What the parent was asked is not the child's, nor are the K/V that it made for that.

    Nothing was evicted yet, so what is made again for the child is what was there. And whoever has
    the same past as the child gets the right chunks too.
    """
    expected = alone(7)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 2)
        studio.engine.control(session.id, SetPrompt("a star", transition))
        for _ in range(num_steps):
            studio.step()
        child = studio.engine.fork(session.id)
        twin = studio.open()
        first = child.num_chunks
        made = studio.make(child, 7 - first)
        if first == 2:
            assert_same(made, expected[2:])
        assert_same(studio.make(twin, 7), expected)


def test_a_fork_of_a_chunk_before_a_recache_has_its_texts() -> None:
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 5)
        before = studio.engine.fork(session.id, 3)
        studio.engine.control(session.id, SetPrompt("a star", "recache"))
        studio.rest(session, 6)
        after = studio.engine.fork(session.id, 3)
        assert [c.record.kv_text for c in studio.make(session, 5)] == [RED] * 5
        one, other = (studio.make(child, 1)[0] for child in (before, after))
        np.testing.assert_array_equal(one.latents, other.latents)


def test_a_fork_right_after_a_rewind_goes_on_from_where_that_went() -> None:
    """Also in its log, from which it can be made again."""
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 6)
        studio.engine.control(session.id, Rewind(2))
        for _ in range(2 * PASSES + 1):
            studio.step()
            child = studio.engine.fork(session.id)
            chunk = studio.make(child, 1)[0]
            assert chunk.record.draw == chunk.index - 3
            went_back = [e for e in child.log if isinstance(e.control, Rewind)]
            assert [e.chunk_index for e in went_back] == [6]
            studio.engine.close(child.id)
