"""Texts encoded beside the passes: nobody waits for a text but the session that needs it."""

from __future__ import annotations

import pytest

from streamgen.messages import (
    Applied,
    Rewind,
    SetPrompt,
    Superseded,
    Update,
)
from tests.streamgen.slow_texts import SlowStudio, assert_replays
from tests.streamgen.studio import Studio, alone, assert_same


def test_a_new_session_waits_for_its_text_and_nobody_else_does() -> None:
    with SlowStudio() as studio:
        first = studio.begin()
        second = studio.open("a star", seed=1)
        assert_same(studio.make(first, 8), alone(8))
        assert second.state.value == "starting"
        assert not studio.made(second)
        studio.encode("a star")
        assert_same(studio.make(second, 3), alone(3, "a star", seed=1))
        assert not studio.encoder.on_the_loop


def test_with_nothing_else_to_do_the_engine_rests_while_a_text_is_encoded() -> None:
    with SlowStudio() as studio:
        session = studio.open()
        assert studio.step()  # it begins, and finds that it has no text
        assert not any(studio.step() for _ in range(3))
        studio.encode("a red ball")
        assert studio.step()
        assert_same(studio.make(session, 2), alone(2))


@pytest.mark.parametrize("transition", ["cut", "blend", "recache", "reset"])
def test_a_session_shows_its_old_prompt_until_the_new_one_is_encoded(transition: str) -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        control = SetPrompt("a star", transition, event_id="e")
        receipt = studio.engine.control(session.id, control)
        assert receipt.prompt_revision == 1
        studio.more(session, 3)
        assert set(studio.texts(session)) == {"a red ball"}
        studio.rest(session)
        index = session.num_chunks
        studio.encode("a star")
        chunks = studio.make(session, index + 5)
        shown = next(e for e in studio.events[session.id] if isinstance(e, Applied))
        assert (shown.event_id, shown.chunk_index) == ("e", index)
        assert [c.prompt_revision for c in chunks] == [0] * index + [1] * 5
        with Studio(deterministic=True) as inline:
            other = inline.open()
            inline.rest(other, index)
            inline.engine.control(other.id, control)
            assert_same(chunks, inline.make(other, index + 5))
        assert_replays(studio, session)
        assert not studio.encoder.on_the_loop


def test_of_twenty_prompts_the_newest_is_shown_and_the_superseded_ones_are_not_encoded() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        for n in range(20):
            control = SetPrompt(f"scene {n}", event_id=f"{n}")
            studio.engine.control(session.id, control)
            studio.step()
        studio.encode("scene 0", "scene 19")
        studio.more(session, 3)
        told = [e for e in studio.events[session.id] if isinstance(e, Superseded)]
        assert [e.event_id for e in told] == [f"{n}" for n in range(19)]
        assert studio.texts(session)[-1] == "scene 19"
        assert studio.made(session)[-1].prompt_revision == 20
        assert studio.encoder.begun == ["a red ball", "scene 0", "scene 19"]


def test_who_changes_the_prompt_all_the_time_does_not_keep_others_waiting() -> None:
    with SlowStudio() as studio:
        first = studio.begin()
        studio.engine.control(first.id, SetPrompt("scene 0"))
        studio.step()
        second = studio.open("a star", seed=1)
        studio.step()
        studio.engine.control(first.id, SetPrompt("scene 1"))
        studio.encode("scene 0", "a star", "scene 1")
        assert_same(studio.make(second, 2), alone(2, "a star", seed=1))


def test_settings_do_not_wait_for_a_prompt() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        studio.engine.control(session.id, SetPrompt("a star", event_id="p"))
        studio.engine.control(session.id, Update(seed=7, event_id="s"))
        assert studio.more(session, 1)[0].started_event_ids == ("s",)
        studio.rest(session)
        studio.encode("a star")
        chunks = studio.more(session, 2)
        assert [c.started_event_ids for c in chunks] == [("p",), ()]
        assert {c.seed for c in chunks} == {7}
        assert_replays(studio, session)


def test_a_blend_goes_on_while_the_prompt_after_it_is_encoded() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        studio.engine.control(session.id, SetPrompt("a star", "blend", 5, event_id="b"))
        studio.encode("a star")
        studio.more(session, 1)
        studio.rest(session)
        studio.engine.control(session.id, SetPrompt("a box", event_id="c"))
        later = studio.more(session, 3)
        assert {c.active_event_ids for c in later} == {("b",)}
        assert [c.completed_event_ids for c in later] == [(), (), ("b",)]
        assert Superseded("b") not in studio.events[session.id]
        assert len({str(c.record.text) for c in later}) == 3
        studio.rest(session)
        studio.encode("a box")
        assert studio.more(session, 1)[-1].started_event_ids == ("c",)
        assert_replays(studio, session)


def test_a_scripts_prompt_is_encoded_ahead_and_begins_at_its_chunk_all_the_same() -> None:
    score = [{"at_chunk": 2, "prompt": "a star"}, {"at_chunk": 4, "prompt": "a box"}]
    with Studio(deterministic=True) as inline:
        expected = inline.make(inline.open(score=score), 6)
    with SlowStudio() as studio:
        session = studio.open(score=score)
        studio.encode("a red ball", "a star")
        studio.make(session, 4)
        while studio.step():
            pass
        assert len(studio.made(session)) == 4  # the next one has another text
        studio.encode("a box")
        assert_same(studio.make(session, 6), expected)
        assert not studio.encoder.on_the_loop


def test_a_rewind_does_not_wait_for_a_text_that_it_calls_off() -> None:
    with SlowStudio() as studio:
        session = studio.open(score=[{"at_chunk": 3, "prompt": "a star"}])
        studio.encode("a red ball")
        studio.make(session, 3)
        while studio.step():
            pass
        assert session.spec is not None
        studio.engine.control(session.id, Rewind(1, "r"))
        assert studio.more(session, 1)[0].started_event_ids == ("r",)
        assert set(studio.texts(session)) == {"a red ball"}


def test_a_prompt_after_a_rewind_is_that_of_the_first_chunk_then() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        num_made = session.num_chunks
        studio.engine.control(session.id, Rewind(1, "r"))
        studio.engine.control(session.id, SetPrompt("a star", event_id="p"))
        while studio.step():
            pass
        assert len(studio.made(session)) == num_made
        studio.encode("a star")
        chunk = studio.more(session, 1)[0]
        assert (chunk.started_event_ids, chunk.prompt_revision) == (("r", "p"), 2)
        assert_replays(studio, session)


def test_a_restored_session_has_the_texts_of_its_window_encoded_first() -> None:
    with SlowStudio() as studio:
        session = studio.begin(num_chunks=2)
        studio.engine.control(session.id, SetPrompt("a star"))
        studio.encode("a star")
        studio.more(session, 1)
        studio.rest(session)
        record = studio.engine.record(session.id)
    with SlowStudio() as studio, Studio(deterministic=True) as inline:
        again = studio.engine.restore(record)
        assert studio.step()
        assert not studio.step()
        studio.encode("a red ball", "a star")
        assert_same(studio.more(again, 2), inline.more(inline.engine.restore(record), 2))
        assert not studio.encoder.on_the_loop
