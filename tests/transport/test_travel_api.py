"""Rewind, fork, snapshot, restore and replay over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx

from tests.transport.conftest import RunningServer, Serve, eventually
from tests.transport.fake_host import FakeHost
from tests.transport.painting import revision_of
from tests.transport.test_http import check_error
from transport.travel_api import MAX_RESTORES

SESSIONS = "/v1/realtime/sessions"
BYTES = {"content-type": "application/octet-stream"}


async def watch(server: RunningServer, made: dict[str, Any]) -> Any:
    """Watch a session that was made over HTTP, as its owner."""
    viewer = await server.connect(made["urls"]["view"])
    await viewer.send("session.resume", resume_token=made["resume_token"])
    await viewer.until("video.start")
    return viewer


async def test_rewind(serve: Serve) -> None:
    """The answer is the receipt; the viewers see it applied."""
    server = await serve()
    client = await server.start()
    await client.more_frames(10)
    async with server.http() as http:
        http.headers.update(server.owner())
        answer = await http.post(f"{SESSIONS}/s1/rewind", json={"to_chunk": 0, "event_id": "r"})
        assert answer.json() == {
            "type": "session.interaction.queued",
            "event_id": "r",
            "prompt_revision": 0,
        }
        await client.until("session.interaction.applied", event_id="r")
        for body, status in (({}, 400), ({"to_chunk": -1}, 400), ({"to_chunk": 1, "x": 1}, 422)):
            code = "invalid_request" if status == 400 else "unsupported"
            check_error(await http.post(f"{SESSIONS}/s1/rewind", json=body), status, code)
        unknown = await http.post(f"{SESSIONS}/s1/rewind", json={"to_chunk": 10_000})
        assert check_error(unknown, 400, "invalid_request")["param"] == "to_chunk"
        other = {"type": "session.ping"}
        check_error(await http.post(f"{SESSIONS}/s1/rewind", json=other), 400, "invalid_request")
        gone = await http.post(f"{SESSIONS}/none/rewind", json={"to_chunk": 0})
        check_error(gone, 404, "not_found")


async def test_fork(serve: Serve) -> None:
    """201, in the shape of a new session, and a picture at its own address."""
    server = await serve()
    client = await server.start("red", seed=9)
    await client.more_frames(10)
    async with server.http() as http:
        http.headers.update(server.owner())
        answer = await http.post(f"{SESSIONS}/s1/fork", json={})
        made = answer.json()
        assert answer.status_code == 201
        assert answer.headers["location"] == f"{SESSIONS}/{made['id']}"
        assert made["config"]["seed"] == 9
        assert made["resume_token"] != client.messages[0]["resume_token"]
        child = await watch(server, made)
        await asyncio.gather(child.more_frames(4), client.more_frames(4))
        unknown = await http.post(f"{SESSIONS}/s1/fork", json={"at_chunk": 10_000})
        assert check_error(unknown, 400, "invalid_request")["param"] == "at_chunk"
        body = {"type": "session.fork", "event_id": "f"}
        told = (await http.post(f"{SESSIONS}/s1/events", json=body)).json()
        assert (told["type"], told["event_id"]) == ("session.forked", "f")
        theirs = server.owner(told["session_id"])
        await http.delete(f"{SESSIONS}/{told['session_id']}", headers=theirs)
        bare = await http.post(f"{SESSIONS}/s1/fork")
        check_error(bare, 415, "invalid_request")


async def test_a_snapshot_goes_on_in_another_server(serve: Serve) -> None:
    """Prompt, revision and numbers are those of the session that was left."""
    server, elsewhere = await serve(), await serve()
    client = await server.start("red")
    await client.more_frames(6)
    await client.prompt([{"text": "blue", "weight": 2}, {"text": "night", "weight": 1}], "b")
    await client.until("session.interaction.applied", event_id="b")
    async with server.http() as http:
        answer = await http.get(f"{SESSIONS}/s1/snapshot", headers=server.owner())
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="s1.snapshot"'
    async with elsewhere.http() as http:
        restored = await http.post(f"{SESSIONS}/restore", content=answer.content, headers=BYTES)
        assert restored.status_code == 201
        made = restored.json()
        viewer = await watch(elsewhere, made)
        await viewer.more_frames(4)
        prompts = (await http.get(f"{SESSIONS}/{made['id']}")).json()["prompts"]
    assert viewer.frames[0].chunk_index > 0
    assert revision_of(viewer.frames[-1].decode()) == 1
    mixed = [{"text": "blue", "weight": 2.0}, {"text": "night", "weight": 1.0}]
    assert viewer.of_type("video.chunk_metadata")[0]["prompt"] == mixed
    assert [entry["prompt"] for entry in prompts] == [mixed]


async def test_what_is_no_snapshot_is_refused(serve: Serve) -> None:
    """400 from the engine, 415 for another type, 413 for too much; nothing is left."""
    server = await serve(max_snapshot_bytes=1000)
    restore = f"{SESSIONS}/restore"
    async with server.http() as http:
        for blob in (b"", b"\xff\x00", b"{}", b"[]", b'{"scene":{},"config":{}}'):
            answer = await http.post(restore, content=blob, headers=BYTES)
            check_error(answer, 400, "invalid_request")
        check_error(await http.post(restore, json={}), 415, "invalid_request")
        big = await http.post(restore, content=b"x" * 1001, headers=BYTES)
        check_error(big, 413, "invalid_request")

        async def drip() -> Any:
            for _ in range(3):
                yield b"x" * 500

        check_error(await http.post(restore, content=drip(), headers=BYTES), 413, "invalid_request")
        for path in ("snapshot", "replay"):
            check_error(await http.get(f"{SESSIONS}/none/{path}"), 404, "not_found")
    assert server.host.streams == {}


async def until_answered(http: httpx.AsyncClient, status: int) -> httpx.Response:
    """Send what is no snapshot until it is answered so."""
    deadline = time.monotonic() + 30
    while True:
        answer = await http.post(f"{SESSIONS}/restore", content=b"x", headers=BYTES)
        if answer.status_code == status:
            return answer
        assert time.monotonic() < deadline, answer.text
        await asyncio.sleep(0.01)


async def test_snapshots_are_read_a_few_at_a_time(serve: Serve) -> None:
    """Memory is bounded: more are told to come again; a slow one is cut off."""
    server = await serve()
    head = (
        f"POST {SESSIONS}/restore HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
        "Content-Length: 9\r\n\r\n"
    )
    slow = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MAX_RESTORES)]
    for _, writer in slow:
        writer.write(head.encode())
    async with server.http() as http:
        full = await until_answered(http, 503)
        check_error(full, 503, "capacity")
        assert full.headers["retry-after"] == "2"
        for _, writer in slow:
            writer.close()
        check_error(await until_answered(http, 400), 400, "invalid_request")


async def test_replay(serve: Serve) -> None:
    """JSON lines: what the video was made from, and what happened in which chunk."""
    server = await serve()
    client = await server.start(seed=3)
    await client.more_frames(4)
    await client.prompt("blue", "b")
    applied = await client.until("session.interaction.applied", event_id="b")
    async with server.http() as http:
        answer = await http.get(f"{SESSIONS}/s1/replay", headers=server.owner())
    assert answer.headers["content-type"].startswith("application/jsonl")
    assert answer.headers["content-disposition"] == 'attachment; filename="s1.jsonl"'
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[0] == {"model": "fake", "seed": 3}
    assert lines[1] == {"chunk": applied["chunk_index"], "event_id": "b"}


async def test_q36_what_is_restored_is_given_back(serve: Serve) -> None:
    """Without a viewer it ends like any other session."""
    patient = await serve(FakeHost(max_sessions=2))
    server = await serve(FakeHost(max_sessions=2), attach_timeout_s=0.1, idle_timeout_s=0.1)
    client = await patient.start()
    await client.more_frames(4)
    async with patient.http() as http:
        blob = (await http.get(f"{SESSIONS}/s1/snapshot", headers=patient.owner())).content
        made = await http.post(f"{SESSIONS}/restore", content=blob, headers=BYTES)
        assert made.status_code == 201
        full = await http.post(f"{SESSIONS}/restore", content=blob, headers=BYTES)
        check_error(full, 503, "capacity")
    async with server.http() as http:
        made = await http.post(f"{SESSIONS}/restore", content=blob, headers=BYTES)
        assert made.status_code == 201
    await eventually(lambda: server.host.streams == {})
    assert server.host.pages_free == 20
