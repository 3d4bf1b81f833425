"""Recordings: what the file has, and what happens when it can have no more."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.transport import bars
from tests.transport.conftest import eventually
from transport import recording, recordings
from transport.encoder import ChunkHeader, Frame
from transport.mp4 import file_type
from transport.recording import Recorder
from transport.recordings import Recordings
from transport.stream import StreamError
from transport.video import VideoEncoder

WIDTH, HEIGHT, FPS = 128, 96, 16.0
LARGE = 1 << 30


def shown(number: int, *, keys: Iterable[int] = (0,), first: int = 0) -> list[Frame]:
    """Return frames of numbered bars, as they are shown."""
    encoder = VideoEncoder("h264", WIDTH, HEIGHT, fps=FPS, bitrate=1_000_000)
    frames = []
    for i in range(first, first + number):
        chunk = ChunkHeader(i // 4, i // 4 * 4, 4, i // 4 * 4 / FPS, FPS, 0, 0, (), (), ())
        packet = encoder.encode(bars.paint_bars(WIDTH, HEIGHT, i), i in keys)
        frames.append(Frame(i, chunk, i / FPS, {}, {"h264": packet}, (WIDTH, HEIGHT)))
    return frames


def offer(recorder: Recorder, frames: Iterable[Frame]) -> None:
    """Show frames, at whatever time."""
    for frame in frames:
        recorder.offer(frame, time.monotonic())


def numbers_in(path: Path) -> list[int]:
    """Return the numbers of the frames in a file."""
    return bars.numbers_of(bars.decode_mp4(path.read_bytes())[0])


async def test_the_file_has_what_was_shown(tmp_path: Path) -> None:
    """Every frame in its colours, at the media's times whatever the clock's, a pause left out."""
    recorder = Recorder(tmp_path / "a.mp4", WIDTH, HEIGHT, LARGE)
    offer(recorder, shown(20))
    await asyncio.sleep(0.1)
    offer(recorder, shown(20, keys=(200,), first=200))
    await recorder.close()
    pictures, times = bars.decode_mp4(recorder.path.read_bytes())
    assert bars.numbers_of(pictures) == [*range(20), *range(200, 220)]
    assert times == [i / FPS for i in range(40)]
    assert max(map(bars.error_of, pictures)) <= bars.TOLERANCE
    assert recorder.num_bytes == recorder.path.stat().st_size
    assert recorder.stopped is None
    assert recorder.closed


async def test_the_file_can_be_read_while_it_grows(tmp_path: Path) -> None:
    """What was there stays as it was."""
    recorder = Recorder(tmp_path / "a.mp4", WIDTH, HEIGHT, LARGE)
    frames = shown(24)
    offer(recorder, frames[:12])
    await recorder.drained()
    before = recorder.path.read_bytes()
    assert bars.numbers_of(bars.decode_mp4(before)[0]) == list(range(12))
    offer(recorder, frames[12:])
    await recorder.close()
    assert recorder.path.read_bytes().startswith(before)
    assert numbers_in(recorder.path) == list(range(24))


async def test_it_begins_with_a_keyframe_and_asks_for_more(tmp_path: Path) -> None:
    """One at least every 10 s, so that the file can be sought."""
    asked = []
    recorder = Recorder(tmp_path / "a.mp4", WIDTH, HEIGHT, LARGE, ask_key=lambda: asked.append(1))
    frames = shown(180, keys=(0, 5))
    offer(recorder, frames[3:5])
    assert (len(asked), recorder.num_dropped) == (2, 2)
    offer(recorder, frames[5 : 5 + 160])
    assert len(asked) == 2
    offer(recorder, frames[165:167])
    assert len(asked) == 4
    await recorder.close()
    assert numbers_in(recorder.path) == list(range(5, 167))


async def test_a_recording_has_a_largest_size(tmp_path: Path) -> None:
    """Then it stops: said in the log and by `stopped`, and nothing is encoded for it any more."""
    recorder = Recorder(tmp_path / "a.mp4", WIDTH, HEIGHT, 20_000)
    assert recorder.format == "h264"
    frames = shown(600, keys=range(0, 600, 4))
    offer(recorder, frames)
    await eventually(lambda: recorder.closed)
    assert recorder.stopped is not None
    assert "20,000 bytes" in recorder.stopped
    assert (recorder.finished, recorder.format) == (True, "none")
    assert 15_000 < recorder.path.stat().st_size <= 20_000
    numbers = numbers_in(recorder.path)
    assert numbers == list(range(len(numbers)))
    offer(recorder, frames)  # which does nothing
    await recorder.drained()
    await recorder.close()


async def test_q51_a_full_disk_stops_the_recording(tmp_path: Path) -> None:
    """The device that is always full stands for one; who shows frames notices nothing."""
    path = tmp_path / "a.mp4"
    path.symlink_to("/dev/full")
    recorder = Recorder(path, WIDTH, HEIGHT, LARGE)
    offer(recorder, shown(8))
    await eventually(lambda: recorder.closed)
    assert recorder.stopped == os.strerror(errno.ENOSPC)
    offer(recorder, shown(8))
    await recorder.close()


async def test_q51_a_disk_that_fills_up_leaves_whole_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fragment that did not fit is cut off again."""

    def write_some(file: BinaryIO, data: bytes) -> None:
        room = 10_000 - file.tell()
        file.write(data[:room])
        if len(data) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recording, "write_all", write_some)
    recorder = Recorder(tmp_path / "a.mp4", WIDTH, HEIGHT, LARGE)
    offer(recorder, shown(200, keys=range(0, 200, 4)))
    await eventually(lambda: recorder.closed)
    assert recorder.stopped == os.strerror(errno.ENOSPC)
    assert recorder.path.stat().st_size == recorder.num_bytes < 10_000
    numbers = numbers_in(recorder.path)
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 10


async def test_a_directory_that_is_gone_stops_the_recording(tmp_path: Path) -> None:
    """The file is made when there is something to write."""
    recorder = Recorder(tmp_path / "gone" / "a.mp4", WIDTH, HEIGHT, LARGE)
    offer(recorder, shown(1))
    await eventually(lambda: recorder.closed)
    assert recorder.stopped == os.strerror(errno.ENOENT)


async def test_a_slow_disk_leaves_frames_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is bounded; the file goes on with the next keyframe, without a hole."""
    monkeypatch.setattr(recording, "MAX_WAITING_BYTES", 8_000)
    asked = []
    recorder = Recorder(tmp_path / "a.mp4", WIDTH, HEIGHT, LARGE, ask_key=lambda: asked.append(1))
    frames = shown(300, keys=(0, 250))
    sizes = [len(frame.packets["h264"].data) for frame in frames]
    assert sum(sizes[:200]) > 10_000
    offer(recorder, frames)  # with no time to write any
    await recorder.close()
    numbers = numbers_in(recorder.path)
    assert numbers == list(range(250, 300))
    assert recorder.num_dropped == 250
    assert asked


async def test_a_disk_that_hangs_does_not_keep_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing gives up on it."""
    hangs, released = threading.Event(), threading.Event()

    def hang(file: BinaryIO, data: bytes) -> None:
        hangs.set()
        released.wait(60.0)

    monkeypatch.setattr(recording, "write_all", hang)
    monkeypatch.setattr(recording, "CLOSE_TIMEOUT_S", 0.2)
    recorder = Recorder(tmp_path / "a.mp4", WIDTH, HEIGHT, LARGE)
    offer(recorder, shown(2))
    await eventually(hangs.is_set)
    await asyncio.wait_for(recorder.close(), 30.0)
    released.set()
    assert recorder.stopped == "the disk does not answer"
    await eventually(lambda: recorder.closed)


async def record(kept: Recordings, session_id: str, number: int = 40) -> Path:
    """Record a session to its end."""
    recorder = kept.begin(session_id, ("viewer", "owner"), WIDTH, HEIGHT, lambda: None)
    offer(recorder, shown(number))
    await kept.end(recorder)
    return recorder.path


async def test_old_recordings_make_room(tmp_path: Path) -> None:
    """All together are bounded, the oldest go first, and files of others stay."""
    others = tmp_path / "holiday.mp4"
    others.write_bytes(b"\0\0\0\x18ftypmp42" + bytes(100_000))
    os.utime(others, (0, 0))
    size = (await record(Recordings(tmp_path, LARGE), "probe")).stat().st_size
    kept = Recordings(tmp_path, size)  # of one session, so that ten fit
    for number in range(15):
        path = await record(kept, f"s{number:02}")
        os.utime(path, (time.time() - 1000 + number,) * 2)
        assert kept.find(f"s{number:02}", "viewer") == path
    await kept.prune()
    left = sorted(path.stem for path in tmp_path.iterdir())
    assert left == ["holiday", "probe", *(f"s{number:02}" for number in range(6, 15))]
    with pytest.raises(StreamError, match="no recording"):
        kept.find("s05", "viewer")


async def test_recordings_are_bounded_in_number_and_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that an earlier server left."""
    monkeypatch.setattr(recordings, "MAX_FILES", 3)
    for number in range(5):
        path = tmp_path / f"old{number}.mp4"
        path.write_bytes(file_type())
        age_s = recordings.MAX_AGE_S + 60 if number == 4 else number * 60
        os.utime(path, (time.time() - age_s,) * 2)
    await Recordings(tmp_path, LARGE).prune()
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["old0", "old1", "old2"]
    monkeypatch.setattr(recordings, "MAX_FILES", 300)
    os.utime(tmp_path / "old1.mp4", (0, 0))
    await Recordings(tmp_path, LARGE).prune()
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["old0", "old2"]


async def test_a_recording_under_way_is_not_removed(tmp_path: Path) -> None:
    """However little room there is."""
    kept = Recordings(tmp_path, 10_000)
    recorder = kept.begin("live", ("viewer",), WIDTH, HEIGHT, lambda: None)
    offer(recorder, shown(20))
    await recorder.drained()
    os.utime(recorder.path, (0, 0))
    await kept.prune()
    assert recorder.path.exists()
    await kept.end(recorder)
    assert not recorder.path.exists()


async def test_who_may_see_a_recording(tmp_path: Path) -> None:
    """Whoever had a token of the session, also after its end."""
    kept = Recordings(tmp_path, LARGE)
    path = await record(kept, "s1")
    assert kept.find("s1", "viewer") == kept.find("s1", "owner") == path
    for token in (None, "", "viewerx", "é"):
        with pytest.raises(StreamError, match="token is missing or wrong"):
            kept.find("s1", token)
    with pytest.raises(StreamError, match="no recording"):
        kept.find("s2", "viewer")
    empty = kept.begin("s3", ("viewer",), WIDTH, HEIGHT, lambda: None)
    with pytest.raises(StreamError, match="nothing was shown"):
        kept.find("s3", "viewer")
    await kept.end(empty)


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """At the start, with a sentence that names it and the option."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        OSError, match=r"cannot record to .*/file/x: Not a directory; give --record"
    ):
        Recordings(tmp_path / "file" / "x", LARGE)
    assert Recordings(tmp_path / "new" / "deep", LARGE)
    assert not list((tmp_path / "new" / "deep").iterdir())
