"""`streamgen bench live`: the form of its report, and how misses are counted. No time is judged."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from streamgen.bench_live import Playout, run
from streamgen.command_options import BenchConfig
from streamgen.messages import Chunk
from tests.streamgen.tiny import TINY, tiny_config


def chunk(first: int, count: int) -> Chunk:
    return cast(
        Chunk,
        SimpleNamespace(first_frame_index=first, frames=[None] * count, generation_s=0.1),
    )


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
    assert playout.play(104.15) == 21


def test_the_report_names_every_figure(tmp_path: Path) -> None:
    """Costs of one session, the refusal of one too many, and both runs are there."""
    report_file = tmp_path / "live.json"
    config = tiny_config(max_sessions=2, max_utilisation="0.85")
    options = BenchConfig(seconds=0.5, json=report_file)
    assert run(config, options, preset=TINY) == 0
    report: dict[str, Any] = json.loads(report_file.read_text())
    single = report["single"]
    assert single["pages_used"] == single["pages_of_geometry"]
    assert single["pool_bytes"] == single["pool_bytes_of_geometry"]
    assert single["frames_shared"] == "9 of 9"
    assert report["refusal"]
    assert [row["recaches"] for row in report["rows"]] == [False, True]
    for row in report["rows"]:
        assert row["sessions"] >= 1
        assert 0 <= row["busy_measured"] <= 1.5
