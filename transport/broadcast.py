"""One session as the server holds it: its player, its viewers, its beginning and its end."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from transport import replies
from transport.encoder import Encoder, Frame
from transport.fanout import Fanout, Viewer
from transport.options import TransportOptions
from transport.player import Player
from transport.replies import CloseCode, close_code
from transport.stream import (
    Failed,
    Receipt,
    Rejected,
    StateChanged,
    Stream,
    StreamError,
    Superseded,
)
from transport.timeline import Timeline
from transport.wire import Control, SessionInteraction, with_event_id

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S: Final = 1.0
FAREWELL_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ends: stopped early or played out, and the error if there was one."""

    stopped: bool
    error: StreamError | None = None


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
        *,
        format: str = "jpeg",
        acks: bool = False,
    ) -> None:
        self.stream = stream
        self.format = format
        self.acks = acks
        self.resume_token = secrets.token_urlsafe(24)
        self.viewer_token = secrets.token_urlsafe(24)
        self.viewers = Fanout()
        self.timeline = Timeline(stream.config.prompt)
        self.player = Player(stream, encoder, self._formats, self._show)
        self._options = options
        self._last_frame: Frame | None = None
        self._suspended = False
        self._paused = False
        self._changing = asyncio.Lock()  # held while the stream is suspended or resumed
        self._absence: asyncio.Task[None] | None = None  # runs while nobody watches
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
            self._begin_absence(self._options.attach_timeout_s)
        listening = self._spawn(self._listen())
        self._spawn(self.player.receive())
        self._spawn(self._play_out(listening))
        self._spawn(self._report())
        if self._options.max_session_s is not None:
            self._spawn(self._limit(self._options.max_session_s))
        try:
            self._tell_end(await self._outcome)
        finally:
            self.conclude(Outcome(stopped=True))  # the server stops
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.stream.close()

    def conclude(self, outcome: Outcome) -> None:
        """Let the session end; the first outcome counts."""
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    async def attach(self, viewer: Viewer, *, owner: bool) -> None:
        """Let a viewer watch, from the frame shown last; wake the stream if it is suspended.

        Raises StreamError when the session has ended or there is no room to go on.
        """
        async with self._changing:
            if self.ended:
                raise StreamError("not_found", "the session has ended")
            self._end_absence()
            try:
                if self._suspended:
                    await self.stream.resume()
                    self._suspended = False
                self._welcome(viewer, owner)
            finally:
                if not self.viewers:  # refused, or the viewer left while it waited
                    self._begin_absence(0.0)

    def detach(self, viewer: Viewer) -> None:
        """Let a viewer go. After the last one the stream is suspended."""
        self.viewers.discard(viewer)
        if not self.viewers and not self.ended:
            self._settle_clock()
            self._begin_absence(0.0)

    async def control(self, message: Control) -> Receipt:
        """Hand a control to the stream; raise StreamError when it is refused."""
        event_id = message.event_id or f"evt_{secrets.token_hex(8)}"
        self.timeline.sent(event_id, time.monotonic())
        try:
            receipt = await self.stream.control(with_event_id(message, event_id))
        except BaseException:
            self.timeline.dropped(event_id)
            raise
        if isinstance(message, SessionInteraction):
            self.timeline.accepted(receipt.prompt_revision, message.prompt)
        return receipt

    def stats(self, viewer: Viewer | None = None) -> replies.SessionStats:
        """Return the figures of the session, with one viewer's skipped frames or everybody's."""
        tally, pacer = self.player.tally, self.player.pacer
        config = self.stream.config
        viewers = [viewer] if viewer else list(self.viewers)
        return replies.SessionStats(
            fps=round(tally.fps(time.monotonic()), 2),
            lead_ms=round(pacer.lead_s * 1000, 1),
            underruns=pacer.num_underruns,
            dropped=sum(one.num_dropped for one in viewers),
            level={"num_inference_steps": config.num_inference_steps, "window": config.window},
            chunk_ms_p50=_milliseconds(tally.chunk_s(0.5)),
            chunk_ms_p95=_milliseconds(tally.chunk_s(0.95)),
            control_to_frame_ms=_milliseconds(self.timeline.control_to_frame_s),
        )

    def _welcome(self, viewer: Viewer, owner: bool) -> None:
        viewer.put(
            replies.VideoStart(
                request_id=viewer.request_id,
                session_id=self.id,
                format=viewer.format,
                config=dataclasses.asdict(self.stream.config),
                resume_token=self.resume_token if owner else None,
                viewer_token=self.viewer_token if owner else None,
            )
        )
        viewer.put(replies.SessionState(self.stream.state))
        if self._last_frame:
            viewer.offer(self._last_frame)
        self.viewers.add(viewer)
        self._settle_clock()

    def _formats(self) -> frozenset[str]:
        return self.viewers.formats() or frozenset({self.format})

    def _show(self, frame: Frame) -> None:
        now = time.monotonic()
        first = self._last_frame is None or self._last_frame.chunk.index != frame.chunk.index
        self._last_frame = frame
        self.viewers.publish(frame)
        if first:
            self._show_chunk(frame, now)

    def _show_chunk(self, frame: Frame, now: float) -> None:
        """Say which controls the chunk that this frame begins has obeyed."""
        chunk = frame.chunk
        self.player.tally.num_chunks += 1
        self.timeline.playing(chunk.prompt_revision, chunk.index)
        for event_id in chunk.started_event_ids:
            self.timeline.applied(event_id, now)
            self.viewers.broadcast(
                replies.InteractionApplied(
                    event_id=event_id,
                    prompt_revision=chunk.prompt_revision,
                    chunk_index=chunk.index,
                    frame_index=frame.index,
                    pts_ms=round(frame.pts_s * 1000, 3),
                )
            )

    async def _listen(self) -> None:
        async for event in self.stream.events():
            match event:
                case StateChanged("closed", "done"):
                    pass  # all is made; `session.done` is told when all has been played
                case StateChanged(state, reason):
                    self._paused = state == "paused"
                    self._settle_clock()
                    self.viewers.broadcast(replies.SessionState(state, reason))
                case Superseded(event_id):
                    self.timeline.dropped(event_id)
                    self.viewers.broadcast(replies.InteractionSuperseded(event_id))
                case Rejected(event_id, code, message):
                    self.timeline.dropped(event_id)
                    rejected = replies.InteractionRejected(event_id, code, message)
                    self.viewers.broadcast(rejected)
                case Failed(code, message, retryable):
                    raise StreamError(code, message, retryable=retryable)

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
                viewer.put(self.stats(viewer))

    async def _limit(self, longest_s: float) -> None:
        await asyncio.sleep(longest_s)
        raise StreamError("timeout_max_duration", f"a session lasts at most {longest_s:g} s")

    def _begin_absence(self, grace_s: float) -> None:
        self._end_absence()
        self._absence = self._spawn(self._wait_for_viewers(grace_s))

    def _end_absence(self) -> None:
        if self._absence:
            self._absence.cancel()
            self._absence = None

    async def _wait_for_viewers(self, grace_s: float) -> None:
        """Suspend the stream after the grace, and end it after the idle time-out."""
        await asyncio.sleep(grace_s)
        async with self._changing:
            self._suspended = True
            await self.stream.suspend()
        if self._options.idle_timeout_s is not None:
            await asyncio.sleep(self._options.idle_timeout_s)
            raise StreamError("timeout_idle", "nobody watched the session")

    def _settle_clock(self) -> None:
        if self._paused or not self.viewers:
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


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
