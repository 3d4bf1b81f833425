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

PATIENCE_S = 120.0  # the machine may be busy, and an engine that starts imports torch
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
    deadline = time.monotonic() + PATIENCE_S
    while client.stats().sessions_free != sessions_free:
        assert time.monotonic() < deadline, client.stats()
        await asyncio.sleep(0.01)


async def restarted(client: EngineClient, times: int, within_s: float = PATIENCE_S) -> None:
    """Wait until the engine has died so often."""
    deadline = time.monotonic() + within_s
    while client.stats().restarts < times:
        assert time.monotonic() < deadline, client.stats()
        await asyncio.sleep(0.01)


async def ready(client: EngineClient) -> None:
    """Wait until there is an engine again."""
    deadline = time.monotonic() + PATIENCE_S
    while not client.stats().ready:
        assert time.monotonic() < deadline, client.stats()
        await asyncio.sleep(0.01)


async def process_client(**options: object) -> tuple[EngineClient, int]:
    """Return a ready client of its own process, and the process's id."""
    client = EngineClient(tiny_config(**options), preset=TINY)
    await client.start()
    await client.wait_ready()
    return client, process_id(client)


def process_id(client: EngineClient) -> int:
    """Return the id of the engine's process."""
    link = client.supervisor.link
    assert isinstance(link, ProcessLink)
    assert link._process is not None
    assert link._process.pid is not None
    return link._process.pid


def alive(pid: int) -> bool:
    """Return whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
