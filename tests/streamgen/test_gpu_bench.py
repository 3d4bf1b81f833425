"""The benchmark for cards, run on what is here, and the check that says why it cannot run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from streamgen import gpu_bench, gpu_check
from streamgen.account_cards import CARDS
from streamgen.device import DeviceFacts
from streamgen.gpu_bench import Sweep, chunk_seconds, find_card, markdown, measure, predicted_fps
from streamgen.models.causal_dit import DiTConfig
from streamgen.models.taehv import TAEHVConfig

NO_CARD = DeviceFacts("2.13.0+cpu", None, (), None, False, ())
SWEEP = Sweep(
    DiTConfig(dim=48, ffn_dim=64, num_layers=2, num_heads=2, in_dim=4, out_dim=4),
    sizes=((64, 32),),
    windows=(6,),
    ways=("eager",),
    decoders={
        "tiny": TAEHVConfig(latent_channels=4, encoder_width=8, decoder_widths=(16, 8, 8, 8))
    },
    dtype=torch.float32,
)


def test_without_a_card_it_says_why_in_one_line_and_ends_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(DeviceFacts, "here", lambda: NO_CARD)
    assert gpu_check.main([]) == 3
    said = capsys.readouterr().out
    assert said == (
        "gpu-check cannot run here: torch 2.13.0+cpu is built without CUDA; use cpu, or install "
        "a CUDA build of torch\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run for minutes")
def test_the_command_ends_with_its_status() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "streamgen.gpu_check"],
        capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.count("\n") == 1


def test_the_table_has_a_row_for_each_number_of_sessions() -> None:
    told: list[gpu_bench.BenchRow] = []
    rows = measure(SWEEP, torch.device("cpu"), told.append)
    assert rows == told
    assert [row.sessions for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row.fps > 0
        assert row.predicted_fps is None  # the account knows cards
    table = markdown(rows, "a card")
    assert table.startswith("# a card\n")
    assert table.count("| 64x32 | 6 | tiny | eager |") == 4
    written = json.loads(gpu_bench.document(rows, {"card": "a card"}))
    assert written["machine"] == {"card": "a card"}
    assert [row["fps"] for row in written["rows"]] == [row.fps for row in rows]


def test_frames_follow_from_passes_and_decodes() -> None:
    """Three passes, a first one of two rows a session, and the decodes."""
    seconds = {2: 0.1, 4: 0.15}
    assert chunk_seconds(seconds.__getitem__, 0.02, 2) == pytest.approx(3 * 0.1 + 0.15 + 0.04)


def test_a_card_is_found_by_its_name() -> None:
    assert find_card("NVIDIA GeForce RTX 4090") is CARDS["4090"]
    assert find_card("NVIDIA H100 80GB HBM3") is CARDS["h100"]
    assert find_card("NVIDIA H200") is CARDS["h200"]
    assert find_card("NVIDIA GeForce RTX 4090D") is None
    assert find_card("Tesla T4") is None


def test_the_account_predicts_what_it_predicts_in_a_plan() -> None:
    sweep, card = Sweep(), CARDS["4090"]

    def fps(size: tuple[int, int], window: int, decoder: str, way: str = "eager") -> float:
        found = predicted_fps(sweep, size, window, decoder, way, 1, card)
        assert found is not None
        return found

    assert fps((832, 480), 21, "full") < fps((832, 480), 21, "tiny") < fps((832, 480), 12, "tiny")
    assert fps((832, 480), 12, "tiny") < fps((832, 480), 12, "tiny", "compiled and graphed")
    assert fps((448, 256), 21, "tiny") > 3 * fps((832, 480), 21, "tiny")
