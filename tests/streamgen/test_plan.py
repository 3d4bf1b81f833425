"""`streamgen plan`: what it prints, what it refuses, and what calibration makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamgen import cli, plan_plot
from streamgen.account_cards import CARDS
from streamgen.plan_report import duration, scaled
from tests.streamgen.planning import CAUSAL, FLUX, planned, refused, text_of, with_clean_environment


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_clean_environment(monkeypatch, tmp_path)


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


def test_a_smaller_picture_is_smaller_for_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    large, small = (
        {
            row["name"]: row["gpu_s"]
            for row in planned(capsys, *FLUX, "--qps", "1", *size)["serving"]
        }
        for size in ((), ("--size", "512x512"))
    )
    assert all(small[name] < 0.4 * large[name] for name in large), (large, small)


def test_cards_that_are_there_are_not_offered_again(capsys: pytest.CaptureFixture[str]) -> None:
    """And what is left gains what it does of the shorter request."""
    alone, four = (planned(capsys, *FLUX, "--cards", cards) for cards in ("1", "4"))
    offered = [
        [e["name"] for e in document["exchanges"] if e["kind"] == "more cards"]
        for document in (alone, four)
    ]
    assert offered == [["Ulysses on 4", "Ulysses on 8"], ["Ulysses on 8"]]
    gains = [e["gain"] for e in four["exchanges"] if e["name"] == "Ulysses on 8"]
    eight = planned(capsys, *FLUX, "--cards", "8")
    assert gains == [pytest.approx(four["request_s"] / eight["request_s"])]


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
        ([*FLUX, "--no-fused"], "fused is of sessions"),
        ([*FLUX, "--max-utilisation", "0.5"], "max_utilisation is of sessions"),
        ([*FLUX, "--sessions", "4"], "sessions is of causal models"),
        ([*FLUX, "--size", "1000x1000"], "nearest legal size is 992x992"),
        ([*CAUSAL, "--frames", "9"], "frames is of a --reference"),
        ([*CAUSAL, "--window", "none"], "--max-session-seconds"),
        ([*CAUSAL, "--window", "4", "--sink", "2"], "sink 2 + chunk 3 = 5 > window 4"),
        ([*CAUSAL, "--steps", "20"], "outside 1..8"),
        (["--gpu", "h100", "--model", "nope"], "there is pocket, self-forcing, "),
        (["--gpu", "h1000"], "neither 4090, h100, h200, b200, cpu nor a file"),
        (["--gpu", "h100", "--quantize", "fp7"], "expected one of none, fp8, int4"),
        (["--gpu", "h100", "--sparsity", "0.5"], "expected a number from 1 to 1,000"),
        (["--gpu", "h100", "--eta", "1e-300"], "expected a number from 0.001 to 1"),
        (["--gpu", "h100", "--eta", "1.01"], "expected a number from 0.001 to 1"),
        (["--gpu", "h100", "--qps", "1e308"], "expected a number from 0.001 to 1,000,000"),
        (["--gpu", "h100", "--price", "nan"], "expected a number from 0.001 to 1,000,000"),
        (["--gpu", "h100", "--sessions", "1,1000000000"], "sessions from 1 to 10,000"),
        ([*FLUX, "--frames", "17"], "frames is of video; flux-1-dev makes a picture"),
        ([*FLUX, "--seconds", "7"], "seconds is of causal models"),
        ([*CAUSAL, "--calibration", "c.json"], "calibration is read for --gpu cpu alone"),
        (["--gpu", "/dev/zero"], "/dev/zero is no file"),
        ([*CAUSAL, "--json", "nowhere/a.json"], "there is no folder nowhere"),
        ([*CAUSAL, "--json", "a.txt"], "must end in one of .json"),
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON: it is nested too deep"),
        ('{"price": NaN}', "is not JSON: NaN"),
        ("[]", "must be an object"),
        ("{}", "name"),
    ],
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


@pytest.mark.parametrize(
    ("seconds", "units"), [(0.5, ["TFLOP", "MB moved", "ms"]), (4.0, ["TFLOP", "MB moved", "s"])]
)
def test_a_picture_has_units_that_can_be_read(
    seconds: float, units: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    figures: list[Any] = []
    monkeypatch.setattr(plan_plot, "save", lambda figure, path: figures.append(figure))
    stage = {"name": "VAE", "flops": 2e12, "bytes": 3e6, "seconds": seconds}
    document = {
        "model": "m", "settings": {"size": "8x8"},
        "card": {"name": "c", "is_measured": False, "eta": 0.5},
        "options": [{"name": "as asked", "stages": [stage], "seconds": seconds}],
    }  # fmt: skip
    plan_plot.draw(document, Path("a.png"))
    axes = figures[0].axes
    assert [each.get_xlabel() for each in axes] == units
    widths = [each.patches[0].get_width() for each in axes]
    assert widths == pytest.approx([2, 3, seconds if seconds > 1 else 1000 * seconds])
    assert list(axes[2].lines[0].get_xdata()) == pytest.approx([widths[2]])


@pytest.mark.parametrize("what", [CAUSAL, FLUX])
def test_a_plan_is_drawn(
    what: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plan.png"
    assert text_of(capsys, *what, "--plot", str(file)).splitlines()[-1].startswith("next: ")
    assert file.read_bytes().startswith(b"\x89PNG")
    assert "must end in one of .png" in refused(capsys, *what, "--plot", str(tmp_path / "a.pdf"))


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
