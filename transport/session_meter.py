"""What is measured of one session while it is played. Times are on the caller's monotonic clock."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from transport.encoder import ChunkHeader
from transport.fanout import Spectator
from transport.metrics import Metrics
from transport.pacer import Pacer
from transport.stream import Chunk, StreamError
from transport.wire import Control, SessionInteraction, SessionRewind

# Its lines are for machines: a text log has them only at the level "debug".
trace: Final = logging.getLogger("transport.trace")


def kind_of(control: Control) -> str:
    """Return the name that metrics have for a control."""
    if isinstance(control, SessionInteraction):
        return "prompt"
    return "rewind" if isinstance(control, SessionRewind) else "update"


class Pace:
    """How fast chunks of all sessions are made, over the latest ones."""

    def __init__(self, num_chunks: int = 64) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=num_chunks)

    def add(self, play_s: float, generation_s: float) -> float:
        """Add a chunk; return the seconds of video made in a second."""
        self._latest.append((play_s, generation_s))
        played = sum(play_s for play_s, _ in self._latest)
        return played / max(sum(made_s for _, made_s in self._latest), 1e-9)


class SessionMeter:
    """Tells the metrics what becomes of one session, asked for at `asked_at`."""

    def __init__(self, metrics: Metrics, pace: Pace, session_id: str, asked_at: float) -> None:
        self._metrics = metrics
        self._pace = pace
        self._session_id = session_id
        self._asked_at = asked_at
        self._placed_at: float | None = None
        self._watched_at: float | None = None
        self._has_begun = False
        self._arrived_at: float | None = None  # the newest chunk, unless the clock stood since
        self._underruns, self._stall_s = 0, 0.0
        self._encoded_s = 0.0  # until the chunk that is shown now
        self._counted: dict[Spectator, tuple[int, int]] = {}

    # Its beginning.

    def stands(self, now: float, *, is_placed: bool, is_watched: bool) -> None:
        """Note whether it has a place, and whether it is played; the first of each counts."""
        if is_placed and self._placed_at is None:
            self._placed_at = now
            self._metrics.sessions.admission_wait_seconds.observe(now - self._asked_at)
        if is_watched and self._watched_at is None:
            self._watched_at = now

    def began(self, now: float) -> None:
        """Note that the first frame of a chunk was shown."""
        if not self._has_begun:
            self._has_begun = True
            known = (t for t in (self._placed_at, self._watched_at) if t is not None)
            since = max((self._asked_at, *known))
            self._metrics.sessions.time_to_first_frame_seconds.observe(now - since)

    # Its chunks.

    def paused(self) -> None:
        """Note that the clock stands: what comes next says nothing about the pace."""
        self._arrived_at = None

    def arrived(self, chunk: Chunk, now: float) -> None:
        """Note a chunk that came from the engine."""
        sessions, num_frames = self._metrics.sessions, len(chunk.frames)
        sessions.frames_generated_total.inc(num_frames)
        factor = self._pace.add(num_frames / chunk.fps, chunk.generation_s)
        sessions.realtime_factor.set(factor)
        if self._arrived_at is not None:
            sessions.inter_chunk_seconds.observe(now - self._arrived_at)
        self._arrived_at = now

    def queued(self, pacer: Pacer) -> None:
        """Note what the pacer made of a chunk that was queued."""
        sessions = self._metrics.sessions
        sessions.playback_underruns_total.inc(pacer.num_underruns - self._underruns)
        sessions.playback_stall_seconds_total.inc(pacer.stall_s - self._stall_s)
        self._underruns, self._stall_s = pacer.num_underruns, pacer.stall_s

    def shown(self, chunk: ChunkHeader, encoded_s: float, pacer: Pacer) -> None:
        """Note that a chunk's last frame was shown; `encoded_s` is of all frames so far."""
        spent_s, self._encoded_s = encoded_s - self._encoded_s, encoded_s
        if spent_s > 0:
            self._metrics.engine.chunk_duration_seconds["encode"].observe(spent_s)
        trace.info(
            "session %s: chunk %d shown, encoded in %.1f ms, %.0f ms ahead",
            self._session_id, chunk.index, 1000 * spent_s, 1000 * pacer.lead_s,
            extra={
                "trace_id": f"{self._session_id}/{chunk.index}",
                "session": self._session_id,
                "chunk": chunk.index,
                "frames": chunk.num_frames,
                "prompt_revision": chunk.prompt_revision,
                "encode_ms": round(1000 * spent_s, 3),
                "lead_ms": round(1000 * pacer.lead_s, 1),
                "underruns": pacer.num_underruns,
            },
        )  # fmt: skip

    def thrown_away(self) -> None:
        """Note a frame that a rewind abandoned."""
        self._metrics.viewers.frames_dropped_total["rewind"].inc()

    def applied(self, kind: str, seconds: float) -> None:
        """Note that the first frame was shown that obeys a control."""
        self._metrics.sessions.control_to_frame_seconds[kind].observe(seconds)

    # Its viewers.

    def count(self, viewer: Spectator) -> None:
        """Count what a viewer was sent, and what not, since it was counted last."""
        sent, dropped = viewer.num_sent, viewer.num_dropped
        sent_before, dropped_before = self._counted.get(viewer, (0, 0))
        if viewer.transport is not None:
            counter = self._metrics.viewers.frames_sent_total[viewer.transport]
            counter.inc(sent - sent_before)
            self._metrics.viewers.frames_dropped_total["viewer"].inc(dropped - dropped_before)
        self._counted[viewer] = (sent, dropped)

    def left(self, viewer: Spectator) -> None:
        """Count a viewer for the last time."""
        self.count(viewer)
        del self._counted[viewer]

    # Its end.

    def ended(self, *, stopped: bool, error: StreamError | None) -> None:
        """Note how it ended."""
        outcomes = self._metrics.sessions.sessions_total
        if error is None:
            outcomes["stopped" if stopped else "done"].inc()
        else:
            outcomes[error.code if error.code in outcomes else "failed"].inc()
