"""The pacer under a fake clock: transport between a bursty generator and an even picture."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat

import pytest

from transport.pacer import Pacer

CHUNK_FRAMES = 12
FPS = 16
NOMINAL_S = 1 / FPS


@dataclass
class Run:
    """What viewers of a simulated generator saw."""

    gaps_s: list[float]
    waits_s: list[float]  # of each frame, between generation and playout
    pacer: Pacer

    @property
    def fps(self) -> float:
        """Frames a second, overall."""
        return len(self.gaps_s) / sum(self.gaps_s)

    @property
    def num_stalls(self) -> int:
        """Gaps that anybody sees."""
        return sum(gap_s > 0.15 for gap_s in self.gaps_s)


def simulate(
    generation_s: Iterator[float], num_chunks: int = 400, *, back_pressure: bool = True
) -> Run:
    """Play chunks of 12 frames; with back-pressure one starts only while at most 14 are queued."""
    pacer, now, left_at = Pacer(), 0.0, None
    run = Run([], [], pacer)
    ready_at: list[float] = []
    made_in, num_made = next(generation_s), 0
    due: float | None = made_in  # when the chunk being made will be there
    while num_made < num_chunks:
        delay = pacer.delay(now)
        if due is not None and (delay is None or due <= now + delay):
            now, num_made = max(now, due), num_made + 1
            pacer.push(now, CHUNK_FRAMES, FPS, made_in)
            ready_at += [now] * CHUNK_FRAMES
            due = None
        else:
            assert delay is not None, "neither a frame nor a chunk to wait for"
            now += delay
            pacer.pop(now)
            run.waits_s.append(now - ready_at.pop(0))
            run.gaps_s += [] if left_at is None else [now - left_at]
            left_at = now
        if due is None and (not back_pressure or pacer.num_queued <= CHUNK_FRAMES + 2):
            made_in = next(generation_s)
            due = now + made_in
    return run


def jitter(mean_s: float, share: float, seed: int) -> Iterator[float]:
    """Return generation times with this relative standard deviation."""
    draw = random.Random(seed)
    while True:
        yield draw.gauss(mean_s, mean_s * share)


def test_a_generator_at_exactly_real_time_plays_at_the_nominal_rate() -> None:
    """No stall, and the wait is what one chunk makes necessary."""
    run = simulate(repeat(0.75))
    assert run.fps == pytest.approx(FPS, rel=0.005)
    assert run.num_stalls == 0
    assert run.pacer.num_underruns == 0
    assert max(run.waits_s) < 0.9


@pytest.mark.parametrize("generation_s", [0.1, 0.3, 0.6])
def test_a_fast_generator_is_held_back_and_plays_at_the_nominal_rate(generation_s: float) -> None:
    """Back-pressure bounds the queue: frames are never older than two chunks and two frames."""
    run = simulate(repeat(generation_s))
    assert run.fps == pytest.approx(FPS, rel=0.001)
    assert run.num_stalls == 0
    assert max(run.waits_s) < (2 * CHUNK_FRAMES + 2) * NOMINAL_S


def test_a_slow_generator_slows_the_picture_evenly() -> None:
    """At 0.9 s a chunk there are 13.3 frames a second, not 16 and a stall each chunk."""
    run = simulate(repeat(0.9))
    assert run.fps == pytest.approx(CHUNK_FRAMES / 0.9, rel=0.01)
    assert run.num_stalls == 0
    assert sorted(run.gaps_s)[int(0.99 * len(run.gaps_s))] < 0.085


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("mean_s", "share"), [(0.75, 0.03), (0.6, 0.03), (0.9, 0.03), (0.6, 0.1), (0.55, 0.1)]
)
def test_jitter_makes_no_stall(mean_s: float, share: float, seed: int) -> None:
    """The interval leaves room for twice the mean deviation."""
    run = simulate(jitter(mean_s, share, seed))
    assert run.num_stalls == 0
    assert run.fps == pytest.approx(min(FPS, CHUNK_FRAMES / mean_s), rel=0.02)


def test_ten_percent_jitter_at_the_limit_stalls_less_than_once_in_a_hundred_chunks() -> None:
    """At exactly real time there is no reserve; what is left is rare and short."""
    runs = [simulate(jitter(0.75, 0.1, seed)) for seed in range(5)]
    assert sum(run.num_stalls for run in runs) <= 5 * 400 / 100
    assert max(max(run.gaps_s) for run in runs) < 0.3
    assert all(run.fps > 15 for run in runs)


def test_a_hiccup_is_one_gap_and_is_counted() -> None:
    """Half a second too late: one gap, one underrun, then as before."""
    times = chain(repeat(0.75, 50), [1.25], repeat(0.75))
    run = simulate(times, 100)
    assert run.num_stalls == 1
    assert max(run.gaps_s) < 0.6
    assert run.pacer.num_underruns == 1
    assert 0.3 < run.pacer.stall_s < 0.6


def test_without_back_pressure_a_surplus_is_played_off() -> None:
    """Six percent faster, while more is queued than back-pressure would let be."""
    pacer = Pacer()
    pacer.push(0.0, CHUNK_FRAMES, FPS, 0.75)
    assert pacer.interval_s == pytest.approx(NOMINAL_S)
    pacer.push(0.0, CHUNK_FRAMES, FPS, 0.75)
    assert pacer.interval_s == pytest.approx(NOMINAL_S)
    pacer.push(0.0, CHUNK_FRAMES, FPS, 0.75)
    assert pacer.interval_s == pytest.approx(0.94 * NOMINAL_S)


def test_the_first_frame_leaves_at_once() -> None:
    """A chunk's first frame does not wait for a clock that has not begun."""
    pacer = Pacer()
    assert pacer.delay(5.0) is None
    pacer.push(5.0, 9, FPS, 0.5)
    assert pacer.delay(5.0) == 0
    pacer.pop(5.0)
    assert pacer.delay(5.0) == pytest.approx(NOMINAL_S)
    assert pacer.lead_s == pytest.approx(8 * NOMINAL_S)


def test_the_slowest_is_half_the_nominal_rate() -> None:
    """However slow the generator is."""
    pacer = Pacer()
    pacer.push(0.0, 4, FPS, 10.0)
    assert pacer.interval_s == pytest.approx(2 * NOMINAL_S)


def test_a_short_oversleep_is_caught_up() -> None:
    """The clock does not drift by the lateness of each wake-up."""
    pacer = filled_pacer()
    now = 0.0
    for _ in range(8):
        now += delay_of(pacer, now) + 0.01
        pacer.pop(now)
    assert now == pytest.approx(0.01 + 7 * NOMINAL_S + 0.01)


def test_a_long_stop_of_the_loop_is_not_followed_by_a_burst() -> None:
    """After 1 s without a wake-up the next frames are one interval apart, but for the first."""
    pacer = filled_pacer()
    pacer.pop(0.0)
    now, gaps_s = 1.0, []
    pacer.pop(now)
    for _ in range(4):
        gaps_s.append(delay_of(pacer, now))
        now += gaps_s[-1]
        pacer.pop(now)
    assert gaps_s == pytest.approx([0.0, NOMINAL_S, NOMINAL_S, NOMINAL_S])


def test_a_pause_stops_the_clock() -> None:
    """No frame is due, no underrun is counted, and the rest of an interval is kept."""
    pacer = filled_pacer()
    pacer.pop(0.0)
    pacer.pause(0.02)
    pacer.pause(0.03)
    assert pacer.delay(1.0) is None
    pacer.resume(9.02)
    pacer.resume(9.03)
    assert pacer.delay(9.02) == pytest.approx(NOMINAL_S - 0.02)


def test_a_chunk_that_comes_during_a_pause_is_no_underrun() -> None:
    """The queue may run dry and the session be paused; only the viewers' wait counts."""
    pacer = Pacer()
    pacer.push(0.0, 1, FPS, 0.05)
    pacer.pop(0.0)
    pacer.pause(0.01)
    pacer.push(5.0, 4, FPS, 0.05)
    pacer.resume(6.0)
    assert pacer.num_underruns == 0
    assert pacer.delay(6.0) == pytest.approx(NOMINAL_S - 0.01)


def filled_pacer() -> Pacer:
    """Return a pacer with a chunk at hand."""
    pacer = Pacer()
    pacer.push(0.0, CHUNK_FRAMES, FPS, 0.75)
    return pacer


def delay_of(pacer: Pacer, now: float) -> float:
    """Return the delay, which must be known."""
    delay = pacer.delay(now)
    assert delay is not None
    return delay


def test_a_faster_frame_rate_takes_effect_with_its_chunk() -> None:
    """The interval follows the chunk's own rate."""
    pacer = Pacer()
    pacer.push(0.0, 4, 30, 0.05)
    assert pacer.interval_s == pytest.approx(1 / 30)
