"""Simulated viewers: clocks, misses, gaps, and what is told of them. No engine, no real time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from streamgen.bench_playout import Playout, played_figures
from streamgen.messages import Chunk


def chunk(first: int, count: int, generation_s: float = 0.1) -> Chunk:
    fields = {"first_frame_index": first, "frames": [None] * count, "generation_s": generation_s}
    return cast(Chunk, SimpleNamespace(**fields))


def test_a_chunk_that_comes_after_the_last_frame_was_due_to_go_is_a_miss() -> None:
    """Ten frames at ten a second last one second; the clock starts anew after a miss."""
    playout = Playout(fps=10)
    playout.take(chunk(0, 10), 100.0)
    assert playout.play(100.0) == 0
    assert playout.play(100.55) == 5
    playout.take(chunk(10, 10), 100.9)
    assert (playout.num_chunks, playout.num_missed) == (2, 0)
    assert playout.play(103.0) == 19
    playout.take(chunk(20, 10), 104.0)
    assert playout.num_missed == 1
    assert playout.stall_s == pytest.approx(2.0)
    assert playout.play(104.15) == 21


def test_a_clock_that_was_not_looked_at_runs_on_all_the_same() -> None:
    """A pass may keep everybody busy for long: a chunk is late though nobody asked for a frame."""
    playout = Playout(fps=10)
    playout.take(chunk(0, 10), 0.0)
    playout.take(chunk(10, 10), 5.0)
    assert playout.num_missed == 1
    assert playout.num_played == 10


def test_gaps_are_those_between_frames_that_were_shown() -> None:
    playout = Playout(fps=10)
    playout.take(chunk(0, 3), 0.0)
    playout.take(chunk(3, 3), 0.5)  # frame 3 was due at 0.3
    playout.play(10.0)
    assert playout.gap_s == pytest.approx([0.1, 0.1, 0.3, 0.1, 0.1])
    assert playout.stall_s == pytest.approx(0.2)


def test_a_control_is_timed_to_the_frame_that_it_begins() -> None:
    playout = Playout(fps=10)
    playout.take(chunk(0, 10), 0.0)
    playout.asked_at["e"] = 0.25
    playout.shown_from[10] = "e"
    playout.take(chunk(10, 10), 0.8)
    playout.play(0.95)
    assert playout.control_s == []
    playout.play(1.5)
    assert playout.control_s == [pytest.approx(0.75)]
    assert not playout.asked_at


def test_who_has_seen_all_is_done_and_never_dry() -> None:
    playout = Playout(fps=10)
    playout.take(chunk(0, 5), 0.0)
    playout.play(0.2)
    playout.is_over = True
    assert not playout.is_done
    playout.play(3.0)
    assert playout.is_done
    assert playout.overdue_s(3.0, 0.0) == 0


def viewer(*chunks: tuple[float, int], fps: float = 10, came_at: float = 0.0) -> Playout:
    """Return a viewer that was given chunks of so many frames at these times."""
    playout, first = Playout(fps, came_at), 0
    for at, count in chunks:
        playout.take(chunk(first, count), at)
        first += count
    return playout


def test_figures_count_what_was_late_and_what_still_is() -> None:
    """One always in time, one late by a second, and a third viewer that has waited since 1.0."""
    in_time = viewer((0.5, 10), (1.0, 10), (1.5, 10))
    late = viewer((0.0, 10), (2.0, 10))
    waiting = viewer((0.0, 10))
    playouts = [in_time, late, waiting]
    for playout in playouts:
        playout.play(2.45)
    figures = played_figures(playouts, since=0.0, now=2.45)
    assert figures["chunks"] == 6
    assert figures["underruns"] == 2  # the late chunk and the one that is overdue
    assert figures["deadline_attainment"] == pytest.approx(1 / 2)  # of four that were due
    assert figures["ttff_ms_p50"] == pytest.approx(0)
    assert figures["ttff_ms_p99"] == pytest.approx(500, abs=15)
    assert figures["frames_shown"] == 20 + 15 + 10
    assert figures["continuous_play"] == pytest.approx(4.5 / (4.5 + 1.0 + 1.45))
    assert figures["gap_ms_max"] == pytest.approx(1100)


def test_figures_of_nobody_are_none_and_no_zeros() -> None:
    figures = played_figures([], since=0.0, now=1.0)
    assert figures["deadline_attainment"] is figures["continuous_play"] is None
    assert figures["chunk_ms_p50"] is figures["gap_ms_max"] is None
    assert figures["underruns"] == 0


def test_after_forgetting_only_what_comes_counts() -> None:
    """A stall that goes on is counted from there on, and still as a miss when it ends."""
    playout = viewer((0.0, 10), (3.0, 10))
    playout.play(6.0)
    playout.forget(6.0)
    assert played_figures([playout], 6.0, 6.0)["chunks"] == 0
    playout.take(chunk(20, 10), 7.5)
    figures = played_figures([playout], 6.0, 7.5)
    assert playout.stall_s == pytest.approx(1.5)
    assert figures["underruns"] == 1
    assert figures["deadline_attainment"] == 0
