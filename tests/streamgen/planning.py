"""Asking `streamgen plan` in tests: what it answers, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from streamgen import cli

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


def with_clean_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let no option come from outside, and no calibration of this machine."""
    for variable in [v for v in os.environ if v.startswith("STREAMGEN_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


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
