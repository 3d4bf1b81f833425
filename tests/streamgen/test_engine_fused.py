"""A chunk's commit rides with the first pass of the next one, and nothing shows of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvcache import Staging
from streamgen.messages import Chunk, SetPrompt, Update
from streamgen.models.presets import Preset
from streamgen.session import Session
from streamgen.work import LoneCommit
from tests.streamgen.studio import PASSES, Studio, alone, assert_same, failing, watch
from tests.streamgen.tiny import TINY, with_chunks


def take_turns(studio: Studio, num_others: int) -> list[Chunk]:
    """Return a session's chunks through every transition, in company that comes and goes."""
    session = studio.open()
    others: list[Session] = []
    for n in range(num_others):
        studio.step()  # each at another pass than those before it
        others.append(studio.open(f"other {n}", seed=n))
    changes = [
        SetPrompt("a star"),
        SetPrompt("a cube", "recache"),
        SetPrompt("the sea", "blend", 2),
        SetPrompt("a tree", "reset"),
    ]
    for n, change in enumerate(changes):
        studio.rest(session, 4 + 2 * n)
        studio.engine.control(session.id, change)
        if others:
            studio.engine.close(others.pop().id)
    return studio.make(session, 13)


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        (TINY, {}),
        (TINY, {"sink": 3}),
        (TINY, {"window": 7}),
        (TINY, {"steps": 1}),
        (with_chunks(chunk_frames=3, first_chunk_frames=1), {"sink": 1}),
    ],
)
def test_fused_and_separate_commits_give_the_same_bits(
    preset: Preset, options: dict[str, Any]
) -> None:
    with Studio(preset, deterministic=True, fused=False, **options) as studio:
        expected = take_turns(studio, 0)
    for num_others in (0, 3):
        with Studio(preset, deterministic=True, **options) as studio:
            assert_same(take_turns(studio, num_others), expected)


def test_without_determinism_fused_and_separate_commits_are_within_2e_5() -> None:
    made = []
    for fused in (True, False):
        with Studio(fused=fused) as studio:
            made.append(studio.make(studio.open(), 6))
    for one, other in zip(*made, strict=True):
        np.testing.assert_allclose(one.latents, other.latents, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("fused", "num_passes"), [(True, PASSES), (False, PASSES + 1)])
def test_a_steady_chunk_takes_no_forward_of_its_own_for_the_commit(
    fused: bool, num_passes: int
) -> None:
    with Studio(fused=fused) as studio:
        session = studio.open()
        studio.rest(session, 4)
        rows: list[int] = []
        watch(studio, lambda batch: rows.append(len(batch.rows)))
        studio.rest(session, 8)
        assert len(rows) == 4 * num_passes
        assert rows[:num_passes] == ([2, 1] if fused else [1, 1, 1])


def test_frames_leave_before_the_commit_which_then_fills_idle_time() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, Update(paused=True))
        studio.engine.emit_decoded(wait_for=1)
        assert len(studio.made(session)) == 3
        assert session.commit is not None
        assert not session.commit.is_settled
        assert session.may_commit
        alone_in_pass: list[bool] = []
        watch(studio, lambda batch: alone_in_pass.append(isinstance(session.work, LoneCommit)))
        while studio.step():
            pass
        assert alone_in_pass == [True]
        assert session.commit is None
        assert not studio.engine.step()  # nothing is left to do


def test_a_commit_that_ran_alone_changes_nothing() -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        for n in range(1, 6):
            studio.rest(session, n)
            studio.engine.control(session.id, Update(paused=True))
            while studio.step():
                pass
            studio.engine.control(session.id, Update(paused=False))
        assert_same(studio.make(session, 6), expected)


@pytest.mark.parametrize("num_others", [0, 2])
def test_a_commit_that_fails_takes_the_chunk_along_and_both_are_done_again(num_others: int) -> None:
    expected = alone(8)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        for n in range(num_others):
            studio.open(f"other {n}", seed=n)
        studio.rest(session, 5)
        assert session.table is not None
        held, commit = session.table.frames, session.commit
        with failing(studio, lambda batch: any(row.timestep == 0 for row in batch.rows)):
            studio.step()
        assert session.table.frames == held
        assert session.work is None
        assert session.commit is commit
        assert commit is not None
        assert not commit.is_settled
        times: list[list[float]] = []
        watch(
            studio,
            lambda batch: times.append(
                [r.timestep for r in batch.rows if r.staging in (commit.staging, mine(session))]
            ),
        )
        studio.step()
        assert times[-1][0] == 0
        assert times[-1][1] > 0
        assert_same(studio.make(session, 8), expected)


def mine(session: Session) -> object:
    """Return the staging of the chunk that a session has in work."""
    return getattr(session.work, "staging", None)


def test_a_fork_and_its_parent_need_one_commit() -> None:
    """Both begin at once; the second waits a pass and finds it done. Either may come first."""
    expected = alone(6)
    for first in (0, 1):
        with Studio(deterministic=True) as studio:
            session = studio.open()
            studio.rest(session, 4)
            shared = session.commit
            assert shared is not None
            child = studio.engine.fork(session.id)
            both = [session, child]
            studio.engine.control(both[first].id, Update(paused=True))
            studio.engine.control(child.id, SetPrompt("a star"))
            runs = count_runs(studio, shared.staging)
            studio.step()
            studio.engine.control(both[first].id, Update(paused=False))
            studio.rest(session, 6)
            studio.rest(child, 6)
            assert sum(runs) == 1
            assert shared.is_settled
            assert_same(studio.make(session, 6), expected)
            studio.engine.close(session.id)
            studio.engine.close(child.id)
            assert not any(studio.engine.runner.text._pins)


def count_runs(studio: Studio, staging: Staging) -> list[int]:
    """Note for every batch from now on how many of its rows are clean passes of this staging."""
    runs: list[int] = []
    watch(
        studio,
        lambda batch: runs.append(
            sum(row.staging is staging and row.timestep == 0 for row in batch.rows)
        ),
    )
    return runs
