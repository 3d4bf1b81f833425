"""Running the quality gate in tests, and reading what it wrote."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from streamgen import cli, quality_gate
from streamgen.command_options import EvalConfig
from streamgen.config import EngineConfig
from streamgen.video_file import VideoFile
from tests.streamgen.tiny import TINY, tiny_config


def write_video(path: Path, brightness: int, num_frames: int = 24, **size: int) -> Path:
    width, height = size.get("width", 64), size.get("height", 48)
    with VideoFile(path, width, height, size.get("fps", 16)) as video:
        for index in range(num_frames):
            columns = (4 * np.arange(width) + index) % 200 + brightness
            video.add(np.broadcast_to(columns[:, None], (1, height, width, 3)).astype(np.uint8))
    return path


def run_eval(folder: Path, *argv: str) -> tuple[int, dict[str, Any]]:
    """Run the command on files; return its status and what it wrote."""
    file = folder / "eval.json"
    status = cli.main(["eval", *argv, "--json", str(file)])
    return status, json.loads(file.read_text())


def evaluate(folder: Path, engine: EngineConfig | None = None, **options: Any) -> dict[str, Any]:
    """Compare options, or what the tiny model made; return what was written, and the status."""
    file = folder / "eval.json"
    of_files = "baseline" in options and "=" not in options["baseline"]
    usual = {} if of_files else {"seconds": 1.5, "prompt": ("a red ball",)}
    config = EvalConfig(**{"json": file, **usual, **options})
    status = quality_gate.run(engine or tiny_config(), config, preset=TINY)
    return {"status": status, **json.loads(file.read_text())}


def read_png(path: Path) -> np.ndarray:
    """Decode an RGB PNG whose rows are filtered as `write_png` does: by the pixel to the left."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    body = data[data.index(b"IDAT") + 4 : data.rindex(b"IEND") - 8]
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + 3 * width)
    assert set(rows[:, 0]) == {1}
    pixels = rows[:, 1:].reshape(height, width, 3).astype(np.uint64)
    return np.cumsum(pixels, axis=1).astype(np.uint8)
