"""The engine for an event loop: sessions as streams of chunks and events.

The engine runs in a process of its own, or in a thread for tests and notebooks; nothing here shows
which. What the loop awaits never waits for a pass, only for the engine's answer between two. An
engine that dies, or is stuck, is replaced under living streams.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from streamgen.config import EngineConfig
from streamgen.engine_commands import (
    Admitting,
    Answer,
    Apply,
    Call,
    Change,
    Command,
    Load,
    Open,
    Opened,
    Release,
    Reply,
    Restore,
    Sent,
)
from streamgen.engine_link import ProcessLink, ThreadLink
from streamgen.engine_stats import EngineStats
from streamgen.engine_stream import ENDED, EngineStream, Once
from streamgen.engine_supervisor import EngineSupervisor
from streamgen.errors import EngineStopped, ModelNotReady, StreamgenError
from streamgen.measures import Measures
from streamgen.messages import Chunk, Event, Failed, Receipt, StateChanged
from streamgen.models.presets import Preset, find_preset
from streamgen.record import SessionRecord
from streamgen.session_config import SessionRequest
from streamgen.session_ledger import SessionLedger
from streamgen.startup import checked_options

WARMING_RETRY_S: Final = 2.0
RUNNING: Final = ("starting", "running", "paused")  # they hold pages


@dataclass(frozen=True, slots=True)
class _Asked:
    command: Call
    answer: asyncio.Future[object]


class EngineClient:
    """Start an engine, open streams at it, and end it. For one event loop.

    Raises, when it is made, ConfigError or InvalidRequest for options that cannot work, before any
    weight is read.
    """

    def __init__(
        self, config: EngineConfig, *, preset: Preset | None = None, own_process: bool = True
    ) -> None:
        self.preset = preset or find_preset(config.model)
        self.config = checked_options(config, self.preset)
        kind = ProcessLink if own_process else ThreadLink
        self.supervisor = EngineSupervisor(self.config, partial(kind, self.preset), self)
        self._streams: dict[str, EngineStream] = {}
        self._asked: dict[int, _Asked] = {}
        self._call_numbers = itertools.count()
        self._load = Load(0, 0)
        self.on_measures: Callable[[Measures], None] = lambda measures: None
        self._ended: StreamgenError | None = None
        self._first_ready: asyncio.Future[None]

    async def start(self) -> None:
        """Start the engine without waiting for it; `stats` tells how far it is."""
        self._first_ready = asyncio.get_running_loop().create_future()
        self.supervisor.start()

    async def wait_ready(self) -> None:
        """Wait until sessions can be opened, or raise the error that the start ended with."""
        await asyncio.shield(self._first_ready)

    async def open(self, request: SessionRequest) -> EngineStream:
        """Admit a session, or raise StreamgenError. Cancelled, it leaves nothing behind."""
        return await self.admit(partial(Open, request=request))

    async def restore(self, record: SessionRecord) -> EngineStream:
        """Go on with a session from its record, under a new id; else as `open`."""
        return await self.admit(partial(Restore, record=record))

    def get(self, session_id: str) -> EngineStream | None:
        """Return the living stream of this id."""
        return self._streams.get(session_id)

    def list(self) -> tuple[EngineStream, ...]:
        """Return the living streams."""
        return tuple(self._streams.values())

    def stats(self) -> EngineStats:
        """Return the latest figures without waiting."""
        supervisor = self.supervisor
        return EngineStats(
            alive=self._ended is None,
            ready=supervisor.is_ready,
            stage=supervisor.stage.stage,
            progress=supervisor.stage.progress,
            **dataclasses.asdict(self._load),
            sessions_running=sum(one.state in RUNNING for one in self._streams.values()),
            busy_s=supervisor.busy_s,
            restarts=supervisor.num_restarts,
        )

    async def close(self) -> None:
        """End all streams and the engine, within 5 seconds when it has its own process."""
        await self.supervisor.close()

    # What streams do.

    async def admit(self, make: Callable[[int], Admitting]) -> EngineStream:
        """Send a command that brings a session; cancelled, it leaves nothing behind."""
        opening = self._call(make)
        try:
            stream = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_unclaimed)
            raise
        assert isinstance(stream, EngineStream)
        return stream

    async def ask(self, make: Callable[[int], Call]) -> object:
        """Send the command made for a new call number and return the answer, or raise its error."""
        return await asyncio.shield(self._call(make))

    def tell(self, command: Command) -> None:
        """Send a command that has no answer, unless there is nobody to hear it."""
        if self.supervisor.is_ready:
            self.supervisor.link.send(command)

    def _call(self, make: Callable[[int], Call]) -> asyncio.Future[object]:
        asked = _Asked(make(next(self._call_numbers)), asyncio.get_running_loop().create_future())
        asked.answer.add_done_callback(_see)
        if self._ended is not None:
            asked.answer.set_exception(self._ended)
        elif self.supervisor.is_ready:
            self._send(asked)
        else:
            self._postpone(asked)
        return asked.answer

    def _send(self, asked: _Asked) -> None:
        self._asked[asked.command.call] = asked
        self.supervisor.link.send(asked.command)

    def _postpone(self, asked: _Asked) -> None:
        """Do what can be done without an engine, keep what can wait for one, refuse the rest."""
        command, stage = asked.command, self.supervisor.stage
        if not isinstance(command, Change):
            message = f"the engine is not ready yet (it is at {stage.stage!r}); try again soon"
            if stage.stage == "restart":
                message = "the engine is just being replaced; try again in a moment"
            asked.answer.set_exception(ModelNotReady(message, retry_after_s=WARMING_RETRY_S))
        elif command.action == "resume":
            self._asked[command.call] = asked
        else:  # the engine to come is told of the streams that are left
            state = "closed" if command.action == "close" else "suspended"
            stream = self._streams.get(command.session_id)
            if stream is not None and stream.state != state:
                self._take(stream, StateChanged(state))
            asked.answer.set_result(None)

    def _close_unclaimed(self, opening: asyncio.Future[object]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            stream = opening.result()
            assert isinstance(stream, EngineStream)
            stream.discard()
            self._call(partial(Change, session_id=stream.id, action="close"))

    # What the engine says.

    def heard(self, reply: Reply) -> None:
        """Take what the engine says of sessions and calls."""
        if isinstance(reply, Sent):
            self._take_sent(reply)
        elif isinstance(reply, Answer):
            self._take_answer(reply)
        elif isinstance(reply, Load):
            self._load = reply
        elif isinstance(reply, Measures):
            self.on_measures(reply)

    def _take_sent(self, sent: Sent) -> None:
        stream = self._streams.get(sent.session_id)
        item = sent.item
        if isinstance(item, Chunk) and sent.slot is not None:
            link = self.supervisor.link  # another one may have come when the frames are let go
            release = Once(partial(link.send, Release(sent.slot)))
            if stream is None:
                release()
                return
            frames = link.view(sent.slot, sent.shape)
            item = dataclasses.replace(item, frames=frames, release=release)
        if stream is not None:
            self._take(stream, item)

    def _take(self, stream: EngineStream, item: Chunk | Event) -> None:
        stream.take(item)
        if stream.state in ENDED:
            self._streams.pop(stream.id, None)

    def _take_answer(self, answer: Answer) -> None:
        asked = self._asked.pop(answer.call)
        command, result = asked.command, answer.result
        if isinstance(command, Restore) and command.session_id is not None:
            self._restored(self._streams[command.session_id], answer)
            return
        # Done here, not by whoever waits: what the session sends next must find it.
        if isinstance(result, Opened):
            result = self._adopt(result)
        if isinstance(result, Receipt) and isinstance(command, Apply):
            stream = self._streams.get(command.session_id)
            if stream is not None:
                stream.ledger.accepted(command.control, result)
        if answer.error is not None:
            asked.answer.set_exception(answer.error)
        else:
            asked.answer.set_result(result)

    def _adopt(self, opened: Opened) -> EngineStream:
        ledger = SessionLedger(opened.record, self.config.history_seconds or 0.0)
        stream = self._streams[opened.session_id] = EngineStream(self, opened, ledger)
        return stream

    # The engine's life.

    def engine_ready(self) -> None:
        """Hand all streams to a new engine in their turn, and then what waited for it."""
        if not self._first_ready.done():
            self._first_ready.set_result(None)
        waiting = [*self._asked.values()]
        for stream in sorted(self.list(), key=lambda stream: stream.turn):
            self._hand_over(stream)
        for asked in waiting:
            self._send(asked)

    def engine_died(self, error: StreamgenError) -> None:
        """Fail the calls that it was asked, but for those that can be done without it or again."""
        self._load = Load(0, 0)
        asked, self._asked = self._asked, {}
        for call in asked.values():
            if isinstance(call.command, Change):
                self._postpone(call)
            elif not isinstance(call.command, Restore) or call.command.session_id is None:
                message = f"{error.message}; ask again once there is another"
                call.answer.set_exception(EngineStopped(message, retry_after_s=WARMING_RETRY_S))

    def engine_ended(self, error: StreamgenError | None) -> None:
        """End all streams and calls."""
        self._ended = error or EngineStopped("the engine was closed")
        self._load = Load(0, 0)
        for asked in self._asked.values():
            asked.answer.set_exception(self._ended)
        self._asked.clear()
        if not self._first_ready.done():
            self._first_ready.set_exception(self._ended)
            self._first_ready.exception()  # seen: nobody has to be waiting
        for stream in self.list():
            self._give_up(stream, error)

    def _hand_over(self, stream: EngineStream) -> None:
        record = stream.record()
        wanted = record.config.num_frames
        if wanted is not None and record.num_generated >= wanted:
            self._take(stream, StateChanged("closed", "done"))  # its last word was lost
            return
        command = Restore(next(self._call_numbers), record, stream.id, stream.state)
        self._send(_Asked(command, asyncio.get_running_loop().create_future()))

    def _restored(self, stream: EngineStream, answer: Answer) -> None:
        if isinstance(answer.result, Opened):
            stream.replaced(answer.result.state)
        else:
            self._give_up(stream, answer.error)

    def _give_up(self, stream: EngineStream, error: StreamgenError | None) -> None:
        if error is not None:
            stream.take(Failed(error.code, error.message, error.retryable))
        self._take(stream, StateChanged("closed" if error is None else "failed"))


def _see(answer: asyncio.Future[object]) -> None:
    """Mark an error as seen: whoever waited may be gone."""
    if not answer.cancelled():
        answer.exception()
