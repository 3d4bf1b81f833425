"""`streamgen bench capacity`: who comes when, who is served, and where the ramp ends."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from streamgen import bench_capacity
from streamgen.bench_capacity import Arrivals, capacity, doubts, is_carried, run, verdict_line
from streamgen.command_options import BenchConfig
from tests.streamgen.bench_form import check_form
from tests.streamgen.tiny import TINY, tiny_config


def row(offered: float, attainment: float | None = 1.0, placed: float = 1.0) -> dict[str, Any]:
    return {
        "offered": offered, "deadline_attainment": attainment, "placed_share": placed,
        "sessions_mean": 0.9 * offered, "sessions_most": int(offered) + 2, "arrivals": 20,
        "chunks": 60,
    }  # fmt: skip


def test_arrivals_are_a_poisson_process_that_waits_for_nobody() -> None:
    """Mean and variance of the arrivals a second are the rate, however seldom one looks."""
    arrivals = Arrivals(rate=5.0)
    came = [at for now in range(0, 2000, 7) for at in arrivals.until(float(now))]
    assert came == sorted(came)
    counts = [0] * 1990
    for at in came:
        if at < len(counts):
            counts[int(at)] += 1
    mean = sum(counts) / len(counts)
    variance = sum((n - mean) ** 2 for n in counts) / len(counts)
    assert mean == pytest.approx(5, rel=0.05)
    assert variance == pytest.approx(5, rel=0.1)


def test_arrivals_are_the_same_every_time() -> None:
    runs = [[at for now in (1.0, 2.0, 9.0) for at in Arrivals(2.0).until(now)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert Arrivals(2.0).until(0.0) == []


@pytest.mark.parametrize(
    ("attainment", "placed", "carried"),
    [
        (1.0, 1.0, True), (0.99, 1.0, True), (0.989, 1.0, False), (1.0, 0.9, True),
        (1.0, 0.89, False), (None, 1.0, True),
    ],
)  # fmt: skip
def test_a_level_is_carried_when_chunks_come_and_people_get_in(
    attainment: float | None, placed: float, carried: bool
) -> None:
    assert is_carried(row(4, attainment, placed)) is carried


def test_the_capacity_is_the_largest_level_that_was_carried() -> None:
    rows = [row(1), row(2), row(4), row(8, 0.6)]
    found = capacity(rows)
    assert found["offered"] == 4
    assert found["sessions_mean"] == pytest.approx(3.6)
    assert found["is_bounded"]
    assert verdict_line(rows).endswith("at 8 60.0% of chunks came in time")
    assert "people were turned away" in verdict_line([row(1), row(2, placed=0.5)])
    assert "ask for more with --sessions" in verdict_line(rows[:2])
    assert capacity([row(1, 0.1)])["offered"] == 0


def test_a_level_at_which_hardly_anybody_came_says_little() -> None:
    nobody, few = row(1, None) | {"arrivals": 0, "chunks": 0}, row(2) | {"arrivals": 9}
    assert capacity([nobody])["offered"] == 0
    assert doubts([nobody, few, row(4)]) == (
        "at 1 sessions offered 0 came: give it more --seconds",
        "at 2 sessions offered 9 came: give it more --seconds",
    )


def test_the_ramp_goes_on_until_it_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_capacity, "LIFE_S", 0.5)
    seen: list[float] = []

    def judged(figures: dict[str, Any]) -> bool:
        seen.append(figures["offered"])
        return figures["offered"] < 4

    monkeypatch.setattr(bench_capacity, "is_carried", judged)
    file = tmp_path / "bench.json"
    config = tiny_config(max_utilisation="0.85")
    options = BenchConfig(seconds=1.0, sessions=(4, 1, 2, 8), json=file)
    assert run(config, options, preset=TINY) == 0
    report = check_form(file, "capacity")
    assert [each["offered"] for each in report["rows"]] == [1, 2, 4]  # 8 is never tried
    assert report["capacity"]["offered"] == 2
    assert report["capacity"]["is_bounded"]
    assert report["config"]["session_s"] == 0.5
    assert sum(each["arrivals"] for each in report["rows"]) > 0
    assert "warm-up" in capsys.readouterr().out


def test_who_finds_no_place_is_counted_and_the_next_one_comes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One place, two that may wait, thirty sessions offered: most are turned away."""
    monkeypatch.setattr(bench_capacity, "LIFE_S", 3.0)
    config = dataclasses.replace(tiny_config(max_utilisation="0.85"), max_queue=2, max_sessions=1)
    bench = bench_capacity.CapacityBench(config, TINY)
    try:
        figures = bench.measure(30, 2.0)
    finally:
        bench.close()
    assert figures["arrivals"] > 10
    assert 0 < figures["refused"] <= figures["arrivals"]
    assert figures["placed_share"] < 0.9
    assert figures["sessions_mean"] <= figures["sessions_most"] <= 4  # their buffers play on
    assert figures["waiting"] in (1, 2)
