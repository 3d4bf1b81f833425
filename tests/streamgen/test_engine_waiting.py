"""Waiting for the engine behind an event loop: for its start, and for a place in it."""

from __future__ import annotations

import pytest

from streamgen.engine_client import EngineClient
from streamgen.engine_commands import Reply
from streamgen.engine_link import EngineLink
from streamgen.errors import Capacity, EngineStopped, ModelNotReady
from streamgen.messages import Queued
from tests.streamgen.tiny import TINY, tiny_config
from tests.streamgen.viewers import REQUEST, play


async def test_whoever_finds_no_place_waits_and_is_told() -> None:
    config = tiny_config(max_sessions=1, max_queue=2)
    client = EngineClient(config, preset=TINY, own_process=False)
    await client.start()
    await client.wait_ready()
    inside, waiting, leaving = [await client.open(REQUEST) for _ in range(3)]
    assert (inside.state, waiting.state) == ("starting", "queued")
    told = await anext(waiting.events())
    assert isinstance(told, Queued)
    assert told.position == 0
    with pytest.raises(Capacity) as full:
        await client.open(REQUEST)
    assert full.value.retry_after_s
    assert client.stats().queue_length == 2
    await leaving.close()
    assert client.stats().queue_length == 1
    await inside.close()
    assert [c.index for c in await play(waiting, until=1)] == [0, 1]
    assert client.stats().queue_length == 0
    await client.close()


async def test_stages_are_told_and_nothing_opens_before_the_last() -> None:
    client = EngineClient(tiny_config(dtype="auto"), preset=TINY, own_process=False)
    stages: list[str] = []
    hear = client.supervisor._hear

    def note(link: EngineLink, reply: Reply) -> None:
        hear(link, reply)
        stages.append(client.stats().stage)

    client.supervisor._hear = note  # type: ignore[method-assign]
    await client.start()
    assert not client.stats().ready
    with pytest.raises(ModelNotReady) as caught:
        await client.open(REQUEST)
    assert caught.value.retry_after_s
    await client.wait_ready()
    assert client.stats().ready
    assert list(dict.fromkeys(stages)) == ["weights", "measuring", "warm-up", "ready"]
    assert client.stats().pages_free == client.config.max_sessions * (9 + 3)
    await client.close()
    await client.close()
    with pytest.raises(EngineStopped):
        await client.open(REQUEST)
