"""WHEP over HTTP: statuses, headers, tokens, limits; and the same as JSON."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.transport.conftest import Serve, eventually
from tests.transport.fake_host import FakeHost
from tests.transport.offers import sections_of
from tests.transport.rtc_client import SDP, prepare
from tests.transport.test_http import check_error
from tests.transport.whep_requests import GOOD, location_of, post, session
from transport import webrtc
from transport.rtc_peers import Peers

FRAGMENT = {"content-type": "application/trickle-ice-sdpfrag"}
CANDIDATE = "a=candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host\r\n"


@pytest.fixture(autouse=True)
def peers(monkeypatch: pytest.MonkeyPatch) -> list[Peers]:
    """The WebRTC viewers of the servers."""
    return prepare(monkeypatch)


async def test_an_offer_is_answered(serve: Serve) -> None:
    """201 with everything the standard asks for, readable by pages of other origins."""
    server = await serve(
        ice_servers=("stun:127.0.0.1:9", "turn:turn.example.org"),
        turn_secret="s3cret",
        root_path="/live",
    )
    _, url = await session(server)
    answer = await post(server, url.removeprefix("/live"), GOOD)
    assert answer.status_code == 201
    assert answer.headers["content-type"].startswith("application/sdp")
    assert answer.headers["location"].startswith("/live/v1/realtime/sessions/s1/whep/")
    assert answer.headers["etag"].startswith('"')
    stun, turn = answer.headers.get_list("link")
    assert stun == '<stun:127.0.0.1:9>; rel="ice-server"'
    assert 'credential="' in turn
    assert "s3cret" not in str(answer.headers) + answer.text
    exposed = answer.headers["access-control-expose-headers"]
    assert {"Location", "ETag", "Link"} <= set(exposed.split(", "))
    assert answer.headers["access-control-allow-origin"] == "*"
    (section,) = sections_of(answer.text)
    assert section.direction == "sendonly"
    assert "a=end-of-candidates" in section.lines


async def test_as_json(serve: Serve) -> None:
    """Offer and answer in objects, with the same headers."""
    server = await serve()
    made, whep = await session(server)
    token = made["viewer_token"]
    url = whep.replace("/whep", "/webrtc")
    async with server.http() as http:
        answer = await http.post(url, json={"sdp": GOOD, "type": "offer"})
        body = answer.json()
        assert (answer.status_code, body["type"]) == (201, "answer")
        assert sections_of(body["sdp"])[0].direction == "sendonly"
        assert answer.headers["location"].endswith(f"?token={token}")
        assert (await http.delete(answer.headers["location"])).status_code == 200
        for wrong, status in (
            ({"sdp": GOOD}, 400),
            ({"sdp": GOOD, "type": "answer"}, 400),
            ({"sdp": 5, "type": "offer"}, 400),
            ({"sdp": "x", "type": "offer"}, 400),
            ([GOOD], 400),
            ({"sdp": GOOD, "type": "offer", "video": True}, 422),
            ({"sdp": "v=0\n" + "x" * 70_000, "type": "offer"}, 413),
        ):
            code = "unsupported" if status == 422 else "invalid_request"
            check_error(await http.post(url, json=wrong), status, code)
        check_error(await http.post(url, content=b"{"), 415, "invalid_request")
        broken = await http.post(
            url, content=b"[" * 9000, headers={"content-type": "application/json"}
        )
        check_error(broken, 400, "invalid_request")


async def test_tokens(serve: Serve) -> None:
    """Bearer or ?token, of a viewer or the owner; asked for by every method but OPTIONS."""
    server = await serve()
    made, url = await session(server)
    bare = url.partition("?")[0]
    async with server.http() as http:
        for method in ("POST", "GET"):
            check_error(await http.request(method, bare), 401, "unauthorized")
            check_error(await http.request(method, f"{bare}?token=x"), 401, "unauthorized")
        bearer = {"authorization": f"Bearer {made['resume_token']}"}
        answer = await http.post(bare, content=GOOD, headers={**SDP, **bearer})
        place = location_of(answer)
        assert "token" not in place
        for method in ("PATCH", "DELETE", "GET"):
            check_error(await http.request(method, place), 401, "unauthorized")
        empty = await http.get(place, headers=bearer)
        assert (empty.status_code, empty.content) == (204, b"")
        assert (await http.get(url)).status_code == 204
        assert (await http.delete(place, headers=bearer)).status_code == 200
        check_error(await http.delete(place, headers=bearer), 404, "not_found")
        check_error(await http.post("/v1/realtime/sessions/none/whep"), 404, "not_found")


async def test_pages_of_other_origins(serve: Serve) -> None:
    """OPTIONS needs no token and says what may be sent; errors can be read too."""
    server = await serve()
    _, url = await session(server)
    async with server.http() as http:
        for path in (url.partition("?")[0], "/v1/realtime/sessions/s1/whep/x"):
            answer = await http.options(path)
            assert answer.status_code == 204
            kind = "accept-patch" if path.endswith("/x") else "accept-post"
            assert answer.headers[kind].startswith("application/")
            assert "If-Match" in answer.headers["access-control-allow-headers"]
            assert answer.headers["access-control-allow-methods"] == answer.headers["allow"]
        refused = await http.post(url, content="x", headers=SDP)
        assert check_error(refused, 400, "invalid_request")["param"] == "sdp"
        assert refused.headers["access-control-allow-origin"] == "*"
        lost = await http.delete("/v1/realtime/sessions/none/whep/x")
        assert lost.headers["access-control-allow-origin"] == "*"


SESSION = "/v1/realtime/sessions/s1"


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/whep", "GET, HEAD, POST, OPTIONS"),
        ("/whep/x", "GET, HEAD, PATCH, DELETE, OPTIONS"),
        ("/webrtc", "POST, OPTIONS"),
        ("/stream.mjpeg", "GET, HEAD, OPTIONS"),
        ("/stream.mp4", "GET, HEAD, OPTIONS"),
        ("/frame.jpg", "GET, HEAD, OPTIONS"),
        ("/recording.mp4", "GET, HEAD, OPTIONS"),
    ],
)
async def test_other_methods(serve: Serve, path: str, allow: str) -> None:
    """405 says which there are, in a header and in words, and so does the preflight."""
    server = await serve(root_path="/prefix")
    await session(server)
    async with server.http() as http:
        for prefix in ("", "/prefix"):
            answer = await http.put(f"{prefix}{SESSION}{path}")
            error = check_error(answer, 405, "invalid_request")
            assert error["message"] == f"PUT is not allowed here, only {allow}"
            asked = await http.options(f"{prefix}{SESSION}{path}")
            for one in (answer, asked):
                assert one.headers["allow"] == allow
                assert one.headers["access-control-allow-origin"] == "*"
            assert asked.headers["access-control-allow-methods"] == allow


async def test_methods_of_other_routes(serve: Serve) -> None:
    """Also where no other origin is let in."""
    server = await serve()
    await session(server)
    async with server.http() as http:
        answer = await http.put(SESSION)
        assert "only GET, DELETE" in check_error(answer, 405, "invalid_request")["message"]
        assert answer.headers["allow"] == "GET, DELETE"
        assert "access-control-allow-origin" not in answer.headers


async def test_head_is_get_without_a_body(serve: Serve, peers: list[Peers]) -> None:
    """The same status, tokens asked for, and nothing else."""
    server = await serve()
    _, url = await session(server)
    place = location_of(await post(server, url, GOOD))
    async with server.http() as http:
        for path in (url, place):
            for answer in (await http.get(path), await http.head(path)):
                assert (answer.status_code, answer.content) == (204, b"")
                assert answer.headers["access-control-allow-origin"] == "*"
            assert (await http.head(path.partition("?")[0])).status_code == 401


async def test_other_origins_may_read_of_a_failure(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser would else report a network error, and nobody looks at the server."""
    server = await serve()
    _, url = await session(server)

    def fail(*args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("transport.whep_api.read_fragment", fail)
    place = location_of(await post(server, url, GOOD))
    async with server.http() as http:
        answer = await http.patch(place, content="", headers={**FRAGMENT, "if-match": "*"})
        check_error(answer, 500, "internal")
        assert answer.headers["access-control-allow-origin"] == "*"


async def test_types_that_are_not_taken(serve: Serve) -> None:
    """415 for another body, 406 for who wants another answer, 400 for what is no text."""
    server = await serve()
    _, url = await session(server)
    async with server.http() as http:
        for kind in ("application/json", "text/plain", ""):
            answer = await http.post(url, content=GOOD, headers={"content-type": kind})
            check_error(answer, 415, "invalid_request")
    check_error(await post(server, url, GOOD, accept="text/html"), 406, "invalid_request")
    check_error(await post(server, url, b"v=0\xff\xfe"), 400, "invalid_request")
    for refused in ("application/sdp;q=0", "*/*, application/sdp; Q=0.000", "*/*;q=0, text/html"):
        check_error(await post(server, url, GOOD, accept=refused), 406, "invalid_request")
    fine = ("application/sdp", "*/*", "text/html, application/*;q=0.5", "*/*;q=0, APPLICATION/sdp")
    for accept in (*fine, "", "application/sdp;q=0.001;x=y", "application/sdp;level=1"):
        location_of(await post(server, url, GOOD, accept=accept))


async def test_trickle(serve: Serve, peers: list[Peers]) -> None:
    """204, 428 without and 412 with a wrong name, 422 for a restart, 404 before the answer."""
    server = await serve()
    _, url = await session(server)
    early = url.replace("/whep", "/whep/early")
    answer = await post(server, url, GOOD)
    place, etag = location_of(answer), answer.headers["etag"]
    ours = {**FRAGMENT, "if-match": etag}
    async with server.http() as http:

        async def patch(text: str, headers: dict[str, str], path: str = place) -> httpx.Response:
            return await http.patch(path, content=text, headers=headers)

        check_error(await patch(CANDIDATE, ours, early), 404, "not_found")
        fine = await patch(
            f"a=ice-ufrag:abcd\r\nm=video 9 RTP/AVP 0\r\na=mid:0\r\n{CANDIDATE}", ours
        )
        assert (fine.status_code, fine.content, "etag" in fine.headers) == (204, b"", False)
        for text in ("", "a=end-of-candidates\r\n", CANDIDATE.replace("127.0.0.1", "x.local")):
            assert (await patch(text, ours)).status_code == 204
        check_error(await patch(CANDIDATE, FRAGMENT), 428, "invalid_request")
        stale = {**FRAGMENT, "if-match": '"other"'}
        check_error(await patch(CANDIDATE, stale), 412, "invalid_request")
        for tags in (f"W/{etag}", f'{etag} "b"', etag.strip('"'), "", f'"a{etag[1:]}'):
            answer = await patch(CANDIDATE, {**FRAGMENT, "if-match": tags})
            check_error(answer, 412, "invalid_request")
        for tags in ("*", f'"a", {etag}', f'W/"a,b" ,{etag} , "c"'):
            answer = await patch(CANDIDATE, {**FRAGMENT, "if-match": tags})
            assert answer.status_code == 204
        restart = await patch("a=ice-ufrag:efgh\r\na=ice-pwd:0123456789012345678901\r\n", ours)
        check_error(restart, 422, "unsupported")
        check_error(await patch(CANDIDATE, {**ours, **SDP}), 415, "invalid_request")
        check_error(await patch("[]", ours), 400, "invalid_request")
        check_error(await patch("a=x\r\n" * 9000, ours), 413, "invalid_request")
        for port, odd in (("49998", " raddr x rport y"), ("49999", " rport \u00b2")):
            odd_one = CANDIDATE.replace("50000 typ host", f"{port} typ srflx{odd}")
            assert (await patch(odd_one, ours)).status_code == 204
        many = "".join(CANDIDATE.replace("50000", str(50_001 + i)) for i in range(200))
        assert (await patch(many, ours)).status_code == 204
    (peer,) = peers[0]
    transport = peer._transceiver.sender.transport.transport
    assert len(transport.getRemoteCandidates()) == webrtc.MAX_CANDIDATES - 3  # told twice


async def test_a_session_that_waits(serve: Serve) -> None:
    """409 with a hint, until it has its place."""
    server = await serve(FakeHost(max_sessions=1, max_queue=1))
    first = await server.start()
    async with server.http() as http:
        made = (await http.post("/v1/realtime/sessions", json={"prompt": "x"})).json()
    url = made["urls"]["whep"]
    answer = await post(server, url, GOOD)
    check_error(answer, 409, "conflict")
    assert int(answer.headers["retry-after"]) > 0
    await first.send("session.stop")
    await eventually(lambda: server.host.streams[made["id"]].state == "running")
    location_of(await post(server, url, GOOD))


async def test_the_description_has_the_routes(serve: Serve) -> None:
    """OpenAPI names them with their bodies."""
    server = await serve()
    async with server.http() as http:
        paths = json.loads((await http.get("/openapi.json")).text)["paths"]
    whep = paths["/v1/realtime/sessions/{session_id}/whep"]
    assert "application/sdp" in whep["post"]["requestBody"]["content"]
    assert "patch" in paths["/v1/realtime/sessions/{session_id}/whep/{peer_id}"]
