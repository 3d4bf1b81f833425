"""Failures on purpose at each named point: once is unseen, twice ends one session, and no other."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from streamgen.messages import Chunk, Failed, SetPrompt, StateChanged, Update
from streamgen.session import Session
from tests.streamgen.studio import FRAMES, PASSES, Studio, alone, assert_same

POINTS = ["text.encode", "pass.denoise", "pass.commit", "cache.write", "vae.decode"]
FAILURES = [("pass.nan", "nan"), *((p, kind) for p in POINTS for kind in ("error", "oom"))]
NOT_FINITE = ("internal", "the model gave values that are not finite")


def count_hits(studio: Studio) -> Counter[str]:
    """Count how often each point is passed from now on."""
    hits: Counter[str] = Counter()
    hit = studio.engine.faults.hit

    def counted(point: str) -> bool:
        hits[point] += 1
        return hit(point)

    studio.engine.faults.hit = counted  # type: ignore[method-assign]
    return hits


def begin(studio: Studio) -> tuple[Session, Session]:
    """Let one session make three chunks and rest, and open another one."""
    session = studio.open()
    studio.make(session, 3)
    studio.engine.control(session.id, Update(paused=True))
    while studio.step():
        pass
    return session, studio.open("bad", seed=1)


def passed_before(point: str) -> int:
    """Return how often the first session has passed a point when the second is opened."""
    with Studio(deterministic=True) as studio:
        hits = count_hits(studio)
        begin(studio)
        return hits[point]


@pytest.mark.parametrize(("point", "kind"), FAILURES)
def test_q48_one_failure_anywhere_is_survived_unseen(point: str, kind: str) -> None:
    rule = f"{point}:{kind}@{passed_before(point) + 1}"
    with Studio(deterministic=True, faults=rule) as studio:
        session, bad = begin(studio)
        assert_same(studio.make(bad, 4), alone(4, "bad", seed=1))
        studio.engine.control(session.id, Update(paused=False))
        assert_same(studio.make(session, 6), alone(6))
        assert not [e for e in studio.events[bad.id] if isinstance(e, Failed)]


@pytest.mark.parametrize(("point", "kind"), FAILURES)
def test_q48_a_second_failure_ends_that_session_alone_with_an_error_its_viewers_see(
    point: str, kind: str
) -> None:
    # What is not finite is seen when the chunk is there: all passes of one try, one of the next.
    times = PASSES + 1 if kind == "nan" else 2
    rule = f"{point}:{kind}@{passed_before(point) + 1}x{times}"
    with Studio(deterministic=True, faults=rule) as studio:
        session, bad = begin(studio)
        for _ in range(20):
            studio.step()
        assert bad.id not in studio.engine.sessions
        failed, ended = studio.events[bad.id][-2:]
        assert isinstance(failed, Failed)
        assert failed.retryable
        if kind == "nan":
            assert (failed.code, failed.message) == NOT_FINITE
        else:
            code = {"error": "internal", "oom": "out_of_memory"}[kind]
            assert (failed.code, f"fault {point}:{kind}" in failed.message) == (code, True)
        assert ended == StateChanged("failed", failed.code)
        made = [] if point != "pass.commit" else alone(1, "bad", seed=1)
        assert_same(studio.made(bad), made)
        assert studio.audit() == studio.pool.num_pages - FRAMES
        assert not any(studio.engine.runner.text._pins)
        studio.engine.control(session.id, Update(paused=False))
        assert_same(studio.make(studio.open("small", seed=2), 2), alone(2, "small", seed=2))
        assert_same(studio.make(session, 6), alone(6))


@pytest.mark.parametrize("seed", range(4))
def test_q48_whatever_fails_in_company_each_session_is_a_session_alone_or_ends(seed: int) -> None:
    """Forty failures in three sessions that share every pass."""
    random = np.random.default_rng(seed)
    rules = [
        f"{point}{':oom' * int(random.integers(2))}@{random.integers(1, 60)}"
        for point in random.choice(POINTS, 40)
    ]
    expected = {n: alone(10, f"scene {n}", seed=n) for n in range(3)}
    with Studio(deterministic=True, faults=",".join(rules)) as studio:
        sessions = [studio.open(f"scene {n}", seed=n) for n in range(3)]
        while any(len(studio.made(s)) < 10 and s.id in studio.engine.sessions for s in sessions):
            studio.step()
        for n, session in enumerate(sessions):
            made = studio.made(session)[:10]
            assert_same(made, expected[n][: len(made)])
            failed = [e for e in studio.events[session.id] if isinstance(e, Failed)]
            assert len(failed) == (session.id not in studio.engine.sessions)
            if not failed:
                studio.engine.close(session.id)
        assert studio.audit() == studio.pool.num_pages
        assert not any(studio.engine.runner.text._pins)


@pytest.mark.parametrize("transition", ["recache", "blend", "reset"])
@pytest.mark.parametrize("point", ["text.encode", "pass.commit", "pass.denoise", "cache.write"])
def test_a_transition_in_which_a_pass_fails_once_is_done_all_the_same(
    transition: str, point: str
) -> None:
    """Nothing has left the window yet, so what is made again is what was there."""

    def switch(faults: str | None) -> tuple[list[Chunk], int]:
        with Studio(deterministic=True, window=24, faults=faults or "none") as studio:
            hits = count_hits(studio)
            session = studio.open()
            studio.rest(session, 3)
            before = hits[point]
            studio.engine.control(session.id, SetPrompt("a star", transition, event_id="e"))
            chunks = studio.make(session, 6)
            assert chunks[3].started_event_ids == ("e",)
            return chunks, before

    expected, before = switch(None)
    chunks, _ = switch(f"{point}@{before + 1}")
    assert_same(chunks, expected)


def test_a_device_that_is_lost_is_not_a_fault_of_one_session() -> None:
    with Studio(faults="pass.denoise:fatal@3") as studio:
        session = studio.open()
        with pytest.raises(torch.AcceleratorError):
            studio.make(session, 4)
        assert not [e for e in studio.events[session.id] if isinstance(e, Failed)]
