"""One session as the server holds it: its player, its viewers, its beginning and its end."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from transport import replies
from transport.attendance import Attendance
from transport.encoder import Encoder, Frame, Picture
from transport.fanout import Spectator, Viewer
from transport.herald import Herald
from transport.options import TransportOptions
from transport.places import Places
from transport.projector import Projector
from transport.recordings import Recordings
from transport.replies import CloseCode, close_code
from transport.session_meter import SessionMeter, kind_of
from transport.stream import Receipt, Stream, StreamError
from transport.timeline import Timeline
from transport.wire import Control, SessionInteraction, SessionRewind, with_event_id

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S: Final = 1.0
FAREWELL_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ends: stopped early or played out, and the error if there was one."""

    stopped: bool
    error: StreamError | None = None


@dataclass(frozen=True, slots=True)
class Manner:
    """How a session is watched unless a viewer says otherwise, and whether it has to be."""

    format: str = "jpeg"
    acks: bool = False
    run_unwatched: bool = False


class Broadcast:
    """The playing of one stream, from its start to its end.

    Nobody watching, the stream is suspended; it goes on with the next viewer, or ends after the
    idle time-out. The resume token lets others control the session, the viewer token watch it.
    """

    def __init__(
        self,
        stream: Stream,
        encoder: Encoder,
        options: TransportOptions,
        manner: Manner,
        timeline: Timeline,
        meter: SessionMeter,
        places: Places,
    ) -> None:
        self.stream = stream
        self.manner = manner
        self.resume_token = secrets.token_urlsafe(24)
        self.viewer_token = secrets.token_urlsafe(24)
        self.timeline = timeline
        self.meter = meter
        self.projector = Projector(
            stream, encoder, self._spawn,
            began=self._began, throw_away=self._throw_away, meter=meter,
        )  # fmt: skip
        self.viewers, self.player = self.projector.viewers, self.projector.player
        self.herald = Herald(
            stream, self.viewers, self.player, timeline,
            self._settle_clock, self.projector.bitrate, meter,
        )  # fmt: skip
        self._options = options
        self._places = places
        self._attendance = Attendance(stream, options, self._spawn, needed=not manner.run_unwatched)
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    @property
    def id(self) -> str:
        """The session's id."""
        return self.stream.id

    @property
    def ended(self) -> bool:
        """Whether the session is over."""
        return self._outcome.done()

    async def run(self) -> None:
        """Play the stream until it ends or `conclude` is called, then close it."""
        if not self.viewers:  # who made the session over a socket watches already
            self._attendance.begin_absence(self._options.attach_timeout_s)
        self._settle_clock()
        listening = self._spawn(self.herald.listen())
        self._spawn(self.player.receive())
        self._spawn(self._play_out(listening))
        self._spawn(self._report())
        self._spawn(self.projector.follow_connections())
        if self._options.max_session_s is not None:
            self._spawn(self._limit(self._options.max_session_s))
        try:
            # Shielded: the server cancels this when it stops, and the future must live to be set.
            self._tell_end(await asyncio.shield(self._outcome))
        finally:
            self.conclude(Outcome(stopped=True))  # the server stops
            outcome = self._outcome.result()
            self.meter.ended(stopped=outcome.stopped, error=outcome.error)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.stream.close()
            await self.projector.close()

    def conclude(self, outcome: Outcome) -> None:
        """Let the session end; the first outcome counts."""
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    async def attach(self, viewer: Spectator, *, owner: bool = False) -> None:
        """Let a viewer watch; wake the stream if it is suspended.

        Raises StreamError when the session has ended, and when all places are taken or there is no
        room to go on.
        """

        def enter() -> None:
            if self.ended:
                raise StreamError("not_found", "the session has ended")
            tokens = (self.resume_token, self.viewer_token) if owner else (None, None)
            self.herald.welcome(viewer, *tokens)
            self.viewers.add(viewer)
            if isinstance(viewer, Viewer):
                self.projector.catch_up(viewer)
            self._settle_clock()

        def leave() -> None:
            if not self.viewers and not self.ended:  # refused, or the viewer left while it waited
                self._attendance.begin_absence()

        with self._places.hold(viewer):
            await self._attendance.wake(enter, leave)

    def detach(self, viewer: Spectator) -> None:
        """Let a viewer go. After the last one the stream is suspended."""
        if viewer in self.viewers:
            self.meter.left(viewer)
        self.viewers.discard(viewer)
        if not self.viewers and not self.ended:
            self._settle_clock()
            self._attendance.begin_absence()

    async def control(self, message: Control) -> Receipt:
        """Hand a control to the stream; raise StreamError when it is refused."""
        event_id = message.event_id or f"evt_{secrets.token_hex(8)}"
        self.timeline.sent(event_id, kind_of(message), time.monotonic())
        rewind = None
        if isinstance(message, SessionRewind):
            rewind = self.player.rewinds.asked(event_id, message.to_chunk)
        try:
            receipt = await self.stream.control(with_event_id(message, event_id))
        except BaseException:
            self.timeline.dropped(event_id)
            if rewind is not None:
                self.player.rewinds.refused(rewind)
            raise
        if isinstance(message, SessionInteraction):
            self.timeline.accepted(receipt.prompt_revision, receipt.prompt or message.prompt)
        elif rewind is not None:
            self.player.rewound(rewind)
            for viewer in self.viewers:
                viewer.withdraw(self.player.rewinds.abandon)
        return receipt

    def record(self, recordings: Recordings) -> None:
        """Keep the video of the session in a file."""
        self.projector.record(recordings, (self.viewer_token, self.resume_token))

    def ask_key(self, encoding: str) -> None:
        """Let a keyframe be made for a viewer that cannot go on without one."""
        self.projector.ask_key(encoding)

    def ring(self, encoding: str) -> list[Frame]:
        """Return the video frames of the last seconds, from a keyframe on, if there is one."""
        return self.projector.ring(encoding)

    async def still(self) -> Frame | None:
        """Return the picture shown last as JPEG, or None before the first."""
        return await self.projector.still()

    def _began(self, frame: Frame) -> None:
        self.meter.began(time.monotonic())
        self.herald.shown(frame)

    def _throw_away(self, picture: Picture) -> None:
        if picture.index == picture.chunk.first_frame_index:
            self.herald.never_shown(picture.chunk)

    async def _play_out(self, listening: asyncio.Task[None]) -> None:
        await self.player.play()
        # The last frame may still wait to be sent, and if the stream failed the event that says so.
        last = {self._spawn(viewer.drained()) for viewer in self.viewers}
        await asyncio.wait({listening, *last}, timeout=FAREWELL_TIMEOUT_S)
        self.conclude(Outcome(stopped=False))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            for viewer in self.viewers:
                viewer.put(self.herald.stats(viewer))

    async def _limit(self, longest_s: float) -> None:
        await asyncio.sleep(longest_s)
        raise StreamError("timeout_max_duration", f"a session lasts at most {longest_s:g} s")

    def _settle_clock(self) -> None:
        watched = bool(self.viewers) or self.manner.run_unwatched
        is_placed = self.stream.state != "queued"
        self.meter.stands(time.monotonic(), is_placed=is_placed, is_watched=watched)
        if self.herald.paused or not watched:
            self.player.pause()
        else:
            self.player.resume()

    def _tell_end(self, outcome: Outcome) -> None:
        error = outcome.error
        if error is None:
            num_chunks = self.player.tally.num_chunks
            self.viewers.broadcast(replies.SessionDone(num_chunks, outcome.stopped))
            self.viewers.finish(CloseCode.DONE, "done")
        else:
            self.viewers.broadcast(replies.from_error(error))
            self.viewers.finish(close_code(error), error.code)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or not (error := task.exception()):
            return
        if not isinstance(error, StreamError):
            logger.error("session %s failed", self.id, exc_info=error)
            error = StreamError("internal", "the session failed")
        self.conclude(Outcome(stopped=True, error=error))


def forked(
    child: Broadcast, urls: Mapping[str, str], event_id: str | None
) -> replies.SessionForked:
    """Return the answer to who asked for a fork."""
    return replies.SessionForked(child.id, child.viewer_token, child.resume_token, urls, event_id)
