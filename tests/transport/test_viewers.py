"""Several viewers of one session, and who may do what."""

from __future__ import annotations

import pytest

from tests.transport.conftest import Serve
from tests.transport.fake_host import FakeHost


async def test_a_watcher_sees_the_same_frames(serve: Serve) -> None:
    """The view socket joins in the middle; each frame is encoded once for all."""
    server = await serve()
    client = await server.start()
    start = client.messages[0]
    await client.until_frame(5)
    watcher = await server.connect(f"/v1/realtime/sessions/{start['session_id']}/view")
    await watcher.send("session.view", viewer_token=start["viewer_token"])
    welcome = await watcher.until("video.start")
    assert "resume_token" not in welcome
    assert "viewer_token" not in welcome
    last = await watcher.until_frame(12)
    await client.until_frame(last.index)
    sent = {frame.index: frame.payload for frame in client.frames}
    assert watcher.frames[0].index >= 5
    assert all(sent[frame.index] == frame.payload for frame in watcher.frames)
    assert watcher.of_type("video.chunk_metadata")[0]["transport_chunk_index"] == 0


async def test_a_watcher_need_not_acknowledge(serve: Serve) -> None:
    """Acknowledgements are each viewer's own choice, whatever the session was started with."""
    server = await serve()
    client = await server.start(acks=True)
    start = client.messages[0]
    watcher = await server.connect(f"/v1/realtime/sessions/{start['session_id']}/view")
    await watcher.send("session.view", viewer_token=start["viewer_token"])
    await watcher.more_frames(8)
    await watcher.send("session.ack", frame_index=0)
    assert "acks" in (await watcher.until("error"))["message"]


async def test_a_watcher_cannot_control(serve: Serve) -> None:
    """Its controls are refused, its leaving changes nothing."""
    server = await serve()
    client = await server.start()
    start = client.messages[0]
    watcher = await server.connect(f"/v1/realtime/sessions/{start['session_id']}/view")
    await watcher.send("session.view", viewer_token=start["viewer_token"])
    await watcher.until("video.start")
    await watcher.prompt("blue", "w")
    assert (await watcher.until("error"))["event_id"] == "w"
    await watcher.send("session.stop")
    assert (await watcher.until("error"))["code"] == "unauthorized"
    await watcher.socket.close()
    await client.more_frames(8)


async def test_a_second_controller_with_the_resume_token(serve: Serve) -> None:
    """The view socket controls with the resume token; all viewers hear what is applied."""
    server = await serve()
    client = await server.start()
    start = client.messages[0]
    other = await server.connect(f"/v1/realtime/sessions/{start['session_id']}/view")
    await other.send("session.resume", resume_token=start["resume_token"], format="none")
    await other.until("video.start")
    await other.prompt("blue", "o")
    await other.until("session.interaction.queued", event_id="o")
    await client.until("session.interaction.applied", event_id="o")


@pytest.mark.parametrize("kind", ["wrong viewer token", "no session", "wrong resume token"])
async def test_wrong_tokens_close_with_1008(serve: Serve, kind: str) -> None:
    """An error says what is wrong, then the socket is closed."""
    server = await serve()
    client = await server.start()
    session_id = "nope" if kind == "no session" else client.messages[0]["session_id"]
    other = await server.connect(f"/v1/realtime/sessions/{session_id}/view")
    if kind == "wrong resume token":
        await other.send("session.resume", resume_token="x")
    else:
        await other.send("session.view", viewer_token="é")
    code = (await other.until("error"))["code"]
    assert code == ("unauthorized" if kind == "wrong viewer token" else "not_found")
    assert await other.until_closed() == 1008


async def test_a_full_server_says_so(serve: Serve) -> None:
    """An error with a hint when to come again, then close 1013."""
    server = await serve(FakeHost(max_sessions=1))
    await server.start()
    late = await server.connect()
    await late.send("session.start", prompt="me too")
    error = await late.until("error")
    assert (error["code"], error["retryable"], error["retry_after_s"]) == ("capacity", True, 5)
    assert await late.until_closed() == 1013


async def test_viewers_are_limited(serve: Serve) -> None:
    """One viewer too many is told that the server is full."""
    server = await serve(max_viewers=1)
    await server.start()
    late = await server.connect()
    await late.send("session.start", prompt="me too")
    assert (await late.until("error"))["code"] == "capacity"
    assert await late.until_closed() == 1013
    assert server.host.num_opened == 1
