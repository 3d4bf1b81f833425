"""Places for viewers: as many as there are, through whichever door and however many at a time."""

from __future__ import annotations

import asyncio
import collections

import pytest

from tests.transport.conftest import RunningServer, Serve, eventually
from tests.transport.fake_stream import FakeStream
from tests.transport.media_client import STREAMS, first_bytes, media_path
from tests.transport.rtc_client import SDP, new_session, prepare
from tests.transport.test_http import check_error
from tests.transport.whep_requests import GOOD, location_of, post, session
from transport import rtc_peers
from transport.replies import CloseCode

MOST = 3


@pytest.fixture(autouse=True)
def slow_to_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended session takes half a second to go on, and ICE uses 127.0.0.1."""
    prepare(monkeypatch)
    resume = FakeStream.resume

    async def resume_slowly(stream: FakeStream) -> None:
        await asyncio.sleep(0.5)
        await resume(stream)

    monkeypatch.setattr(FakeStream, "resume", resume_slowly)


class Visitors:
    """Who comes to watch, through any door, and stays until it is known how it went for all."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.ends: collections.Counter[str] = collections.Counter()
        self.go = asyncio.Event()

    async def watch_http(self, path: str) -> None:
        """Watch over plain HTTP."""
        async with self.server.http() as http, http.stream("GET", path, timeout=60) as answer:
            if answer.status_code == 200:
                await self._stay()
            else:
                await answer.aread()
                check_error(answer, 503, "capacity")
                self.ends["full"] += 1

    async def watch_rtc(self, url: str) -> None:
        """Offer to watch."""
        answer = await post(self.server, url, GOOD)
        if answer.status_code == 201:
            await self._stay()
        else:
            check_error(answer, 503, "capacity")
            self.ends["full"] += 1

    async def watch_socket(self, path: str, token: str) -> None:
        """Watch over a view socket."""
        client = await self.server.connect(path)
        await client.send("session.view", viewer_token=token)
        first = await client.receive()
        if isinstance(first, dict) and first["type"] == "error":
            assert first["code"] == "capacity"
            assert await client.until_closed() == CloseCode.FULL
            self.ends["full"] += 1
        else:
            await self._stay()

    async def _stay(self) -> None:
        self.ends["watched"] += 1
        await self.go.wait()


async def test_a_session_that_wakes_lets_in_no_more_than_others(serve: Serve) -> None:
    """All doors together, while it wakes."""
    server = await serve(max_viewers=MOST, attach_timeout_s=0.0)
    made = await new_session(server)
    await eventually(lambda: server.host.streams["s1"].state == "suspended")
    urls, visitors, watching = made["urls"], Visitors(server), []
    for _ in range(4):
        watching += [visitors.watch_http(media_path(made, name)) for name in STREAMS]
        watching.append(visitors.watch_rtc(urls["whep"]))
        watching.append(visitors.watch_socket(urls["view"], made["viewer_token"]))
    visiting = asyncio.gather(*watching)
    await eventually(lambda: visitors.ends.total() == len(watching) or visiting.done(), 60.0)
    visitors.go.set()
    await visiting
    assert visitors.ends == {"watched": MOST, "full": len(watching) - MOST}


async def test_a_refused_session_gives_the_place_back(serve: Serve) -> None:
    """Who was let in and then could not be has no place any more."""
    server = await serve(max_viewers=1, attach_timeout_s=0.0)
    made = await new_session(server)
    stream = server.host.streams["s1"]
    await eventually(lambda: stream.state == "suspended")
    server.host.max_sessions = 0
    async with server.http() as http:
        for _ in range(2):
            answer = await http.get(media_path(made, "stream.mjpeg"), timeout=60)
            assert "all places are taken" in check_error(answer, 503, "capacity")["message"]
    server.host.max_sessions = 1
    assert await first_bytes(server, media_path(made, "stream.mjpeg"))


async def test_messages_alone_have_places_of_their_own(serve: Serve) -> None:
    """Beside one that shows pictures there may be one that controls, and no second one."""
    server = await serve(max_viewers=1)
    owner = await server.start(format="jpeg")
    token = owner.messages[0]["resume_token"]
    control = await server.connect()
    await control.send("session.resume", resume_token=token, format="none")
    await control.until("video.start")
    third = await server.connect()
    await third.send("session.resume", resume_token=token, format="none")
    assert (await third.until("error"))["code"] == "capacity"


async def test_one_session_leaves_room_to_connect_to_others(serve: Serve) -> None:
    """Who has one viewer token cannot keep viewers of other sessions out."""
    server = await serve(max_viewers=200)
    (_, one), (_, other) = await session(server), await session(server)
    async with server.http() as http:
        answers = await asyncio.gather(
            *(http.post(one, content=GOOD, headers=SDP, timeout=60) for _ in range(60))
        )
    refused = [answer for answer in answers if answer.status_code != 201]
    assert len(answers) - len(refused) == rtc_peers.MAX_CONNECTING_TO_ONE
    assert "to the session" in check_error(refused[0], 503, "capacity")["message"]
    location_of(await post(server, other, GOOD))
