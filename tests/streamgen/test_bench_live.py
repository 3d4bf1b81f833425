"""`streamgen bench live`: the form of its report. No time is judged."""

from __future__ import annotations

from pathlib import Path

from streamgen.bench_live import run
from streamgen.command_options import BenchConfig
from tests.streamgen.bench_form import check_form
from tests.streamgen.tiny import TINY, tiny_config


def test_the_report_names_every_figure(tmp_path: Path) -> None:
    """Costs of one session, the refusal of one too many, and both runs are there."""
    file = tmp_path / "live.json"
    config = tiny_config(max_utilisation="0.85")
    assert run(config, BenchConfig(sessions=(2,), seconds=0.5, json=file), preset=TINY) == 0
    report = check_form(file, "live")
    single = report["single"]
    assert single["pages_used"] == single["pages_of_geometry"]
    assert single["pool_bytes"] == single["pool_bytes_of_geometry"]
    assert single["frames_shared"] == "9 of 9"
    assert report["refusal"]
    assert [row["recaches"] for row in report["rows"]] == [False, True]
    for row in report["rows"]:
        assert 1 <= row["sessions"] <= 2
        assert 0 <= row["busy_measured"] <= 1.5
