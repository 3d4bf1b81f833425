"""Parts of the page that can be tried alone, in the browser that runs them."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.browser

LINK = (
    '<stun:a.example:3478>; rel="ice-server", '
    '<turn:b.example:3478?transport=udp>; rel="ice-server"; username="1700000000:x, y"; '
    'credential="a/b+c="; credential-type="password", <https://c.example/>; rel=next'
)


@pytest.fixture
def module(server: Any, browser: Any) -> Any:
    """A function that runs a script with one of the page's modules at hand as `it`."""
    browser.get(f"{server.url}version")

    def run(name: str, script: str, *given: Any) -> Any:
        return browser.execute_async_script(
            f"""
            const given = [...arguments];
            const done = given.pop();
            const tried = import("/{name}.js").then(async (it) => {{ {script} }});
            tried.then(done, (error) => done(`${{error}}`));
            """,
            *given,
        )

    return run


def test_ice_servers(module: Any) -> None:
    """ICE servers are read from the Link header, with credentials, and browsers take them."""
    script = """
        const iceServers = it.iceServersOf(given[0]);
        const connection = new RTCPeerConnection();
        connection.addTransceiver("video", { direction: "recvonly" });
        await connection.createOffer();
        connection.setConfiguration({ iceServers });
        connection.close();
        return iceServers;
    """
    assert module("whep", script, LINK) == [
        {"urls": "stun:a.example:3478"},
        {
            "urls": "turn:b.example:3478?transport=udp",
            "username": "1700000000:x, y",
            "credential": "a/b+c=",
        },
    ]
    assert module("whep", script, None) == []


PROGRAMME = """
    const programme = new it.Programme(10);
    for (const [at, chunk] of [[1000, 4], [2200, 5]]) {
      programme.heard({ type: "video.chunk_metadata", generation_chunk_index: chunk,
          first_frame_index: 12 * chunk, num_frames: 12, pts_ms: 1200 * chunk }, at);
    }
    return given[0].map(([receiveTime, rtpMs, presentedFrames]) => {
      const rtpTimestamp = (2 ** 32 - 9000 + 90 * rtpMs) % 2 ** 32;
      return programme.place(0, { receiveTime, rtpTimestamp, presentedFrames }).index;
    });
"""


def test_frames_are_counted_from_the_announcement(module: Any) -> None:
    """One received a little before it is the first too, one missed in between is counted."""
    frames = [[960, 0, 1], [1062, 100, 2], [1260, 300, 4], [2160, 1200, 13], [2262, 1300, 14]]
    assert module("programme", PROGRAMME, frames) == [48, 49, 51, 60, 61]


def test_a_delayed_frame_is_no_later_one(module: Any) -> None:
    """Frames that waited on their way still belong to the chunk they were sent with."""
    frames = [[1005, 0, 1], [2210, 1100, 12], [2300, 1200, 13]]
    assert module("programme", PROGRAMME, frames) == [48, 59, 60]


def test_frames_before_any_announcement(module: Any) -> None:
    """What nobody announced has no number."""
    assert module("programme", PROGRAMME, [[500, 0, 1], [1010, 510, 6]]) == [-1, 48]


def test_another_frame_rate_is_followed(module: Any) -> None:
    """The media time within a chunk goes by the rate of the chunk before, not of the start."""
    script = """
        const programme = new it.Programme(10);
        for (const [at, chunk] of [[1000, 4], [3400, 5]]) {
          programme.heard({ type: "video.chunk_metadata", generation_chunk_index: chunk,
              first_frame_index: 12 * chunk, num_frames: 12, pts_ms: 2400 * (chunk - 4) }, at);
        }
        return [1, 2, 3].map((presentedFrames) =>
          programme.place(3400, { presentedFrames }).ptsUs);
    """
    assert module("programme", script) == [2_400_000, 2_600_000, 2_800_000]


def test_mp4_and_h264_are_read(module: Any) -> None:
    """Codec name, time scale, fragment time and keyframes come from the first bytes."""
    script = """
        const unit = (...bytes) => [0, 0, 0, 1, ...bytes];
        const name = (text) => [...text].map((letter) => letter.charCodeAt(0));
        const zeros = (count) => new Array(count).fill(0);
        const sps = unit(0x67, 0x42, 0xc0, 0x1f, 9);
        const key = new Uint8Array([...sps, ...unit(0x68, 1), ...unit(0x65, 8, 8)]);
        const delta = new Uint8Array([...unit(0x41, 8, 8), ...sps]);
        const header = new Uint8Array([...zeros(4), ...name("mdhd"), ...zeros(12), 0, 1, 0x5f, 0x90,
            ...name("avcC"), 1, 0x42, 0xc0, 0x1f]);
        const time = new Uint8Array([...name("tfdt"), 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
        return [it.readAccessUnit(key), it.readAccessUnit(delta), it.readHeader(header),
            it.readHeader(key), it.readFragmentTime(time), it.readFragmentTime(key)];
    """
    assert module("bitstream", script) == [
        {"isKey": True, "codec": "avc1.42c01f"},
        {"isKey": False, "codec": None},
        {"codec": "avc1.42c01f", "timescale": 90_000},
        None,
        2**32 + 2,
        None,
    ]
