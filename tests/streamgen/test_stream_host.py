"""The engine in the transport's terms."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from streamgen.engine_client import EngineClient
from streamgen.stream_host import EngineHost
from tests.streamgen.tiny import TINY, tiny_config
from transport.stream import (
    Chunk,
    Receipt,
    SessionConfig,
    StateChanged,
    StreamError,
    StreamHost,
    Superseded,
)
from transport.wire import parse

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host() -> AsyncIterator[StreamHost]:
    client = EngineClient(tiny_config(), preset=TINY, own_process=False)
    await client.start()
    await client.wait_ready()
    yield EngineHost(client)
    await client.close()


async def test_a_stream_plays_and_obeys_wire_messages(host: StreamHost) -> None:
    stream = await host.open(SessionConfig(prompt="a red ball", seed=7))
    assert (stream.config.seed, stream.config.model, stream.config.chunk_frames) == (7, "tiny", 12)
    assert (stream.config.width, stream.config.height, stream.config.fps) == (48, 32, 16)
    changes = [
        '{"type":"session.interaction","interaction":{"event_id":"a","event":{"prompt":"a star"}}}',
        '{"type":"session.interaction","interaction":{"event_id":"b","event":{"prompt":"a box"},'
        '"transition":{"mode":"reset"}}}',
        '{"type":"session.update","event_id":"c","seed":9}',
    ]
    seen = []
    async for chunk in stream.chunks():
        assert isinstance(chunk, Chunk)
        assert chunk.generation_s > 0
        seen.append((chunk.prompt_revision, chunk.seed, sorted(chunk.started_event_ids)))
        chunk.release()
        if chunk.index == 0:
            # The engine holds: two chunks are made, and no third before these are played.
            continue
        if chunk.index == 1:
            receipts = [await stream.control(parse(text)) for text in changes]  # type: ignore[arg-type]
            assert receipts == [Receipt("a", 1), Receipt("b", 2), Receipt("c", 2)]
        stream.played(chunk.first_frame_index + len(chunk.frames) - 1)
        if chunk.index == 3:
            break
    assert seen == [(0, 7, []), (0, 7, []), (2, 9, ["b", "c"]), (2, 9, [])]
    assert (stream.config.prompt, stream.config.seed) == ("a box", 9)  # those in effect now
    await stream.suspend()
    await stream.resume()
    await stream.close()
    assert stream.state == "closed"
    events = [event async for event in stream.events()]
    assert Superseded("a") in events
    assert events[-1] == StateChanged("closed")


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ('{"type":"session.update","seed":1,"steps":9}', "invalid_request", "steps"),
        ('{"type":"session.update","fps":30}', "unsupported", "fps"),
        (
            '{"type":"session.interaction","interaction":{"event":{"prompt":"x"},'
            '"transition":{"mode":"blend","chunks":4,"curve":"slerp"}}}',
            "unsupported",
            "transition",
        ),
        (
            '{"type":"session.interaction","interaction":{"event":{"prompt":"x"},'
            '"transition_chunks":3}}',
            "unsupported",
            "transition",
        ),
        (
            '{"type":"session.interaction","interaction":{"event":{"prompt":'
            '[{"text":"x","weight":1},{"text":"y","weight":2}]}}}',
            "unsupported",
            "prompt",
        ),
    ],
)
async def test_what_is_not_offered_is_refused_and_the_stream_goes_on(
    host: StreamHost, message: str, code: str, param: str
) -> None:
    stream = await host.open(SessionConfig(prompt="a red ball"))
    with pytest.raises(StreamError) as caught:
        await stream.control(parse(message))  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.param) == (code, param)
    async for chunk in stream.chunks():
        assert chunk.prompt_revision == 0
        break
    await stream.close()


async def test_refusals_keep_code_field_and_waiting_time(host: StreamHost) -> None:
    for config, code in [
        (SessionConfig(prompt="x", model="other"), "unsupported"),
        (SessionConfig(prompt="x", width=64, height=64), "unsupported"),
        (SessionConfig(prompt="x", width=50, height=32), "invalid_request"),
        (SessionConfig(prompt="x", window=2), "invalid_request"),
    ]:
        with pytest.raises(StreamError) as caught:
            await host.open(config)
        assert caught.value.code == code
        assert not caught.value.retryable
    streams = [await host.open(SessionConfig(prompt="x")) for _ in range(8)]
    with pytest.raises(StreamError) as full:
        await host.open(SessionConfig(prompt="x"))
    assert (full.value.code, full.value.retryable) == ("capacity", True)
    assert full.value.retry_after_s
    assert host.stats().ready
    assert host.stats().sessions_free == 0
    for stream in streams:
        await stream.close()
    (model,) = host.stats().models
    assert (model.id, model.width, model.height, model.chunk_frames) == ("tiny", 48, 32, 12)
