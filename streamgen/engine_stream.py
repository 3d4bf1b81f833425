"""One session of an engine, as its player on an event loop sees it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Generic, Literal, Protocol, TypeVar

from streamgen.engine_commands import Admitting, Apply, Call, Change, Command, Fork, Opened, Played
from streamgen.errors import Conflict, EngineStopped, NotFound
from streamgen.messages import (
    Applied,
    Chunk,
    Control,
    Event,
    Overloaded,
    Queued,
    Receipt,
    Restarted,
    StateChanged,
    Superseded,
)
from streamgen.overload import ACTIONS
from streamgen.record import SessionRecord
from streamgen.session_ledger import SessionLedger

T = TypeVar("T")

ENDED: Final = ("closed", "failed")


class EngineCaller(Protocol):
    """What a stream needs of its client."""

    async def ask(self, make: Callable[[int], Call]) -> object:
        """Send the command made for a new call number; return the answer, or raise its error."""

    async def admit(self, make: Callable[[int], Admitting]) -> EngineStream:
        """Send a command that brings a session; cancelled, it leaves nothing behind."""

    def tell(self, command: Command) -> None:
        """Send a command that has no answer."""


class EngineStream:
    """One session, as its player sees it. Made by `EngineClient.open`, `restore`, and `fork`."""

    def __init__(self, caller: EngineCaller, opened: Opened, ledger: SessionLedger) -> None:
        self.id = opened.session_id
        self.config = opened.record.config
        self.state = opened.state
        self.ledger = ledger
        self._caller = caller
        self._chunks: _Feed[Chunk] = _Feed()
        self._events: _Feed[Event] = _Feed()
        self._overload = 0
        self._position = 0  # in the queue, while it waits there
        self._told: str | None = None  # a blend that began before the engine was replaced

    def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the chunks, numbered without gaps, until the session ends. For one reader."""
        return self._chunks.read()

    def events(self) -> AsyncIterator[Event]:
        """Yield what happens to the session, until it ends. For one reader."""
        return self._events.read()

    async def control(self, control: Control) -> Receipt:
        """Hand in a control. Raises StreamgenError when it is refused; the session goes on."""
        with self._while_made():
            receipt = await self._caller.ask(partial(Apply, session_id=self.id, control=control))
        assert isinstance(receipt, Receipt)
        return receipt

    def played(self, frame_index: int) -> None:
        """Report that a frame was shown: the only thing that lets the engine go on."""
        self._caller.tell(Played(self.id, frame_index))

    async def fork(self, at_chunk: int | None = None) -> EngineStream:
        """Begin a second session at the end of a chunk, by default the newest.

        Raises StreamgenError when there is no room or the chunk is not kept.
        """
        with self._while_made():
            return await self._caller.admit(partial(Fork, session_id=self.id, at_chunk=at_chunk))

    @contextmanager
    def _while_made(self) -> Iterator[None]:
        """Raise Conflict for what comes too late: the engine knows nothing of it any more."""
        try:
            yield
        except NotFound as error:
            if self.state not in ENDED or self.config.num_frames is None:
                raise
            raise Conflict("all frames of this video are made; the last are only played") from error

    @property
    def turn(self) -> tuple[bool, int]:
        """Order streams for an engine that begins anew: who waits comes last, as in the queue."""
        return self.state == "queued", self._position

    def record(self) -> SessionRecord:
        """Return the session as it is after the newest chunk that came, without waiting."""
        return self.ledger.record()

    async def suspend(self) -> None:
        """Free the session's pages. Idempotent."""
        await self._change("suspend")

    async def resume(self) -> None:
        """Go on after `suspend`. Idempotent. Raises Capacity when there is no room."""
        await self._change("resume")

    async def close(self) -> None:
        """End the session; `chunks` and `events` end too. Idempotent."""
        self.discard()
        await self._change("close")

    def discard(self) -> None:
        """Let go of the chunks that nobody has taken, and of all that come."""
        for chunk in self._chunks.end(drop=True):
            chunk.release()

    def take(self, item: Chunk | Event) -> None:
        """Take what the engine sends."""
        self.ledger.take(item)
        if isinstance(item, Chunk):
            started = tuple(e for e in item.started_event_ids if e != self._told)
            if not self._chunks.put(dataclasses.replace(item, started_event_ids=started)):
                item.release()
            return
        if not isinstance(item, Applied | Superseded) or item.event_id != self._told:
            self._events.put(item)
        if isinstance(item, Overloaded):
            self._overload = item.level
        elif isinstance(item, Queued):
            self._position = item.position
        elif isinstance(item, StateChanged):
            self.state = item.state
            if item.state in ENDED:
                self._chunks.end()
                self._events.end()

    def replaced(self, state: str) -> None:
        """Note that the session goes on, in this state, in another process of the engine."""
        self._told = self.ledger.blend_event_id
        self.ledger.replaced()
        self._events.put(Restarted())
        if self._overload:
            self.take(Overloaded(0, ACTIONS[0]))  # of the engine that is gone
        if state != self.state:
            self.take(StateChanged(state))

    async def _change(self, action: Literal["suspend", "resume", "close"]) -> None:
        if self.state in ENDED:
            return
        try:
            await self._caller.ask(partial(Change, session_id=self.id, action=action))
        except (NotFound, EngineStopped):
            if self.state not in ENDED:  # it ended while the command was on its way
                raise


class _Feed(Generic[T]):
    """A queue with an end, for one reader."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._ended = False
        self._changed = asyncio.Event()

    def put(self, item: T) -> bool:
        """Add an item; return whether it will be read."""
        if not self._ended:
            self._items.append(item)
            self._changed.set()
        return not self._ended

    def end(self, *, drop: bool = False) -> list[T]:
        """Let reading end after what is there, or at once; return what was dropped."""
        dropped = list(self._items) if drop else []
        if drop:
            self._items.clear()
        self._ended = True
        self._changed.set()
        return dropped

    async def read(self) -> AsyncIterator[T]:
        """Yield items until the end."""
        while True:
            while self._items:
                yield self._items.popleft()
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()


class Once:
    """Call something the first time and never again."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def __call__(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()
