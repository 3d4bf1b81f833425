"""Sessions that wait for a place, and those that need no viewer."""

from __future__ import annotations

import pytest

from tests.transport.conftest import RunningServer, Serve, eventually
from tests.transport.fake_host import FakeHost
from tests.transport.realtime_client import RealtimeClient
from tests.transport.test_lifetimes import WAYS, leave

SESSIONS = "/v1/realtime/sessions"


async def queue_up(server: RunningServer, position: int) -> RealtimeClient:
    """Start a session that has to wait, and check its place."""
    client = await server.start()
    queued = await client.until("session.queued")
    assert queued["position"] == position
    return client


async def test_q49_one_session_too_many_waits_and_is_told_its_place(serve: Serve) -> None:
    """While nobody leaves, with an estimate; the place moves up to the picture."""
    server = await serve(FakeHost(max_sessions=2, max_queue=2))
    inside = [await server.start(), await server.start()]
    first, second = await queue_up(server, 0), await queue_up(server, 1)
    assert first.messages[0]["type"] == "video.start"
    assert first.of_type("session.state")[0]["state"] == "queued"
    assert second.of_type("session.queued")[0]["estimated_wait_s"] == 40
    await second.send("session.ping")
    await second.until("session.pong")
    async with server.http() as http:
        ready = (await http.get("/readyz")).json()
        assert ready["capacity"]["queue_length"] == 2
    await inside[0].send("session.stop")
    await first.until("session.state", state="starting")
    await first.until_frame(4)
    assert (await second.until("session.queued"))["position"] == 0
    await inside[1].more_frames(8)
    assert second.frames == []


async def test_q49_a_full_queue_refuses_with_a_time_to_come_again(serve: Serve) -> None:
    """Never a hang."""
    server = await serve(FakeHost(max_sessions=1, max_queue=1))
    await server.start()
    await queue_up(server, 0)
    late = await server.connect()
    await late.send("session.start", prompt="me too")
    error = await late.until("error")
    assert (error["code"], error["retry_after_s"]) == ("capacity", 5)
    assert await late.until_closed() == 1013


@pytest.mark.parametrize("how", [way for way in WAYS if way not in ("failure", "during a switch")])
async def test_q49_leaving_the_queue_frees_the_place(serve: Serve, how: str) -> None:
    """However one leaves: who waits behind moves up, and nothing is left at the engine."""
    server = await serve(FakeHost(max_sessions=1, max_queue=3))
    inside = await server.start()
    ghost, behind = await queue_up(server, 0), await queue_up(server, 1)
    await leave(server, ghost, how)
    assert (await behind.until("session.queued", position=0))["position"] == 0
    await eventually(lambda: len(server.host.streams) == 2)
    await inside.send("session.stop")
    await behind.until_frame(4)


async def test_q49_a_place_nobody_waits_at_is_freed(serve: Serve) -> None:
    """A session made over HTTP that has no viewer within the time to attach."""
    server = await serve(FakeHost(max_sessions=1, max_queue=1), attach_timeout_s=0.2)
    await server.start()
    async with server.http() as http:
        made = await http.post(SESSIONS, json={"prompt": "a"})
        assert (made.status_code, made.json()["state"]) == (201, "queued")
    await eventually(lambda: server.host.queue == [])
    assert len(server.host.streams) == 1


async def test_q49_sockets_beyond_the_queue_are_bounded_work(serve: Serve) -> None:
    """40 starts at once: one plays, two wait, the rest are refused, and all within a moment."""
    server = await serve(FakeHost(max_sessions=1, max_queue=2))
    good = await server.start()
    clients = [await server.connect() for _ in range(40)]
    for client in clients:
        await client.send("session.start", prompt="a")
    answers = [(await client.receive()) for client in clients]
    kinds = [answer["type"] for answer in answers if isinstance(answer, dict)]
    assert kinds.count("video.start") == 2
    assert kinds.count("error") == 38
    await good.check_streaming()


async def test_a_queued_session_can_be_told_things(serve: Serve) -> None:
    """The prompt it begins with is the newest one."""
    server = await serve(FakeHost(max_sessions=1, max_queue=1))
    inside = await server.start()
    client = await queue_up(server, 0)
    await client.prompt("blue", "b")
    await client.until("session.interaction.queued", event_id="b")
    await inside.send("session.stop")
    applied = await client.until("session.interaction.applied", event_id="b")
    assert applied["chunk_index"] == 0


async def test_who_takes_up_a_queued_session_learns_its_place(serve: Serve) -> None:
    """A second viewer, while the first still waits."""
    server = await serve(FakeHost(max_sessions=1, max_queue=1))
    await server.start()
    client = await queue_up(server, 0)
    other = await server.connect()
    await other.send("session.resume", resume_token=client.messages[0]["resume_token"])
    assert (await other.until("session.queued"))["position"] == 0


async def test_a_session_that_runs_unwatched(serve: Serve) -> None:
    """It plays to its end with nobody there, and can be looked at on the way."""
    server = await serve(attach_timeout_s=0.1, idle_timeout_s=0.1)
    async with server.http() as http:
        body = {"prompt": "a", "run_unwatched": True, "priority": "batch", "num_frames": 40}
        made = (await http.post(SESSIONS, json=body)).json()
        assert made["config"]["priority"] == "batch"
        stream = server.host.streams[made["id"]]
        await eventually(lambda: stream.played_frame > 4)
        viewer = await server.connect(made["urls"]["view"])
        await viewer.send("session.view", viewer_token=made["viewer_token"])
        await viewer.until_frame(0)
        await viewer.socket.close()
        await eventually(lambda: server.host.streams == {})
    assert stream.played_frame == 39


async def test_a_session_that_runs_unwatched_keeps_its_place_in_the_queue(serve: Serve) -> None:
    """Nobody need wait for it."""
    server = await serve(FakeHost(max_sessions=1, max_queue=1), attach_timeout_s=0.1)
    inside = await server.start()
    async with server.http() as http:
        body = {"prompt": "a", "run_unwatched": True, "num_frames": 8}
        await http.post(SESSIONS, json=body)
    await inside.receive_for(0.4)
    assert len(server.host.queue) == 1
    await inside.send("session.stop")
    await eventually(lambda: server.host.streams == {})


async def test_a_fork_runs_unwatched_as_its_parent_does(serve: Serve) -> None:
    """And is watched in the parent's format."""
    server = await serve(attach_timeout_s=0.1)
    async with server.http() as http:
        body = {"prompt": "a", "run_unwatched": True, "format": "raw"}
        made = (await http.post(SESSIONS, json=body)).json()
        owner = server.owner(made["id"])
        child = (await http.post(f"{SESSIONS}/{made['id']}/fork", json={}, headers=owner)).json()
        stream = server.host.streams[child["id"]]
        before = stream.played_frame
        await eventually(lambda: stream.played_frame > before + 20)
        viewer = await server.connect(child["urls"]["view"])
        await viewer.send("session.resume", resume_token=child["resume_token"])
        assert (await viewer.until("video.start"))["format"] == "raw"
        await http.delete(f"{SESSIONS}/{made['id']}", headers=owner)
