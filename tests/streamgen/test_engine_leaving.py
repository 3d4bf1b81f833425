"""Places come back, however a session leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import statistics
import time

import pytest

from streamgen.engine_client import EngineClient
from streamgen.engine_stream import EngineStream
from streamgen.errors import InvalidRequest, NotFound
from streamgen.messages import Rewind, SetPrompt, Update
from tests.streamgen.tiny import TINY, tiny_config
from tests.streamgen.viewers import REQUEST, play, quiet

ROUNDS = 100


async def close(client: EngineClient, stream: EngineStream) -> None:
    await stream.close()


async def close_twice_at_once(client: EngineClient, stream: EngineStream) -> None:
    await asyncio.gather(stream.close(), stream.close())


async def close_in_a_pass(client: EngineClient, stream: EngineStream) -> None:
    playing = asyncio.create_task(play(stream, until=99))
    await asyncio.sleep(0.01)
    await stream.close()
    await playing


async def close_in_a_switch(client: EngineClient, stream: EngineStream) -> None:
    for transition in ("cut", "blend", "recache", "reset"):
        await stream.control(SetPrompt("a star", transition))
    await stream.close()


async def close_in_a_rewind(client: EngineClient, stream: EngineStream) -> None:
    await stream.control(Rewind(0))
    await stream.close()


async def close_while_paused(client: EngineClient, stream: EngineStream) -> None:
    await stream.control(Update(paused=True))
    await stream.close()


async def close_while_suspended(client: EngineClient, stream: EngineStream) -> None:
    await stream.suspend()
    await stream.close()


async def close_what_was_forked(client: EngineClient, stream: EngineStream) -> None:
    child = await stream.fork()
    await stream.close()
    await play(child, until=3)
    await child.close()


async def leave_before_the_answer(client: EngineClient, stream: EngineStream) -> None:
    opening = asyncio.create_task(client.open(REQUEST))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await stream.close()


async def be_refused(client: EngineClient, stream: EngineStream) -> None:
    with pytest.raises(InvalidRequest):
        await client.open(dataclasses.replace(REQUEST, seed=-1))
    with pytest.raises(NotFound):
        await stream.fork(99)
    await stream.close()


async def come_to_the_end(client: EngineClient, stream: EngineStream) -> None:
    await stream.close()
    short = await client.open(dataclasses.replace(REQUEST, num_frames=20))
    await play(short, until=99)


WAYS = (
    close,
    close_twice_at_once,
    close_in_a_pass,
    close_in_a_switch,
    close_in_a_rewind,
    close_while_paused,
    close_while_suspended,
    close_what_was_forked,
    leave_before_the_answer,
    be_refused,
    come_to_the_end,
)


async def test_q36_a_hundred_sessions_that_leave_in_every_way_leave_every_page_free() -> None:
    client = EngineClient(tiny_config(max_sessions=3), preset=TINY, own_process=False)
    await client.start()
    await client.wait_ready()
    pages_free = client.stats().pages_free
    for _, leave in zip(range(ROUNDS), itertools.cycle(WAYS), strict=False):
        stream = await client.open(REQUEST)
        await play(stream, until=1)
        await leave(client, stream)
        await quiet(client, sessions_free=3)
        assert client.stats().pages_free == pages_free, leave
        assert client.list() == ()
    fresh = EngineClient(tiny_config(max_sessions=3), preset=TINY, own_process=False)
    await fresh.start()
    await fresh.wait_ready()
    pairs = [[await seconds_to_play(one) for one in (client, fresh)] for _ in range(15)]
    used_s, fresh_s = map(statistics.median, zip(*pairs, strict=True))
    assert used_s < 3 * fresh_s
    await client.close()
    await fresh.close()


async def seconds_to_play(client: EngineClient) -> float:
    start = time.monotonic()
    stream = await client.open(REQUEST)
    await play(stream, until=1)
    await stream.close()
    await quiet(client, sessions_free=3)
    return time.monotonic() - start
