"""The engine for an event loop: sessions as streams of chunks and events.

The engine runs in a process of its own, or in a thread for tests and notebooks; nothing here shows
which. What the loop awaits never waits for a pass, only for the engine's answer between two.
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
from streamgen.engine_link import EngineLink, ProcessLink, ThreadLink
from streamgen.engine_stream import ENDED, EngineStream, Once
from streamgen.engine_worker import (
    Answer,
    Change,
    Command,
    Load,
    Open,
    Opened,
    Release,
    Reply,
    Sent,
    Stage,
    Stopped,
)
from streamgen.errors import EngineStopped, ModelNotReady, StreamgenError
from streamgen.messages import Chunk, Failed, StateChanged
from streamgen.models.presets import Preset, find_preset
from streamgen.session_config import SessionRequest
from streamgen.startup import resolve

WARMING_RETRY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How the engine fares. `stage` and `progress` (0 to 1) describe the start-up."""

    alive: bool
    ready: bool
    stage: str
    progress: float
    sessions_free: int
    pages_free: int


class EngineClient:
    """Start an engine, open streams at it, and end it.

    Use it on one event loop. Raises, when it is made, ConfigError or InvalidRequest for options
    that cannot work, before any weight is read.
    """

    def __init__(
        self, config: EngineConfig, *, preset: Preset | None = None, own_process: bool = True
    ) -> None:
        self.preset = preset or find_preset(config.model)
        self.config = resolve(config, self.preset)
        kind = ProcessLink if own_process else ThreadLink
        self._link: EngineLink = kind(self.config, self.preset)
        self._streams: dict[str, EngineStream] = {}
        self._calls: dict[int, asyncio.Future[object]] = {}
        self._call_numbers = itertools.count()
        self._stage = Stage("starting", 0.0)
        self._load = Load(0, 0)
        self._stopped: StreamgenError | None = None
        self._closing = False
        self._ready: asyncio.Future[None]
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        """Start the engine without waiting for it; `stats` tells how far it is."""
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._link.start(self._deliver)

    async def wait_ready(self) -> None:
        """Wait until sessions can be opened, or raise the error that the start ended with."""
        await asyncio.shield(self._ready)

    async def open(self, request: SessionRequest) -> EngineStream:
        """Admit a session, or raise StreamgenError. Cancelled, it leaves nothing behind."""
        if self._stage.stage != "ready":
            raise ModelNotReady(
                f"the engine is not ready yet: {self._stage.stage}", retry_after_s=WARMING_RETRY_S
            )
        opening = self._call(partial(Open, request=request))
        try:
            stream = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_unclaimed)
            raise
        assert isinstance(stream, EngineStream)
        return stream

    def get(self, session_id: str) -> EngineStream | None:
        """Return the living stream of this id."""
        return self._streams.get(session_id)

    def list(self) -> tuple[EngineStream, ...]:
        """Return the living streams."""
        return tuple(self._streams.values())

    def stats(self) -> EngineStats:
        """Return the latest figures without waiting."""
        return EngineStats(
            alive=self._stopped is None,
            ready=self._stage.stage == "ready" and self._stopped is None,
            stage=self._stage.stage,
            progress=self._stage.progress,
            sessions_free=self._load.sessions_free,
            pages_free=self._load.pages_free,
        )

    async def close(self) -> None:
        """End all streams and the engine, within 5 seconds when it has its own process."""
        self._closing = True
        await asyncio.to_thread(self._link.stop)

    # What streams do.

    async def ask(self, make: Callable[[int], Command]) -> object:
        """Send the command made for a new call number and return the answer, or raise its error."""
        return await asyncio.shield(self._call(make))

    def tell(self, command: Command) -> None:
        """Send a command that has no answer."""
        self._link.send(command)

    def _call(self, make: Callable[[int], Command]) -> asyncio.Future[object]:
        answer: asyncio.Future[object] = self._loop.create_future()
        if self._stopped is not None:
            answer.set_exception(self._stopped)
        else:
            number = next(self._call_numbers)
            self._calls[number] = answer
            self._link.send(make(number))
        return answer

    def _close_unclaimed(self, opening: asyncio.Future[object]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            stream = opening.result()
            assert isinstance(stream, EngineStream)
            stream.discard()
            self._call(partial(Change, session_id=stream.id, action="close"))

    # What the engine says.

    def _deliver(self, reply: Reply) -> None:
        """Hand a reply from the link's thread to the loop."""
        self._loop.call_soon_threadsafe(self._handle, reply)

    def _handle(self, reply: Reply) -> None:
        if isinstance(reply, Sent):
            self._handle_sent(reply)
        elif isinstance(reply, Answer):
            self._handle_answer(reply)
        elif isinstance(reply, Load):
            self._load = reply
        elif isinstance(reply, Stage):
            self._stage = reply
            if reply.stage == "ready":
                self._ready.set_result(None)
        else:
            self._handle_stopped(reply)

    def _handle_sent(self, sent: Sent) -> None:
        stream = self._streams.get(sent.session_id)
        item = sent.item
        if isinstance(item, Chunk) and sent.slot is not None:
            release = Once(partial(self._link.send, Release(sent.slot)))
            if stream is None:
                release()
                return
            frames = self._link.view(sent.slot, sent.shape)
            item = dataclasses.replace(item, frames=frames, release=release)
        if stream is not None:
            stream.take(item)
            if stream.state in ENDED:
                del self._streams[sent.session_id]

    def _handle_answer(self, answer: Answer) -> None:
        call = self._calls.pop(answer.call)
        result = answer.result
        if isinstance(result, Opened):
            # Made here, not by whoever waits: what the session sends next must find it.
            stream = EngineStream(self, result)
            self._streams[stream.id] = result = stream
        if answer.error is not None:
            call.set_exception(answer.error)
        else:
            call.set_result(result)

    def _handle_stopped(self, stopped: Stopped) -> None:
        unexpected = None if self._closing else stopped.error
        self._stopped = stopped.error or EngineStopped("the engine was closed")
        for call in self._calls.values():
            call.set_exception(self._stopped)
        self._calls.clear()
        if not self._ready.done():
            self._ready.set_exception(self._stopped)
            self._ready.exception()  # seen: nobody has to be waiting
        for stream in self._streams.values():
            if unexpected is not None:
                stream.take(Failed(unexpected.code, unexpected.message, unexpected.retryable))
            stream.take(StateChanged("closed" if unexpected is None else "failed"))
        self._streams.clear()
