"""Encoded frames on their way to viewers: each needs the one before it, back to a keyframe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from transport.encoder import Frame

ENCODINGS: Final = {
    "jpeg": "jpeg", "raw": "raw", "h264": "h264", "m4s": "h264", "vp8": "vp8", "none": None,
}  # fmt: skip
PICTURES: Final = ("jpeg", "raw")  # encodings whose frames stand alone
RING_S: Final = 4.0


def encoding_of(format: str) -> str | None:
    """Return what is encoded for viewers of a format, None when that is nothing."""
    return ENCODINGS[format]


class PacketQueue:
    """Frames that one viewer has not been sent yet, in order, from a keyframe on.

    When more than `longest_s` of them wait, all are skipped until the next keyframe, and `starved`
    is called, as it is when the first frame that comes is none.
    """

    def __init__(
        self,
        encoding: str,
        longest_s: float = 1.0,
        *,
        starved: Callable[[], None] = lambda: None,
    ) -> None:
        self.encoding = encoding
        self.longest_s = longest_s
        self.num_dropped = 0
        self.wants_key = True  # nothing can be sent before one
        self._starved = starved
        self._frames: deque[tuple[Frame, float]] = deque()

    def __len__(self) -> int:
        return len(self._frames)

    def offer(self, frame: Frame, due_s: float) -> None:
        """Take in a frame, due at this time of a clock in seconds."""
        packet = frame.packets.get(self.encoding)
        if packet is None:
            return
        if self._frames and due_s - self._frames[0][1] > self.longest_s and not self.wants_key:
            self.clear()
        if self.wants_key and not packet.is_key:
            self.num_dropped += 1
            self._starved()
            return
        if packet.is_key and self._frames:  # whoever is behind goes on from here
            self.num_dropped += len(self._frames)
            self._frames.clear()
        self.wants_key = False
        self._frames.append((frame, due_s))

    def take(self) -> tuple[Frame, float] | None:
        """Return the frame that is sent next and when it was due, if one waits."""
        return self._frames.popleft() if self._frames else None

    def clear(self) -> None:
        """Skip all that waits; go on with the next keyframe."""
        self.num_dropped += len(self._frames)
        self._frames.clear()
        self.wants_key = True


class Ring:
    """The frames from the last keyframe on, for who joins late; empty when those are too many."""

    def __init__(self, encoding: str, longest_s: float = RING_S) -> None:
        self._encoding = encoding
        self._longest_s = longest_s
        self._frames: list[Frame] = []
        self._began_at = 0.0

    def add(self, frame: Frame, due_s: float) -> None:
        """Take in the next frame."""
        packet = frame.packets.get(self._encoding)
        if packet is None or due_s - self._began_at > self._longest_s:
            self._frames.clear()  # what comes after a gap cannot be decoded
        if packet is not None and packet.is_key:
            self._frames, self._began_at = [frame], due_s
        elif packet is not None and self._frames:
            self._frames.append(frame)

    def frames(self) -> list[Frame]:
        """Return the frames, the first of them a keyframe."""
        return list(self._frames)
