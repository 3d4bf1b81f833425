"""The realtime socket: create or resume a session, watch it, control it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from transport import replies
from transport.broadcast import Broadcast, Manner, Outcome, forked
from transport.fanout import Finish, Viewer
from transport.fields import ProtocolError
from transport.options import TransportOptions
from transport.replies import CloseCode, close_code
from transport.sessions import Sessions
from transport.stream import StreamError
from transport.wire import (
    MAX_FIRST_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES,
    ClientMessage,
    SessionAck,
    SessionFork,
    SessionInteraction,
    SessionPing,
    SessionResume,
    SessionRewind,
    SessionStart,
    SessionStop,
    SessionUpdate,
    SessionView,
    parse,
)

logger = logging.getLogger(__name__)

# Before a session began these leave the socket open: the client may send a better message.
CORRIGIBLE: Final = ("invalid_request", "unsupported", "conflict")
NAMED: Final = (SessionInteraction, SessionUpdate, SessionRewind, SessionFork)  # have an event id
MAX_BAD_MESSAGES: Final = 10
BAD_MESSAGES_WINDOW_S: Final = 10.0
MAX_WAITING_CONTROLS: Final = 64
CHECK_INTERVAL_S: Final = 1.0
LAST_WORDS_S: Final = 5.0  # for what a client sent before it left


class RealtimeSocket:
    """One connection. With a `session_id` it may watch or resume that session, else create one.

    Three tasks share it: the reader never waits for the engine, so that keep-alive works while a
    control takes its time; the controller takes what was read, in order; the sender alone sends.
    """

    def __init__(
        self,
        websocket: WebSocket,
        sessions: Sessions,
        options: TransportOptions,
        session_id: str | None = None,
    ) -> None:
        self._websocket = websocket
        self._sessions = sessions
        self._options = options
        self._session_id = session_id
        self._viewer = Viewer()
        self._broadcast: Broadcast | None = None
        self._owner = False
        self._starts = False  # the session that it asked for is nobody's before it is there
        self._inbox: asyncio.Queue[ClientMessage] = asyncio.Queue(MAX_WAITING_CONTROLS)
        self._bad_at: deque[float] = deque(maxlen=MAX_BAD_MESSAGES)
        self._sending_since: float | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Serve the connection until it is closed."""
        await self._websocket.accept()
        reader = self._loop.create_task(self._read())
        sender = self._loop.create_task(self._send())
        controller = self._loop.create_task(self._control())
        try:
            done: set[asyncio.Task[None]] = set()
            while not done and not self._stuck():
                done, _ = await asyncio.wait(
                    {reader, sender}, timeout=CHECK_INTERVAL_S, return_when="FIRST_COMPLETED"
                )
            if done and not self._viewer.finished and not self._starts:
                await self._obey_the_rest(reader, controller)
        finally:
            for task in (reader, sender, controller):
                task.cancel()
            await asyncio.gather(reader, sender, controller, return_exceptions=True)
            if self._broadcast:
                self._broadcast.detach(self._viewer)
        if not done:
            logger.info("dropped a viewer that took nothing for %g s", self._options.send_timeout_s)
        for task in done:
            task.result()

    async def _obey_the_rest(self, *tasks: asyncio.Task[None]) -> None:
        """Let a client's last words take effect: it left, and waits for no answer."""
        reader, controller = tasks
        await asyncio.wait({reader}, timeout=LAST_WORDS_S)
        obeyed = self._loop.create_task(self._inbox.join())
        await asyncio.wait(
            {obeyed, controller}, timeout=LAST_WORDS_S, return_when="FIRST_COMPLETED"
        )
        obeyed.cancel()

    def _stuck(self) -> bool:
        since = self._sending_since
        return since is not None and self._loop.time() - since > self._options.send_timeout_s

    async def _read(self) -> None:
        while True:
            event = await self._websocket.receive()
            if event["type"] == "websocket.disconnect":
                return
            if not self._viewer.finished:
                self._take(event.get("text"))

    def _take(self, text: str | None) -> None:
        limit = MAX_MESSAGE_BYTES if self._broadcast else MAX_FIRST_MESSAGE_BYTES
        if text is None:
            self._refuse(ProtocolError("messages are text frames"))
            self._viewer.finish(CloseCode.WRONG_FRAME_TYPE, "text frames only")
        elif len(text) > limit or len(text.encode()) > limit:
            self._refuse(ProtocolError(f"a message has at most {limit:,} bytes"))
            self._viewer.finish(CloseCode.TOO_BIG, "message too big")
        else:
            self._answer(text)

    def _answer(self, text: str) -> None:
        message = None
        try:
            message = parse(text)
            self._handle(message)
        except (ProtocolError, StreamError) as error:
            self._refuse(error, _event_id(message))

    def _handle(self, message: ClientMessage) -> None:
        match message:
            case SessionPing():
                self._viewer.put(replies.SessionPong())
            case SessionAck():
                self._viewer.ack(message)
            case SessionStop():
                self._stop()
            case _ if self._inbox.full() and self._broadcast is None:
                raise StreamError("capacity", "too many messages wait", retryable=True)
            case _:
                if self._broadcast is None and isinstance(message, SessionStart):
                    self._starts = True
                if self._inbox.full():
                    self._drop_oldest()
                self._inbox.put_nowait(message)

    def _drop_oldest(self) -> None:
        """Let the newest control win when more wait than the engine can be asked for."""
        event_id = _event_id(self._inbox.get_nowait())
        self._inbox.task_done()
        if event_id is not None:
            self._viewer.put(replies.InteractionSuperseded(event_id))

    def _stop(self) -> None:
        if self._broadcast is None:
            self._viewer.finish(CloseCode.DONE)
        elif self._owner:
            self._broadcast.conclude(Outcome(stopped=True))
        else:
            raise StreamError("unauthorized", "a watcher cannot end the session")

    async def _control(self) -> None:
        try:
            await self._wait_for_session()
            while not self._viewer.finished:
                message = await self._inbox.get()
                try:
                    await self._obey(message)
                except (ProtocolError, StreamError) as error:
                    self._refuse(error, _event_id(message))
                finally:
                    self._inbox.task_done()
        except Exception:
            logger.exception("a realtime socket failed")
            self._viewer.put(replies.Error("internal", "the server failed", retryable=True))
            self._viewer.finish(CloseCode.INTERNAL, "internal error")

    async def _wait_for_session(self) -> None:
        deadline = self._loop.time() + self._options.first_message_timeout_s
        while self._broadcast is None and not self._viewer.finished:
            # Not `wait_for`: before Python 3.12 it can lose a cancellation.
            timer = self._loop.call_at(deadline, self._give_up)
            try:
                message = await self._inbox.get()
            finally:
                timer.cancel()
            try:
                await self._begin(message)
            except ProtocolError as error:
                self._refuse(error, _event_id(message))
            except StreamError as error:
                self._refuse(error, _event_id(message))
                if error.code not in CORRIGIBLE:
                    self._viewer.finish(close_code(error), error.code)
            finally:
                self._inbox.task_done()

    def _give_up(self) -> None:
        timeout_s = self._options.first_message_timeout_s
        self._refuse(ProtocolError(f"no session was started within {timeout_s:g} s"))
        self._viewer.finish(CloseCode.NOT_ALLOWED, "no session was started in time")

    async def _begin(self, message: ClientMessage) -> None:
        if isinstance(message, SessionStart):  # else its session would be made to be refused
            self._sessions.places.check(shows=message.format != "none")
        broadcast = await self._session_of(message)
        assert isinstance(message, (SessionStart, SessionView, SessionResume))
        owner = not isinstance(message, SessionView)
        self._prepare(message, broadcast)
        try:
            await broadcast.attach(self._viewer, owner=owner)
        except BaseException:
            if isinstance(message, SessionStart):  # nobody else knows of it
                broadcast.conclude(Outcome(stopped=True))
            raise
        self._broadcast = broadcast
        self._owner, self._starts = owner, False

    def _prepare(
        self, message: SessionStart | SessionView | SessionResume, broadcast: Broadcast
    ) -> None:
        """Note how the client watches; one that resumes watches as the session was started."""
        resumes = isinstance(message, SessionResume)
        manner = broadcast.manner if resumes else Manner()
        self._viewer.format = message.format or manner.format
        self._viewer.acks = manner.acks if message.acks is None else message.acks

    async def _session_of(self, message: ClientMessage) -> Broadcast:
        """Find or create the session that a first message means."""
        match message, self._session_id:
            case SessionStart(), None:
                return await self._sessions.open(message)
            case SessionResume(resume_token=token), _:
                return self._sessions.find_resumable(token, self._session_id)
            case SessionView(viewer_token=token), str(session_id):
                return self._sessions.find_viewable(session_id, token)
        first = "session.start" if self._session_id is None else "session.view"
        raise ProtocolError(f"the first message here is {first} or session.resume", param="type")

    async def _obey(self, message: ClientMessage) -> None:
        assert self._broadcast is not None
        if not isinstance(message, NAMED):
            raise ProtocolError("the session has begun", param="type")
        if not self._owner:
            raise StreamError("unauthorized", "a watcher cannot control the session")
        if isinstance(message, SessionFork):
            child = await self._sessions.fork(self._broadcast, message)
            self._viewer.put(forked(child, self._sessions.urls(child), message.event_id))
            return
        receipt = await self._broadcast.control(message)
        self._viewer.put(replies.InteractionQueued(receipt.event_id, receipt.prompt_revision))

    def _refuse(self, error: ProtocolError | StreamError, event_id: str | None = None) -> None:
        """Answer a message with an error; too many bad ones end the connection."""
        self._viewer.put(replies.from_error(error, event_id))
        if error.code not in ("invalid_request", "unsupported", "unauthorized"):
            return
        now = self._loop.time()
        self._bad_at.append(now)
        if len(self._bad_at) == MAX_BAD_MESSAGES and now - self._bad_at[0] < BAD_MESSAGES_WINDOW_S:
            self._viewer.finish(CloseCode.NOT_ALLOWED, "too many bad messages")

    async def _send(self) -> None:
        while True:
            item = await self._viewer.next()
            self._sending_since = self._loop.time()
            try:
                if isinstance(item, Finish):
                    await self._websocket.close(item.code, item.reason)
                    return
                if isinstance(item, bytes):
                    await self._websocket.send_bytes(item)
                else:
                    await self._websocket.send_text(replies.encode(item))
            except (WebSocketDisconnect, RuntimeError):
                # The client is gone; or uvicorn closed the connection by itself, after a timed-out
                # ping or text that is not UTF-8, and says so with a RuntimeError.
                return
            self._sending_since = None


def _event_id(message: ClientMessage | None) -> str | None:
    return message.event_id if isinstance(message, NAMED) else None
