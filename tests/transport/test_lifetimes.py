"""Field cases of sessions that begin, are left, are resumed and end."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct

import pytest

from tests.transport.conftest import RunningServer, Serve, eventually
from tests.transport.fake_host import FakeHost
from tests.transport.realtime_client import RealtimeClient
from transport.server import listen
from transport.stream import Failed


@pytest.mark.parametrize("chunk_frames", [1, 12, 21])
async def test_q27_exactly_so_many_frames_are_delivered(serve: Serve, chunk_frames: int) -> None:
    """Whole chunks, the last one cut; metadata, headers and `session.done` agree to the frame."""
    server = await serve(FakeHost(chunk_s=0.0, fps=240, chunk_frames=chunk_frames))
    for number in (1, 2, 4, 5, 80, 81, 82, 83):
        client = await server.start(num_frames=number)
        done = await client.until("session.done")
        chunks = client.of_type("video.chunk_metadata")
        assert done == {"type": "session.done", "chunks": len(chunks), "stopped": False}
        assert sum(chunk["num_frames"] for chunk in chunks) == number
        assert client.frames[-1].index == number - 1
        assert len({frame.index for frame in client.frames}) == len(client.frames) <= number
        assert await client.until_closed() == 1000
    await eventually(lambda: server.host.streams == {})


async def test_q27_no_frames_are_no_session(serve: Serve) -> None:
    """Refused with a sentence, not an assertion."""
    server = await serve()
    client = await server.connect()
    for number in (0, -1):
        await client.send("session.start", prompt="a", num_frames=number)
        assert (await client.until("error"))["param"] == "num_frames"


async def test_the_last_frame_reaches_a_client_that_acknowledges(serve: Serve) -> None:
    """The end waits for the frame that still waits."""
    server = await serve(FakeHost(chunk_s=0.0, fps=240))
    client = await server.start(num_frames=9, acks=True)
    await client.until("session.done")
    assert client.frames[-1].index == 8


@pytest.mark.parametrize("again", [False, True])
async def test_what_a_client_sent_before_it_closed_is_obeyed(serve: Serve, again: bool) -> None:
    """To the last message and in order, also when each takes the engine its time."""
    server = await serve()
    client = await server.start(run_unwatched=True)
    stream = server.host.streams["s1"]
    if again:  # on a connection that has only resumed
        token = client.messages[0]["resume_token"]
        await client.socket.close()
        client = await server.connect()
        await client.send("session.resume", resume_token=token)
    stream.obeys.clear()
    for number in range(5):
        await client.send("session.update", seed=number, event_id=f"u{number}")
    await client.send("session.update", paused=True, event_id="p")
    closing = asyncio.create_task(client.socket.close())
    await asyncio.sleep(0.1)
    stream.obeys.set()
    await closing
    await eventually(lambda: stream.state == "paused")
    assert stream.config.seed == 4


async def leave(server: RunningServer, client: RealtimeClient, how: str) -> None:
    """Let a client go in one of the ways that clients go."""
    stream = server.host.streams[client.messages[0]["session_id"]]
    match how:
        case "close":
            await client.socket.close()
        case "reset":
            sock = client.socket.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.socket.transport.abort()
        case "during a switch":
            await client.prompt("blue", "e")
            await client.socket.close()
        case "stop":
            await client.send("session.stop")
        case "failure":
            stream.fail(Failed("internal", "it broke"))
        case "bad messages":
            for _ in range(10):
                await client.socket.send("{")
        case "delete":
            async with server.http() as http:
                url = f"/v1/realtime/sessions/{stream.id}"
                await http.delete(url, headers=server.owner(stream.id))


WAYS = ["close", "reset", "during a switch", "stop", "failure", "bad messages", "delete"]


async def test_q36_pages_come_back_however_a_client_leaves(serve: Serve) -> None:
    """After each round all pages are free; in the end no session is left either."""
    server = await serve(FakeHost(chunk_s=0.02), idle_timeout_s=0.2)
    before = server.host.pages_free
    for how in WAYS * 3:
        client = await server.start()
        await client.more_frames(2)
        assert server.host.pages_free == before - 10
        await leave(server, client, how)
        await eventually(lambda: server.host.pages_free == before)
    await eventually(lambda: server.host.streams == {})


async def test_q36_a_full_pool_is_busy_but_ready(serve: Serve) -> None:
    """Readiness says how much is free; the next session after one that left is admitted."""
    server = await serve(FakeHost(max_sessions=1))
    client = await server.start()
    async with server.http() as http:
        ready = await http.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["capacity"]["sessions_free"] == 0
        full = await http.post("/v1/realtime/sessions", json={"prompt": "a"})
        assert full.status_code == 503
        assert full.headers["retry-after"] == "5"
        assert full.json()["error"]["code"] == "capacity"
    await client.socket.close()
    await eventually(lambda: server.host.pages_free == 10)
    await server.start()


async def test_a_session_is_resumed_where_it_was_left(serve: Serve) -> None:
    """The same session and settings, the next frame, the same way of viewing."""
    server = await serve()
    client = await server.start(acks=True, seed=3)
    await client.more_frames(10)
    start = client.messages[0]
    await client.socket.close()
    stream = server.host.streams["s1"]
    await eventually(lambda: stream.state == "suspended")
    left_at = stream.played_frame
    again = await server.connect()
    again.acks = True
    await again.send("session.resume", resume_token=start["resume_token"])
    resumed = await again.until("video.start")
    assert resumed["config"] == start["config"]
    assert resumed["session_id"] == start["session_id"]
    await again.more_frames(10)
    # The frame shown last comes first, so that there is a picture at once.
    assert [frame.index for frame in again.frames[:3]] == [left_at, left_at + 1, left_at + 2]
    assert again.of_type("error") == []


async def test_a_session_nobody_comes_back_to_ends(serve: Serve) -> None:
    """After the idle time-out its token is worth nothing."""
    server = await serve(idle_timeout_s=0.1)
    client = await server.start()
    token = client.messages[0]["resume_token"]
    await client.socket.close()
    await eventually(lambda: server.host.streams == {})
    late = await server.connect()
    await late.send("session.resume", resume_token=token)
    assert (await late.until("error"))["code"] == "not_found"
    assert await late.until_closed() == 1008


async def test_resuming_a_full_server_may_be_tried_again(serve: Serve) -> None:
    """The session is kept, and goes on when there is room."""
    server = await serve(FakeHost(max_sessions=1))
    client = await server.start()
    token = client.messages[0]["resume_token"]
    await client.socket.close()
    await eventually(lambda: server.host.pages_free == 10)
    usurper = await server.start()
    early = await server.connect()
    at_once = await server.connect()
    for client in (early, at_once):
        await client.send("session.resume", resume_token=token)
    for client in (early, at_once):
        assert (await client.until("error"))["code"] == "capacity"
        assert await client.until_closed() == 1013
    await usurper.send("session.stop")
    await usurper.until_closed()
    again = await server.connect()
    await again.send("session.resume", resume_token=token)
    await again.until_frame(0)


async def test_a_second_viewer_keeps_the_session_running(serve: Serve) -> None:
    """Only the last one to leave suspends it."""
    server = await serve()
    first = await server.start()
    second = await server.connect()
    await second.send("session.resume", resume_token=first.messages[0]["resume_token"])
    await second.until("video.start")
    await first.socket.close()
    await second.more_frames(12)
    assert server.host.streams["s1"].state == "running"


async def test_a_session_made_over_http_waits_for_its_first_viewer(serve: Serve) -> None:
    """Nothing is played to nobody; without a viewer it is suspended."""
    patient, server = await serve(), await serve(attach_timeout_s=0.1)
    async with patient.http() as http:
        made = (await http.post("/v1/realtime/sessions", json={"prompt": "a"})).json()
    stream = patient.host.streams[made["id"]]
    await eventually(lambda: stream.num_chunks == 2)
    assert stream.played_frame == -1
    async with server.http() as http:
        made = (await http.post("/v1/realtime/sessions", json={"prompt": "a"})).json()
    stream = server.host.streams[made["id"]]
    await eventually(lambda: stream.state == "suspended")
    assert stream.played_frame == -1
    viewer = await server.connect(made["urls"]["view"])
    await viewer.send("session.view", viewer_token=made["viewer_token"])
    assert (await viewer.until_frame(0)).index == 0
    await viewer.more_frames(12)


async def test_q49_sockets_without_a_message_are_reclaimed(serve: Serve) -> None:
    """They take no session, are closed with 1008, and nobody else notices."""
    server = await serve(first_message_timeout_s=1.0)
    good = await server.start()
    silent = [await server.connect() for _ in range(50)]
    codes = await asyncio.gather(*(client.until_closed() for client in silent))
    assert set(codes) == {1008}
    assert server.host.num_opened == 1
    await good.more_frames(8)
    await server.start()


async def test_q49_starting_and_stopping_again_and_again(serve: Serve) -> None:
    """20 times from one page: it always succeeds."""
    server = await serve(FakeHost(max_sessions=1, chunk_s=0.01))
    for _ in range(20):
        client = await server.start()
        await client.until_frame(0)
        await client.send("session.stop")
        assert await client.until_closed() == 1000


async def test_q53_shutdown_ends_sessions_and_tells_clients(serve: Serve) -> None:
    """Close 1012, nothing left at the engine, and the port can be taken again."""
    server = await serve()
    clients = [await server.start(), await server.start()]
    async with server.http() as http:
        await http.post("/v1/realtime/sessions", json={"prompt": "a"})
    server.uvicorn.should_exit = True
    codes = await asyncio.gather(*(client.until_closed() for client in clients))
    assert set(codes) == {1012}
    await eventually(lambda: server.host.streams == {})

    def port_is_free() -> bool:
        try:
            listen("127.0.0.1", server.port).close()
        except OSError:
            return False
        return True

    await eventually(port_is_free)


async def test_q53_shutdown_with_a_client_that_never_reads(serve: Serve) -> None:
    """It cannot be told, and does not hold the server up."""
    server = await serve()
    client = await server.start()
    await client.until_frame(0)
    client.socket.transport.pause_reading()
    server.uvicorn.should_exit = True
    await eventually(lambda: server.host.streams == {}, 30.0)  # its pings would end it after 40 s


def test_q53_a_port_in_use_is_named() -> None:
    """Before anything is loaded."""
    first = listen("127.0.0.1", 0)
    port = first.getsockname()[1]
    with pytest.raises(OSError, match=f"127.0.0.1:{port}") as caught:
        listen("127.0.0.1", port)
    assert caught.value.errno == errno.EADDRINUSE
    first.close()


def test_q53_a_host_name_that_is_none() -> None:
    """The error names it."""
    with pytest.raises(OSError, match=r"no\.such\.host\.invalid:80"):
        listen("no.such.host.invalid", 80)


async def test_an_end_is_told_when_it_is_seen(serve: Serve) -> None:
    """The engine is done chunks before the viewers are; they hear of it with the last frame."""
    server = await serve()
    client = await server.start(num_frames=20)
    await client.until("session.done")
    assert [frame.index for frame in client.frames] == list(range(20))
    assert all(message["state"] != "closed" for message in client.of_type("session.state"))


async def test_a_watched_session_outlives_the_time_outs_of_unwatched_ones(serve: Serve) -> None:
    """Its maker watches from the first moment on; no clock of an absence may run."""
    server = await serve(attach_timeout_s=0.2, idle_timeout_s=0.2)
    client = await server.start()
    await client.more_frames(40)
    await asyncio.sleep(0.6)
    await client.more_frames(24)
    assert server.host.streams["s1"].state == "running"
