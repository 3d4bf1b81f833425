"""`streamgen bench latency`: what is counted and predicted. Nothing here depends on speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamgen import bench, bench_latency, cli
from streamgen.account_causal import chunk_s, latency_s
from streamgen.account_memory import memory
from streamgen.bench_latency import comparison, find_load, play, predicted
from streamgen.command_options import BenchConfig
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError
from streamgen.models.presets import POCKET
from tests.streamgen.bench_form import check_form
from tests.streamgen.planning import MEASURED
from tests.streamgen.tiny import TINY, tiny_config


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    """A device on which the bundled model makes a pass in 20 ms and a decode in 60."""
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps(MEASURED))
    return file


@pytest.fixture(autouse=True)
def no_calibration_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_one_session_is_measured_alone_and_played_in_real_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[int] = []
    make = bench.Bench._open

    def noted(self: bench.Bench, number: int, num_frames: int) -> bench.Take:
        opened.append(num_frames)
        return make(self, number, num_frames)

    monkeypatch.setattr(bench.Bench, "_open", noted)
    monkeypatch.setattr(bench_latency, "SETTLE_S", 0.3)
    file = tmp_path / "bench.json"
    options = BenchConfig(seconds=2.5, json=file)
    assert bench_latency.run(tiny_config(), options, preset=TINY) == 0
    assert opened == [40, *[1] * 8, 40]  # thrown away; openings; the one that counts
    (row,) = check_form(file, "latency")["rows"]
    assert row["sessions"] == 1
    assert row["fps_serial"] == row["fps_total"]
    assert row["ttff_ms_p50"] <= row["ttff_ms_p95"] <= row["ttff_ms_p99"]
    assert row["gap_ms_p50"] == pytest.approx(1000 / 16, rel=0.05)
    assert row["predicted_every_ms"] is None
    assert "not predicted: tiny is no model of the account" in capsys.readouterr().out


def test_a_change_of_prompt_is_timed_to_the_frame_it_shows_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change every 0.9 s; a chunk is 0.75 s, and two may have been begun before it."""
    monkeypatch.setattr(bench_latency, "SETTLE_S", 0.5)
    monkeypatch.setattr(bench_latency, "CONTROL_EVERY_S", (0.9, 0.9))
    figures = play(tiny_config(), 6.0, TINY)
    assert 50 < figures["control_to_frame_ms_p50"] < 20_000


def test_predictions_are_the_accounts(calibration: Path) -> None:
    options = BenchConfig(calibration=calibration)
    load, basis = find_load(EngineConfig(), options, POCKET)
    assert load is not None
    assert basis == "predicted from made up, calibrated"
    row = {"every_ms_p50": 100.0, "chunk_ms_p50": 200.0, "resident_bytes": 10**9}
    figures = predicted(load, row)
    assert figures["predicted_every_ms"] == 1000 * chunk_s(load) == pytest.approx(94)
    assert figures["predicted_chunk_ms"] == 1000 * latency_s(load) == pytest.approx(154)
    assert figures["predicted_resident_bytes"] == memory(load, 1).total
    assert figures["error_every_ms"] == pytest.approx(-0.06)
    assert figures["error_chunk_ms"] == pytest.approx(-0.23)
    lines = comparison(row | figures)
    assert "measured" in lines[0]
    assert lines[1].split()[-3:] == ["100.0", "94.0", "-6.0%"]
    assert len(lines) == 4


def test_a_system_that_does_not_tell_its_memory_has_no_error_of_it(calibration: Path) -> None:
    load, _ = find_load(EngineConfig(), BenchConfig(calibration=calibration), POCKET)
    row = {"every_ms_p50": 100.0, "chunk_ms_p50": 200.0, "resident_bytes": None}
    figures = predicted(load, row)
    assert figures["error_resident_bytes"] is None
    assert len(comparison(row | figures)) == 3


def test_without_a_calibration_nothing_is_predicted_and_the_reason_said(tmp_path: Path) -> None:
    load, basis = find_load(EngineConfig(), BenchConfig(), POCKET)
    assert load is None
    assert "streamgen plan --calibrate" in basis


def test_a_calibration_that_was_named_has_to_fit(calibration: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        find_load(EngineConfig(), BenchConfig(calibration=tmp_path / "none.json"), POCKET)
    with pytest.raises(ConfigError, match="calibrated with elements of 4 bytes"):
        find_load(EngineConfig(dtype="bf16"), BenchConfig(calibration=calibration), POCKET)


def test_it_is_of_one_session(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "latency", "--sessions", "2"]) == cli.WRONG_USAGE
    assert "of one session alone" in capsys.readouterr().err


@pytest.mark.slow
def test_the_bundled_model_is_measured(
    tmp_path: Path, calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    argv = ["--seconds", "1", "--load-format", "dummy", "--threads", "1", "--dtype", "fp32"]
    argv += ["--calibration", str(calibration), "--steps", "2", "--json", str(file)]
    assert cli.main(["bench", "latency", *argv]) == cli.DONE
    report = check_form(file, "latency")
    assert report["config"] | {"model": "pocket", "steps": 2, "fps": 16} == report["config"]
    (row,) = report["rows"]
    assert row["error_every_ms"] == pytest.approx(
        row["predicted_every_ms"] / row["every_ms_p50"] - 1
    )
    assert "a chunk every, ms" in capsys.readouterr().out
