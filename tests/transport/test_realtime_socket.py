"""The realtime socket as a well-behaved client sees it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.transport.conftest import Serve, eventually
from tests.transport.fake_host import FakeHost
from tests.transport.painting import Shot, revision_of
from transport.stream import Failed


async def test_start_reports_the_values_in_effect(serve: Serve) -> None:
    """`video.start` comes first, with tokens and effective values."""
    server = await serve()
    client = await server.connect()
    start = await client.start("a red ball", seed=7, size="128x64", num_inference_steps=3)
    assert client.messages == [start]
    assert start["format"] == "jpeg"
    assert start["resume_token"] != start["viewer_token"]
    expected = {"prompt": "a red ball", "seed": 7, "width": 128, "height": 64, "fps": 40}
    assert start["config"].items() >= {**expected, "num_inference_steps": 3}.items()


async def test_a_seed_that_is_left_out_is_reported(serve: Serve) -> None:
    """The chosen seed is in `config` and in the metadata."""
    server = await serve()
    client = await server.connect()
    start = await client.start(seed=None)
    metadata = await client.until("video.chunk_metadata")
    assert metadata["seed"] == start["config"]["seed"] == 42


async def test_metadata_announces_each_chunk_before_its_frames(serve: Serve) -> None:
    """Frames come in order, each with a header that agrees with the chunk's metadata."""
    server = await serve()
    client = await server.start()
    await client.until_frame(12)
    chunks = {m["generation_chunk_index"]: m for m in client.of_type("video.chunk_metadata")}
    assert [m["transport_chunk_index"] for m in chunks.values()] == [0, 1, 2, 3]
    assert [frame.index for frame in client.frames] == list(range(13))
    for frame in client.frames:
        metadata = chunks[frame.chunk_index]
        offset = frame.index - metadata["first_frame_index"]
        assert 0 <= offset < metadata["num_frames"] == 4
        assert frame.pts_us / 1000 == pytest.approx(metadata["pts_ms"] + offset * 25, abs=0.001)
        assert frame.decode().shape == (48, 64, 3)
        assert "byte_length" not in metadata


async def test_frames_leave_evenly_though_chunks_come_in_bursts(serve: Serve) -> None:
    """Of 8 frames that come at once each waits for its turn."""
    server = await serve(FakeHost(chunk_s=0.15, chunk_frames=8, fps=40))
    client = await server.start()
    await client.until_frame(8)
    arrivals = []
    for _ in range(24):
        await client.more_frames(1)
        arrivals.append(asyncio.get_running_loop().time())
    gaps = sorted(later - earlier for earlier, later in pairwise(arrivals))
    assert gaps[len(gaps) // 2] > 0.01  # of 0.025; in bursts it would be nothing


async def test_raw_frames_are_bare_rgb(serve: Serve) -> None:
    """With `raw` the payload is height x width x 3 bytes."""
    server = await serve()
    client = await server.start(format="raw")
    frame = await client.until_frame(0)
    assert len(frame.payload) == 48 * 64 * 3
    assert frame.payload[:3] == bytes((16, 16, 16))


async def test_without_pictures_the_messages_still_come(serve: Serve) -> None:
    """With `none` there is metadata and control, and no frame."""
    server = await serve()
    client = await server.start(format="none")
    await client.prompt("blue", "e1")
    await client.until("session.interaction.applied", event_id="e1")
    assert client.frames == []


async def test_a_prompt_is_acknowledged_twice(serve: Serve) -> None:
    """`queued` on acceptance; `applied` with the first frame that obeys, just before it."""
    server = await serve()
    client = await server.start()
    await client.until_frame(2)
    await client.prompt("a blue ball", "mine")
    queued = await client.until("session.interaction.queued")
    assert queued == {
        "type": "session.interaction.queued",
        "event_id": "mine",
        "prompt_revision": 1,
    }
    applied = await client.until("session.interaction.applied")
    frame = await client.until_frame(0)
    assert applied["event_id"] == "mine"
    assert applied["frame_index"] == frame.index
    assert applied["chunk_index"] == frame.chunk_index
    assert applied["pts_ms"] == frame.pts_us / 1000
    assert revision_of(frame.decode()) == applied["prompt_revision"] == 1
    metadata = client.of_type("video.chunk_metadata")[-1]
    assert metadata["started_event_ids"] == metadata["completed_event_ids"] == ["mine"]


async def test_an_event_without_a_name_gets_one(serve: Serve) -> None:
    """Both answers carry the name that the server chose."""
    server = await serve()
    client = await server.start()
    await client.send("session.interaction", interaction={"event": {"prompt": "blue"}})
    queued = await client.until("session.interaction.queued")
    assert queued["event_id"].startswith("evt_")
    await client.until("session.interaction.applied", event_id=queued["event_id"])


async def test_updates_are_acknowledged_like_prompts(serve: Serve) -> None:
    """A new seed shows in the metadata of the chunk that it is applied with."""
    server = await serve()
    client = await server.start()
    await client.send("session.update", event_id="u", seed=9)
    queued = await client.until("session.interaction.queued", event_id="u")
    assert queued["prompt_revision"] == 0
    await client.until("session.interaction.applied", event_id="u")
    assert client.of_type("video.chunk_metadata")[-1]["seed"] == 9


async def test_pause_stops_the_picture_at_once(serve: Serve) -> None:
    """After `paused` no frame leaves, though some are ready; then it goes on without a gap."""
    server = await serve()
    client = await server.start()
    await client.until_frame(6)
    await client.send("session.update", paused=True)
    await client.until("session.state", state="paused")
    shown = len(client.frames)
    await client.receive_for(0.3)
    assert len(client.frames) <= shown + 1
    await client.send("session.update", paused=False)
    await client.until("session.state", state="running")
    await client.more_frames(8)
    assert [frame.index for frame in client.frames] == list(range(len(client.frames)))


async def test_stats_come_once_a_second(serve: Serve) -> None:
    """The figures are there and plausible."""
    server = await serve()
    client = await server.start()
    await client.prompt("blue", "e")
    await client.until("session.interaction.applied", event_id="e")
    await client.until("session.stats")
    while not plausible(stats := await client.until("session.stats")):
        assert len(client.of_type("session.stats")) < 20
    assert stats["chunk_ms_p50"] == stats["chunk_ms_p95"] == 50
    assert stats["control_to_frame_ms"] > 0
    assert stats["level"]["num_inference_steps"] == 4


def plausible(stats: dict[str, Any]) -> bool:
    """Return whether figures are those of a stream that was not held up a moment ago."""
    return 0 < stats["fps"] <= 50 and 0 < stats["lead_ms"] < 1000


async def test_ping_is_answered(serve: Serve) -> None:
    """Before and after the start."""
    server = await serve()
    client = await server.connect()
    await client.send("session.ping")
    await client.until("session.pong")
    await client.start()
    await client.send("session.ping")
    await client.until("session.pong")


async def test_stop_ends_the_session(serve: Serve) -> None:
    """`session.done`, then close 1000, and the engine has nothing left."""
    server = await serve()
    client = await server.start()
    await client.until_frame(3)
    await client.send("session.stop")
    done = await client.until("session.done")
    assert done == {"type": "session.done", "chunks": 1, "stopped": True}
    assert await client.until_closed() == 1000
    assert server.host.streams == {}


async def test_chunks_are_released_and_played_frames_reported(serve: Serve) -> None:
    """Every chunk that was encoded is handed back; the engine knows what was played."""
    server = await serve()
    client = await server.start()
    stream = server.host.streams["s1"]
    await client.until_frame(20)
    assert stream.played_frame >= 20
    assert stream.num_released >= 5
    assert stream.num_chunks - stream.num_released <= 1


async def test_with_acks_at_most_two_frames_are_in_flight(serve: Serve) -> None:
    """A client that stops to acknowledge gets no third frame, and the newest when it goes on."""
    server = await serve()
    client = await server.start(acks=True)
    client.acks = False
    await client.more_frames(2)
    await eventually(lambda: server.host.streams["s1"].played_frame >= 20)
    await client.send("session.ack", frame_index=1, displayed_at_ms=1.5)
    await client.more_frames(1)
    first, second, third = (frame.index for frame in client.frames)
    assert (first, second) == (0, 1)
    assert third >= 20
    assert (await client.until("session.stats"))["dropped"] >= 8
    async with server.http() as http:
        (viewer,) = (await http.get("/v1/realtime/sessions/s1")).json()["viewers"]
    assert (viewer["displayed_frame_index"], viewer["displayed_at_ms"]) == (1, 1.5)


async def test_a_failure_is_told_and_closes(serve: Serve) -> None:
    """Viewers of a failed session get the error and the close code of its kind."""
    server = await serve()
    client = await server.start()
    other = await server.start()
    await client.until_frame(2)
    server.host.streams["s1"].fail(Failed("worker_restarted", "the engine died", retryable=True))
    error = await client.until("error")
    assert (error["code"], error["retryable"]) == ("worker_restarted", True)
    assert await client.until_closed() == 1012
    await other.more_frames(8)


async def test_pictures_that_cannot_be_encoded_end_the_session(serve: Serve) -> None:
    """With a code of their own."""

    def paint(shot: Shot) -> NDArray[np.uint8]:
        return np.zeros((shot.num_frames, shot.height, shot.width, 5), np.uint8)

    server = await serve(FakeHost(paint=paint))
    client = await server.start()
    assert (await client.until("error"))["code"] == "encoder_failed"
    assert await client.until_closed() == 1011
    await eventually(lambda: server.host.streams == {})


async def test_a_session_has_a_longest_life(serve: Serve) -> None:
    """After it: an error and close code 4001."""
    server = await serve(max_session_s=0.3)
    client = await server.start()
    error = await client.until("error")
    assert error["code"] == "timeout_max_duration"
    assert await client.until_closed() == 4001
    await eventually(lambda: server.host.streams == {})
