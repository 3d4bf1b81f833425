"""Faults at every point of a session's way: it ends alone, or nothing is to be seen of them."""

from __future__ import annotations

import pytest

from streamgen.faults import Faults
from streamgen.messages import Failed, StateChanged, Update
from streamgen.session import Session
from tests.streamgen.studio import Studio, alone, assert_same

POINTS = ("text.encode", "pass.denoise", "pass.commit", "pass.nan", "cache.write", "vae.decode")


def arm(studio: Studio, rules: str) -> None:
    """Let faults strike from now on."""
    engine, faults = studio.engine, Faults.parse(rules)
    engine.faults = engine.passes.faults = engine.runner.faults = faults
    engine.decoder._faults = faults


def pause(studio: Studio, *sessions: Session, paused: bool = True) -> None:
    """Let sessions stand still, their chunks in work finished, or go on."""
    for session in sessions:
        studio.engine.control(session.id, Update(paused=paused))
    while paused and studio.step():
        pass


def rule(point: str, times: int) -> str:
    kind = "" if point == "pass.nan" else ":oom"
    return f"{point}{kind}@1x{times}"


@pytest.mark.parametrize("point", POINTS)
def test_q48_a_session_that_fails_for_good_ends_alone(point: str) -> None:
    """The other two are bit for bit those of a run without it, and its place is free again."""
    expected = [alone(6, seed=seed) for seed in (1, 2)]
    with Studio(deterministic=True, max_sessions=3) as studio:
        free = studio.audit()
        others = [studio.open(seed=seed) for seed in (1, 2)]
        bad = studio.open("a star", seed=3)
        for session in (*others, bad):
            studio.make(session, 2)
        pause(studio, *others, bad)
        arm(studio, rule(point, 100))
        pause(studio, bad, paused=False)
        if point == "text.encode":
            studio.engine.runner.text._slots.clear()
        while bad.id in studio.engine.sessions:
            assert studio.step()
        code = "internal" if point == "pass.nan" else "out_of_memory"
        failed, last = studio.events[bad.id][-2:]
        assert isinstance(failed, Failed)
        assert (failed.code, failed.retryable) == (code, True)
        assert last == StateChanged("failed", code)
        arm(studio, "")
        new = studio.open("a star", seed=3)
        studio.make(new, 2)
        studio.engine.close(new.id)
        pause(studio, *others, paused=False)
        for session, chunks in zip(others, expected, strict=True):
            assert_same(studio.make(session, 6), chunks)
            studio.engine.close(session.id)
        assert studio.audit() == free


@pytest.mark.parametrize("point", POINTS)
def test_q48_a_fault_that_passes_is_not_to_be_seen(point: str) -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 2)
        arm(studio, rule(point, 1))
        assert_same(studio.make(session, 6), expected)


def test_q48_a_fault_in_a_shared_pass_fails_nobody() -> None:
    """It strikes one row, or two; each of them may try once more."""
    expected = [alone(6, seed=seed) for seed in (1, 2, 3)]
    with Studio(deterministic=True) as studio:
        sessions = [studio.open(seed=seed) for seed in (1, 2, 3)]
        arm(studio, "pass.denoise:oom@5,pass.denoise@40x2,pass.nan@30,cache.write@4")
        for session, chunks in zip(sessions, expected, strict=True):
            assert_same(studio.make(session, 6), chunks)
