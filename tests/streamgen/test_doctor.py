"""`streamgen doctor` and `streamgen models`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch

from streamgen import cli, doctor
from streamgen.cli import main
from streamgen.device import CardFacts, DeviceFacts
from streamgen.errors import ConfigError
from streamgen.models.presets import PRESETS

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", ["raise ImportError('no kernel')", "raise RuntimeError('ABI')"])
def test_q54_an_optional_kernel_that_is_broken_is_in_nobodys_way(
    fault: str, tmp_path: Path
) -> None:
    (tmp_path / "flash_attn.py").write_text(fault)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from streamgen import doctor; print(doctor.check_attention())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "sdpa" in ended.stdout


def test_q54_attention_that_gives_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.SdpaAttention, "plan", lambda *args: lambda layer, q, k, v: (
        torch.rand_like(q)
    ))  # fmt: skip
    with pytest.raises(doctor.CheckFailed, match="off the dense product"):
        doctor.check_attention()


def test_q55_doctor_fails_with_a_card_that_stays_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = DeviceFacts("2.13.0+cpu", None, (), None, True, ())
    monkeypatch.setattr(DeviceFacts, "here", lambda: idle)
    with pytest.raises(doctor.CheckFailed, match="has an NVIDIA driver, but torch"):
        doctor.check_device()
    assert doctor.facts()["cuda"] == "not in this torch, 0 devices"
    old = CardFacts("Tesla V100", (7, 0), 2**30, 2**34)
    known = DeviceFacts("2.13.0", "13.0", ("sm_90",), "0", True, (old,))
    monkeypatch.setattr(DeviceFacts, "here", lambda: known)
    with pytest.raises(doctor.CheckFailed, match="no kernels for Tesla V100, sm_70"):
        doctor.check_device()
    told = doctor.facts()
    assert told["cuda"] == "13.0, kernels for sm_90, CUDA_VISIBLE_DEVICES='0', 1 devices"
    assert told["cuda:0"] == "Tesla V100, sm_70, 1.0 of 16.0 GiB free"


def test_doctor_says_what_a_bug_report_needs_and_fails_with_a_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "check_model", lambda preset: "weights")
    assert main(["doctor"]) == cli.DONE
    said = capsys.readouterr().out
    assert all(name in said for name in ("python", "cpu", "torch", "websockets", "attention"))

    def broken(preset: object) -> str:
        raise ConfigError("no weights")

    monkeypatch.setattr(doctor, "check_model", broken)
    assert main(["doctor"]) == cli.CHECK_FAILED
    assert "FAIL: no weights" in capsys.readouterr().out


def test_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """With licence, size, memory for a session, whether the files are here and whether it fits."""
    assert main(["models"]) == cli.DONE
    said = capsys.readouterr().out
    assert said.startswith("pocket  128x128 at 16 fps")
    entries = dict(re.findall(r"^(\S+)  .*\n    (.+)$", said, re.MULTILINE))
    assert entries["self-forcing"].startswith("CC-BY-NC-SA-4.0, 1.4 B parameters, ")
    needs = r"[0-9.]+ GB for one session on \w+: (fits|does not fit) "
    assert re.search(needs, entries["longlive"])
    assert "krea-realtime-14b  not supported: before each chunk" in said


def test_a_published_model_is_not_loaded_by_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take minutes; what is said of it is whether its files are here."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "/nowhere")
    state = doctor.check_model(PRESETS["self-forcing"])
    assert state == "not downloaded: streamgen download self-forcing"
