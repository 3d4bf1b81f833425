"""Serve the page without an engine: `python -m tests.transport.demo_server [PORT] [CHUNK_S]`.

The prompt's words red, green, blue, yellow, white and night give a moving gradient its colour;
the seed gives it its phase. 128 x 128 at 16 frames a second; three sessions, two more may wait.
"""

from __future__ import annotations

import logging
import sys

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
    pixels: NDArray[np.uint8] = (wave[..., None] * colour).astype(np.uint8)
    return pixels


def main() -> None:
    """Serve until interrupted."""
    logging.basicConfig(level=logging.INFO)
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    chunk_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
    host = FakeHost(chunk_s=chunk_s, chunk_frames=12, fps=16, width=128, height=128, max_queue=2)
    host.paint = paint_gradient
    app = create_app(host, TransportOptions(version="demo"))
    sock = listen("127.0.0.1", port)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}/")
    uvicorn.Server(uvicorn_config(app)).run(sockets=[sock])


if __name__ == "__main__":
    main()
