"""WHEP: how browsers, GStreamer and others start to watch over WebRTC, and the same as JSON."""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from transport.bodies import JSON, read_body, schema_of_body
from transport.broadcast import Broadcast
from transport.entity_tags import names_strongly
from transport.fields import ProtocolError
from transport.media_api import given_token
from transport.problems import problem
from transport.rtc_peers import Peers
from transport.sdp_rules import MAX_OFFER_BYTES, read_fragment
from transport.sessions import PATH, Sessions
from transport.shared_route import SharedRoute, add_preflight
from transport.stream import StreamError
from transport.webrtc import Peer

SDP: Final = "application/sdp"
FRAGMENT: Final = "application/trickle-ice-sdpfrag"
MAX_FRAGMENT_BYTES: Final = 16 * 1024
MAX_JSON_BYTES: Final = 2 * MAX_OFFER_BYTES  # its line ends are escaped
QUALITY: Final = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")
OFFER: Final = {
    "type": "object",
    "properties": {"sdp": {"type": "string"}, "type": {"const": "offer"}},
    "required": ["sdp", "type"],
    "additionalProperties": False,
}


def whep_router(sessions: Sessions, peers: Peers) -> APIRouter:
    """Return the routes by which a session is watched over WebRTC."""
    router = APIRouter(prefix=f"{PATH}/{{session_id}}", tags=["webrtc"], route_class=SharedRoute)
    _add_offers(router, sessions, peers)
    _add_viewers(router, sessions, peers)

    async def nothing(session_id: str, request: Request) -> Response:
        """Answer that there is nothing to read."""
        _watchable(sessions, session_id, request)
        return Response(status_code=204)

    for path in ("/whep", "/whep/{peer_id}"):
        router.add_api_route(path, nothing, status_code=204)
        router.add_api_route(path, nothing, methods=["HEAD"], include_in_schema=False)
    add_preflight(router, "/whep", {"Accept-Post": SDP})
    add_preflight(router, "/whep/{peer_id}", {"Accept-Patch": FRAGMENT})
    add_preflight(router, "/webrtc", {"Accept-Post": JSON})
    return router


def _add_offers(router: APIRouter, sessions: Sessions, peers: Peers) -> None:
    def let_in(session_id: str, request: Request) -> Broadcast:
        broadcast = _watchable(sessions, session_id, request)
        sessions.places.check()
        peers.check_room(broadcast)
        return broadcast

    def created(peer: Peer, response: Response, request: Request) -> Response:
        token = request.query_params.get("token")
        query = "" if token is None else f"?{urlencode({'token': token})}"  # asked for there too
        location = sessions.location(peer.broadcast)
        response.headers["Location"] = f"{location}/whep/{peer.id}{query}"
        response.headers["ETag"] = peer.etag
        for link in peers.links():
            response.headers.append("Link", link)
        return response

    @router.post("/whep", status_code=201, openapi_extra=schema_of_body({"type": "string"}, SDP))
    async def offer(session_id: str, request: Request) -> Response:
        """Watch over WebRTC: the body is the offer, the answer's is the server's."""
        broadcast = let_in(session_id, request)
        _check_accepts(request, SDP)
        sdp = _text(await read_body(request, SDP, MAX_OFFER_BYTES))
        peer, answer = await peers.answer(broadcast, sdp)
        return created(peer, Response(answer, 201, media_type=SDP), request)

    @router.post("/webrtc", status_code=201, openapi_extra=schema_of_body(OFFER))
    async def offer_json(session_id: str, request: Request) -> Response:
        """Watch over WebRTC: offer and answer as JSON, for scripts."""
        broadcast = let_in(session_id, request)
        sdp = _offer_of(await read_body(request, JSON, MAX_JSON_BYTES))
        peer, answer = await peers.answer(broadcast, sdp)
        return created(peer, JSONResponse({"sdp": answer, "type": "answer"}, 201), request)


def _add_viewers(router: APIRouter, sessions: Sessions, peers: Peers) -> None:
    @router.patch("/whep/{peer_id}", status_code=204)
    async def trickle(session_id: str, peer_id: str, request: Request) -> Response:
        """Tell candidates that were found after the offer."""
        _watchable(sessions, session_id, request)
        peer = peers.find(session_id, peer_id)
        given = request.headers.getlist("if-match")
        if not given:
            return problem(428, "invalid_request", "If-Match must hold the viewer's ETag")
        if not names_strongly(", ".join(given), peer.etag):
            return problem(412, "invalid_request", "If-Match is not the viewer's ETag: it is stale")
        body = await read_body(request, FRAGMENT, MAX_FRAGMENT_BYTES)
        fragment = read_fragment(_text(body))
        if fragment.ufrag not in (None, peer.ufrag):
            raise StreamError("unsupported", "ICE is not restarted here: send a new offer")
        await peer.trickle(fragment)
        return Response(status_code=204)

    @router.delete("/whep/{peer_id}")
    async def leave(session_id: str, peer_id: str, request: Request) -> Response:
        """Leave; answered when the connection is closed."""
        _watchable(sessions, session_id, request)
        await peers.remove(peers.find(session_id, peer_id))
        return Response(status_code=200)


def _watchable(sessions: Sessions, session_id: str, request: Request) -> Broadcast:
    token = given_token(request, request.query_params.get("token"))
    return sessions.find_watchable(session_id, token)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise StreamError("invalid_request", "the body is not UTF-8") from error


def _check_accepts(request: Request, media_type: str) -> None:
    """Answer 406 when `Accept` leaves a type out; the range that names it best says how welcome."""
    accepted = ",".join(request.headers.getlist("accept")).lower()
    qualities: dict[str, float] = {}
    for part in filter(str.strip, accepted.split(",")):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        qualities[name] = _quality(parameters)
    names = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    quality = next((qualities[name] for name in names if name in qualities), 0.0)
    if qualities and not quality:
        raise HTTPException(406, f"the answer is {media_type}, which Accept leaves out")


def _quality(parameters: list[str]) -> float:
    """Return how welcome something is, 0 to 1; 1 if that is not said, or not as a number."""
    for parameter in parameters:
        if match := QUALITY.fullmatch(parameter):
            return float(match[1])
    return 1.0


def _offer_of(body: bytes) -> str:
    """Return the offer of a JSON body; raise ProtocolError when it holds none."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the body is no JSON") from error
    if not isinstance(data, dict):
        raise ProtocolError('the body must be an object: {"sdp": ..., "type": "offer"}')
    for name in data:
        if name not in ("sdp", "type"):
            raise ProtocolError(
                f"{name[:40]!r} is no field of an offer", code="unsupported", param=name[:40]
            )
    if data.get("type") != "offer":
        raise ProtocolError('type must be "offer"', param="type")
    if not isinstance(data.get("sdp"), str):
        raise ProtocolError("sdp must be the text of an offer", param="sdp")
    sdp: str = data["sdp"]
    if len(sdp) > MAX_OFFER_BYTES:
        raise HTTPException(413, f"an offer has at most {MAX_OFFER_BYTES:,} bytes")
    return sdp
