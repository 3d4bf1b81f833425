"""What waits for a viewer of video, and what one who joins late begins with."""

from __future__ import annotations

from transport.encoder import ChunkHeader, Frame
from transport.packets import PacketQueue, Ring, encoding_of
from transport.video import Packet

CHUNK = ChunkHeader(0, 0, 100, 0.0, 10, 0, 42, (), (), ())


def frame(index: int, *, key: bool = False, codec: str = "h264") -> Frame:
    """Return a frame of one packet, whose data is its number."""
    return Frame(index, CHUNK, index / 10, {}, {codec: Packet(str(index).encode(), key)})


def taken(queue: PacketQueue) -> list[int]:
    """Return the numbers of the frames that wait."""
    numbers = []
    while (item := queue.take()) is not None:
        numbers.append(item[0].index)
    return numbers


def test_a_viewer_begins_with_a_keyframe_and_asks_for_it() -> None:
    asked: list[bool] = []
    queue = PacketQueue("h264", starved=lambda: asked.append(True))
    queue.offer(frame(0), 0.0)
    assert (taken(queue), queue.wants_key, len(asked)) == ([], True, 1)
    for index in (1, 2, 3):
        queue.offer(frame(index, key=index == 1), index / 10)
    assert taken(queue) == [1, 2, 3]
    assert not queue.wants_key
    assert queue.num_dropped == 1


def test_one_that_takes_nothing_for_a_second_goes_on_with_the_next_keyframe() -> None:
    asked: list[bool] = []
    queue = PacketQueue("h264", starved=lambda: asked.append(True))
    for index in range(15):
        queue.offer(frame(index, key=index == 0), index / 10)
    assert queue.wants_key
    assert asked
    assert taken(queue) == []
    queue.offer(frame(15, key=True), 1.5)
    queue.offer(frame(16), 1.6)
    assert taken(queue) == [15, 16]
    assert queue.num_dropped == 15


def test_a_keyframe_takes_the_place_of_all_that_waits() -> None:
    queue = PacketQueue("h264")
    for index in range(4):
        queue.offer(frame(index, key=index in (0, 3)), index / 10)
    assert taken(queue) == [3]
    assert queue.num_dropped == 3


def test_other_encodings_are_not_its_business() -> None:
    queue = PacketQueue("vp8")
    queue.offer(frame(0, key=True), 0.0)
    assert (taken(queue), queue.num_dropped) == ([], 0)


def test_the_ring_holds_what_came_since_the_keyframe() -> None:
    ring = Ring("h264", longest_s=1.0)
    for index in range(8):
        ring.add(frame(index, key=index in (1, 4)), index / 10)
        assert all(one.packets["h264"].is_key is (i == 0) for i, one in enumerate(ring.frames()))
    assert [one.index for one in ring.frames()] == [4, 5, 6, 7]


def test_the_ring_is_empty_when_it_would_take_too_long_to_catch_up() -> None:
    ring = Ring("h264", longest_s=1.0)
    for index in range(20):
        ring.add(frame(index, key=index == 0), index / 10)
    assert ring.frames() == []
    ring.add(frame(20, key=True), 2.0)
    assert [one.index for one in ring.frames()] == [20]


def test_the_ring_forgets_what_a_gap_cut_off() -> None:
    """What was encoded after it refers to frames that are not there."""
    ring = Ring("h264")
    ring.add(frame(0, key=True), 0.0)
    ring.add(frame(1, codec="vp8"), 0.1)
    ring.add(frame(2), 0.2)
    assert ring.frames() == []


def test_what_is_encoded_for_a_format() -> None:
    assert [encoding_of(name) for name in ("jpeg", "m4s", "h264", "none")] == [
        "jpeg", "h264", "h264", None,
    ]  # fmt: skip
