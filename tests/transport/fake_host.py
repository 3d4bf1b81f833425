"""An engine without a model: it takes its time and paints flat colours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tests.transport.painting import Shot, paint_revision
from transport.fields import Prompt
from transport.stream import (
    Chunk,
    Event,
    Failed,
    HostStats,
    ModelInfo,
    Receipt,
    SessionConfig,
    State,
    StateChanged,
    StreamConfig,
    StreamError,
    Superseded,
)
from transport.wire import Control, SessionInteraction

PAGES_PER_SESSION = 10


@dataclass
class FakeHost:
    """Fits StreamHost. Times are seconds; the fields may be changed while it runs."""

    chunk_s: float = 0.05
    chunk_frames: int = 4
    fps: int = 40
    width: int = 64
    height: int = 48
    max_sessions: int = 3
    max_characters: int = 1_000
    paint: Callable[[Shot], NDArray[np.uint8]] = paint_revision
    open_s: float = 0.0
    control_s: float = 0.0
    alive: bool = True
    ready: bool = True
    streams: dict[str, FakeStream] = field(default_factory=dict)
    num_opened: int = 0

    @property
    def pages_free(self) -> int:
        """Pages that no session holds."""
        held = sum(stream.holds_pages for stream in self.streams.values())
        return (self.max_sessions - held) * PAGES_PER_SESSION

    async def open(self, config: SessionConfig) -> FakeStream:
        """Admit a session, after `open_s`."""
        if not self.ready:
            raise StreamError("model_not_ready", "warming up", retryable=True, retry_after_s=1)
        effective = self._effective(config)
        self.check_room()
        await asyncio.sleep(self.open_s)
        self.check_room()
        self.num_opened += 1
        stream = FakeStream(self, f"s{self.num_opened}", effective)
        self.streams[stream.id] = stream
        return stream

    def check_room(self) -> None:
        """Raise StreamError when no session can be admitted."""
        if self.pages_free < PAGES_PER_SESSION:
            raise StreamError("capacity", "all places are taken", retryable=True, retry_after_s=5)

    def check_prompt(self, prompt: Prompt, param: str) -> None:
        """Raise StreamError for what this model cannot do."""
        if not isinstance(prompt, str):
            raise StreamError("unsupported", "one text is supported", param=param)
        if len(prompt) > self.max_characters:
            raise StreamError("invalid_request", "the prompt is too long", param=param)

    def stats(self) -> HostStats:
        """Return the figures of the moment."""
        model = ModelInfo("fake", self.width, self.height, self.fps, self.chunk_frames, ("red",))
        stage, progress = ("ready", 1.0) if self.ready else ("weights", 0.6)
        return HostStats(
            alive=self.alive,
            ready=self.ready,
            stage=stage,
            progress=progress,
            sessions_free=self.pages_free // PAGES_PER_SESSION,
            pages_free=self.pages_free,
            models=[model],
        )

    def _effective(self, config: SessionConfig) -> StreamConfig:
        self.check_prompt(config.prompt, "prompt")
        if config.model not in (None, "fake"):
            raise StreamError("not_found", "no such model", param="model")
        width, height = config.width or self.width, config.height or self.height
        if width % 16 or height % 16 or width * height > 512 * 512:
            near = f"{max(16, round(width / 16) * 16)}x{max(16, round(height / 16) * 16)}"
            raise StreamError("invalid_request", f"the nearest legal size is {near}", param="size")
        return StreamConfig(
            prompt=config.prompt,
            model="fake",
            width=width,
            height=height,
            fps=config.fps or self.fps,
            seed=42 if config.seed is None else config.seed,
            num_inference_steps=config.num_inference_steps or 4,
            chunk_frames=self.chunk_frames,
            window=config.window,
            num_frames=config.num_frames,
        )


class FakeStream:
    """Fits Stream: one task makes chunks and stops for back-pressure, pause and suspension."""

    def __init__(self, host: FakeHost, stream_id: str, config: StreamConfig) -> None:
        self.id = stream_id
        self.config = config
        self.state: State = "running"
        self.holds_pages = True
        self.num_released = 0
        self.num_chunks = 0
        self.revision = 0  # of the newest prompt accepted
        self.played_frame = -1
        self._host = host
        self._prompt = config.prompt
        self._shown_revision = 0
        self._num_frames = 0
        self._pending: tuple[str, int, Prompt] | None = None
        self._updates: list[str] = []
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._generate())

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the chunks."""
        while chunk := await self._chunks.get():
            yield chunk

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events."""
        while event := await self._events.get():
            yield event

    async def control(self, message: Control) -> Receipt:
        """Accept a control; the newest prompt wins."""
        await asyncio.sleep(self._host.control_s)
        assert message.event_id is not None
        if isinstance(message, SessionInteraction):
            self._host.check_prompt(message.prompt, "interaction.event.prompt")
            if message.transition.mode not in (None, "cut"):
                raise StreamError("unsupported", "only cut", param="interaction.transition.mode")
            if self._pending:
                self._events.put_nowait(Superseded(self._pending[0]))
            self.revision += 1
            self._pending = (message.event_id, self.revision, message.prompt)
        else:
            if message.seed is not None:
                self.config = replace(self.config, seed=message.seed)
            if message.paused is not None:
                self._enter("paused" if message.paused else "running")
            self._updates.append(message.event_id)
        return Receipt(message.event_id, self.revision)

    def played(self, frame_index: int) -> None:
        """Let the next chunk start when the lead allows."""
        assert frame_index == self.played_frame + 1, (frame_index, self.played_frame)
        self.played_frame = frame_index
        self._changed.set()

    async def suspend(self) -> None:
        """Free the pages; the chunk under way is lost."""
        if self.holds_pages and self.state != "closed":
            self.holds_pages = False
            self._task.cancel()
            self._enter("suspended")

    async def resume(self) -> None:
        """Take pages again and go on."""
        if not self.holds_pages and self.state != "closed":
            self._host.check_room()
            self.holds_pages = True
            self._enter("running")
            self._task = asyncio.get_running_loop().create_task(self._generate())

    async def close(self) -> None:
        """End."""
        if self.state != "closed":
            self._task.cancel()
            self._end("closed")

    def fail(self, failure: Failed) -> None:
        """End with an error."""
        self._task.cancel()
        self._events.put_nowait(failure)
        self._end("failed")

    def _end(self, state: State) -> None:
        self.state = state
        self.holds_pages = False
        self._host.streams.pop(self.id, None)
        self._chunks.put_nowait(None)
        self._events.put_nowait(None)

    def _enter(self, state: State) -> None:
        self.state = state
        self._events.put_nowait(StateChanged(state))
        self._changed.set()

    async def _generate(self) -> None:
        while self._left() is None or self._left():
            while self.state == "paused" or self._lead() > self.config.chunk_frames + 2:
                self._changed.clear()
                await self._changed.wait()
            started = self._apply()
            await asyncio.sleep(self._host.chunk_s)
            self._chunks.put_nowait(self._chunk(started))
        self._events.put_nowait(StateChanged("closed", "done"))  # made, and not yet played
        self._chunks.put_nowait(None)
        self._events.put_nowait(None)

    def _left(self) -> int | None:
        limit = self.config.num_frames
        return None if limit is None else limit - self._num_frames

    def _lead(self) -> int:
        return self._num_frames - self.played_frame - 1

    def _apply(self) -> tuple[str, ...]:
        """Take over what was asked for, and return the ids."""
        started, self._updates = self._updates, []
        if self._pending:
            event_id, self._shown_revision, self._prompt = self._pending
            started.append(event_id)
            self._pending = None
        return tuple(started)

    def _chunk(self, started: tuple[str, ...]) -> Chunk:
        num_frames = self.config.chunk_frames
        if (left := self._left()) is not None:
            num_frames = min(num_frames, left)
        config = self.config
        shot = Shot(
            self._prompt,
            self._shown_revision,
            config.seed,
            config.width,
            config.height,
            self._num_frames,
            num_frames,
        )
        chunk = Chunk(
            index=self.num_chunks,
            first_frame_index=self._num_frames,
            pts_s=self._num_frames / config.fps,
            fps=config.fps,
            prompt_revision=self._shown_revision,
            seed=config.seed,
            frames=self._host.paint(shot),
            generation_s=self._host.chunk_s,
            release=self._released,
            started_event_ids=started,
            completed_event_ids=started,
        )
        self.num_chunks += 1
        self._num_frames += num_frames
        return chunk

    def _released(self) -> None:
        self.num_released += 1
