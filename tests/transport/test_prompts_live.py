"""Field cases of prompts that change while the video runs."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.transport.conftest import Serve
from tests.transport.fake_host import FakeHost
from tests.transport.painting import revision_of
from tests.transport.realtime_client import RealtimeClient


def check_pixels_agree(client: RealtimeClient) -> None:
    """Check that each frame shows the prompt revision that its chunk was announced with."""
    revisions = {
        message["generation_chunk_index"]: message["prompt_revision"]
        for message in client.of_type("video.chunk_metadata")
    }
    for frame in client.frames:
        assert revision_of(frame.decode()) == revisions[frame.chunk_index]


def outcomes(client: RealtimeClient) -> dict[str, list[str]]:
    """Return what became of each event, in order."""
    found: dict[str, list[str]] = {}
    for message in client.messages:
        kind, _, outcome = message["type"].rpartition(".")
        if kind == "session.interaction":
            found.setdefault(message["event_id"], []).append(outcome)
    return found


async def test_q22_the_last_of_many_prompts_wins(serve: Serve) -> None:
    """60 prompts in 0.6 s at 0.1 s a chunk: the last within two chunks, the rest superseded."""
    server = await serve(FakeHost(chunk_s=0.1))
    client = await server.start()
    stream = server.host.streams["s1"]
    await client.more_frames(4)
    for number in range(1, 61):
        await client.prompt(f"scene {number:02}", f"e{number}")
        await asyncio.sleep(0.01)
    await client.until("session.interaction.queued", event_id="e60")
    made = stream.num_chunks
    applied = await client.until("session.interaction.applied", event_id="e60")
    assert applied["prompt_revision"] == 60
    assert applied["chunk_index"] <= made + 2
    await client.more_frames(12)
    assert revision_of(client.frames[-1].decode()) == 60
    check_pixels_agree(client)
    found = outcomes(client)
    assert len(found) == 60
    assert all(seen in (["queued", "applied"], ["queued", "superseded"]) for seen in found.values())
    chunks = [message["chunk_index"] for message in client.of_type("session.interaction.applied")]
    assert chunks == sorted(set(chunks))  # at most one a chunk


async def test_q22_two_clients_control_one_session(serve: Serve) -> None:
    """Each gets its own receipts; both hear what is applied, and the last one wins."""
    server = await serve(FakeHost(chunk_s=0.1))
    first = await server.start()
    second = await server.connect()
    await second.send("session.resume", resume_token=first.messages[0]["resume_token"])
    await second.until("video.start")
    for number in range(20):
        await first.prompt("one", f"a{number}")
        await second.prompt("two", f"b{number}")
        await asyncio.sleep(0.01)
    await first.until("session.interaction.queued", event_id="a19")
    await second.until("session.interaction.queued", event_id="b19")
    revisions = {
        message["event_id"]: message["prompt_revision"]
        for message in first.of_type("session.interaction.queued")
        + second.of_type("session.interaction.queued")
    }
    assert sorted(revisions.values()) == list(range(1, 41))
    last = max(revisions, key=lambda event_id: revisions[event_id])
    for client in (first, second):
        await client.until("session.interaction.applied", event_id=last)
        await client.more_frames(4)
        assert revision_of(client.frames[-1].decode()) == 40


@pytest.mark.parametrize("seed", range(3))
async def test_q23_every_frame_shows_the_revision_it_is_announced_with(
    serve: Serve, seed: int
) -> None:
    """Changes at any moment of a chunk, twice in one too: the new colour comes with one chunk."""
    server = await serve(FakeHost(chunk_s=0.08))
    other = await server.start()
    client = await server.start()
    stream = server.host.streams["s2"]
    draw = random.Random(seed)
    await client.more_frames(2)
    for number in range(8):
        await client.receive_for(draw.uniform(0, 0.1))
        await client.prompt("next", f"e{number}")
        if draw.random() < 0.3:
            await client.prompt("at once", f"again{number}")
        made = stream.num_chunks
        queued = await client.until("session.interaction.queued")
        applied = await client.until("session.interaction.applied")
        # The chunk that was under way, and the one that takes it over.
        assert applied["chunk_index"] <= max(made, queued["prompt_revision"]) + 3
    await client.more_frames(8)
    check_pixels_agree(client)
    shown = [revision_of(frame.decode()) for frame in client.frames]
    assert shown == sorted(shown)
    await other.more_frames(len(client.frames) // 2)
    assert {revision_of(frame.decode()) for frame in other.frames} == {0}


async def test_q23_old_frames_after_a_switch_are_bounded(serve: Serve) -> None:
    """However far ahead the engine is: two chunks and two frames."""
    host = FakeHost(chunk_s=0.0, chunk_frames=4, fps=20)
    server = await serve(host)
    client = await server.start()
    await client.more_frames(12)
    await client.prompt("now", "e")
    await client.until("session.interaction.queued", event_id="e")
    before = client.frames[-1].index
    applied = await client.until("session.interaction.applied", event_id="e")
    assert applied["frame_index"] - before <= 2 * host.chunk_frames + 2 + 1


async def test_the_timeline_tells_which_chunk_each_prompt_began_with(serve: Serve) -> None:
    """`GET` shows revision, prompt and chunk; a prompt that is not shown yet has no chunk."""
    server = await serve(FakeHost(chunk_s=0.1))
    client = await server.start("red")
    await client.more_frames(2)
    await client.prompt("green", "g")
    await client.prompt("blue", "b")
    applied = await client.until("session.interaction.applied", event_id="b")
    async with server.http() as http:
        answer: dict[str, Any] = (await http.get("/v1/realtime/sessions/s1")).json()
    chunks = [(entry["prompt_revision"], entry["prompt"]) for entry in answer["prompts"]]
    assert chunks == [(0, "red"), (1, "green"), (2, "blue")]
    assert [entry["chunk_index"] for entry in answer["prompts"]][::2] == [0, applied["chunk_index"]]
    assert answer["chunk"] >= applied["chunk_index"]


async def test_q22_a_burst_that_overflows_keeps_the_newest(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More prompts at once than may wait: older ones are superseded, the last is on screen."""
    monkeypatch.setattr("transport.websocket.MAX_WAITING_CONTROLS", 4)
    server = await serve(FakeHost(chunk_s=0.1))
    client = await server.start()
    await client.more_frames(4)
    for number in range(1, 201):
        await client.prompt(f"scene {number:03}", f"e{number}")
    await client.until("session.interaction.applied", event_id="e200")
    assert client.of_type("error") == []
    assert all(seen[-1] in ("applied", "superseded") for seen in outcomes(client).values())
