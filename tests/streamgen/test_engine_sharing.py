"""Sessions with the same past make it once and share its pages, until they differ."""

from __future__ import annotations

import numpy as np
import pytest

from streamgen.messages import Chunk, Rewind, SetPrompt, Update
from streamgen.session import Session
from tests.streamgen.studio import (
    PASSES,
    Studio,
    alone,
    assert_same,
    failing,
    watch,
)


def pages_of(session: Session) -> list[int]:
    """Return the pages of all that a session sees, frames ascending."""
    assert session.table is not None
    return [page for frame in session.table.frames for page in session.table.pages_of(frame)]


def count_rows(studio: Studio) -> list[int]:
    """Note how many denoise rows each batch has from now on."""
    rows: list[int] = []
    watch(studio, lambda batch: rows.append(sum(row.timestep > 0 for row in batch.rows)))
    return rows


def test_a_fork_copies_no_page_and_holds_its_whole_share_all_the_same() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 5)
        held = pages_of(session)
        keys = [layer[held].clone() for layer in studio.pool.k]
        num_free, num_unreserved = studio.audit(), studio.pool.num_unreserved
        child = studio.engine.fork(session.id)
        assert pages_of(child) == held == pages_of(session)
        assert {studio.pool.allocator.refcount(page) for page in held} == {2}
        # As many pages as it shares are left over, for when the two part.
        assert studio.audit() == num_free - 12 + len(held)
        assert studio.pool.num_unreserved == num_unreserved - 12
        assert all((a[held] == b).all() for a, b in zip(studio.pool.k, keys, strict=True))


@pytest.mark.parametrize("who", ["parent", "child"])
def test_a_shared_page_is_left_to_the_other_when_one_writes_anew(who: str) -> None:
    """A recache writes to the pages of the window; the other's stay as they were."""
    expected = alone(8)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 5)
        child = studio.engine.fork(session.id)
        writer, other = (session, child) if who == "parent" else (child, session)
        studio.engine.control(writer.id, SetPrompt("a star", "recache"))
        studio.rest(writer, 6)
        assert not set(pages_of(writer)) & set(pages_of(other)[:3])
        first = 0 if other is session else 5
        assert_same(studio.make(other, 8 - first), expected[first:])


def test_grandchildren_share_too_and_pages_come_back_with_the_last_of_them() -> None:
    expected = alone(9)
    with Studio(deterministic=True) as studio:
        sessions = [studio.open()]
        studio.rest(sessions[0], 5)
        for _ in range(5):
            sessions.append(studio.engine.fork(sessions[-1].id))
            studio.step()
        for n, session in enumerate(sessions[1:]):
            studio.engine.control(session.id, SetPrompt(f"scene {n}"))
        assert_same(studio.make(sessions[0], 9), expected)
        for session in sessions:
            studio.engine.close(session.id)
            studio.step()
        assert studio.audit() == studio.pool.num_pages == studio.pool.num_unreserved
        assert not any(studio.engine.runner.text._pins)


@pytest.mark.parametrize("delay", range(2 * PASSES + 2))
def test_the_same_request_twice_is_made_once(delay: int) -> None:
    """Whoever comes later, at any pass, takes over what is there."""
    expected = alone(8)
    with Studio(deterministic=True) as studio:
        rows = count_rows(studio)
        session = studio.open()
        for _ in range(delay):
            studio.step()
        twin = studio.open()
        assert_same(studio.make(twin, 8), expected)
        assert_same(studio.make(session, 8), expected)
        assert sum(rows) <= 9 * PASSES
        assert set(pages_of(session)) & set(pages_of(twin))


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"prompt": "a star"}, {"steps": 1}, {"window": 6}, {"sink": 1}],
)
def test_what_differs_in_anything_that_counts_is_not_shared(other: dict[str, object]) -> None:
    with Studio(deterministic=True) as studio:
        session = studio.open()
        different = studio.open(**({"prompt": "a red ball", "seed": 42} | other))  # type: ignore[arg-type]
        studio.rest(session, 4)
        studio.rest(different, 4)
        assert not set(pages_of(session)) & set(pages_of(different))


def test_what_does_not_count_for_the_pictures_is_not_asked_for() -> None:
    with Studio(deterministic=True) as studio:
        rows = count_rows(studio)
        session, slow, short = studio.open(), studio.open(fps=8), studio.open(num_frames=30)
        while studio.step() and session.num_chunks < 6:
            pass
        chunks = studio.make(session, 3)
        for other in (slow, short):
            for one, another in zip(studio.make(other, 3), chunks, strict=True):
                np.testing.assert_array_equal(one.latents, another.latents)
        assert [len(c.frames) for c in studio.made(short)] == [9, 12, 9]
        assert [c.pts_s for c in studio.made(slow)[:3]] == [0, 9 / 8, 21 / 8]
        assert sum(rows) <= 7 * PASSES


@pytest.mark.parametrize("num_steps", range(PASSES + 2))
def test_twins_part_at_a_prompt_and_neither_notices_the_other(num_steps: int) -> None:
    expected = alone(9)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 4)
        studio.engine.control(session.id, SetPrompt("a star"))
        branch = studio.make(session, 9)
    with Studio(deterministic=True) as studio:
        session, twin = studio.open(), studio.open()
        studio.rest(session, 4)
        studio.rest(twin, 4)
        for _ in range(num_steps):
            studio.step()
        begun = twin.num_chunks
        studio.engine.control(twin.id, SetPrompt("a star"))
        assert_same(studio.make(session, 9), expected)
        made = studio.make(twin, 9)
        assert_same(made[:begun], expected[:begun])
        assert [str(c.record.text) for c in made[begun:]] == ["a star"] * (9 - begun)
        if begun == 4:
            assert_same(made, branch)


def test_twins_that_follow_the_same_score_stay_together() -> None:
    score = [
        {"at_chunk": 3 * n, "prompt": f"scene {n}", "transition": transition}
        for n, transition in enumerate(("cut", "recache", "blend", "reset"), start=1)
    ]
    expected = alone(14, score=score)
    with Studio(deterministic=True) as studio:
        rows = count_rows(studio)
        twins = [studio.open(score=score), studio.open(score=score)]
        for session in twins:
            assert_same(studio.make(session, 14), expected)
        assert sum(rows) <= 16 * PASSES


def lagging(studio: Studio, num_chunks: int) -> tuple[Session, Session]:
    """Return a session and its twin that stands still one chunk behind."""
    session, twin = studio.open(), studio.open()
    studio.rest(session, num_chunks)
    studio.rest(twin, num_chunks)
    studio.engine.control(twin.id, Update(paused=True))
    studio.rest(session, num_chunks + 1)
    return session, twin


@pytest.mark.parametrize("num_steps", range(1, 5))
@pytest.mark.parametrize("transition", ["cut", "recache", "reset"])
def test_who_comes_later_never_takes_what_was_written_over(transition: str, num_steps: int) -> None:
    expected = alone(7)
    with Studio(deterministic=True) as studio:
        session, twin = lagging(studio, 2)
        studio.engine.control(session.id, SetPrompt("the sea", transition))
        for _ in range(num_steps):
            studio.step()
        newcomer = studio.open()
        studio.engine.control(twin.id, Update(paused=False))
        assert_same(studio.make(twin, 7), expected)
        assert_same(studio.make(newcomer, 7), expected)


@pytest.mark.parametrize("how", ["rewind", "suspend", "close", "fail"])
def test_what_was_made_again_or_is_gone_is_not_taken_over(how: str) -> None:
    """K/V that a rebuild made are close, and so not another session's."""
    expected = alone(9)
    with Studio(deterministic=True) as studio:
        session, twin = lagging(studio, 5)
        if how == "rewind":
            studio.engine.control(session.id, Rewind(4))
            studio.rest(session, 8)
        elif how == "suspend":
            studio.engine.suspend(session.id)
            studio.engine.resume(session.id)
            studio.step()
        elif how == "close":
            studio.engine.close(session.id)
        else:
            with failing(studio, lambda batch: True):
                while session.id in studio.engine.sessions:
                    studio.step()
        studio.engine.control(twin.id, Update(paused=False))
        assert_same(studio.make(twin, 9), expected)


@pytest.mark.parametrize("how", ["close", "suspend", "pause", "prompt"])
def test_who_waits_for_another_does_not_wait_for_ever(how: str) -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 2)
        twin = studio.open()
        studio.rest(twin, 2)
        studio.step()
        if how == "close":
            studio.engine.close(session.id)
        elif how == "suspend":
            studio.engine.suspend(session.id)
        elif how == "pause":
            studio.engine.control(session.id, Update(paused=True))
        else:
            studio.engine.control(session.id, SetPrompt("a star", "reset"))
        assert_same(studio.make(twin, 6), expected)


def test_a_pass_that_fails_for_one_twin_is_made_by_the_other() -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session, twin = studio.open(), studio.open()
        studio.rest(session, 3)
        studio.rest(twin, 3)
        with failing(studio, lambda batch: True):
            studio.step()
        made: list[list[Chunk]] = [studio.make(one, 6) for one in (session, twin)]
        assert_same(made[0], expected)
        assert_same(made[1], expected)
