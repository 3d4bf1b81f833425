"""The routes over HTTP, and what they say when something is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.transport.conftest import RunningServer, Serve
from tests.transport.fake_host import FakeHost
from transport.http import LATER

SESSIONS = "/v1/realtime/sessions"


async def request(server: RunningServer, method: str, path: str, **fields: Any) -> Any:
    """Send one request and return the response."""
    async with server.http() as http:
        return await http.request(method, path, **fields)


def check_error(response: Any, status: int, code: str) -> dict[str, Any]:
    """Check that an error has the documented shape, and return it."""
    assert response.status_code == status
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert error["type"] == kind
    return error


async def test_the_page_and_its_files(serve: Serve) -> None:
    """At the root, with a type that browsers take for a module, asked for again each time."""
    server = await serve()
    page = await request(server, "GET", "/")
    assert "<title>" in page.text
    assert page.headers["content-type"].startswith("text/html")
    module = await request(server, "GET", "/app.js")
    assert "javascript" in module.headers["content-type"]
    assert module.headers["cache-control"] == "no-cache"
    assert (await request(server, "HEAD", "/app.js")).status_code == 200


async def test_what_is_not_there(serve: Serve) -> None:
    """404 in the documented shape."""
    server = await serve()
    async with server.http() as http:
        for method, path in (
            ("GET", "/nothing"),
            ("POST", "/nothing"),
            ("GET", "/../stream.py"),
            ("GET", "/%2e%2e/stream.py"),
            ("GET", f"{SESSIONS}/none"),
            ("DELETE", f"{SESSIONS}/none"),
        ):
            check_error(await http.request(method, path), 404, "not_found")


async def test_a_method_that_is_not_allowed(serve: Serve) -> None:
    """405 says which are."""
    response = await request(await serve(), "DELETE", "/v1/models")
    check_error(response, 405, "invalid_request")
    assert response.headers["allow"] == "GET"


async def test_readiness(serve: Serve) -> None:
    """503 with the stage until warm; liveness does not care."""
    server = await serve(FakeHost(ready=False))
    warming = await request(server, "GET", "/readyz")
    assert warming.status_code == 503
    assert warming.json() == {"status": "warming", "stage": "weights", "progress": 0.6}
    assert (await request(server, "GET", "/health")).status_code == 200
    server.host.ready = True
    ready = await request(server, "GET", "/readyz")
    assert ready.json() == {
        "status": "ready",
        "capacity": {"sessions_free": 3, "pages_free": 30, "queue_length": 0, "overload": 0},
    }


async def test_a_dead_engine(serve: Serve) -> None:
    """The process lives, the engine does not."""
    server = await serve(FakeHost(alive=False))
    assert (await request(server, "GET", "/healthz")).status_code == 200
    assert (await request(server, "HEAD", "/healthz")).status_code == 200
    assert (await request(server, "GET", "/health")).status_code == 503
    down = await request(server, "GET", "/readyz")
    assert (down.status_code, down.json()["status"]) == (503, "down")


async def test_facts(serve: Serve) -> None:
    """Version, models, settings, schemas."""
    server = await serve(version="1.2.3", settings={"port": {"value": 1, "source": "flag"}})
    assert (await request(server, "GET", "/version")).json() == {"version": "1.2.3"}
    assert (await request(server, "GET", "/v1/config")).json()["port"]["source"] == "flag"
    (model,) = (await request(server, "GET", "/v1/models")).json()["data"]
    assert (model["id"], model["object"], model["suggestions"]) == ("fake", "model", ["red"])
    schema = (await request(server, "GET", "/schema/realtime.json")).json()
    assert "session.start" in schema["$defs"]
    openapi = (await request(server, "GET", "/openapi.json")).json()
    body = openapi["paths"][SESSIONS]["post"]["requestBody"]["content"]["application/json"]
    assert "prompt" in body["schema"]["properties"]


async def test_a_session_over_http(serve: Serve) -> None:
    """Create, read, list, control, end."""
    server = await serve()
    async with server.http() as http:
        made = await http.post(SESSIONS, json={"prompt": "red", "seed": 5, "format": "raw"})
        assert made.status_code == 201
        session = made.json()
        http.headers["authorization"] = f"Bearer {session['resume_token']}"
        assert made.headers["location"] == f"{SESSIONS}/{session['id']}"
        assert session["config"]["seed"] == 5
        viewer = await server.connect(session["urls"]["view"])
        await viewer.send("session.resume", resume_token=session["resume_token"])
        assert (await viewer.until("video.start"))["format"] == "raw"
        await viewer.until_frame(2)
        event = {
            "type": "session.interaction",
            "interaction": {"event_id": "h", "event": {"prompt": "blue"}},
        }
        queued = await http.post(session["urls"]["events"], json=event)
        assert queued.json() == {
            "type": "session.interaction.queued",
            "event_id": "h",
            "prompt_revision": 1,
        }
        await viewer.until("session.interaction.applied", event_id="h")
        described = (await http.get(made.headers["location"])).json()
        assert described["state"] == "running"
        assert [entry["prompt"] for entry in described["prompts"]] == ["red", "blue"]
        assert "token" not in json.dumps(described)
        listed = (await http.get(SESSIONS)).json()["data"]
        assert [entry["id"] for entry in listed] == [session["id"]]
        pong = await http.post(session["urls"]["events"], json={"type": "session.ping"})
        assert pong.json() == {"type": "session.pong"}
        ended = await http.delete(made.headers["location"])
        assert ended.json() == {"id": session["id"], "state": "closed"}
        assert server.host.streams == {}
        assert (await viewer.until("session.done"))["stopped"] is True
        assert await viewer.until_closed() == 1000
        check_error(await http.delete(made.headers["location"]), 404, "not_found")


OWNED: list[tuple[str, str, Any]] = [
    ("DELETE", "", None),
    ("POST", "/events", {"type": "session.stop"}),
    ("POST", "/events", {"type": "session.ping"}),
    ("POST", "/events", {"type": "session.update", "paused": True}),
    ("POST", "/rewind", {"to_chunk": 0}),
    ("POST", "/fork", {}),
    ("GET", "/snapshot", None),
    ("GET", "/replay", None),
]


async def test_only_the_owner_controls_ends_or_takes_a_session(serve: Serve) -> None:
    """401 without the resume token, with the viewer token, or with another session's."""
    server = await serve()
    client, other = await server.start(), await server.start()
    await client.more_frames(4)
    tokens = (
        "", "x", "\u00e9",
        client.messages[0]["viewer_token"], other.messages[0]["resume_token"],
    )  # fmt: skip
    async with server.http() as http:
        for method, path, body in OWNED:
            url = f"{SESSIONS}/s1{path}"
            refused = [await http.request(method, url, json=body)]
            refused += [
                await http.request(method, url, json=body, params={"token": t}) for t in tokens
            ]
            headers = {"authorization": f"Bearer {tokens[-1]}"}
            refused.append(await http.request(method, url, json=body, headers=headers))
            for answer in refused:
                assert "resume token" in check_error(answer, 401, "unauthorized")["message"]
        assert (await http.get(f"{SESSIONS}/s1")).json()["state"] == "running"
        assert set(server.host.streams) == {"s1", "s2"}
        owner = {"token": client.messages[0]["resume_token"]}
        for method, path, body in OWNED[:1:-1]:
            answer = await http.request(method, f"{SESSIONS}/s1{path}", json=body, params=owner)
            assert answer.status_code in (200, 201)
        assert (await http.delete(f"{SESSIONS}/s1", params=owner)).status_code == 200
        assert "s1" not in server.host.streams


async def test_every_route_of_a_session_is_open_on_purpose(serve: Serve) -> None:
    """The description names the token wherever it is wanted; reading is all that wants none."""
    openapi = (await request(await serve(), "GET", "/openapi.json")).json()
    bare = {
        (method, path.removeprefix(SESSIONS))
        for path, methods in openapi["paths"].items()
        if path.startswith(SESSIONS)
        for method, route in methods.items()
        if not route.get("security")
    }
    watching = {(m, p) for m, p in bare if p.count("/") > 1 and "{session_id}/" in p}
    media = ("whep", "webrtc", "stream.mjpeg", "stream.mp4", "frame.jpg", "recording.mp4")
    assert {p.split("/")[2] for _, p in watching} <= set(media)
    assert bare - watching == {
        ("get", ""), ("post", ""), ("get", "/{session_id}"), ("post", "/restore"),
    }  # fmt: skip


async def test_stop_as_an_event(serve: Serve) -> None:
    """The same as `DELETE`."""
    server = await serve()
    await server.start()
    stop = {"type": "session.stop"}
    done = await request(server, "POST", f"{SESSIONS}/s1/events", json=stop, headers=server.owner())
    assert done.json()["stopped"] is True
    assert server.host.streams == {}


async def test_doors_that_come_later(serve: Serve) -> None:
    """422, whatever the method."""
    server = await serve()
    async with server.http() as http:
        for path in LATER:
            for method in ("GET", "POST", "DELETE"):
                check_error(await http.request(method, path), 422, "unsupported")


async def test_sockets_that_are_not_there(serve: Serve) -> None:
    """Refused in the handshake: 422 for the one that comes later, 403 for any other."""
    server = await serve()
    for path, status in (("/v1/realtime_video/generate", 422), ("/nothing", 403)):
        with pytest.raises(InvalidStatus) as caught:
            async with connect(f"ws://127.0.0.1:{server.port}{path}"):
                pass
        assert caught.value.response.status_code == status


async def test_an_error_from_the_inside_is_not_shown(serve: Serve) -> None:
    """500 with a plain sentence."""
    server = await serve()

    def broken() -> None:
        raise AssertionError("secret of the house")

    server.host.stats = broken  # type: ignore[method-assign,assignment]
    error = check_error(await request(server, "GET", "/readyz"), 500, "internal")
    assert "secret" not in error["message"]


@pytest.mark.parametrize("path", ["", "/gpu1/live"])
async def test_a_path_prefix(serve: Serve, path: str) -> None:
    """Behind a proxy that strips the prefix, and behind one that does not."""
    server = await serve(root_path="/gpu1/live")
    assert "<title>" in (await request(server, "GET", f"{path}/")).text
    assert (await request(server, "GET", f"{path}/app.js")).status_code == 200
    made = await request(server, "POST", path + SESSIONS, json={"prompt": "a"})
    assert made.headers["location"].startswith("/gpu1/live/v1/")
    client = await server.connect(f"{path}/v1/realtime/video")
    await client.start()
    viewer = await server.connect(f"{path}{SESSIONS}/{made.json()['id']}/view")
    await viewer.send("session.view", viewer_token=made.json()["viewer_token"])
    await viewer.until_frame(0)
