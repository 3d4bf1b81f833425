"""The status that commands end with, and the line that says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamgen import cli, doctor
from streamgen.cli import main
from streamgen.errors import (
    Capacity,
    ConfigError,
    EngineStopped,
    NoDevice,
    StreamgenError,
    Unsupported,
)
from streamgen.models.loader import CheckpointError

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x"), cli.WRONG_USAGE),
        (Unsupported("x"), cli.WRONG_USAGE),
        (CheckpointError("x"), cli.MACHINE_CANNOT),
        (NoDevice("x"), cli.MACHINE_CANNOT),
        (Capacity("x"), cli.MACHINE_CANNOT),
        (EngineStopped("x"), cli.MACHINE_CANNOT),
        (OSError(98, "cannot listen on a:1"), cli.MACHINE_CANNOT),
        (KeyboardInterrupt(), cli.INTERRUPTED),
    ],
)
def test_every_end_has_its_status_and_a_line(
    error: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run() -> int:
        raise error

    monkeypatch.setattr(doctor, "run", run)
    assert main(["doctor"]) == status
    said = capsys.readouterr().err
    assert said.startswith("streamgen doctor: ")
    assert said.count("\n") == 1


def test_q42_weights_that_do_not_load_are_named_and_the_status_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import dataclasses

    from streamgen.models import presets

    (tmp_path / "dit.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    broken = dataclasses.replace(presets.POCKET, weights=tmp_path)
    monkeypatch.setattr(presets, "PRESETS", {"pocket": broken})
    output = tmp_path / "a.mp4"
    assert main(["generate", "a star", "-o", str(output)]) == cli.MACHINE_CANNOT
    said = capsys.readouterr()
    assert "dit.safetensors is a Git LFS pointer" in said.err
    assert "Traceback" not in said.err
    assert not output.exists()


def test_parity_ends_with_its_own_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", str(REPOSITORY / "tests/golden/schedule")]) == cli.DONE
    assert capsys.readouterr().out.endswith(" passed, 0 failed\n")
    (tmp_path / "meta.json").write_text(json.dumps({}))
    assert main(["parity", str(tmp_path)]) == cli.WRONG_USAGE


class Unknown(StreamgenError):
    """A kind of error that the command line has never seen."""


def test_an_error_of_another_kind_counts_as_the_machines() -> None:
    assert cli._status(Unknown("x")) == cli.MACHINE_CANNOT


def test_a_reader_that_has_enough_is_no_error() -> None:
    """`| head` closes the pipe: nothing is said, and the status is the shell's for it."""
    ours, theirs = os.pipe()
    os.close(ours)  # nobody reads
    command = [sys.executable, "-m", "streamgen.cli", "models"]
    with os.fdopen(theirs) as pipe:
        ended = subprocess.run(
            command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False, cwd=REPOSITORY
        )
    assert (ended.returncode, ended.stderr) == (cli.PIPE_CLOSED, "")


def test_a_card_that_is_not_there_is_the_machines_lack(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "a.mp4"
    status = main(["generate", "a star", "-o", str(output), "--device", "cuda:63"])
    assert status == cli.MACHINE_CANNOT
    assert capsys.readouterr().err.startswith("streamgen generate: device 'cuda:63': ")
    assert not output.exists()
