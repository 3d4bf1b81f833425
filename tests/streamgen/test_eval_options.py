"""`streamgen eval` on options, with and without LPIPS, and at a server's start."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from streamgen import perceptual, quality_gate, quality_start
from streamgen.command_options import EvalConfig
from streamgen.engine_worker import EngineWorker
from streamgen.models.presets import Preset
from streamgen.quality_sources import Take
from streamgen.startup import resolve
from tests.streamgen.evaluating import evaluate
from tests.streamgen.tiny import TINY, tiny_config


def test_options_are_run_with_the_same_prompts_and_seeds(tmp_path: Path) -> None:
    report = evaluate(
        tmp_path, candidate="steps=1", prompt=("a red ball", "a blue star"), seeds=(0, 1)
    )
    names = [clip["name"] for clip in report["clips"]]
    assert names == [
        f"{prompt!r}, seed {seed}" for prompt in ("a red ball", "a blue star") for seed in (0, 1)
    ]
    assert {len(clip["frames"]) for clip in report["clips"]} == {24}
    assert report["baseline"]["from"] == "the options as they are"
    assert report["worst_chunk_psnr_db"] < 100  # fewer steps make other pictures


def test_the_same_options_make_the_same_pictures(tmp_path: Path) -> None:
    report = evaluate(tmp_path, baseline="steps=2", candidate="steps=2,window=9")
    assert report["clips"][0]["psnr_db"] == 100
    assert report["verdict"] == "invisible"


def test_the_gate_can_be_asked_without_a_command(tmp_path: Path) -> None:
    scores = quality_gate.gate(
        tiny_config(), tiny_config(steps=1), takes=[Take("a", 3)], seconds=0.5, preset=TINY
    )
    assert [score.name for score in scores] == ["'a', seed 3"]
    assert scores[0].psnr_db < 100


def test_the_models_suggestions_are_the_prompts_otherwise(tmp_path: Path) -> None:
    preset: Preset = dataclasses.replace(TINY, suggestions=("one", "two"))
    options = EvalConfig(candidate="steps=2", seconds=0.25, json=tmp_path / "eval.json")
    assert quality_gate.run(tiny_config(), options, preset=preset) == 0
    report = json.loads((tmp_path / "eval.json").read_text())
    assert [clip["name"] for clip in report["clips"]] == ["'one', seed 0", "'two', seed 0"]


# LPIPS.


def fake_lpips(fails: Exception | None = None) -> SimpleNamespace:
    """A package whose network returns the mean difference of pictures in [-1, 1]."""

    class LPIPS:
        def __init__(self, *, net: str, verbose: bool) -> None:
            assert (net, verbose) == ("alex", False)
            if fails is not None:
                raise fails

        def __call__(self, a: torch.Tensor, b: torch.Tensor, *, normalize: bool) -> torch.Tensor:
            assert normalize
            assert a.shape[:2] == (1, 3)
            assert 0 <= float(a.min()) <= float(a.max()) <= 1
            return (2 * (a - b).abs()).mean().reshape(1, 1, 1, 1)

    return SimpleNamespace(LPIPS=LPIPS)


def with_package(monkeypatch: pytest.MonkeyPatch, package: object) -> None:
    monkeypatch.setattr(perceptual.importlib, "import_module", lambda name: package)


def test_lpips_is_told_when_its_package_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_package(monkeypatch, fake_lpips())
    report = evaluate(tmp_path, candidate="steps=1")
    clip = report["clips"][0]
    assert report["missing"] == {}
    assert clip["lpips"] == pytest.approx(np.mean([frame["lpips"] for frame in clip["frames"]]))
    assert clip["lpips"] > 0
    assert "LPIPS missing" not in capsys.readouterr().out


@pytest.mark.parametrize("fails", [None, OSError("no network")])
def test_lpips_that_is_missing_is_said_to_be(
    fails: Exception | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if fails is None:
        monkeypatch.setattr(perceptual, "PACKAGE", "lpips_that_nobody_has")
    else:
        with_package(monkeypatch, fake_lpips(fails))
    report = evaluate(tmp_path, candidate="steps=2")
    why = "cannot be imported" if fails is None else "weights of alex could not be had (no network)"
    assert why in report["missing"]["lpips"]
    assert report["clips"][0]["lpips"] is None
    assert "LPIPS missing: " in capsys.readouterr().out


def test_lpips_is_not_tried_when_it_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perceptual, "PACKAGE", "lpips_that_nobody_has")
    assert evaluate(tmp_path, candidate="steps=2", metrics=("psnr", "ssim"))["missing"] == {}


# At a server's start.


def test_the_gate_at_the_start_undoes_what_is_lossy() -> None:
    engine = tiny_config(dtype="bf16", steps=1, window=12, sink=7)
    undone = quality_start.lossless(engine)
    assert (undone.dtype, undone.steps, undone.window) == ("fp32", None, None)
    assert resolve(undone, TINY).sink == TINY.sink_frames  # 7 would leave no room in its window
    assert undone.deterministic
    assert undone.model == engine.model


@pytest.mark.parametrize(("options", "equal"), [({}, True), ({"steps": 1}, False)])
def test_the_gate_at_the_start_tells_what_options_cost(
    options: dict[str, int], equal: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(quality_start, "SECONDS", 0.5)
    # A server's sampler and its lines about chunks are of what is shown.
    engine = tiny_config(deterministic=True, sample_quality=0.1, gate=True, **options)
    with caplog.at_level("INFO"):
        lines = quality_start.gate_lines(engine, TINY)
    assert not [r for r in caplog.records if r.name in ("streamgen.trace", "streamgen.quality")]
    assert lines[0].startswith("baseline: from the options as they are, but dtype fp32")
    assert lines[-1].startswith("invisible" if equal else ("visible", "rejected", "invisible"))
    assert ("worst 100.0 dB" in lines[-1]) is equal


def test_an_engine_runs_the_gate_once_and_a_successor_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quality_start, "gate_lines", lambda engine, preset: ["the verdict"])
    replies: list[Any] = []
    config = tiny_config(gate=True)
    for measured in (None, object()):
        worker = EngineWorker(config, TINY, replies.append, measured=measured)  # type: ignore[arg-type]
        with caplog.at_level("INFO"):
            worker._gate()
    assert [(reply.stage, reply.progress) for reply in replies] == [("gate", 0.0)]
    assert [record.message for record in caplog.records].count("gate: the verdict") == 1
