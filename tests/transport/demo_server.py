"""Serve the page without an engine: `python -m tests.transport.demo_server [PORT] [--chunk-s S]`.

The prompt's words red, green, blue, yellow, white and night give a moving gradient its colour;
the seed gives it its phase. With the word counted each picture carries its frame number, with flat
it is of one colour. 128 x 128 at 16 frames a second; three sessions, two more may wait.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import numpy as np
import uvicorn
from numpy.typing import NDArray

from tests.transport.fake_host import FakeHost
from tests.transport.painting import Shot
from transport.fields import Prompt
from transport.http import create_app
from transport.options import TransportOptions
from transport.server import listen, uvicorn_config

COLOURS = {
    "red": (255, 60, 50),
    "green": (50, 220, 80),
    "blue": (60, 110, 255),
    "yellow": (255, 220, 60),
    "white": (250, 250, 250),
}

NUMBER_BITS = 16  # of the frame number, in blocks along the upper edge, the highest bit first
BLOCK_PX = 8


def colour_in(prompt: Prompt) -> NDArray[np.float64]:
    """Return the colour that a prompt names, of several texts the weighted mean."""
    if not isinstance(prompt, str):
        weights = [part.weight for part in prompt]
        return np.average([colour_in(part.text) for part in prompt], axis=0, weights=weights)
    words = prompt.lower()
    colour = next((COLOURS[name] for name in COLOURS if name in words), (160, 160, 170))
    return (0.4 if "night" in words else 1.0) * np.array(colour, np.float64)


def paint_gradient(shot: Shot) -> NDArray[np.uint8]:
    """Paint a band of the prompt's colour that wanders across the picture."""
    colour = colour_in(shot.prompt)
    if shot.before is not None:
        colour = shot.share * colour + (1 - shot.share) * colour_in(shot.before)
    frames = np.arange(shot.first_frame, shot.first_frame + shot.num_frames)
    x = np.arange(shot.width) / shot.width
    y = np.arange(shot.height) / shot.height
    phase = (frames / 48 + shot.seed * 0.381966) % 1.0
    slope = x[None, None, :] + y[None, :, None] / 2 + phase[:, None, None]
    wave = 0.35 + 0.65 * (0.5 + 0.5 * np.sin(2 * np.pi * slope))
    if "flat" in str(shot.prompt):
        wave[:] = 1.0
    pixels: NDArray[np.uint8] = (wave[..., None] * colour).astype(np.uint8)
    if "counted" in str(shot.prompt):
        bits = frames[:, None] >> np.arange(NUMBER_BITS)[::-1] & 1
        blocks = np.repeat(bits * 255, BLOCK_PX, axis=1)
        pixels[:, :BLOCK_PX, : NUMBER_BITS * BLOCK_PX] = blocks[:, None, :, None]
    return pixels


def main() -> None:
    """Serve until interrupted."""
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int, nargs="?", default=8000)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument("--chunk-s", type=float, default=0.5, help="seconds that a chunk takes")
    parser.add_argument("--size", default="128x128", help="WxH of the pictures")
    parser.add_argument("--record", type=Path, help="directory of the recordings")
    asked = parser.parse_args()
    width, height = map(int, asked.size.split("x"))
    host = FakeHost(
        chunk_s=asked.chunk_s, chunk_frames=12, fps=16, width=width, height=height, max_queue=2
    )
    host.paint = paint_gradient
    app = create_app(host, TransportOptions(version="demo", record_dir=asked.record))
    sock = listen(asked.host, asked.port)
    print(f"http://{asked.host}:{sock.getsockname()[1]}/")
    uvicorn.Server(uvicorn_config(app)).run(sockets=[sock])


if __name__ == "__main__":
    main()
