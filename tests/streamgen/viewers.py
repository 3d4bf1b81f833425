"""What watches the engine behind an event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

from streamgen.engine_client import EngineClient
from streamgen.engine_link import ProcessLink
from streamgen.engine_stream import EngineStream
from streamgen.messages import (
    Chunk,
)
from streamgen.session_config import SessionRequest
from tests.streamgen.tiny import TINY, tiny_config

REQUEST = SessionRequest(prompt="a red ball", seed=42)


async def play(stream: EngineStream, until: int) -> list[Chunk]:
    """Play chunks up to number `until`, and return copies of them."""
    chunks = []
    async for chunk in stream.chunks():
        chunks.append(dataclasses.replace(chunk, frames=chunk.frames.copy()))
        stream.played(chunk.first_frame_index + len(chunk.frames) - 1)
        chunk.release()
        if chunk.index == until:
            break
    return chunks


async def quiet(client: EngineClient, sessions_free: int) -> None:
    """Wait until so many places are free."""
    deadline = time.monotonic() + 10
    while client.stats().sessions_free != sessions_free:
        assert time.monotonic() < deadline, client.stats()
        await asyncio.sleep(0.01)


async def process_client() -> tuple[EngineClient, int]:
    """Return a ready client of its own process, and the process's id."""
    client = EngineClient(tiny_config(), preset=TINY)
    await client.start()
    await client.wait_ready()
    assert isinstance(client._link, ProcessLink)
    assert client._link._process is not None
    assert client._link._process.pid is not None
    return client, client._link._process.pid


def alive(pid: int) -> bool:
    """Return whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
