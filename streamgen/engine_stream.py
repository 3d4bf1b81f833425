"""One session of an engine, as its player on an event loop sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final, Generic, Literal, Protocol, TypeVar

from streamgen.engine_worker import Apply, Change, Command, Opened, Played
from streamgen.errors import EngineStopped, NotFound
from streamgen.messages import Chunk, Event, Receipt, SetPrompt, StateChanged, Update

T = TypeVar("T")

ENDED: Final = ("closed", "failed")


class EngineCaller(Protocol):
    """What a stream needs of its client."""

    async def ask(self, make: Callable[[int], Command]) -> object:
        """Send the command made for a new call number; return the answer, or raise its error."""

    def tell(self, command: Command) -> None:
        """Send a command that has no answer."""


class EngineStream:
    """One session, as its player sees it. Made by `EngineClient.open`."""

    def __init__(self, caller: EngineCaller, opened: Opened) -> None:
        self.id = opened.session_id
        self.config = opened.config
        self.state = opened.state
        self._caller = caller
        self._chunks: _Feed[Chunk] = _Feed()
        self._events: _Feed[Event] = _Feed()

    def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the chunks, numbered without gaps, until the session ends. For one reader."""
        return self._chunks.read()

    def events(self) -> AsyncIterator[Event]:
        """Yield what happens to the session, until it ends. For one reader."""
        return self._events.read()

    async def control(self, control: SetPrompt | Update) -> Receipt:
        """Hand in a control. Raises StreamgenError when it is refused; the session goes on."""
        receipt = await self._caller.ask(partial(Apply, session_id=self.id, control=control))
        assert isinstance(receipt, Receipt)
        return receipt

    def played(self, frame_index: int) -> None:
        """Report that a frame was shown: the only thing that lets the engine go on."""
        self._caller.tell(Played(self.id, frame_index))

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
        if isinstance(item, Chunk):
            if not self._chunks.put(item):
                item.release()
            return
        self._events.put(item)
        if isinstance(item, StateChanged):
            self.state = item.state
            if item.state in ENDED:
                self._chunks.end()
                self._events.end()

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
