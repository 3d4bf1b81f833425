"""`streamgen plan`: what it prints, what it refuses, and what calibration makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamgen import calibrate, cli, stopwatch
from streamgen.account_cards import CARDS
from streamgen.config import EngineConfig
from streamgen.plan_report import duration, scaled

CAUSAL = ("--gpu", "h100", "--model", "causal-wan-1.3b")
FLUX = ("--gpu", "h100", "--reference", "flux-1-dev")
# The bundled model on a device that makes a pass of one row in 20 ms and a decode in 60.
MEASURED = {
    "name": "made up",
    "peak_flops": 1e12,
    "bandwidth": 1e10,
    "memory_bytes": 16 * 2**30,
    "measured": {
        "pass_points": [[1712922624, 0.020], [3425845248, 0.030]],
        "decode_point": [16391602176, 0.060],
        "decode_shares_device": False,
        "host_s": 0.004,
        "runtime_bytes": 400_000_000,
        "element_bytes": [4, 4],
    },
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for variable in [v for v in os.environ if v.startswith("STREAMGEN_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(MEASURED))
    return file


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert cli.main(["plan", *argv, "--json", "-"]) == cli.DONE
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def text_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(["plan", *argv]) == cli.DONE
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Require status 2 and one clear line; return it."""
    try:
        status = cli.main(["plan", *argv])
    except SystemExit as ended:
        status = ended.code  # type: ignore[assignment]
    said = capsys.readouterr()
    assert status == cli.WRONG_USAGE, said
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("See "))
    return lines[0]


def test_a_causal_model_on_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, *CAUSAL, "--sessions", "1,2")
    stages = {stage["name"]: stage for stage in document["stages"]}
    assert list(stages) == ["linear", "attention", "cross-attention", "VAE"]
    passes = sum(stages[name]["flops"] for name in list(stages)[:3])
    assert passes == pytest.approx(202e12, rel=0.04)
    assert stages["VAE"]["flops"] == pytest.approx(40.7e12, rel=0.04)
    assert document["chunk_s"] == pytest.approx(sum(s["seconds"] for s in stages.values()))
    assert document["fps"] == pytest.approx(12 / document["chunk_s"])
    assert [row["sessions"] for row in document["memory"]] == [1, 2]
    assert document["memory"][0]["kv"] == pytest.approx(6.90e9, rel=0.04)
    assert document["sessions_by_time"] == 0
    assert document["price_an_hour_of_video"] == pytest.approx(2.5 * document["chunk_s"] / 0.75)


def test_the_text_says_what_the_document_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, *CAUSAL, "--qps", "2")
    assert "causal-wan-1.3b 832x480, 16 fps, 4 steps, window 21" in text
    assert "40.4 TFLOP, attention 70%" in text
    assert "sessions by time 0 (one alone is slower than it plays)" in text
    assert "no  step cache: few steps are too unlike one another" in text
    assert text.splitlines()[-1].startswith("next: compile and CUDA graphs")
    order = [text.index(f"\n{kind}") for kind in ("count", "lossless", "lossy", "more cards")]
    assert order == sorted(order)


def test_options_change_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    plain = planned(capsys, *CAUSAL)
    for flags, faster in (
        (["--execution", "compiled"], True),
        (["--execution", "eager"], False),
        (["--quantize", "fp8"], True),
        (["--vae", "tiny"], True),
        (["--window", "9", "--sink", "3"], True),
        (["--steps", "2"], True),
        (["--sparsity", "2"], True),
        (["--cards", "4"], True),
        (["--no-fused"], False),
        (["--size", "1280x720"], False),
        (["--eta", "0.2"], False),
    ):
        changed = planned(capsys, *CAUSAL, *flags)
        assert (changed["chunk_s"] < plain["chunk_s"]) is faster or flags == ["--no-fused"], flags
    assert planned(capsys, *CAUSAL, "--price", "5")["card"]["price"] == 5


def test_a_reference_with_its_load(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, *FLUX, "--qps", "100")
    cards = [row["cards"] for row in document["serving"]]
    assert cards == [pytest.approx(n, rel=0.04) for n in (670, 390, 290, 170, 80)]
    assert document["request_s"] == pytest.approx(4.8, rel=0.04)
    assert all(abs(row["error"]) < 0.04 for row in document["recorded"])
    text = text_of(capsys, *FLUX, "--qps", "100", "--cards", "4")
    assert "on 4 cards a step sends: tensor 4.84 GB, ulysses 1.21 GB" in text
    assert "explained by" in text
    assert "DiT eager" in text


def test_a_reference_is_on_an_h100_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, "--reference", "wan-14b-720p")
    assert document["card"]["name"] == "h100"
    assert document["request_s"] == pytest.approx(24 * 60, rel=0.04)
    two = planned(capsys, "--reference", "wan-14b-720p", "--cards", "2", "--parallel", "cfg")
    assert two["request_s"] < 0.6 * document["request_s"]
    cached = planned(capsys, "--reference", "wan-14b-720p", "--step-cache", "0.4")
    assert document["request_s"] / cached["request_s"] == pytest.approx(1.75, rel=0.04)


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
    ("argv", "message"),
    [
        ([*CAUSAL, "--step-cache", "0.4"], "a step cache would hit none"),
        ([*CAUSAL, "--parallel", "pipefusion"], "few steps are too unlike"),
        ([*CAUSAL, "--parallel", "cfg"], "no second pass for another card"),
        (["--reference", "flux-schnell", "--step-cache", "0.6"], "would hit none"),
        ([*FLUX, "--parallel", "cfg"], "guidance distilled in"),
        ([*FLUX, "--steps", "4", "--step-cache", "0.4"], "would hit none"),
        (["--reference", "wan-14b-720p", "--parallel", "cfg", "--cards", "8"], "2 cards, not"),
        ([*FLUX, "--window", "9"], "window is of sessions"),
        ([*FLUX, "--sessions", "4"], "sessions is of causal models"),
        ([*FLUX, "--size", "1000x1000"], "nearest legal size is 992x992"),
        ([*CAUSAL, "--frames", "9"], "frames is of a --reference"),
        ([*CAUSAL, "--window", "none"], "--max-session-seconds"),
        ([*CAUSAL, "--window", "4", "--sink", "2"], "sink 2 + chunk 3 = 5 > window 4"),
        ([*CAUSAL, "--steps", "20"], "outside 1..8"),
        (["--gpu", "h100", "--model", "nope"], "there is pocket, self-forcing, "),
        (["--gpu", "h1000"], "neither 4090, h100, h200, b200, cpu nor a file"),
        (["--gpu", "h100", "--quantize", "fp7"], "expected one of none, fp8, int4"),
        (["--gpu", "h100", "--sparsity", "0"], "expected a positive number"),
        (["--gpu", "h100", "--cards", "0"], "whole number from 1 to 64"),
        (["--reference", "sdxl"], "expected one of flux-1-dev"),
        (["--gpu", "h100", "--qsp", "3"], "did you mean --qps?"),
        (["--gpu", "h100", "--faults", "x"], "no option is called '--faults'"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert message in refused(capsys, *argv)


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


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is not JSON"), ("[]", "must be an object"), ("{}", "name")]
)
def test_a_file_that_is_no_card(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "card.json"
    file.write_text(content)
    assert message in refused(capsys, "--gpu", str(file), "--model", "causal-wan-1.3b")


def test_a_card_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, target = tmp_path / "card.json", tmp_path / "plan.json"
    card = CARDS["h100"]
    facts = {
        "name": "twice", "peak_flops": 2 * card.peak_flops, "bandwidth": 2 * card.bandwidth,
        "memory_bytes": card.memory_bytes,
    }  # fmt: skip
    file.write_text(json.dumps(facts))
    twice = planned(capsys, "--gpu", str(file), "--model", "causal-wan-1.3b")
    assert twice["chunk_s"] == pytest.approx(planned(capsys, *CAUSAL)["chunk_s"] / 2)
    argv = ("--gpu", str(file), "--model", "causal-wan-1.3b", "--json", str(target))
    assert "no price is known; give --price" in text_of(capsys, *argv)
    assert json.loads(target.read_text()) == twice


def test_published_shapes_need_no_torch() -> None:
    program = (
        "import sys\nfrom streamgen import cli\n"
        "assert cli.main(['plan', '--gpu', 'h100', '--model', 'causal-wan-14b']) == 0\n"
        "assert cli.main(['plan', '--reference', 'flux-1-dev']) == 0\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr.decode()


def test_the_ledger_of_each_option_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, *CAUSAL)
    options = {each["name"]: each for each in document["options"]}
    assert list(options) == [
        "as asked", "eager", "compiled", "FP8 weights", "twice the cards", "tiny VAE", "window 10",
        "3 steps", "commit alone",
    ]  # fmt: skip
    assert options["as asked"]["stages"] == document["stages"]
    assert options["as asked"]["seconds"] == document["chunk_s"]
    compiled = planned(capsys, *CAUSAL, "--execution", "compiled")
    assert options["compiled"]["seconds"] == compiled["chunk_s"]
    fewer = planned(capsys, *CAUSAL, "--steps", "3")
    assert options["3 steps"]["stages"] == fewer["stages"]


def test_the_ledger_of_a_references_options_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    document = planned(capsys, *FLUX)
    options = {each["name"]: each["seconds"] for each in document["options"]}
    assert options["as asked"] == pytest.approx(4.8, rel=0.04)
    assert options["flux-schnell"] == pytest.approx(0.80, rel=0.04)
    assert options["step cache 0.4"] < options["as asked"] < options["eager"]


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
        "name": "host", "flops": 0, "bytes": 0, "seconds": 0.004, "bound": "measured",
    }  # fmt: skip


@pytest.mark.parametrize("what", [CAUSAL, FLUX])
def test_a_plan_is_drawn(
    what: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plan.png"
    assert text_of(capsys, *what, "--plot", str(file)).splitlines()[-1].startswith("next: ")
    assert file.read_bytes().startswith(b"\x89PNG")
    assert "must end in one of .png" in refused(capsys, *what, "--plot", str(tmp_path / "a.pdf"))


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
    assert document["chunk_s"] == pytest.approx(made["chunk_s"], rel=0.15)
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


@pytest.mark.parametrize(
    ("number", "text"), [(40.4e12, "40.4 T"), (999.96e9, "1 T"), (0, "0"), (512, "512")]
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert scaled(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1460, "24.3 min"), (4.8, "4.80 s"), (0.0107, "10.7 ms")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_published_models_text_encoder_counts_where_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In main memory, or on the card; and a 24 GB card then holds a session of 21 frames."""

    def memory(*argv: str) -> tuple[float, int]:
        file = tmp_path / "plan.json"
        flags = ["--model", "self-forcing", "--gpu", "4090", "--json", str(file)]
        assert cli.main(["plan", *flags, *argv]) == 0
        plan = json.loads(file.read_text())
        return plan["memory"][0]["text_weights"], plan["sessions_by_memory"]

    assert memory() == (0, 1)
    assert memory("--text-device", "cuda") == (pytest.approx(11.36e9, rel=0.01), 0)
