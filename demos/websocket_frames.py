"""Frames of a running server as numpy arrays, in a process that knows nothing but the protocol.

    streamgen serve
    python demos/websocket_frames.py "a red ball bounces on the grass"

Needs numpy, websockets and simplejpeg. Nothing is saved unless --save names a file.
"""

from __future__ import annotations

import argparse
import json
import struct
import time
from collections.abc import Iterator

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from websockets.sync.client import connect

HEADER = struct.Struct(">IIQ")  # frame index, chunk index, presentation time in microseconds
PATIENCE_S = 60.0


def frames(url: str, prompt: str, num_frames: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Start a session of so many frames and yield each one's number and RGB pixels `[H, W, 3]`.

    A client that is too slow misses frames: the numbers say which.
    """
    address = f"ws{url.removeprefix('http').rstrip('/')}/v1/realtime/video"
    with connect(address, max_size=None) as socket:
        start = {"type": "session.start", "prompt": prompt, "num_frames": num_frames}
        socket.send(json.dumps({**start, "format": "jpeg"}))
        while True:
            message = socket.recv(PATIENCE_S)
            if isinstance(message, bytes):
                index, _chunk, _pts_us = HEADER.unpack_from(message)
                yield index, simplejpeg.decode_jpeg(message[HEADER.size :])
                continue
            event = json.loads(message)
            if event["type"] == "error":
                raise SystemExit(f"the server says: {event['message']}")
            if event["type"] == "session.done":
                return


def main() -> None:
    """Receive, count and, if asked, save."""
    parser = argparse.ArgumentParser(description="Frames of a running server as numpy arrays.")
    parser.add_argument("prompt", nargs="?", default="a red ball bounces on the grass at night")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server's page")
    parser.add_argument("--frames", type=int, default=96, help="length of the video")
    parser.add_argument("--save", metavar="FILE.npy", help="file that gets all frames")
    arguments = parser.parse_args()

    kept, times = [], []
    for index, picture in frames(arguments.url, arguments.prompt, arguments.frames):
        times.append(time.monotonic())
        mean = ", ".join(f"{value:.0f}" for value in picture.mean((0, 1)))
        print(f"frame {index}: {picture.shape} {picture.dtype}, mean colour {mean}")
        if arguments.save:
            kept.append(picture)
    fps = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
    print(f"{len(times)} frames received, {fps:.1f} fps")
    if arguments.save:
        np.save(arguments.save, np.stack(kept))


if __name__ == "__main__":
    main()
