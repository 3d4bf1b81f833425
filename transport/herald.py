"""What the viewers of one session are told: its events, its receipts, and how it stands."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from transport import replies
from transport.encoder import ChunkHeader, Frame
from transport.fanout import Fanout, Spectator, Viewer
from transport.player import Player
from transport.session_meter import SessionMeter
from transport.stream import (
    Event,
    Failed,
    Overloaded,
    Queued,
    Rejected,
    Restarted,
    StateChanged,
    Stream,
    StreamError,
    Superseded,
)
from transport.timeline import Timeline


class Herald:
    """Tells every viewer what happens, and one that comes what it has missed.

    `settle` is called when the session's state is another one; `bitrate` returns that of video.
    """

    def __init__(
        self,
        stream: Stream,
        viewers: Fanout,
        player: Player,
        timeline: Timeline,
        settle: Callable[[], None],
        bitrate: Callable[[], int],
        meter: SessionMeter,
    ) -> None:
        self.paused = stream.state == "paused"
        self._stream = stream
        self._viewers = viewers
        self._player = player
        self._timeline = timeline
        self._settle = settle
        self._bitrate = bitrate
        self._meter = meter
        self._place: replies.SessionQueued | None = None
        self._overload: replies.SessionOverload | None = None

    async def listen(self) -> None:
        """Tell what the stream reports, until it ends; raise StreamError when it fails."""
        async for event in self._stream.events():
            self._tell(event)

    def welcome(
        self, viewer: Spectator, resume_token: str | None, viewer_token: str | None
    ) -> None:
        """Tell a viewer how the session stands; without tokens it can only watch."""
        if not isinstance(viewer, Viewer):  # its connection carries pictures only
            return
        config = dataclasses.asdict(self._stream.config)
        start = replies.VideoStart(
            viewer.request_id, self._stream.id, viewer.format, config, resume_token, viewer_token
        )
        viewer.put(start)
        viewer.put(replies.SessionState(self._stream.state))
        for notice in (self._place, self._overload):
            if notice is not None:
                viewer.put(notice)

    def shown(self, frame: Frame) -> None:
        """Say which controls the chunk that this frame begins has obeyed."""
        chunk = frame.chunk
        self._player.tally.num_chunks += 1
        self._timeline.playing(chunk.prompt_revision, chunk.index, chunk.prompt)
        for event_id in chunk.started_event_ids:
            if taken := self._timeline.applied(event_id, time.monotonic()):
                self._meter.applied(*taken)
            self._viewers.broadcast(
                replies.InteractionApplied(
                    event_id=event_id,
                    prompt_revision=chunk.prompt_revision,
                    chunk_index=chunk.index,
                    frame_index=frame.index,
                    pts_ms=round(frame.pts_s * 1000, 3),
                )
            )

    def never_shown(self, chunk: ChunkHeader) -> None:
        """Say that what began with an abandoned chunk had no effect.

        A rewind that did has had it: what it abandoned stays so.
        """
        for event_id in chunk.started_event_ids:
            self._timeline.dropped(event_id)
            self._viewers.broadcast(replies.InteractionSuperseded(event_id))

    def stats(self, viewer: Spectator | None = None) -> replies.SessionStats:
        """Return the figures of the session, with one viewer's skipped frames or everybody's."""
        tally, pacer = self._player.tally, self._player.pacer
        config = self._stream.config
        viewers = [viewer] if viewer else list(self._viewers)
        return replies.SessionStats(
            fps=round(tally.fps(time.monotonic()), 2),
            lead_ms=round(pacer.lead_s * 1000, 1),
            bitrate=self._bitrate(),
            underruns=pacer.num_underruns,
            dropped=sum(one.num_dropped for one in viewers),
            level={
                "num_inference_steps": config.num_inference_steps,
                "window": config.window,
                "overload": self._overload.level if self._overload else 0,
            },
            chunk_ms_p50=_milliseconds(tally.chunk_s(0.5)),
            chunk_ms_p95=_milliseconds(tally.chunk_s(0.95)),
            control_to_frame_ms=_milliseconds(self._timeline.control_to_frame_s),
            jitter_ms=_milliseconds(tally.late_s(0.95)),
        )

    def _tell(self, event: Event) -> None:
        match event:
            case StateChanged("closed", "done"):
                pass  # all is made; `session.done` is told when all has been played
            case StateChanged(state, reason):
                self.paused = state == "paused"
                if state != "queued":
                    self._place = None
                self._settle()
                self._viewers.broadcast(replies.SessionState(state, reason))
            case Queued(position, wait_s):
                self._place = replies.SessionQueued(position, wait_s)
                self._viewers.broadcast(self._place)
            case Overloaded(level, action):
                told = replies.SessionOverload(level, action)
                self._overload = told if level else None
                self._viewers.broadcast(told)
            case Restarted():
                self._viewers.broadcast(replies.WorkerRestarted())
            case Superseded(event_id):
                self._forget(event_id)
                self._viewers.broadcast(replies.InteractionSuperseded(event_id))
            case Rejected(event_id, code, message):
                self._forget(event_id)
                self._viewers.broadcast(replies.InteractionRejected(event_id, code, message))
            case Failed(code, message, retryable):
                raise StreamError(code, message, retryable=retryable)

    def _forget(self, event_id: str) -> None:
        self._timeline.dropped(event_id)
        self._player.rewinds.dropped(event_id)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
