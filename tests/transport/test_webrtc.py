"""Watching over WebRTC with a real client, from the offer to every kind of end."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import av
import numpy as np
import pytest
from aioice.ice import StunProtocol
from numpy.typing import NDArray

from tests.transport.conftest import Serve, eventually
from tests.transport.fake_host import FakeHost
from tests.transport.offers import sections_of
from tests.transport.painting import Shot, colour_of
from tests.transport.rtc_client import RtcViewer, new_session, prepare, watching, whep_of
from transport import rtc_candidates, webrtc
from transport.http import create_app
from transport.options import TransportOptions
from transport.rtc_peers import Peers
from transport.video import VideoEncoder

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def peers(monkeypatch: pytest.MonkeyPatch) -> list[Peers]:
    """The WebRTC viewers of the servers."""
    return prepare(monkeypatch)


def close_to(pixels: NDArray[np.uint8], colour: tuple[int, int, int]) -> bool:
    """Return whether a flat picture has this colour."""
    return bool(np.abs(pixels.mean((0, 1)) - colour).max() <= 4)


@pytest.mark.parametrize("codec", ["h264", "vp8"])
async def test_a_session_is_watched(serve: Serve, codec: str) -> None:
    """Frames come evenly on the media clock, in the right colour, and show a new prompt."""
    server = await serve()
    made = await new_session(server)
    async with watching(server, made["urls"]["whep"], codec) as viewer:
        await viewer.until_seen(30)
        gaps = [after.pts_s - before.pts_s for before, after in pairwise(viewer.seen)]
        assert min(gaps) > 0
        # In frames; where the machine is slow some are skipped.
        steps = np.array(gaps) * server.host.fps
        assert np.median(abs(steps - steps.round())) < 0.1
        assert np.median(steps) > 0.9
        assert close_to(viewer.seen[-1].pixels(), colour_of(0))
        assert viewer.seen[-1].pixels().shape == (48, 64, 3)
        prompt = {"type": "session.interaction", "interaction": {"event": {"prompt": "blue"}}}
        async with server.http() as http:
            owner = {"token": made["resume_token"]}
            told = await http.post(made["urls"]["events"], json=prompt, params=owner)
            assert told.status_code == 200
        await eventually(lambda: close_to(viewer.seen[-1].pixels(), colour_of(1)))
        assert await viewer.leave() == 200
        await viewer.until_closed()


async def test_q01_audio_is_not_an_error(serve: Serve) -> None:
    """Who offers audio too sees the pictures."""
    server = await serve()
    async with watching(server, await whep_of(server), audio=True) as viewer:
        told = [(one.kind, one.direction) for one in sections_of(viewer.answer)]
        assert told == [("audio", "inactive"), ("video", "sendonly")]
        await viewer.until_seen(5)


async def test_many_viewers_and_one_encoder(
    serve: Serve, peers: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each frame is encoded once; whoever comes late begins with a keyframe."""
    encoded: list[str] = []
    encode = VideoEncoder.encode

    def count(self: VideoEncoder, *args: object, **options: object) -> object:
        encoded.append(self.codec)
        return encode(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(VideoEncoder, "encode", count)
    server = await serve(FakeHost(fps=20, chunk_s=0.15))
    whep = await whep_of(server)
    async with contextlib.AsyncExitStack() as stack:
        viewers = [await stack.enter_async_context(watching(server, whep)) for _ in range(4)]
        for viewer in viewers:
            await viewer.until_seen(10)
        stream = server.host.streams["s1"]
        num_encoded, num_seen, played = len(encoded), len(viewers[0].seen), stream.played_frame
        late = await stack.enter_async_context(watching(server, whep))
        await late.until_seen(1)
        await viewers[0].until_seen(num_seen + 20)
        assert len(encoded) - num_encoded <= stream.played_frame - played + 2
        assert len(peers[0]) == 5
        async with server.http() as http:
            listed = (await http.get("/v1/realtime/sessions/s1")).json()["viewers"]
        assert [one["format"] for one in listed] == ["h264"] * 5


async def test_viewers_that_come_one_after_another(serve: Serve, peers: list[Peers]) -> None:
    """Each sees a picture, which began with a keyframe of its own or of the moment before."""
    server = await serve(FakeHost(fps=20, chunk_s=0.15))
    whep = await whep_of(server)
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(watching(server, whep, "h264"))
        await first.until_seen(5)
        for _ in range(6):
            viewer = await stack.enter_async_context(watching(server, whep, "h264"))
            await viewer.until_seen(1)
        taken = {peer._track.key_taken_at for peer in peers[0]}
        assert len(taken) == 7, "each began with a keyframe"


async def test_a_keyframe_is_asked_for(serve: Serve, peers: list[Peers]) -> None:
    """A picture loss indication brings one."""
    server = await serve()
    async with watching(server, await whep_of(server), "h264") as viewer:
        await viewer.until_seen(30)
        peer = viewer.peer(peers[0])
        before = peer._track.key_taken_at
        receiver = viewer.connection.getReceivers()[0]
        await asyncio.sleep(webrtc.KEY_TRAVELS_S)
        await receiver._send_rtcp_pli(peer._transceiver.sender._ssrc)
        await eventually(lambda: peer._track.key_taken_at > before)


async def test_a_paused_session(serve: Serve, peers: list[Peers]) -> None:
    """Who comes while it is paused sees the picture it stands at."""
    server = await serve()
    owner = await server.start()
    await owner.more_frames(8)
    await owner.send("session.update", paused=True)
    await owner.until("session.state", state="paused")
    async with server.http() as http:
        told = (await http.get("/v1/realtime/sessions/s1")).json()
    assert told["state"] == "paused"
    token = owner.messages[0]["viewer_token"]
    whep = f"/v1/realtime/sessions/s1/whep?token={token}"
    async with watching(server, whep) as viewer:
        peer = viewer.peer(peers[0])
        await eventually(lambda: peer._track.key_taken_at > 0)
        await asyncio.sleep(0.6)
        await owner.send("session.update", paused=False)
        # aiortc shows a frame when the next one begins.
        await viewer.until_seen(2)
        assert viewer.seen[1].pts_s - viewer.seen[0].pts_s > 0.5, "the first one was the still"


async def test_q05_dead_stun_servers(
    serve: Serve, peers: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are given up after less than 2 s, and nobody else stands still meanwhile."""
    assert rtc_candidates.STUN_TIMEOUT_S < 2.0
    asked, given_up = asyncio.Event(), asyncio.Event()

    async def ask(protocol: StunProtocol, server: tuple[str, int]) -> NoReturn:
        asked.set()
        await given_up.wait()
        raise ConnectionError

    monkeypatch.setattr(rtc_candidates, "server_reflexive_candidate", ask)
    monkeypatch.setattr(rtc_candidates, "STUN_TIMEOUT_S", 0.1)
    three = tuple(f"stun:192.0.2.{number}:3478" for number in (1, 2, 3))
    server = await serve(ice_servers=three)
    whep = await whep_of(server)
    async with watching(server, whep) as first:
        await first.until_seen(5)
        monkeypatch.setattr(rtc_candidates, "STUN_TIMEOUT_S", 600.0)
        monkeypatch.setattr(peers[0]._reach, "_ask_again_at", 0.0)
        asked.clear()
        second = RtcViewer(f"http://127.0.0.1:{server.port}{whep}")
        connecting = asyncio.create_task(second.connect())
        await eventually(asked.is_set)
        await first.until_seen(len(first.seen) + 20)
        assert not connecting.done()
        given_up.set()
        await connecting
        await second.until_seen(5)
        await second.close()


async def test_q08_address_and_ports(serve: Serve) -> None:
    """The answer's candidates have the advertised address and a port of the range."""
    server = await serve(public_ip="203.0.113.7", udp_ports=(40_100, 40_140))
    whep = await whep_of(server)
    viewer = RtcViewer(f"http://127.0.0.1:{server.port}{whep}")
    offer = await viewer.offer()
    await viewer.connect(offer)
    try:
        found = [line.split() for line in viewer.answer.split("\r\n") if "a=candidate" in line]
        assert [one[4] for one in found] == ["203.0.113.7"]
        assert all(40_100 <= int(one[5]) <= 40_140 for one in found)
        assert "127.0.0.1 " not in viewer.answer.replace("IN IP4 127.0.0.1", "")
        await viewer.until_seen(3)  # found from the other side
    finally:
        await viewer.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ice_servers": ("turn:turn.example.org",)}, "--turn-secret"),
        ({"turn_secret": "x"}, "--ice-server"),
        ({"ice_servers": ("stun//x",)}, "no ICE server"),
        ({"public_ip": "example.org"}, "--public-ip"),
        ({"udp_ports": (10, 1)}, "no range of ports"),
    ],
)
def test_q08_wrong_options(options: dict[str, object], reason: str) -> None:
    """The server does not start, and says which option is wrong."""
    with pytest.raises(ValueError, match=reason):
        create_app(FakeHost(), TransportOptions(**options))  # type: ignore[arg-type]


async def test_q10_a_slow_viewer_delays_nobody(serve: Serve, peers: list[Peers]) -> None:
    """Of what it cannot be sent it skips whole stretches; the other one sees every frame."""
    chance = np.random.default_rng(1)
    noise = chance.integers(0, 256, (8, 144, 176, 3), dtype=np.uint8)

    def paint(shot: Shot) -> NDArray[np.uint8]:
        return noise[[number % 8 for number in range(shot.first_frame, shot.first_frame + 4)]]

    host = FakeHost(fps=20, chunk_s=0.15, width=176, height=144, paint=paint)
    server = await serve(host, bitrate=2_000_000)
    whep = await whep_of(server)
    async with watching(server, whep) as slow, watching(server, whep) as quick:
        peer = slow.peer(peers[0])
        await quick.until_seen(5)
        peer.told = lambda bps: None  # type: ignore[method-assign]  # the encoder does not follow
        peer.estimate_bps = None
        peer.uplink._follow = lambda: None  # type: ignore[method-assign]
        peer.uplink._pacer.bps = 100_000
        other, stream = quick.peer(peers[0]), host.streams["s1"]
        num_sent, num_dropped, played = other.num_sent, other.num_dropped, stream.played_frame
        await eventually(lambda: peer.num_dropped > 40)
        assert other.num_sent - num_sent > 0.8 * (stream.played_frame - played)
        assert other.num_dropped - num_dropped < peer.num_dropped / 2
        assert len(peer._track.queue) <= host.fps * webrtc.LONGEST_QUEUE_S + 2


async def test_the_demo_saves_what_it_sees(serve: Serve, tmp_path: Path) -> None:
    """Another process, that knows WHEP alone, joins a session and keeps it as a film."""
    server = await serve(FakeHost(fps=20, chunk_s=0.15))
    whep = f"http://127.0.0.1:{server.port}{await whep_of(server)}"
    film = tmp_path / "seen.mp4"
    argv = [str(ROOT / "demos" / "webrtc_preview.py"), whep, "--seconds", "2", "--save", str(film)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0
    told = re.search(r"^(\d+) frames of 64x48, [\d.]+ fps$", said.decode(), re.MULTILINE)
    assert told is not None
    with av.open(str(film)) as saved:
        frames = list(saved.decode(video=0))
        assert len(frames) == int(told[1]) > 1
        assert close_to(frames[-1].to_ndarray(format="rgb24"), colour_of(0))
