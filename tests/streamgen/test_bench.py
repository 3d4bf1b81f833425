"""`streamgen bench`: what is counted, and the form it is told in. Nothing here depends on speed."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from kvcache import PageTable, WindowConfig
from streamgen import bench
from streamgen.command_options import BenchConfig
from streamgen.errors import GenerationFailed, StreamgenError
from streamgen.model_runner import ModelRunner, Row, StepBatch
from streamgen.models import fused
from streamgen.models.presets import build
from streamgen.startup import resolve, runner_config
from streamgen.stopwatch import STAGES, Stopwatch, batch_flops
from streamgen.text import TextMix
from tests.streamgen.bench_form import check_form
from tests.streamgen.tiny import TINY, tiny_config

MACHINE = {"cpu", "cores", "device", "torch", "threads", "dtype", "commit"}


def measure(folder: Path, **options: object) -> dict:
    """Run the benchmark on the tiny model and return what it wrote."""
    config = BenchConfig(**{"seconds": 0.5, "json": folder / "bench.json", **options})
    assert bench.run(tiny_config(), config, preset=TINY) == 0
    return check_form(folder / "bench.json", "sessions")


def test_the_report_has_the_published_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = measure(tmp_path, sessions=(1, 2), csv=tmp_path / "bench.csv")
    assert set(report["machine"]) >= MACHINE
    assert report["machine"]["dtype"] == "float32"
    assert report["machine"]["threads"] == 1
    assert report["config"]["model"] == "tiny"
    assert report["config"]["frames_per_session"] == 8
    assert [row["sessions"] for row in report["rows"]] == [1, 2]
    said = capsys.readouterr().out
    assert "warm_up" in said
    assert "neither is counted" in said
    with (tmp_path / "bench.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["sessions"] for row in rows] == ["1", "2"]
    assert float(rows[1]["share_dit"]) == report["rows"][1]["share"]["dit"]


def test_q34_rates_count_pixel_frames_of_all_sessions_with_everything_included(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures: list[tuple[int, ...]] = []
    encode = bench.simplejpeg.encode_jpeg

    def counted(picture: np.ndarray, *arguments: object, **options: object) -> bytes:
        pictures.append(picture.shape)
        return encode(picture, *arguments, **options)

    monkeypatch.setattr(bench.simplejpeg, "encode_jpeg", counted)
    row = measure(tmp_path, sessions=(3,), seconds=1.25)["rows"][0]
    # A video thrown away, three together, the same three one after another; 20 frames each.
    assert pictures == [(32, 48, 3)] * (1 + 3 + 3) * 20
    assert row["fps_per_session"] * 3 == pytest.approx(row["fps_total"])
    assert row["rtf"] == pytest.approx(row["fps_per_session"] / TINY.fps)
    assert set(row["share"]) == set(STAGES)
    assert all(share > 0 for share in row["share"].values())
    assert sum(row["share"].values()) == pytest.approx(1)
    assert row["dit_peak_share"] > 0
    assert 0 < row["chunk_ms_p50"] <= row["chunk_ms_p95"]
    assert row["ttff_ms_p50"] > 0


def test_sessions_that_run_together_share_forwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run = ModelRunner.run

    def noted(self: ModelRunner, batch: StepBatch) -> list[torch.Tensor]:
        sizes.append(len(batch.rows))
        return run(self, batch)

    monkeypatch.setattr(ModelRunner, "run", noted)
    measure(tmp_path, sessions=(4,))
    assert 4 in sizes
    assert sizes[-1] == 1  # one after another at the end


def test_a_session_that_fails_ends_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls = ModelRunner.run, 0

    def fail(self: ModelRunner, batch: StepBatch) -> list[torch.Tensor]:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise RuntimeError("kernel")
        return run(self, batch)

    monkeypatch.setattr(ModelRunner, "run", fail)
    with pytest.raises(GenerationFailed, match="kernel"):
        measure(tmp_path, seconds=60)
    assert not (tmp_path / "bench.json").exists()


@pytest.mark.parametrize("option", [{"size": "50x32"}, {"steps": 99}, {"window": 2}])
def test_impossible_options_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(StreamgenError):
        bench.run(tiny_config(**option), BenchConfig(), preset=TINY)


@pytest.mark.parametrize("held", [0, 2])
def test_operations_are_those_that_torch_counts(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula against torch's own counter, with an empty and with a filled window."""
    monkeypatch.setattr(fused, "can_fuse", lambda _: False)
    config = resolve(tiny_config(), TINY)
    model = build(TINY)
    sizes = runner_config(config, TINY, torch.device("cpu"), 1)
    runner = ModelRunner(model.dit, model.text_encoder, torch.float32, sizes)
    table = PageTable(runner.pool, WindowConfig(9), 3, fused=False)
    slot = runner.acquire_text(TextMix.of("a"))
    for chunk in range(held + 1):
        row = Row(torch.zeros(3, *sizes.latent_shape), 500.0, table.begin(3), slot)
        batch = StepBatch((row,))
        # The counter knows only what is made of products, no fused layer and one kernel.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            runner.run(batch)
        if chunk < held:
            table.commit()
    assert batch_flops(runner, batch) == counter.get_total_flops()


def test_shares_of_nothing_are_nothing() -> None:
    watch = Stopwatch()
    assert watch.shares() == dict.fromkeys(STAGES, 0.0)
    watch.add("dit", 3.0)
    watch.add("vae", 1.0)
    assert watch.shares() == {"text": 0.0, "dit": 0.75, "vae": 0.25, "encode": 0.0}
