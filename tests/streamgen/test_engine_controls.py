"""Prompts, seeds, steps and pauses, at any moment."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from streamgen.cost_table import CostTable
from streamgen.errors import Capacity, Conflict, InvalidPrompt, InvalidRequest
from streamgen.messages import Applied, Control, Rewind, SetPrompt, StateChanged, Update
from streamgen.session import Session
from tests.streamgen.studio import (
    PASSES,
    Studio,
    alone,
    assert_same,
    watch_prompts,
)


@pytest.mark.parametrize("passes_done", range(2 * PASSES))
def test_q23_a_switch_at_any_moment_begins_with_a_whole_chunk(passes_done: int) -> None:
    """Between chunks, between passes, in the commit and during the decode, twice in a chunk."""
    with Studio(deterministic=True) as studio:
        session, other = studio.open(), studio.open("other", seed=9)
        used = watch_prompts(studio)
        studio.make(session, 2)
        studio.rest(session)
        for _ in range(passes_done):
            studio.step()
        begun = session.num_chunks
        studio.engine.control(session.id, SetPrompt("ignored", event_id="old"))
        studio.engine.control(session.id, SetPrompt("a star", event_id="new"))
        chunks = studio.make(session, begun + 3)
        studio.make(other, begun + 3)
        assert [c.prompt_revision for c in chunks] == [0] * begun + [2] * 3
        (applied,) = [e for e in studio.events[session.id] if isinstance(e, Applied)]
        first = chunks[begun]
        assert applied == Applied("new", 2, begun, first.first_frame_index, first.pts_s)
        assert first.started_event_ids == ("new",)
    for index, texts in used[session.id].items():
        assert texts == {"a red ball" if index < begun else "a star"}, index
    with Studio(deterministic=True) as studio:  # the same switch, given between two chunks
        session = studio.open()
        studio.rest(session, begun)
        studio.engine.control(session.id, SetPrompt("a star"))
        assert_same(studio.make(session, begun + 3), chunks)


@pytest.mark.parametrize("waiting", [SetPrompt("a star"), Rewind(1), Update(seed=5)])
@pytest.mark.parametrize("again", [SetPrompt("a cloud"), Rewind(0), Update(fps=8)])
def test_an_id_that_waits_cannot_be_given_again(waiting: Control, again: Control) -> None:
    """Else nobody could tell which of the two a receipt is about. It is free when it has begun."""
    waiting, again = (dataclasses.replace(control, event_id="x") for control in (waiting, again))
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 4)
        studio.engine.control(session.id, waiting)
        with pytest.raises(Conflict, match="'x' names a control that has not begun"):
            studio.engine.control(session.id, again)
        (first,) = studio.more(session, 2)[-1:]
        assert first.started_event_ids == ("x",)
        studio.engine.control(session.id, again)
        assert studio.more(session, 2)[-1].started_event_ids == ("x",)


def test_q22_a_prompt_is_encoded_when_it_is_applied_and_once() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 2)
        before = studio.engine.runner.text.misses
        for n in range(60):
            studio.engine.control(session.id, SetPrompt(f"scene {n:02}"))
            if n % 20 == 19:
                studio.make(session, len(studio.chunks[session.id]) + 2)
        assert studio.engine.runner.text.misses - before == 3
        assert studio.chunks[session.id][-1].prompt_revision == 60


def test_q18_a_refused_prompt_leaves_both_sessions_as_they_were() -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session, other = studio.open(), studio.open("other", seed=1)
        studio.make(session, 2)
        for prompt in ("", "   ", None, [], [""], "\ud83d", "a\0b"):
            with pytest.raises(InvalidPrompt):
                studio.engine.control(other.id, SetPrompt(prompt))
            with pytest.raises(InvalidPrompt):
                studio.open(prompt)  # type: ignore[arg-type]
        assert_same(studio.make(session, 6), expected)
        assert {c.prompt_revision for c in studio.make(other, 6)} == {0}


def test_seed_and_steps_change_at_a_chunk_boundary() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 1)
        studio.step()
        studio.engine.control(session.id, Update(seed=7, steps=4))
        begun = session.num_chunks
        chunks = studio.make(session, begun + 2)
        assert [c.seed for c in chunks] == [42] * begun + [7, 7]
    with Studio() as studio:
        session = studio.open(steps=4)
        assert not np.array_equal(studio.make(session, 1)[0].latents, chunks[0].latents)


def test_pause_finishes_the_chunk_in_work_and_begins_no_other() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 2)
        studio.engine.control(session.id, Update(paused=True))
        while studio.step():
            pass
        num_made = len(studio.chunks[session.id])
        assert session.work is None
        studio.engine.control(session.id, Update(paused=False))
        studio.make(session, num_made + 1)
        states = [e.state for e in studio.events[session.id] if isinstance(e, StateChanged)]
        assert states == ["starting", "running", "paused", "running"]


@pytest.mark.parametrize("update", [Update(fps="60"), Update(fps=0), Update(steps=99), Update()])
def test_what_is_wrong_in_an_update_is_said_before_it_is_weighed(update: Update) -> None:
    """Where load is watched, values are checked before any arithmetic is done with them."""
    with Studio(max_utilisation="0.85") as studio:
        session = studio.open()
        studio.open("other", seed=2)
        with pytest.raises(InvalidRequest):
            studio.engine.control(session.id, update)


def fast(studio: Studio) -> Session:
    """Return a session that asked for all that two may not have together."""
    session = studio.open(fps=60, steps=4)
    studio.make(session, 3)
    studio.engine.control(session.id, Update(fps=8, steps=1))
    studio.more(session, 2)
    return session


ROW_S = 6e-3  # at which one fast session has time, and two slow ones


def busy() -> Studio:
    """Return an engine with time for one fast session, by costs that no machine has a say in."""
    studio = Studio(max_sessions=4, max_queue=2, max_utilisation=0.12, history_seconds=10)
    pass_s = {rows: ROW_S * rows for rows in (1, 2, 4, 8)}
    costs = CostTable(pass_s, decode_s=ROW_S / 100, recache_s=ROW_S / 100)
    studio.engine.admissions.planner.costs = costs
    return studio


def test_settings_that_wait_for_the_next_chunk_count_in_what_is_weighed_after_them() -> None:
    """Each of the two has time, and both together have not."""
    with busy() as studio:
        session, _ = studio.open(), studio.open("other", seed=2)
        studio.engine.control(session.id, Update(fps=60))
        with pytest.raises(Capacity, match="with 4 steps at 60 frames a second"):
            studio.engine.control(session.id, Update(steps=4))
        studio.more(session, 2)
        assert (session.steps, session.fps) == (2, 60)


def test_a_rewind_to_what_took_more_time_than_there_is_now_is_refused() -> None:
    with busy() as studio:
        session = fast(studio)
        studio.open("other", seed=2)
        with pytest.raises(Capacity, match="with 4 steps at 60 frames a second"):
            studio.engine.control(session.id, Rewind(1))
        studio.engine.control(session.id, Rewind(4))
        studio.more(session, 2)
        assert (session.steps, session.fps) == (1, 8)
        for other in [*studio.engine.sessions.values()]:
            if other is not session:
                studio.engine.close(other.id)
        studio.engine.control(session.id, Rewind(1))  # nobody is slowed
        assert studio.open("late", seed=3).state.value == "queued"


@pytest.mark.parametrize("change", [Update(fps=60, steps=4), Rewind(1)])
def test_what_is_asked_of_a_session_without_a_place_counts_when_it_takes_one(
    change: Control,
) -> None:
    with busy() as studio:
        session = fast(studio)
        studio.engine.suspend(session.id)
        studio.open("other", seed=2)
        studio.engine.control(session.id, change)
        studio.engine.resume(session.id)
        assert session.state.value == "queued"
