"""Rewinding and forking over the realtime socket."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.transport.conftest import RunningServer, Serve, eventually
from tests.transport.fake_host import FakeHost
from tests.transport.painting import revision_of
from tests.transport.realtime_client import Frame, RealtimeClient
from tests.transport.test_prompts_live import check_pixels_agree
from transport.stream import Receipt, Rejected
from transport.wire import Control


async def fork(server: RunningServer, client: RealtimeClient, **fields: object) -> RealtimeClient:
    """Fork the client's session and watch the child as its owner."""
    await client.send("session.fork", **fields)
    told = await client.until("session.forked")
    child = await server.connect(told["urls"]["view"])
    await child.send("session.resume", resume_token=told["resume_token"])
    await child.until("video.start")
    return child


def check_numbers_never_go_back(client: RealtimeClient) -> None:
    """Check frames, chunks and time."""
    for earlier, later in pairwise(client.frames):
        assert later.index > earlier.index
        assert later.chunk_index >= earlier.chunk_index
        assert later.pts_us > earlier.pts_us


async def test_a_rewind_goes_on_under_the_old_prompt(serve: Serve) -> None:
    """The picture, revision and prompt are those of then; numbers go on."""
    server = await serve(FakeHost(chunk_s=0.03))
    client = await server.start("red", seed=5)
    await client.more_frames(10)
    await client.prompt("blue", "b")
    applied = await client.until("session.interaction.applied", event_id="b")
    await client.more_frames(10)
    await client.send("session.rewind", to_chunk=applied["chunk_index"] - 1, event_id="r")
    await client.until("session.interaction.queued", event_id="r")
    back = await client.until("session.interaction.applied", event_id="r")
    assert back["prompt_revision"] == 0
    assert back["chunk_index"] > applied["chunk_index"]
    await client.more_frames(6)
    assert revision_of(client.frames[-1].decode()) == 0
    prompts = [m["prompt"] for m in client.of_type("video.chunk_metadata") if "prompt" in m]
    assert prompts == ["red", "blue", "red"]
    check_numbers_never_go_back(client)
    check_pixels_agree(client)
    async with server.http() as http:
        told = (await http.get("/v1/realtime/sessions/s1")).json()["prompts"]
    assert [entry["prompt"] for entry in told] == ["red", "blue", "red"]
    assert told[2]["chunk_index"] == back["chunk_index"]


@pytest.mark.parametrize("name", ["r{}", "r"])
async def test_q23_no_frame_of_an_abandoned_chunk_comes_after_the_receipt(
    serve: Serve, name: str
) -> None:
    """However far ahead the engine is: they are thrown away at once, the chunk in work too."""
    server = await serve(FakeHost(chunk_s=0.3, chunk_frames=8, fps=20))
    client = await server.start("red")
    for number in range(4):
        await client.more_frames(10)
        await client.send("session.rewind", to_chunk=0, event_id=name.format(number))
        await client.until("session.interaction.queued", event_id=name.format(number))
        seen = len(client.frames)
        back = await client.until("session.interaction.applied", event_id=name.format(number))
        assert len(client.frames) == seen
        frame = await client.until_frame(0)
        assert frame.index == back["frame_index"]
        assert frame.chunk_index == back["chunk_index"]
    check_numbers_never_go_back(client)
    await client.check_streaming()


async def test_q23_a_rewind_in_a_pause_shows_nothing_until_it_ends(serve: Serve) -> None:
    """Then the first frame is of the new chunk."""
    server = await serve()
    client = await server.start("red")
    await client.more_frames(10)
    await client.send("session.update", paused=True, event_id="p")
    await client.until("session.state", state="paused")
    await client.send("session.rewind", to_chunk=0, event_id="r")
    await client.until("session.interaction.queued", event_id="r")
    seen = len(client.frames)
    await client.receive_for(0.4)
    assert len(client.frames) == seen
    await client.send("session.update", paused=False)
    back = await client.until("session.interaction.applied", event_id="r")
    assert (await client.until_frame(0)).index == back["frame_index"]


async def test_q22_the_last_of_many_rewinds_wins(serve: Serve) -> None:
    """Prompts and rewinds in a burst: each is answered twice, the video goes on where it should."""
    server = await serve(FakeHost(chunk_s=0.1))
    client = await server.start("red")
    await client.until_frame(20)
    for number in range(15):
        await client.prompt("blue", f"p{number}")
        await client.send("session.rewind", to_chunk=number % 3, event_id=f"r{number}")
    await client.send("session.rewind", to_chunk=1, event_id="last")
    back = await client.until("session.interaction.applied", event_id="last")
    assert back["prompt_revision"] == 0
    await client.more_frames(8)
    check_numbers_never_go_back(client)
    ends = ("session.interaction.applied", "session.interaction.superseded")
    told = [m["event_id"] for m in client.messages if m["type"] in ends]
    assert sorted(told) == sorted(
        [*(f"p{n}" for n in range(15)), *(f"r{n}" for n in range(15)), "last"]
    )


async def test_a_prompt_that_a_rewind_swallows_is_superseded(serve: Serve) -> None:
    """Its chunk is made but never shown; it is told so, and not that it was applied."""
    server = await serve(FakeHost(chunk_s=0.0, chunk_frames=8, fps=20))
    client = await server.start("red")
    stream = server.host.streams["s1"]
    await client.more_frames(10)
    await client.prompt("blue", "b")
    await client.until("session.interaction.queued", event_id="b")
    await eventually(lambda: stream.scene.revision == 1)
    await client.send("session.rewind", to_chunk=0, event_id="r")
    await client.until("session.interaction.applied", event_id="r")
    assert client.of_type("session.interaction.superseded")[0]["event_id"] == "b"
    assert [m["event_id"] for m in client.of_type("session.interaction.applied")] == ["r"]


async def test_a_rewind_that_fails_later_lets_the_stream_go_on(serve: Serve) -> None:
    """What is made is played again."""
    server = await serve(FakeHost(chunk_s=0.05))
    client = await server.start()
    await client.more_frames(8)
    stream = server.host.streams["s1"]
    server.host.chunk_s = 0.5

    async def accept(message: Control) -> Receipt:
        return Receipt(message.event_id or "", stream.revision)

    stream.control = accept  # type: ignore[method-assign]
    await client.send("session.rewind", to_chunk=0, event_id="r")
    await client.until("session.interaction.queued", event_id="r")
    stream.tell(Rejected("r", "internal", "the history is broken"))
    rejected = await client.until("session.interaction.rejected", event_id="r")
    assert rejected["message"] == "the history is broken"
    await client.more_frames(8)
    check_numbers_never_go_back(client)


async def test_chunks_that_are_not_kept_cannot_be_gone_back_to(serve: Serve) -> None:
    """Not yet made, or forgotten: the error names the oldest, and the stream goes on."""
    server = await serve(FakeHost(keep_chunks=3))
    client = await server.start()
    await client.until_frame(40)
    for kind, param in (("session.rewind", "to_chunk"), ("session.fork", "at_chunk")):
        for index in (0, 10_000):
            await client.send(kind, **{param: index, "event_id": f"{kind}{index}"})
            error = await client.until("error", event_id=f"{kind}{index}")
            assert (error["code"], error["param"]) == ("invalid_request", param)
            assert "oldest" in error["message"]
    assert server.host.num_opened == 1
    await client.check_streaming()


async def test_a_fork_plays_beside_its_parent(serve: Serve) -> None:
    """From where the parent is, with its numbers going on; each has its own prompt."""
    server = await serve()
    client = await server.start("red", acks=True)
    await client.more_frames(10)
    child = await fork(server, client, event_id="f")
    assert client.of_type("session.forked")[0]["event_id"] == "f"
    child.acks = True
    await child.more_frames(4)
    assert child.frames[0].index > client.frames[-1].index
    assert child.frames[0].chunk_index > 0
    await child.prompt("blue", "c")
    await child.until("session.interaction.applied", event_id="c")
    await asyncio.gather(client.more_frames(8), child.more_frames(8))
    assert revision_of(child.frames[-1].decode()) == 1
    assert revision_of(client.frames[-1].decode()) == 0
    assert client.of_type("session.interaction.applied") == []
    for one in (client, child):
        check_numbers_never_go_back(one)
        check_pixels_agree(one)


async def test_a_fork_of_an_earlier_chunk(serve: Serve) -> None:
    """It goes on from there, under the prompt of then, and knows the prompts until then."""
    server = await serve()
    client = await server.start("red")
    await client.more_frames(10)
    await client.prompt("blue", "b")
    applied = await client.until("session.interaction.applied", event_id="b")
    await client.more_frames(8)
    at_chunk = applied["chunk_index"] - 1
    child = await fork(server, client, at_chunk=at_chunk)
    first = await child.receive()
    while not isinstance(first, Frame):
        first = await child.receive()
    assert first.chunk_index == at_chunk + 1
    assert revision_of(first.decode()) == 0
    async with server.http() as http:
        told = (await http.get(f"/v1/realtime/sessions/{child.messages[0]['session_id']}")).json()
    assert [entry["prompt"] for entry in told["prompts"]] == ["red"]
    assert told["config"]["prompt"] == "red"


async def test_q36_forks_give_their_pages_back(serve: Serve) -> None:
    """Watched or not, also one whose asker left at once; the parent goes on."""
    server = await serve(idle_timeout_s=0.2)
    client = await server.start()
    await client.more_frames(4)
    for _ in range(3):
        child = await fork(server, client)
        await child.more_frames(2)
        await child.socket.close()
        await eventually(lambda: server.host.pages_free == 20)
    await client.check_streaming()
    server = await serve(attach_timeout_s=0.2, idle_timeout_s=0.2)
    client = await server.start()
    await client.more_frames(4)
    await client.send("session.fork")  # nobody comes to watch this one
    await client.until("session.forked")
    await eventually(lambda: len(server.host.streams) == 1)
    assert (server.host.num_opened, server.host.pages_free) == (2, 20)
    await client.check_streaming()


async def test_a_fork_that_finds_no_room_is_refused(serve: Serve) -> None:
    """The parent does not notice."""
    server = await serve(FakeHost(max_sessions=1))
    client = await server.start()
    await client.more_frames(4)
    await client.send("session.fork", event_id="f")
    error = await client.until("error", event_id="f")
    assert (error["code"], error["retryable"]) == ("capacity", True)
    await client.check_streaming()


async def test_a_watcher_can_neither_rewind_nor_fork(serve: Serve) -> None:
    """The tokens of a fork are for who owns its parent."""
    server = await serve()
    client = await server.start()
    await client.more_frames(4)
    start = client.messages[0]
    watcher = await server.connect(f"/v1/realtime/sessions/{start['session_id']}/view")
    await watcher.send("session.view", viewer_token=start["viewer_token"])
    await watcher.until("video.start")
    for kind, fields in (("session.rewind", {"to_chunk": 0}), ("session.fork", {})):
        await watcher.send(kind, event_id="w", **fields)
        assert (await watcher.until("error", event_id="w"))["code"] == "unauthorized"
    assert server.host.num_opened == 1
    await client.check_streaming()
