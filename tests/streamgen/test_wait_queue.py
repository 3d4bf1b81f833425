"""Who waits, in which order, and what they are told."""

from __future__ import annotations

import pytest

from streamgen.wait_queue import LONGEST_RETRY_S, UNKNOWN_WAIT_S, WaitQueue


def queue_of(*session_ids: str, max_length: int = 8) -> WaitQueue:
    queue = WaitQueue(max_length)
    for session_id in session_ids:
        assert queue.join(session_id)
    return queue


def test_the_first_to_come_is_the_next() -> None:
    queue = queue_of("a", "b", "c")
    assert queue.first == "a"
    assert [queue.position(s) for s in "abc"] == [0, 1, 2]


def test_an_empty_queue_has_no_first() -> None:
    assert WaitQueue(4).first is None
    assert list(WaitQueue(4)) == []


def test_who_leaves_lets_the_others_move_up() -> None:
    queue = queue_of("a", "b", "c")
    queue.leave("b")
    queue.leave("b")
    assert list(queue) == ["a", "c"]
    assert queue.position("c") == 1


def test_a_full_queue_takes_nobody() -> None:
    queue = queue_of("a", "b", max_length=2)
    assert not queue.join("c")
    queue.leave("a")
    assert queue.join("c")
    assert not WaitQueue(0).join("a")


def test_live_sessions_wait_before_batch_jobs() -> None:
    queue = WaitQueue(4)
    queue.join("job", is_batch=True)
    queue.join("live")
    assert list(queue) == ["live", "job"]


def test_the_wait_follows_from_the_lives_seen() -> None:
    """Two ended after 60 s, four are in since 30 s: 120 s of life an end, four may end it."""
    queue = queue_of("a", "b")
    queue.ended(60.0)
    queue.ended(60.0)
    assert queue.estimated_wait_s(0, [30.0] * 4) == pytest.approx(30.0)
    assert queue.estimated_wait_s(1, [30.0] * 4) == pytest.approx(60.0)
    assert queue.retry_after_s([30.0] * 4) == pytest.approx(90.0)


def test_before_any_end_was_seen_nothing_is_promised() -> None:
    queue = queue_of("a")
    assert queue.estimated_wait_s(0, [30.0]) is None
    assert queue.retry_after_s([30.0]) == UNKNOWN_WAIT_S


def test_a_retry_is_never_at_once_and_never_out_of_reach() -> None:
    queue = WaitQueue(4)
    queue.ended(0.001)
    assert queue.retry_after_s([0.001]) == 1.0
    queue.ended(1e9)
    assert queue.retry_after_s([1.0]) == LONGEST_RETRY_S


def test_only_recent_lives_count() -> None:
    queue = WaitQueue(4)
    queue.ended(1e9)
    for _ in range(64):
        queue.ended(10.0)
    assert queue.estimated_wait_s(0, [0.0]) == pytest.approx(10.0)
