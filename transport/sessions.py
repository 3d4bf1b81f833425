"""The sessions of one server, by id and by token."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from transport.broadcast import Broadcast, Manner
from transport.encoder import Encoder
from transport.fanout import Viewer
from transport.host import StreamHost
from transport.metrics import Metrics
from transport.options import TransportOptions
from transport.places import Places
from transport.recordings import Recordings
from transport.replies import CloseCode
from transport.session_meter import Pace, SessionMeter
from transport.stream import SessionConfig, Stream, StreamError
from transport.timeline import Timeline
from transport.wire import SessionFork, SessionStart

logger = logging.getLogger(__name__)

PATH: Final = "/v1/realtime/sessions"
MEDIA: Final = {
    "whep": "whep",
    "mjpeg": "stream.mjpeg",
    "mp4": "stream.mp4",
    "frame": "frame.jpg",
}


class Sessions:
    """Opens sessions at the host and runs their broadcasts until they end."""

    def __init__(
        self,
        host: StreamHost,
        options: TransportOptions,
        metrics: Metrics,
        recordings: Recordings | None = None,
    ) -> None:
        self._host = host
        self._metrics = metrics
        self._pace = Pace()
        self._recordings = recordings
        self._options = options
        self._encoder = Encoder(
            jpeg_quality=options.jpeg_quality, kind=options.encoder, bitrate=options.bitrate
        )
        self._broadcasts: dict[str, Broadcast] = {}
        self.places = Places(
            options.max_viewers, lambda: (viewer for one in self for viewer in one.viewers)
        )
        self._runs: dict[str, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Broadcast]:
        return iter(tuple(self._broadcasts.values()))

    async def open(self, start: SessionStart) -> Broadcast:
        """Create a session; raise StreamError when the host refuses it."""
        width, height = start.dimensions
        config = SessionConfig(
            prompt=start.prompt,
            model=start.model,
            width=width,
            height=height,
            fps=start.fps,
            seed=start.seed,
            num_frames=start.num_frames,
            num_inference_steps=start.num_inference_steps,
            window=start.window,
            sink=start.sink,
            score=start.score or (),
            priority=start.priority,
            run_unwatched=bool(start.run_unwatched),
        )
        with self._asking() as asked_at:
            stream = await self._host.open(config)
        manner = Manner(start.format or "jpeg", bool(start.acks), bool(start.run_unwatched))
        # repr escapes control characters and what would turn the text round.
        logger.info("session %s opened: %r", stream.id, str(start.prompt)[:200])
        return self._play(stream, manner, Timeline(stream.config.prompt), asked_at)

    async def fork(self, parent: Broadcast, fork: SessionFork) -> Broadcast:
        """Let a second session begin from another; raise StreamError when that is refused."""
        with self._asking() as asked_at:
            stream = await parent.stream.fork(fork.at_chunk)
        logger.info("session %s forked from %s", stream.id, parent.id)
        timeline = parent.timeline.until(fork.at_chunk)
        return self._play(stream, parent.manner, timeline, asked_at)

    async def restore(self, blob: bytes) -> Broadcast:
        """Go on from a snapshot; raise StreamError when the host refuses it."""
        with self._asking() as asked_at:
            stream = await self._host.restore(blob)
        logger.info("session %s restored", stream.id)
        manner = Manner(run_unwatched=stream.config.run_unwatched)
        return self._play(stream, manner, Timeline(), asked_at)

    @contextmanager
    def _asking(self) -> Iterator[float]:
        """Count it if the host refuses a session for want of room; yield when it was asked for."""
        try:
            yield time.monotonic()
        except StreamError as error:
            if error.code == "capacity":
                self._metrics.sessions.sessions_total["refused"].inc()
            raise

    def location(self, broadcast: Broadcast) -> str:
        """Return the path of a session, below which its other routes are."""
        return f"{self._options.root_path}{PATH}/{broadcast.id}"

    def urls(self, broadcast: Broadcast, *, with_token: bool = True) -> dict[str, str]:
        """Return where a session is watched and controlled, ready for use with its token."""
        location = self.location(broadcast)
        token = f"?token={broadcast.viewer_token}" if with_token else ""
        urls = {"view": f"{location}/view", "events": f"{location}/events"}
        media = MEDIA if self._recordings is None else {**MEDIA, "recording": "recording.mp4"}
        return urls | {name: f"{location}/{path}{token}" for name, path in media.items()}

    def get(self, session_id: str) -> Broadcast:
        """Return a session that lives; raise StreamError otherwise."""
        broadcast = self._broadcasts.get(session_id)
        if broadcast is None or broadcast.ended:
            raise StreamError("not_found", "there is no such session")
        return broadcast

    def find_resumable(self, resume_token: str, session_id: str | None = None) -> Broadcast:
        """Return the session of this token, if given with this id; raise StreamError otherwise."""
        for broadcast in self:
            fits = session_id in (None, broadcast.id) and not broadcast.ended
            if _same(resume_token, broadcast.resume_token) and fits:
                return broadcast
        raise StreamError("not_found", "the session has ended, or the resume token is wrong")

    def find_viewable(self, session_id: str, viewer_token: str) -> Broadcast:
        """Return the session of this id and viewer token; raise StreamError when there is none."""
        broadcast = self.get(session_id)
        if not _same(viewer_token, broadcast.viewer_token):
            raise StreamError("unauthorized", "the viewer token is wrong")
        return broadcast

    def find_watchable(self, session_id: str, token: str | None) -> Broadcast:
        """Return the session that this token lets one watch; raise StreamError otherwise."""
        broadcast = self.get(session_id)
        tokens = (broadcast.viewer_token, broadcast.resume_token)
        if token is None or not any(_same(token, known) for known in tokens):
            raise StreamError(
                "unauthorized",
                "the session's viewer token is missing or wrong; send it as ?token=... or as "
                "Authorization: Bearer ...",
            )
        return broadcast

    def find_controllable(self, session_id: str, token: str | None) -> Broadcast:
        """Return the session that this token lets one control; raise StreamError otherwise."""
        broadcast = self.get(session_id)
        if token is None or not _same(token, broadcast.resume_token):
            raise StreamError(
                "unauthorized",
                "the session's resume token is missing or wrong (a viewer token lets one only "
                "watch); send it as ?token=... or as Authorization: Bearer ...",
            )
        return broadcast

    async def wait_ended(self, session_id: str) -> None:
        """Wait until a session that was concluded is closed."""
        if run := self._runs.get(session_id):
            await asyncio.wait({run})

    def goodbye(self) -> None:
        """Let viewers go that the server would wait for: their responses have no end."""
        for broadcast in self:
            for viewer in broadcast.viewers:
                if not isinstance(viewer, Viewer):  # sockets are told by the server itself
                    viewer.finish(CloseCode.RESTARTING, "the server stops")

    async def close(self) -> None:
        """End all sessions."""
        runs = list(self._runs.values())
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        self._encoder.close()

    def _play(
        self, stream: Stream, manner: Manner, timeline: Timeline, asked_at: float
    ) -> Broadcast:
        meter = SessionMeter(self._metrics, self._pace, stream.id, asked_at)
        broadcast = Broadcast(
            stream, self._encoder, self._options, manner, timeline, meter, self.places
        )
        if self._recordings is not None:
            broadcast.record(self._recordings)
        self._broadcasts[broadcast.id] = broadcast
        run = asyncio.get_running_loop().create_task(broadcast.run())
        self._runs[broadcast.id] = run
        run.add_done_callback(lambda run: self._forget(broadcast.id, run))
        return broadcast

    def _forget(self, session_id: str, run: asyncio.Task[None]) -> None:
        del self._broadcasts[session_id]
        del self._runs[session_id]
        if not run.cancelled() and (error := run.exception()):
            logger.error("session %s did not close cleanly", session_id, exc_info=error)
        else:
            logger.info("session %s ended", session_id)


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())
