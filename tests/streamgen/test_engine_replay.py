"""The log of a session, given to a new one as its script, makes the same chunks to the last bit."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamgen.errors import NotFound
from streamgen.messages import Chunk, Control, Rewind, SetPrompt, Update
from streamgen.record import SessionRecord
from streamgen.score import ScriptEntry
from streamgen.session import Session
from streamgen.session_config import SessionConfig
from tests.streamgen.studio import Studio, assert_same
from tests.streamgen.tiny import TINY, with_chunks

Scene = Callable[[Studio, Session], None]


def scripted(record: SessionRecord) -> SessionConfig:
    """Return the settings of a session that does what the log of another one says."""
    script = tuple(ScriptEntry(entry.control, entry.chunk_index) for entry in record.log)
    return dataclasses.replace(record.config, script=script)


def replayed(record: SessionRecord, num_chunks: int) -> list[Chunk]:
    """Return the chunks of a session that does what a log says."""
    with Studio(deterministic=True) as studio:
        return studio.make(studio.engine.open_config(scripted(record)), num_chunks)


def assert_replayed(chunks: list[Chunk], again: list[Chunk]) -> None:
    """Require the same pictures, texts and times; prompts that never showed have no number here."""
    assert_same(again, chunks)
    for one, other in zip(again, chunks, strict=True):
        assert (one.fps, one.pts_s, one.record.text) == (other.fps, other.pts_s, other.record.text)


def say(studio: Studio, session: Session, *controls: Control) -> None:
    for control in controls:
        studio.engine.control(session.id, control)


def every_transition(studio: Studio, session: Session) -> None:
    for n, transition in enumerate(("cut", "blend", "recache", "reset", "blend", "cut")):
        studio.rest(session, 3 * n + 2)
        studio.step()
        say(studio, session, SetPrompt(f"scene {n}", transition))


def settings_and_replaced_controls(studio: Studio, session: Session) -> None:
    studio.rest(session, 2)
    say(studio, session, SetPrompt("never shown", "reset"), SetPrompt("a star", "cut"))
    say(studio, session, Update(seed=1, steps=3), Update(seed=2, fps=30))
    studio.rest(session, 4)
    say(studio, session, Update(reset="cache"), SetPrompt("a cube", "recache"), Update(steps=1))


def rewinds(studio: Studio, session: Session) -> None:
    studio.rest(session, 3)
    say(studio, session, SetPrompt("a star", "blend"))
    studio.rest(session, 6)
    say(studio, session, SetPrompt("never shown"), Rewind(4), Update(seed=3))
    studio.rest(session, 8)
    studio.step()
    say(studio, session, Rewind(2), SetPrompt("the sea", "recache"))
    studio.rest(session, 10)
    say(studio, session, SetPrompt("a tree", "reset"))
    studio.rest(session, 12)
    say(studio, session, Rewind(9))


def suspensions(studio: Studio, session: Session) -> None:
    """Between chunks, within them, with a control in work and one that waits."""
    for n in range(6):
        studio.rest(session, 2 * n + 1)
        say(studio, session, SetPrompt(f"scene {n}", ("cut", "recache", "blend")[n % 3]))
        for _ in range(n):
            studio.step()
        say(studio, session, Update(seed=n))
        studio.engine.suspend(session.id)
        studio.engine.resume(session.id)


def pauses(studio: Studio, session: Session) -> None:
    studio.rest(session, 4)
    say(studio, session, Update(paused=True, seed=5))
    while studio.step():
        pass
    say(studio, session, SetPrompt("a star"), Update(paused=False))


@pytest.mark.parametrize(
    "scene", [every_transition, settings_and_replaced_controls, rewinds, suspensions]
)
def test_a_replay_is_the_session_to_the_last_bit(scene: Scene) -> None:
    with Studio(deterministic=True) as studio:
        session, other = studio.open(), studio.open("other", seed=9)
        scene(studio, session)
        chunks = studio.make(session, session.num_chunks + 3)
        record = studio.engine.record(session.id)
        assert studio.made(other)
    assert_replayed(chunks, replayed(record, len(chunks)))


def test_a_replay_without_pauses_is_the_same_video() -> None:
    with Studio(deterministic=True) as studio:
        session = studio.open()
        pauses(studio, session)
        chunks = studio.make(session, 8)
        record = studio.engine.record(session.id)
    log = [e for e in record.log if not (isinstance(e.control, Update) and not e.control.seed)]
    log = [
        dataclasses.replace(e, control=dataclasses.replace(e.control, paused=None))
        if isinstance(e.control, Update)
        else e
        for e in log
    ]
    again = replayed(dataclasses.replace(record, log=tuple(log)), 8)
    assert_replayed(chunks, again)


@pytest.mark.parametrize("at", [None, 3])
def test_a_fork_is_replayed_from_its_parents_first_chunk(at: int | None) -> None:
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 2)
        say(studio, session, SetPrompt("a star", "blend", 4))
        studio.rest(session, 5)
        say(studio, session, SetPrompt("of the parent alone"))
        child = studio.engine.fork(session.id, at)
        say(studio, child, SetPrompt("a cube", "recache"), Update(seed=3))
        chunks = [*studio.make(session, child.num_chunks), *studio.make(child, 5)]
        record = studio.engine.record(child.id)
    assert_replayed(chunks, replayed(record, len(chunks)))


@pytest.mark.parametrize("num_steps", range(4))
@pytest.mark.parametrize("action", ["recache", "suspend"])
def test_a_fork_of_a_parent_whose_pages_it_cannot_share_is_replayed(
    action: str, num_steps: int
) -> None:
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 5)
        say(studio, session, SetPrompt("a star", "recache"))
        for _ in range(num_steps):
            studio.step()
        if action == "suspend":
            studio.engine.suspend(session.id)
        child = studio.engine.fork(session.id)
        studio.engine.emit_decoded(wait_for=studio.engine.num_decoding)
        chunks = [*studio.made(session)[: child.num_chunks], *studio.make(child, 3)]
        record = studio.engine.record(child.id)
    assert_replayed(chunks, replayed(record, len(chunks)))


@pytest.mark.parametrize("num_steps", range(3))
def test_a_session_that_was_restored_is_replayed_across_the_gap(num_steps: int) -> None:
    """As after a crash: chunks of before and after, a control in work and one that waited."""
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 4)
        say(studio, session, SetPrompt("a star", "recache"))
        for _ in range(num_steps):
            studio.step()
        say(studio, session, Update(seed=8))
        record = studio.engine.record(session.id)
        before = alone_until(studio, session, record.num_chunks)
    with Studio(deterministic=True) as studio:
        session = studio.engine.restore(record)
        studio.rest(session, 7)
        say(studio, session, Rewind(3))
        chunks = [*before, *studio.make(session, 8)]
        record = studio.engine.record(session.id)
    assert_replayed(chunks, replayed(record, len(chunks)))


def alone_until(studio: Studio, session: Session, num_chunks: int) -> list[Chunk]:
    """Return what the viewers saw of the first chunks."""
    studio.engine.emit_decoded(wait_for=studio.engine.num_decoding)
    return studio.made(session)[:num_chunks]


class Family:
    """A session, its forks and others like it, and what the viewers of each have seen."""

    def __init__(self, studio: Studio, random: np.random.Generator) -> None:
        self.studio, self.random = studio, random
        self.sessions = [studio.open()]
        self.before: dict[str, list[Chunk]] = {}  # a fork's chunks that its parent made

    def live(self, num_acts: int) -> list[tuple[SessionRecord, list[Chunk]]]:
        """Do so many things; return each one's record and what its viewers have seen."""
        for _ in range(num_acts):
            self.act()
        for session in self.sessions:
            self.studio.more(session, 2)
        return [(self.studio.engine.record(s.id), self.seen(s)) for s in self.sessions]

    def act(self) -> None:
        """Do one thing to one of them."""
        session = self.sessions[self.random.integers(len(self.sessions))]
        action = int(self.random.integers(14))
        if action < 7:
            self.studio.step()
        elif action < 10:
            say(self.studio, session, random_control(self.random))
        elif action == 10:
            self.studio.engine.suspend(session.id)
            self.studio.engine.resume(session.id)
        elif action == 11:
            number = int(self.random.integers(session.num_chunks + 1))
            with contextlib.suppress(NotFound):
                say(self.studio, session, Rewind(number))
        elif action == 12 and len(self.sessions) < 4:
            self.sessions.append(self.studio.open())  # takes over what is there already
        elif action == 13 and len(self.sessions) < 4:
            with contextlib.suppress(NotFound):
                self.fork(session)

    def fork(self, session: Session) -> None:
        number = int(self.random.integers(session.num_chunks + 1))
        child = self.studio.engine.fork(session.id, number if self.random.integers(2) else None)
        self.studio.engine.emit_decoded(wait_for=self.studio.engine.num_decoding)
        self.before[child.id] = self.seen(session)[: child.num_chunks]
        self.sessions.append(child)

    def seen(self, session: Session) -> list[Chunk]:
        """Return a session's chunks from the first one on."""
        return [*self.before.get(session.id, []), *self.studio.made(session)]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_was_done_to_sessions_is_done_again(seed: int) -> None:
    random = np.random.default_rng(seed)
    preset = (TINY, with_chunks(chunk_frames=3, first_chunk_frames=1))[seed % 2]
    preset = dataclasses.replace(preset, rebuilds_sink=bool(random.integers(2)))
    options: dict[str, Any] = {
        "deterministic": True,
        "history_seconds": 4,
        "steps": 1,
        "window": int(random.choice([7, 9, 12])),
        "sink": int(random.choice([0, 1, 3])),
        "fused": bool(random.integers(4)),
    }
    with Studio(preset, **options) as studio:
        made = Family(studio, random).live(80)
    with Studio(preset, **options) as studio:
        for record, chunks in made:
            session = studio.engine.open_config(scripted(record))
            assert_replayed(chunks, studio.make(session, len(chunks)))
            studio.engine.close(session.id)


def random_control(random: np.random.Generator) -> Control:
    kind = int(random.integers(3))
    if kind == 0:
        return Update(seed=int(random.integers(9)), steps=int(random.integers(1, 3)))
    if kind == 1 and random.integers(2):
        return Update(fps=int(random.integers(8, 30)), reset=random.choice([None, "cache"]))
    transition = str(random.choice(["cut", "blend", "recache", "reset"]))
    return SetPrompt(f"scene {random.integers(5)}", transition)
