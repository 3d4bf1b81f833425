"""The engine in the transport's terms."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from streamgen.engine_client import EngineClient
from streamgen.stream_host import EngineHost
from tests.streamgen.tiny import TINY, tiny_config
from transport.fields import WeightedPrompt
from transport.host import StreamHost
from transport.stream import (
    Chunk,
    Receipt,
    SessionConfig,
    StateChanged,
    Stream,
    StreamError,
    Superseded,
)
from transport.wire import Control, ScoreEntry, SessionInteraction, Transition, parse

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host() -> AsyncIterator[StreamHost]:
    client = EngineClient(tiny_config(), preset=TINY, own_process=False)
    await client.start()
    await client.wait_ready()
    yield EngineHost(client)
    await client.close()


async def test_what_comes_after_the_last_frame_is_made_is_told_so(host: StreamHost) -> None:
    """The engine is through while the last chunks are still played."""
    stream = await host.open(SessionConfig(prompt="a red ball", seed=7, num_frames=12))
    async for chunk in stream.chunks():
        chunk.release()
    with pytest.raises(StreamError, match="all frames of this video are made") as caught:
        await stream.control(parse('{"type":"session.update","paused":true}'))  # type: ignore[arg-type]
    assert caught.value.code == "conflict"
    with pytest.raises(StreamError, match="all frames of this video are made"):
        await stream.fork(None)


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
        ('{"type":"session.rewind","to_chunk":77}', "not_found", "to_chunk"),
        (
            '{"type":"session.interaction","interaction":{"event":{"prompt":"x"},'
            '"transition":{"mode":"cut","chunks":4}}}',
            "invalid_request",
            "transition.chunks",
        ),
        (
            '{"type":"session.interaction","interaction":{"event":{"prompt":'
            '[{"text":"x","weight":1},{"text":"y","weight":1e9}]}}}',
            "invalid_request",
            "prompt",
        ),
    ],
)
async def test_what_cannot_be_is_refused_and_the_stream_goes_on(
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


async def watch(stream: Stream, until: int) -> list[Chunk]:
    """Play chunks up to number `until`."""
    chunks = []
    async for chunk in stream.chunks():
        chunks.append(chunk)
        stream.played(chunk.first_frame_index + len(chunk.frames) - 1)
        chunk.release()
        if chunk.index == until:
            break
    return chunks


def prompting(prompt: str, transition: str = '{"mode":"cut"}', event_id: str = "p") -> Control:
    """Return a change of prompt, as JSON says it."""
    event = f'"event_id":"{event_id}","event":{{"prompt":{prompt}}},"transition":{transition}'
    message = parse(f'{{"type":"session.interaction","interaction":{{{event}}}}}')
    assert isinstance(message, SessionInteraction)
    return message


async def test_mixed_prompts_and_blends_are_told_in_wire_terms(host: StreamHost) -> None:
    mixed = (WeightedPrompt("a star", 1.0), WeightedPrompt("a box", 3.0))
    stream = await host.open(SessionConfig(prompt=mixed, priority="batch", run_unwatched=True))
    scaled = (WeightedPrompt("a star", 0.25), WeightedPrompt("a box", 0.75))
    assert stream.config.prompt == scaled
    assert (stream.config.priority, stream.config.run_unwatched) == ("batch", True)
    assert (await watch(stream, 1))[-1].prompt == scaled
    await stream.control(prompting('"a red ball"', '{"mode":"blend","chunks":3,"curve":"slerp"}'))
    assert stream.config.prompt == "a red ball"
    chunks = await watch(stream, 7)
    first = next(c for c in chunks if c.started_event_ids)
    assert first.prompt == "a red ball"
    done = next(c for c in chunks if c.completed_event_ids)
    assert done.index == first.index + 2
    await stream.close()


async def test_a_score_is_played_at_its_times(host: StreamHost) -> None:
    score = (
        ScoreEntry(1.0, "a star"),
        ScoreEntry(3.0, "a box", Transition("blend", 2)),
    )
    stream = await host.open(SessionConfig(prompt="a red ball", score=score))
    chunks = await watch(stream, 7)
    for prompt, at_s in (("a star", 1.0), ("a box", 3.0)):
        first = next(c for c in chunks if c.prompt == prompt)
        assert at_s <= first.pts_s < at_s + 12 / 16
    await stream.close()


async def test_a_rewind_and_a_fork_have_the_settings_of_their_chunk(host: StreamHost) -> None:
    stream = await host.open(SessionConfig(prompt="a red ball", seed=7))
    await watch(stream, 2)
    await stream.control(prompting('"a star"'))
    await stream.control(parse('{"type":"session.update","event_id":"u","seed":9,"fps":8}'))  # type: ignore[arg-type]
    last = (await watch(stream, 6))[-1]
    assert (last.prompt, last.seed, last.fps) == ("a star", 9, 8)
    child = await stream.fork(1)
    await stream.control(parse('{"type":"session.rewind","event_id":"r","to_chunk":1}'))  # type: ignore[arg-type]
    for one in (stream, child):
        config = one.config
        assert (config.prompt, config.seed, config.fps) == ("a red ball", 7, 16)
    chunks = await watch(stream, 10)
    assert (chunks[-1].prompt, chunks[-1].seed) == ("a red ball", 7)
    assert "r" in next(c for c in chunks if c.prompt == "a red ball").started_event_ids
    assert (await watch(child, 8))[-1].prompt == "a red ball"
    with pytest.raises(StreamError) as caught:
        await child.fork(99)
    assert (caught.value.code, caught.value.param) == ("not_found", "at_chunk")
    for one in (stream, child):
        await one.close()


async def test_a_snapshot_goes_on_and_anything_else_is_refused(host: StreamHost) -> None:
    stream = await host.open(SessionConfig(prompt="a red ball", seed=7))
    await watch(stream, 3)
    blob = await stream.snapshot()
    assert len(blob) < 20_000
    await stream.close()
    other = await host.restore(blob)
    assert (other.config.prompt, other.config.seed) == ("a red ball", 7)
    assert [c.index for c in await watch(other, 5)] == [4, 5]
    await other.close()
    for bad in (b"", blob[:-1], b"x" * 1000):
        with pytest.raises(StreamError) as caught:
            await host.restore(bad)
        assert (caught.value.code, caught.value.param) == ("invalid_request", "snapshot")


async def test_a_replay_is_lines_of_all_that_was_done(host: StreamHost) -> None:
    stream = await host.open(SessionConfig(prompt="a red ball", seed=7))
    await watch(stream, 1)
    await stream.control(prompting('"a star"'))
    chunks = await watch(stream, 4)
    first, *others = [json.loads(line) for line in (await stream.replay()).splitlines()]
    assert (first["model"], first["config"]["seed"]) == ("tiny", 7)
    assert first["num_frames"] == chunks[-1].first_frame_index + 12
    begun = next(c.index for c in chunks if c.prompt == "a star")
    assert [(e["chunk_index"], e["control"]["prompt"]) for e in others] == [(begun, "a star")]
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
