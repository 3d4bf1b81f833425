"""The demos, run as a person runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.streamgen.server_process import PATIENCE_S, REPOSITORY, ServerProcess, serving
from tests.streamgen.video_making import read

pytestmark = pytest.mark.slow

POCKET = ("--load-format", "dummy")


def run_demo(folder: Path, name: str, *argv: str, status: int = 0) -> str:
    """Run a demo in a folder to its end and return what it printed."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / "demos" / name), *argv],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert ended.returncode == status, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving() as server:
        yield server


def test_websocket_frames_turns_a_running_servers_frames_into_arrays(
    server: ServerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "frames.npy"
    argv = ["a blue star", "--url", server.url, "--frames", "10"]
    said = run_demo(tmp_path, "websocket_frames.py", *argv, "--save", str(file))
    assert "frame 9: (128, 128, 3) uint8" in said
    received = re.search(r"^(\d+) frames received, ([\d.]+) fps$", said, re.MULTILINE)
    assert received
    frames = np.load(file)
    assert frames.shape == (int(received[1]), 128, 128, 3)
    assert frames.dtype == np.uint8


def test_websocket_frames_saves_nothing_unasked(server: ServerProcess, tmp_path: Path) -> None:
    said = run_demo(tmp_path, "websocket_frames.py", "--url", server.url, "--frames", "2")
    assert "frames received" in said
    assert list(tmp_path.iterdir()) == []


def test_websocket_frames_shows_the_servers_refusal(server: ServerProcess, tmp_path: Path) -> None:
    said = run_demo(tmp_path, "websocket_frames.py", " ", "--url", server.url, status=1)
    assert "the server says: " in said


def test_prompt_switch_writes_a_video_of_two_prompts(tmp_path: Path) -> None:
    output = tmp_path / "switch.mp4"
    argv = ["a ball", "a star", *POCKET, "--chunks", "4", "-o", str(output)]
    said = run_demo(tmp_path, "prompt_switch.py", *argv)
    assert said.count("frames of 'a ball'") == 2
    assert said.count("frames of 'a star'") == 2
    assert read(output).shape == (9 + 3 * 12, 128, 128, 3)


def test_fps_benchmark_prints_the_table(tmp_path: Path) -> None:
    argv = ["--sessions", "1", "--seconds", "0.5", "--dtype", "fp32", "--threads", "1"]
    said = run_demo(tmp_path, "fps_benchmark.py", *POCKET, *argv)
    assert "fps_total" in said
    assert len(said.splitlines()) == 5
