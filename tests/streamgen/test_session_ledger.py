"""The record that a client keeps is the one that the engine would give."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest

from streamgen.engine_commands import Opened
from streamgen.engine_stream import EngineStream
from streamgen.messages import (
    Applied,
    Chunk,
    Control,
    Event,
    Rewind,
    SetPrompt,
    StateChanged,
    Superseded,
    Update,
)
from streamgen.overload import LOWER_FPS
from streamgen.record import LogEntry, SessionRecord
from streamgen.session import Session
from streamgen.session_ledger import SessionLedger, Settings
from streamgen.snapshot import from_bytes, to_bytes
from streamgen.text import TextMix
from tests.streamgen.studio import Studio
from tests.streamgen.tiny import TINY

BALL, STAR = TextMix.of("a red ball"), TextMix.of("a star")


class Followed:
    """A session in a studio, and the ledger of its client."""

    def __init__(self, studio: Studio, **fields: object) -> None:
        self.studio = studio
        self.engine = studio.engine
        deliver = self.engine.output

        def follow(session_id: str, item: Chunk | Event) -> None:
            deliver(session_id, item)
            if getattr(self, "session", None) and session_id == self.session.id:
                self.ledger.take(item)

        self.engine.output = self.engine.lives.output = follow
        self.session: Session = studio.open(**fields)  # type: ignore[arg-type]
        record = self.engine.record(self.session.id)
        self.ledger = SessionLedger(record, self.engine.config.history_seconds or 0.0)

    def control(self, control: Control) -> None:
        self.ledger.accepted(control, self.engine.control(self.session.id, control))

    def make(self, num_chunks: int) -> list[Chunk]:
        return self.studio.make(self.session, num_chunks)

    def compare(self) -> SessionRecord:
        """Let the session come to rest, and require both records to be the same."""
        self.control(Update(paused=True, event_id="rest"))
        while self.studio.step():
            pass
        record = self.ledger.record()
        assert plain(from_bytes(to_bytes(record, "tiny"), TINY, self.engine.config))
        mine, theirs = self.ledger.record(), self.engine.record(self.session.id)
        assert plain(mine) == plain(theirs)
        for one, other in zip(mine.chunks, theirs.chunks, strict=True):
            assert plain(one) == plain(other)
            np.testing.assert_array_equal(one.latents, other.latents)
        return mine


def plain(value: Any) -> dict[str, object]:
    left_out = ("chunks", "latents")
    return {
        f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name not in left_out
    }


@pytest.mark.parametrize("history_seconds", [None, 2.0, 30.0])
def test_chunks_are_kept_as_the_engine_keeps_them(history_seconds: float | None) -> None:
    with Studio(history_seconds=history_seconds, sink=2) as studio:
        followed = Followed(studio)
        for _ in range(7):
            followed.make(len(studio.chunks.get(followed.session.id, [])) + 1)
        record = followed.compare()
        assert record.chunks[0].index == 0  # of the sink


CONTROLS: dict[str, list[Control]] = {
    "a cut": [SetPrompt("a star", "cut", event_id="a")],
    "a reset": [SetPrompt("a star", "reset", event_id="a")],
    "a recache": [SetPrompt("a star", "recache", event_id="a")],
    "settings": [Update(seed=9, steps=3, fps=8, event_id="a")],
    "a cache thrown away": [Update(reset="cache", event_id="a")],
    "two that follow each other": [
        SetPrompt("a box", event_id="a"),
        Update(seed=3, event_id="b"),
        SetPrompt("a star", event_id="c"),
    ],
    "a blend": [SetPrompt([("a star", 1.0), ("a box", 3.0)], "blend", 2, "slerp", "a")],
    "a long blend": [SetPrompt("a star", "blend", 9, "lerp", "a")],
    "a blend that is replaced": [
        SetPrompt("a box", "blend", 9, "lerp", "a"),
        SetPrompt("a star", event_id="b"),
    ],
    "a rewind": [Rewind(1, "a")],
    "a rewind and a prompt": [Rewind(1, "a"), SetPrompt("a star", event_id="b")],
}


@pytest.mark.parametrize("controls", CONTROLS.values(), ids=CONTROLS)
def test_what_was_asked_is_in_the_record_before_and_after_it_shows(controls: list[Control]) -> None:
    with Studio() as studio:
        followed = Followed(studio)
        followed.make(4)
        for control in controls:
            followed.control(control)
        accepted = followed.ledger.record()
        assert [c.event_id for c in accepted.pending][-1] == controls[-1].event_id
        followed.make(8)
        record = followed.compare()
        assert {entry.chunk_index for entry in record.log} <= {4, 5, 6}


def test_a_session_goes_on_from_the_ledger_as_it_would_have() -> None:
    """With nothing evicted what is rebuilt is the same, but for the rounding of larger rows."""
    with Studio(deterministic=True, history_seconds=30.0) as studio:
        followed = Followed(studio)
        followed.make(2)
        followed.control(SetPrompt("a star", event_id="a"))
        followed.compare()
        record = followed.ledger.record()
        other = studio.engine.restore(dataclasses.replace(record, paused=False))
        followed.control(Update(paused=False, event_id="b"))
        expected = followed.make(len(record.chunks) + 1)[-1:]
        (chunk,) = studio.make(other, 1)
        assert chunk.index == expected[0].index
        assert chunk.first_frame_index == expected[0].first_frame_index
        np.testing.assert_allclose(chunk.latents, expected[0].latents, atol=1e-4)
        assert chunk.record.text == STAR


def test_what_is_in_effect_counts_what_was_accepted() -> None:
    with Studio() as studio:
        followed = Followed(studio)
        followed.make(3)
        assert followed.ledger.settings() == Settings(BALL, 42, 2, 16)
        followed.control(Update(seed=9, event_id="a"))
        followed.control(SetPrompt("a star", "blend", 3, event_id="b"))
        assert followed.ledger.settings() == Settings(STAR, 9, 2, 16)
        followed.make(6)
        assert followed.ledger.settings() == Settings(STAR, 9, 2, 16)
        followed.control(Update(steps=3, fps=8, event_id="c"))
        followed.control(Rewind(1, "d"))
        assert followed.ledger.settings() == Settings(BALL, 42, 2, 16)


def test_what_was_asked_for_outlives_what_an_overloaded_device_did() -> None:
    with Studio() as studio:
        followed = Followed(studio)
        (chunk,) = followed.make(1)
        traded = dataclasses.replace(chunk.record, index=1, draw=1, first_latent=3, steps=1, fps=4)
        followed.ledger.take(dataclasses.replace(chunk, record=traded))
        record = followed.ledger.record()
        assert (record.num_chunks, record.steps, record.fps) == (2, 2, 16)
        assert (record.chunks[-1].steps, record.chunks[-1].fps) == (1, 4)


def test_time_goes_on_from_where_a_lower_frame_rate_under_overload_has_brought_it() -> None:
    with Studio(max_utilisation=0.85, max_queue=1) as studio:
        followed = Followed(studio)
        followed.make(2)
        studio.engine.admissions.ladder._rung = LOWER_FPS
        chunks = followed.make(5)
        assert chunks[-1].fps == 12
        record = followed.compare()
        newest = followed.make(record.num_chunks)[-1]
        assert record.pts_s == newest.pts_s + len(newest.frames) / newest.fps
        assert record.fps == 16


def test_a_score_is_left_behind_as_it_is_played() -> None:
    with Studio() as studio:
        score = [{"at_chunk": 2, "prompt": "a star"}, {"at_chunk": 50, "prompt": "a box"}]
        followed = Followed(studio, score=score)
        assert len(followed.ledger.record().script) == 2
        followed.make(4)
        record = followed.compare()
        assert [entry.at_chunk for entry in record.script] == [50]
        assert record.text == STAR


def test_a_suspension_is_in_the_log_for_a_replay_to_repeat() -> None:
    with Studio() as studio:
        followed = Followed(studio)
        followed.make(3)
        followed.engine.suspend(followed.session.id)
        followed.engine.resume(followed.session.id)
        followed.make(6)
        record = followed.compare()
        assert record.log == (LogEntry(record.log[0].chunk_index, None),)


async def test_a_blend_that_is_cut_short_after_a_replacement_was_applied_before_it() -> None:
    with Studio() as studio:
        followed = Followed(studio)
        followed.make(2)
        followed.control(SetPrompt("a star", "blend", 9, event_id="a"))
        followed.make(5)
        opened = Opened(followed.session.id, followed.ledger.record(), "running")
        stream = EngineStream(cast(Any, None), opened, followed.ledger)
        stream.replaced("running")
        again = studio.engine.restore(stream.record())
        studio.engine.control(again.id, SetPrompt("a box", "cut", event_id="b"))
        studio.make(again, 1)
        for event in studio.events[again.id]:
            stream.take(event)
        stream.take(StateChanged("closed"))
    told = [e async for e in stream.events() if isinstance(e, Applied | Superseded)]
    assert [event.event_id for event in told] == ["b"]
