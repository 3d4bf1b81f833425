"""What is told of an engine that stalls, is overloaded, or is replaced."""

from __future__ import annotations

import asyncio

import pytest

from tests.transport.conftest import Serve, eventually
from tests.transport.fake_host import FakeHost


async def test_q14_a_stall_is_busy_and_not_dead(serve: Serve) -> None:
    """Health again and again during a stall: always 200; readiness says busy; no socket ends."""
    server = await serve()
    client = await server.start()
    await client.more_frames(4)
    obeys = server.host.streams["s1"].obeys
    obeys.clear()
    await client.prompt("blue", "e")
    async with server.http() as http:
        for fifths in range(25):
            server.host.busy_s = busy_s = fifths / 5
            health = await http.get("/health")
            assert health.status_code == 200
            assert health.json()["status"] == ("busy" if busy_s >= 2 else "ok")
            ready = await http.get("/readyz")
            assert ready.status_code == (503 if busy_s >= 2 else 200)
            if ready.status_code == 503:
                assert ready.json()["status"] == "busy"
            await client.send("session.ping")
            await client.until("session.pong")
        server.host.busy_s = 0.0
        assert (await http.get("/readyz")).status_code == 200
    assert client.of_type("session.interaction.queued") == []
    obeys.set()
    await client.until("session.interaction.applied", event_id="e")


async def test_q14_a_dead_engine_is_down(serve: Serve) -> None:
    """However long ago it last answered."""
    server = await serve(FakeHost(alive=False, busy_s=60.0))
    async with server.http() as http:
        health = await http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "down")
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "down")


async def test_overload_is_told_to_everybody_and_to_who_comes_later(serve: Serve) -> None:
    """Level and sentence, in the figures too, until it is over."""
    server = await serve()
    clients = [await server.start(), await server.start()]
    server.host.set_overload(2, "fewer denoise steps")
    for client in clients:
        told = await client.until("session.overload")
        assert told == {"type": "session.overload", "level": 2, "action": "fewer denoise steps"}
    stats = await clients[0].until("session.stats")
    assert stats["level"]["overload"] == 2
    late = await server.connect()
    await late.send("session.resume", resume_token=clients[0].messages[0]["resume_token"])
    await late.until("session.overload", level=2)
    async with server.http() as http:
        assert (await http.get("/readyz")).json()["capacity"]["overload"] == 2
    server.host.set_overload(0, "all is well")
    for client in (*clients, late):
        await client.until("session.overload", level=0)
    later = await server.connect()
    await later.send("session.resume", resume_token=clients[0].messages[0]["resume_token"])
    await later.more_frames(4)
    assert later.of_type("session.overload") == []


async def test_an_engine_that_is_replaced_freezes_and_goes_on(serve: Serve) -> None:
    """Viewers are told; numbers go on, and what was accepted is applied."""
    server = await serve(FakeHost(chunk_s=0.2))
    clients = [await server.start(), await server.start()]
    for client in clients:
        await client.more_frames(8)
    await clients[0].prompt("blue", "b")
    await clients[0].until("session.interaction.queued", event_id="b")
    await clients[0].send("session.rewind", to_chunk=0, event_id="r")
    await clients[0].until("session.interaction.queued", event_id="r")
    await server.host.restart(0.5)
    for client in clients:
        await client.until("session.worker_restarted")
    await clients[0].until("session.interaction.applied", event_id="r")
    for client in clients:
        await client.more_frames(8)
        indices = [frame.index for frame in client.frames]
        assert indices == sorted(set(indices))
    async with server.http() as http:
        assert (await http.get("/health")).json()["restarts"] == 1


@pytest.mark.parametrize("when", ["running", "queued"])
async def test_q36_who_leaves_during_a_restart_leaves_nothing(serve: Serve, when: str) -> None:
    """The places of the engine that comes back are free."""
    queued = when == "queued"
    host = FakeHost(max_sessions=1 if queued else 2, max_queue=1 if queued else 0)
    server = await serve(host, idle_timeout_s=0.1)
    stays = await server.start()
    client = await server.start()
    await stays.more_frames(4)
    restarting = asyncio.create_task(server.host.restart(0.3))
    await asyncio.sleep(0.1)
    await client.socket.close()
    await restarting
    await eventually(lambda: len(server.host.streams) == 1)
    await stays.check_streaming()
    await stays.send("session.stop")
    await eventually(lambda: server.host.pages_free == 10 * host.max_sessions)
