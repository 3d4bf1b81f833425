"""`streamgen plan` on a device that was measured, and the calibration that measures it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from streamgen import calibrate, stopwatch
from streamgen.config import EngineConfig
from tests.streamgen.planning import MEASURED, planned, refused, text_of, with_clean_environment


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_clean_environment(monkeypatch, tmp_path)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(MEASURED))
    return file


@pytest.mark.parametrize(
    ("decode_s", "bound", "gain"), [(0.060, "linear", None), (0.200, "VAE", 0.204 / 0.094)]
)
def test_what_bounds_a_measured_device_is_what_would_pay(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, decode_s: float, bound: str, gain: float
) -> None:
    """A decode beside longer passes is not the bound, however long it is."""
    file = tmp_path / "measured.json"
    point = [MEASURED["measured"]["decode_point"][0], decode_s]  # type: ignore[index]
    facts = {**MEASURED, "measured": {**MEASURED["measured"], "decode_point": point}}  # type: ignore[dict-item]
    file.write_text(json.dumps(facts))
    document = planned(capsys, "--gpu", str(file))
    assert document["bound"] == bound
    seconds = {stage["name"]: stage["seconds"] for stage in document["stages"]}
    gain = gain or 0.094 / (0.004 + max(sum(seconds.values()) - 0.060 - seconds["linear"], 0.060))
    count = document["exchanges"][0]
    assert (count["kind"], count["name"]) == ("count", bound)
    assert f"without it all would be {gain:.2f}x as fast" in count["text"]
    # 90 ms of passes are far beyond 8 GFLOP at 1 TFLOP/s; the decode is not.
    bounds = {stage["name"]: stage["bound"] for stage in document["stages"]}
    assert bounds["linear"] == bounds["attention"] == "overhead"
    assert bounds["VAE"] == "arithmetic"


def test_a_measured_device_predicts_from_its_own_seconds(
    capsys: pytest.CaptureFixture[str], measured: Path
) -> None:
    document = planned(capsys, "--model", "pocket", "--gpu", str(measured), "--sessions", "1,8")
    assert document["chunk_s"] == pytest.approx(3 * 0.020 + 0.030 + 0.004)
    assert document["latency_s"] == pytest.approx(3 * 0.020 + 0.030 + 0.004 + 0.060)
    assert document["decode_is_beside"] is True
    assert document["sessions_by_time"] > 4
    one, eight = document["memory"]
    assert one["runtime"] == 400_000_000
    assert eight["kv"] == 8 * one["kv"]
    fewer = planned(capsys, "--model", "pocket", "--gpu", str(measured), "--steps", "2")
    assert fewer["chunk_s"] == pytest.approx(0.060 + 0.004)  # the decode is the longer one


def test_the_calibration_of_this_machine_is_the_default_device(
    capsys: pytest.CaptureFixture[str], measured: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "cache" / "streamgen" / "calibration.json"
    assert kept == calibrate.calibration_file()
    message = refused(capsys, "--model", "pocket")
    assert str(kept) in message
    assert "streamgen plan --calibrate" in message
    kept.parent.mkdir(parents=True)
    kept.write_text(measured.read_text())
    assert planned(capsys)["card"]["name"] == "made up"
    kept.unlink()
    assert planned(capsys, "--calibration", str(measured))["card"]["name"] == "made up"


@pytest.mark.parametrize(
    ("machine", "doubts"),
    [
        (
            {"cores": 3, "torch": "0.1"},
            ["cores 3, and here they are 2", "torch 0.1, and here they"],
        ),
        ({"cores": 2, "torch": torch.__version__}, []),
        ({}, []),
        ("mine", []),
    ],
)
def test_a_calibration_of_other_circumstances_is_doubted(
    machine: object, doubts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(calibrate, "num_cores", lambda: 2)
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps({**MEASURED, "machine": machine}))
    argv = ("--calibration", str(file))
    document = planned(capsys, *argv)
    assert len(document["doubts"]) == len(doubts)
    for doubt, expected in zip(document["doubts"], doubts, strict=True):
        assert f"{file} was measured with {expected}" in doubt
        assert doubt in text_of(capsys, *argv)


@pytest.mark.parametrize("flags", [("--quantize", "fp8"), ("--cards", "2"), ("--eta", "0.4")])
def test_what_was_not_measured_is_not_guessed(
    capsys: pytest.CaptureFixture[str], measured: Path, flags: tuple[str, str]
) -> None:
    message = refused(capsys, "--gpu", str(measured), *flags)
    assert f"{flags[0].removeprefix('--')} was not measured on made up" in message


def test_a_format_that_was_not_measured_is_not_guessed(
    capsys: pytest.CaptureFixture[str], measured: Path
) -> None:
    message = refused(capsys, "--gpu", str(measured), "--dtype", "bf16")
    assert "made up was calibrated with elements of 4 bytes in passes" in message
    assert planned(capsys, "--gpu", str(measured), "--dtype", "fp32")["fps"] > 0


def test_only_options_that_were_measured_are_told_of_a_measured_device(
    capsys: pytest.CaptureFixture[str], measured: Path
) -> None:
    options = planned(capsys, "--gpu", str(measured))["options"]
    assert [each["name"] for each in options] == [
        "as asked",
        "window 4",
        "3 steps",
        "commit alone",
    ]
    assert options[0]["stages"][-1] == {
        "name": "host", "flops": 0, "bytes": 0, "seconds": 0.004, "bound": "overhead",
    }  # fmt: skip


@pytest.mark.slow
def test_calibration_predicts_what_it_saw(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module, name, value in (
        (calibrate, "ROUNDS", 1), (calibrate, "CHUNKS", 5), (calibrate, "COPY_BYTES", 2**20),
        (stopwatch, "PEAK_SECONDS", 0.1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    kept = tmp_path / "here" / "calibration.json"
    facts = calibrate.calibrate(EngineConfig(dtype="fp32"), kept)
    assert json.loads(kept.read_text()) == facts
    assert facts["peak_flops"] > 0
    assert facts["bandwidth"] > 0
    flags = ("--gpu", "cpu", "--calibration", str(kept), "--sessions", "4")
    document = planned(capsys, *flags)
    made = facts["machine"]
    assert document["chunk_s"] == pytest.approx(made["chunk_s"], rel=0.5)  # the machine may be busy
    assert document["memory"][0]["total"] == pytest.approx(made["resident_bytes"], rel=0.05)
    assert facts["measured"]["element_bytes"] == [4, 4]


def test_a_usual_chunk_is_one_of_the_middle_half() -> None:
    warm = [0.0] * calibrate.WARM_CHUNKS
    take = calibrate.Take(
        made_at=[*warm, 1, 3, 13, 15], dit_s=[*warm, 1, 2, 10, 12], vae_s=[*warm, 0, 1, 2, 3]
    )
    # Chunks of 1, 2, 10 and 2 seconds: the fastest and the slowest do not count.
    assert calibrate.usual_s(take) == (1.5, 1.0, 2.0)


def test_noise_is_taken_out_of_passes() -> None:
    assert calibrate.plausible({1: 2.0, 2: 9.0, 4: 5.0}) == {1: 2.0, 2: 4.0, 4: 5.0}
    assert calibrate.plausible({1: 2.0, 2: 3.0, 4: 5.0}) == {1: 2.0, 2: 3.0, 4: 5.0}
