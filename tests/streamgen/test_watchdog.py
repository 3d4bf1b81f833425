"""Signs of life, and when to give up."""

from __future__ import annotations

from streamgen.watchdog import PING_INTERVAL_S, Deaths, Pulse


def test_an_engine_that_answers_is_never_busy() -> None:
    pulse = Pulse()
    for _ in range(10):
        assert pulse.tick(PING_INTERVAL_S)  # asked again each time
        pulse.heard()
        assert pulse.busy_s == 0


def test_an_engine_that_does_not_answer_is_asked_once_and_its_silence_adds_up() -> None:
    pulse = Pulse()
    assert pulse.tick(0.5)
    assert not any(pulse.tick(0.5) for _ in range(6))
    assert pulse.busy_s == 3
    pulse.heard()
    assert pulse.busy_s == 0
    assert pulse.tick(0.5)


def test_a_machine_that_slept_is_no_stuck_engine() -> None:
    pulse = Pulse()
    pulse.tick(0.5)
    pulse.tick(3600)
    assert pulse.busy_s == 2 * PING_INTERVAL_S


def test_three_deaths_within_a_minute_are_too_many() -> None:
    deaths = Deaths()
    assert [deaths.add(ready_s) for ready_s in (500, 20, 39)] == [False, False, True]
    assert deaths.total == 3


def test_deaths_far_apart_are_borne() -> None:
    deaths = Deaths()
    assert not any(deaths.add(ready_s) for ready_s in (10, 31, 31, 31, 31))


def test_the_time_of_a_start_does_not_count_as_life() -> None:
    deaths = Deaths()  # each start may have taken minutes, and failed
    assert [deaths.add(0) for _ in range(3)] == [False, False, True]
