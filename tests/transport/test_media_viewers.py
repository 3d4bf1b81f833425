"""The viewers behind the HTTP streams, with a broadcast that only notes what it is asked for."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from tests.transport import bars
from transport.broadcast import Broadcast
from transport.encoder import ChunkHeader, Frame
from transport.media_viewers import (
    REPEAT_S,
    SIGN_OF_LIFE_S,
    MediaViewer,
    PictureViewer,
    VideoViewer,
)
from transport.replies import CloseCode
from transport.video import VideoEncoder

WIDTH, HEIGHT, FPS = 64, 48, 16.0
PATIENCE_S = 30.0


@dataclass
class QuietBroadcast:
    """What a viewer finds when it comes."""

    last: Frame | None = None
    frames: list[Frame] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def still(self) -> Frame | None:
        """Return the picture shown last."""
        await asyncio.sleep(0)
        return self.last

    def ring(self, encoding: str) -> list[Frame]:
        """Return the frames since the last keyframe."""
        return self.frames if encoding == "h264" else []

    def ask_key(self, encoding: str) -> None:
        """Note who asks."""
        self.asked.append(encoding)


def frames_of(number: int, first: int = 0) -> list[Frame]:
    """Return frames with a payload of two bytes behind the header, and H.264."""
    encoder = VideoEncoder("h264", WIDTH, HEIGHT, fps=FPS, bitrate=500_000)
    frames = []
    for i in range(first, first + number):
        chunk = ChunkHeader(i // 4, i // 4 * 4, 4, 0.0, FPS, 0, 0, (), (), ())
        packet = encoder.encode(bars.paint_bars(WIDTH, HEIGHT, i))
        payload = bytes(16) + i.to_bytes(2, "big")
        frames.append(Frame(i, chunk, i / FPS, {"jpeg": payload}, {"h264": packet}, (64, 48)))
    return frames


def watch(kind: Any, broadcast: QuietBroadcast) -> Any:
    """Return a viewer of this kind."""
    return kind(cast(Broadcast, broadcast))


async def next_part(viewer: Any) -> bytes | None:
    """Return the next part; it is an error when none comes."""
    part: bytes | None = await asyncio.wait_for(viewer.next_part(), PATIENCE_S)
    return part


async def test_only_the_newest_picture_waits() -> None:
    """The others count as dropped; each part says how long it is."""
    viewer = watch(PictureViewer, QuietBroadcast())
    frames = frames_of(5)
    for frame in frames:
        viewer.offer(frame, 0.0)
    assert viewer.num_dropped == 4
    head = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: 2\r\n\r\n"
    assert await next_part(viewer) == head + b"\0\4\r\n"
    await asyncio.wait_for(viewer.drained(), PATIENCE_S)


async def test_who_comes_sees_what_others_see() -> None:
    """Unless something newer came meanwhile."""
    first, second = frames_of(2)
    viewer = watch(PictureViewer, QuietBroadcast(last=first))
    assert (await next_part(viewer) or b"").endswith(b"\0\0\r\n")
    viewer = watch(PictureViewer, QuietBroadcast(last=first))
    viewer.offer(second, 0.0)
    assert (await next_part(viewer) or b"").endswith(b"\0\1\r\n")


async def test_a_picture_without_its_chunk_is_withdrawn() -> None:
    """After a rewind; then nothing waits."""
    viewer = watch(PictureViewer, QuietBroadcast())
    frame = frames_of(1)[0]
    viewer.offer(frame, 0.0)
    viewer.withdraw(lambda chunk: chunk == 7)
    draining = asyncio.create_task(viewer.drained())
    await asyncio.sleep(0)
    assert not draining.done()
    viewer.withdraw(lambda chunk: chunk == 0)
    await asyncio.wait_for(draining, PATIENCE_S)
    viewer.finish(CloseCode.DONE)
    assert await next_part(viewer) == b"--frame--"
    assert await next_part(viewer) is None


async def test_frames_without_a_jpeg_pass() -> None:
    """Somebody else's encoding is no picture."""
    viewer = watch(PictureViewer, QuietBroadcast())
    viewer.offer(replace(frames_of(1)[0], payloads={}), 0.0)
    viewer.finish(CloseCode.DONE)
    assert await next_part(viewer) == b"--frame--"
    assert await next_part(viewer) is None


async def test_silence_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture comes twice soon, then now and then; in an MP4 there are empty boxes."""
    waited: list[float] = []
    silence = MediaViewer._silence

    async def short(viewer: MediaViewer, longest_s: float) -> None:
        waited.append(longest_s)
        await silence(viewer, longest_s / 1000)

    monkeypatch.setattr(MediaViewer, "_silence", short)
    frame = frames_of(1)[0]
    pictures = watch(PictureViewer, QuietBroadcast())
    pictures.offer(frame, 0.0)
    parts = [await next_part(pictures) for _ in range(4)]
    assert len(set(parts)) == 1
    assert waited == [REPEAT_S, SIGN_OF_LIFE_S, SIGN_OF_LIFE_S]
    video = watch(VideoViewer, QuietBroadcast(frames=[frame]))
    assert (await next_part(video) or b"").startswith(b"\0\0\0\x20ftyp")
    assert await next_part(video) == b"\0\0\0\x08free"
    assert waited[3:] == [SIGN_OF_LIFE_S]


async def test_the_ring_comes_first_at_its_own_times() -> None:
    """A second of frames at once, and what follows goes on in time."""
    frames = frames_of(18)
    broadcast = cast(Broadcast, QuietBroadcast(frames=frames[:16]))
    viewer = VideoViewer(broadcast, lambda: 100.0)
    data = b""
    for _ in range(16):
        data += await next_part(viewer) or b""
    for number, frame in enumerate(frames[16:], 1):
        viewer.offer(frame, 100.0 + number / FPS)
        data += await next_part(viewer) or b""
    pictures, times = bars.decode_mp4(data)
    assert bars.numbers_of(pictures) == list(range(18))
    assert times == pytest.approx([i / FPS for i in range(18)], abs=1e-3)


async def test_without_a_ring_a_keyframe_is_asked_for() -> None:
    """And again as long as none comes; nothing is sent before."""
    broadcast = QuietBroadcast()
    viewer = watch(VideoViewer, broadcast)
    part = asyncio.create_task(viewer.next_part())
    await asyncio.sleep(0)
    assert broadcast.asked == ["h264"]
    frames = frames_of(3)
    viewer.offer(frames[1], 0.0)
    viewer.offer(frames[2], 0.1)
    await asyncio.sleep(0)
    assert len(broadcast.asked) == 3
    assert viewer.num_dropped == 2
    assert not part.done()
    viewer.offer(frames[0], 0.2)
    assert b"ftyp" in (await part or b"")


async def test_what_waits_is_sent_before_the_end() -> None:
    """Then nothing more is taken."""
    frames = frames_of(4)
    viewer = watch(VideoViewer, QuietBroadcast(frames=frames[:3]))
    await next_part(viewer)
    viewer.finish(CloseCode.DONE)
    viewer.offer(frames[3], 0.0)
    draining = asyncio.create_task(viewer.drained())
    await asyncio.sleep(0)
    assert not draining.done()
    assert [bool(await next_part(viewer)) for _ in range(3)] == [True, True, False]
    await asyncio.wait_for(draining, PATIENCE_S)


async def test_a_thin_stream_is_filled_up_for_browsers() -> None:
    """With a block at once and every half second; Chromium's <video> would wait for it."""
    clock = [100.0]
    frames = frames_of(20)
    broadcast = cast(Broadcast, QuietBroadcast(frames=frames[:1]))
    viewer = VideoViewer(broadcast, lambda: clock[0])
    sizes = [len(await next_part(viewer) or b"")]
    data_sizes = [len(frame.packets["h264"].data) for frame in frames]
    for frame in frames[1:]:
        clock[0] += 1 / FPS
        viewer.offer(frame, clock[0])
        sizes.append(len(await next_part(viewer) or b""))
    full = [i for i, size in enumerate(sizes) if size > data_sizes[i] + 10_000]
    assert full == [0, 8, 16]
    assert sizes[0] == sum(sizes[1:9]) == sum(sizes[9:17]) == 32 * 1024


async def test_fragments_keep_time_over_pauses() -> None:
    """A frame after a long pause follows directly."""
    frames = frames_of(3)
    viewer = watch(VideoViewer, QuietBroadcast(frames=frames[:1]))
    data = await next_part(viewer) or b""
    for number, frame in enumerate(frames[1:]):
        viewer.offer(frame, 1e6 + number / FPS)
        data += await next_part(viewer) or b""
    times = [struct.unpack_from(">Q", part, 4)[0] for part in data.split(b"tfdt")[1:]]
    assert times == [0, 5625, 11250]
