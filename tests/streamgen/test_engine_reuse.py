"""Pages are used again and again, and leave no trace."""

from __future__ import annotations

import numpy as np
import pytest

from streamgen.errors import Capacity, NotFound
from streamgen.messages import SetPrompt, Update
from streamgen.session import Session
from tests.streamgen.studio import (
    PASSES,
    Studio,
    alone,
    assert_same,
    failing,
)


def test_q41_pages_that_another_session_had_leave_no_trace() -> None:
    expected = alone(6, "b", seed=5)
    with Studio(deterministic=True, max_sessions=1) as studio:
        for seed, window in ((1, 9), (2, 6), (3, 7)):
            other = studio.open(f"a {seed}", seed=seed, window=window)
            studio.make(other, 5)
            studio.step()
            studio.engine.close(other.id)
            session = studio.open("b", seed=5)
            assert_same(studio.make(session, 6), expected)
            studio.engine.close(session.id)


@pytest.mark.parametrize(
    "how", [SetPrompt("a star", "reset"), Update(reset="cache"), Update(reset="all")]
)
def test_q41_after_a_reset_a_session_is_as_new(how: SetPrompt | Update) -> None:
    prompt = how.prompt if isinstance(how, SetPrompt) else "a red ball"
    fresh = alone(4, str(prompt))
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 5)
        studio.step()
        studio.engine.control(session.id, how)
        begun = session.num_chunks
        chunks = studio.make(session, begun + 4)
    assert [c.index for c in chunks] == list(range(begun + 4))
    assert [len(c.frames) for c in chunks[begun:]] == [9, 12, 12, 12]
    firsts = np.cumsum([0, *(len(c.frames) for c in chunks[:-1])])
    assert [c.first_frame_index for c in chunks] == firsts.tolist()
    for chunk, reference in zip(chunks[begun:], fresh, strict=True):
        np.testing.assert_array_equal(chunk.latents, reference.latents)
        np.testing.assert_array_equal(chunk.frames, reference.frames)


def test_a_full_engine_refuses_and_serves_on() -> None:
    expected = alone(3)
    with Studio(deterministic=True, max_sessions=2) as studio:
        session = studio.open()
        studio.open("other")
        with pytest.raises(Capacity, match="every place is taken"):
            studio.open("one too many")
        assert_same(studio.make(session, 3), expected)


def leave_cleanly(studio: Studio, session: Session) -> None:
    studio.engine.close(session.id)


def leave_suspended(studio: Studio, session: Session) -> None:
    studio.engine.suspend(session.id)
    studio.engine.close(session.id)


def leave_while_switching(studio: Studio, session: Session) -> None:
    studio.engine.control(session.id, SetPrompt("never shown", "reset"))
    studio.step()
    studio.engine.close(session.id)


def leave_while_resuming(studio: Studio, session: Session) -> None:
    studio.engine.suspend(session.id)
    studio.engine.resume(session.id)
    studio.step()
    studio.engine.close(session.id)


def leave_by_error(studio: Studio, session: Session) -> None:
    with failing(studio, lambda batch: True):
        while session.id in studio.engine.sessions:
            studio.step()


LEAVINGS = [
    leave_cleanly,
    leave_suspended,
    leave_while_switching,
    leave_while_resuming,
    leave_by_error,
]


def test_q36_a_hundred_rounds_of_leaving_free_every_page() -> None:
    with Studio(max_sessions=3) as studio:
        start = studio.audit()
        for n in range(100):
            session = studio.open(f"round {n}", seed=n)
            studio.make(session, 1 + n % 2)
            for _ in range(n % (2 * PASSES)):
                studio.step()
            LEAVINGS[n % len(LEAVINGS)](studio, session)
            assert studio.audit() == start
            assert studio.pool.num_unreserved == start
            assert not any(studio.engine.runner.text._pins)
            with pytest.raises(NotFound):
                studio.engine.close(session.id)


def test_q41_random_lives_keep_the_books_in_order() -> None:
    random = np.random.default_rng(0)
    with Studio(max_sessions=4) as studio:
        engine = studio.engine
        for _ in range(600):
            sessions = list(engine.sessions.values())
            action = random.integers(9)
            if action == 0 and engine.num_free:
                studio.open(seed=int(random.integers(9)), window=int(random.choice([3, 6, 7, 9])))
            elif action < 4 or not sessions:
                studio.step()
            else:
                session = sessions[random.integers(len(sessions))]
                if action == 4:
                    engine.control(session.id, Update(reset="cache"))
                elif action == 5:
                    engine.control(session.id, SetPrompt(f"scene {random.integers(99)}"))
                elif action == 6:
                    engine.suspend(session.id)
                elif action == 7 and engine.num_free:
                    engine.resume(session.id)
                elif action == 8:
                    engine.close(session.id)
            held = [s.table.num_slots for s in engine.sessions.values() if s.table is not None]
            assert studio.audit() == studio.pool.num_pages - sum(held)
        for session in list(engine.sessions.values()):
            engine.close(session.id)
        assert studio.audit() == studio.pool.num_pages
