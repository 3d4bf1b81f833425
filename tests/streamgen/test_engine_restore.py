"""A session taken up again from its record: the same numbers, settings and promises."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from streamgen.messages import Rejected, Rewind, SetPrompt, StateChanged, Update
from streamgen.snapshot import from_bytes, to_bytes
from streamgen.text import TextBlend
from tests.streamgen.studio import PASSES, Studio, alone, assert_numbered, assert_same
from tests.streamgen.tiny import TINY


@pytest.mark.parametrize("num_steps", range(3 * PASSES))
def test_a_restored_session_goes_on_under_the_same_numbers(num_steps: int) -> None:
    """From a record taken at any pass, in another engine. Nothing was evicted: it is exact."""
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        for _ in range(num_steps):
            studio.step()
        record = studio.engine.record(session.id)
    with Studio(deterministic=True) as studio:
        session = studio.engine.restore(record, "session-again")
        assert session.id == "session-again"
        chunks = studio.make(session, 1)
        assert_same(chunks, expected[record.num_chunks : record.num_chunks + 1])
        assert_numbered(chunks, record.num_chunks, record.num_generated)


def test_pending_controls_survive_with_the_revisions_that_were_told() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 2)
        studio.engine.control(session.id, SetPrompt("one"))
        studio.rest(session, 4)
        studio.engine.control(session.id, SetPrompt("two", event_id="old"))
        told = studio.engine.control(session.id, SetPrompt("three", "blend", 2, event_id="new"))
        studio.engine.control(session.id, Update(seed=7, fps=8, event_id="u"))
        record = studio.engine.record(session.id)
        studio.engine.close(session.id)
        session = studio.engine.restore(record, session.id)
        newer = studio.engine.control(session.id, Update(steps=3, event_id="v"))
        assert newer.prompt_revision == told.prompt_revision == 3
        chunks = studio.more(session, 3)
        assert [c.prompt_revision for c in chunks] == [3] * 3
        assert set(chunks[0].started_event_ids) == {"new", "u", "v"}
        assert (chunks[0].seed, chunks[0].fps, chunks[0].record.steps) == (7, 8, 3)
        assert isinstance(chunks[0].record.text, TextBlend)
        assert str(chunks[1].record.text) == "three"


@pytest.mark.parametrize("num_steps", range(PASSES + 1))
def test_what_a_chunk_in_work_had_taken_is_pending_again_in_a_record(num_steps: int) -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        receipt = studio.engine.control(session.id, SetPrompt("a star", "recache", event_id="e"))
        for _ in range(num_steps):
            studio.step()
        record = studio.engine.record(session.id)
        assert [c.event_id for c in record.pending] == ["e"]
        restored = studio.engine.restore(record)
        chunk = studio.make(restored, 1)[0]
        assert (chunk.index, chunk.prompt_revision) == (3, receipt.prompt_revision)
        assert chunk.started_event_ids == ("e",)


def test_a_paused_or_rewound_session_is_restored_as_it_was() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 6)
        studio.engine.control(session.id, Rewind(2, "back"))
        studio.engine.control(session.id, Update(paused=True))
        restored = studio.engine.restore(studio.engine.record(session.id), suspended=True)
        assert restored.state.value == "suspended"
        studio.engine.resume(restored.id)
        assert restored.state.value == "paused"
        studio.engine.control(restored.id, Update(paused=False))
        chunk = studio.make(restored, 1)[0]
        assert (chunk.index, chunk.record.draw, chunk.prompt_revision) == (6, 3, 1)


def test_a_rewind_whose_chunk_is_not_in_the_record_any_more_is_rejected_when_it_is_due() -> None:
    """As in the engine that accepted it, which went on with the chunk in work and then was lost."""
    with Studio(history_seconds="none") as studio:
        session = studio.open()
        studio.rest(session, 9)
        record = studio.engine.record(session.id)
        assert 0 not in [chunk.index for chunk in record.chunks]
        pending = (Rewind(0, "back"), Update(seed=5, event_id="seed"))
        record = dataclasses.replace(record, pending=pending, revision=record.revision + 1)
        blob = to_bytes(record, "tiny")
        restored = studio.engine.restore(from_bytes(blob, TINY, studio.engine.config))
        (chunk,) = studio.make(restored, 1)
        (rejected,) = [e for e in studio.events[restored.id] if isinstance(e, Rejected)]
        assert (rejected.event_id, rejected.code) == ("back", "not_found")
        assert (chunk.index, chunk.seed) == (9, 5)


def test_made_up_event_names_do_not_come_twice_after_a_restore() -> None:
    with Studio() as studio:
        session = studio.open()
        names = [studio.engine.control(session.id, SetPrompt(f"{n}")).event_id for n in range(3)]
        record = studio.engine.record(session.id)
        studio.engine.close(session.id)
        session = studio.engine.restore(record, session.id)
        names += [studio.engine.control(session.id, SetPrompt(f"{n}")).event_id for n in range(3)]
        assert len(set(names)) == 6


def test_the_options_of_a_record_are_those_it_ran_with() -> None:
    fields: dict[str, Any] = {"window": 6, "sink": 1, "steps": 3, "fps": 8}
    with Studio() as studio:
        session = studio.open(**fields)
        studio.rest(session, 3)
        record = studio.engine.record(session.id)
        restored = studio.engine.restore(record)
        assert restored.config == session.config
        assert dataclasses.asdict(restored.config.window)["sink_frames"] == 1
        assert studio.make(restored, 1)[0].record.steps == 3


@pytest.mark.parametrize("how", ["restore", "fork"])
def test_a_video_that_is_complete_ends_when_it_is_taken_up_again(how: str) -> None:
    with Studio() as studio:
        session = studio.open(num_frames=20)
        while session.num_generated < 20:
            assert studio.engine.step()
        if how == "restore":
            again = studio.engine.restore(studio.engine.record(session.id))
        else:
            again = studio.engine.fork(session.id)
        while studio.step():
            pass
        assert not studio.engine.sessions
        assert studio.events[again.id][-1] == StateChanged("closed", "done")
        assert studio.audit() == studio.pool.num_pages == studio.pool.num_unreserved
