"""One session's frames and messages to its viewers; a slow viewer skips and delays nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from transport.encoder import Frame
from transport.packets import PacketQueue, Ring, encoding_of
from transport.replies import CloseCode, ServerMessage
from transport.video import CODECS, Codec
from transport.viewer import Finish, Viewer

__all__ = ["Fanout", "Finish", "PacketQueue", "Ring", "Spectator", "Viewer", "encoding_of"]


class Spectator(Protocol):
    """Whoever watches a session, over whatever connection.

    `format` is what it shows, `estimate_bps` what its connection carries, as far as that is known.
    """

    format: str
    estimate_bps: float | None

    @property
    def transport(self) -> str | None:
        """What its connection is, by the name that metrics have for it; None counts nowhere."""

    @property
    def num_sent(self) -> int:
        """Frames it was sent."""

    @property
    def num_dropped(self) -> int:
        """Frames it was not sent."""

    @property
    def finished(self) -> bool:
        """Whether its connection is about to be closed."""

    def put(self, message: ServerMessage) -> None:
        """Be told something, if the connection carries messages."""

    def offer(self, frame: Frame, due_s: float) -> None:
        """Be given a frame that is due at this time of the player's clock, which never goes back.

        Video frames come again, as keyframes, when somebody needs one while the session is paused.
        """

    def withdraw(self, unwanted: Callable[[int], bool]) -> None:
        """Forget pictures that stand alone and still wait, if their chunk is unwanted."""

    def finish(self, code: CloseCode, reason: str = "") -> None:
        """Close the connection once what waits is sent."""

    async def drained(self) -> None:
        """Wait until no frame waits."""


class Fanout:
    """The viewers of one session, and the video of its last seconds for those who join late."""

    def __init__(self) -> None:
        self._viewers: set[Spectator] = set()
        self._rings = {codec: Ring(codec) for codec in CODECS}

    def __len__(self) -> int:
        return len(self._viewers)

    def __iter__(self) -> Iterator[Spectator]:
        return iter(tuple(self._viewers))

    def add(self, viewer: Spectator) -> None:
        """Let a viewer take part."""
        self._viewers.add(viewer)

    def discard(self, viewer: Spectator) -> None:
        """Let a viewer go."""
        self._viewers.discard(viewer)

    def encodings(self) -> frozenset[str]:
        """Return what has to be encoded for those who watch."""
        return frozenset(filter(None, (encoding_of(one.format) for one in self._viewers)))

    def least_bps(self) -> float | None:
        """Return what the slowest connection carries, None while no viewer knows."""
        known = [one.estimate_bps for one in self._viewers if one.estimate_bps is not None]
        return min(known, default=None)

    def ring(self, codec: Codec) -> list[Frame]:
        """Return the frames since the last keyframe, or none when they are too many."""
        return self._rings[codec].frames()

    def publish(self, frame: Frame, due_s: float) -> None:
        """Offer a frame to every viewer."""
        for ring in self._rings.values():
            ring.add(frame, due_s)
        for viewer in self:
            viewer.offer(frame, due_s)

    def broadcast(self, message: ServerMessage) -> None:
        """Send a message to every viewer."""
        for viewer in self:
            viewer.put(message)

    def finish(self, code: CloseCode, reason: str = "") -> None:
        """Close every viewer's connection."""
        for viewer in self:
            viewer.finish(code, reason)
