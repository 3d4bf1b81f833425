"""An engine without a model: it takes its time and paints flat colours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.transport.fake_scene import Scene, from_blob
from tests.transport.fake_stream import FakeStream
from tests.transport.painting import Shot, paint_revision
from transport.fields import Prompt
from transport.host import HostStats, ModelInfo
from transport.stream import (
    Overloaded,
    SessionConfig,
    StreamConfig,
    StreamError,
)

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
    max_queue: int = 0
    max_characters: int = 1_000
    max_texts: int = 16
    transitions: tuple[str, ...] = ("cut", "blend", "recache", "reset")
    keep_chunks: int = 200  # that can be gone back to
    place_wait_s: float = 20.0  # estimated, for each place in the queue
    paint: Callable[[Shot], NDArray[np.uint8]] = paint_revision
    alive: bool = True
    ready: bool = True
    busy_s: float = 0.0
    restarts: int = 0
    overload: int = 0
    streams: dict[str, FakeStream] = field(default_factory=dict)
    queue: list[FakeStream] = field(default_factory=list)
    num_opened: int = 0

    @property
    def pages_free(self) -> int:
        """Pages that no session holds."""
        held = sum(stream.holds_pages for stream in self.streams.values())
        return (self.max_sessions - held) * PAGES_PER_SESSION

    async def open(self, config: SessionConfig) -> FakeStream:
        """Admit a session."""
        if not self.ready:
            raise StreamError("model_not_ready", "warming up", retryable=True, retry_after_s=1)
        effective = self._effective(config)
        self.check_place()
        scene = Scene(effective.prompt, 0, effective.seed)
        stream = await self.admit(effective, scene)
        stream.score = list(config.score)
        return stream

    async def restore(self, blob: bytes) -> FakeStream:
        """Go on from a snapshot."""
        scene, config = from_blob(blob)
        return await self.admit(config, scene)

    async def admit(self, config: StreamConfig, scene: Scene) -> FakeStream:
        """Begin a stream, or let it wait."""
        self.check_place()
        self.num_opened += 1
        stream = FakeStream(self, f"s{self.num_opened}", config, scene)
        self.streams[stream.id] = stream
        if self.pages_free < PAGES_PER_SESSION:
            self.queue.append(stream)
            self._tell_places()
        else:
            stream.state = "running"
            stream.start()
        return stream

    def admit_waiting(self) -> None:
        """Give free places to those who wait, the first ones first."""
        while self.queue and self.pages_free >= PAGES_PER_SESSION:
            stream = self.queue.pop(0)
            stream.enter("starting")
            stream.start()
        self._tell_places()

    def forget(self, stream: FakeStream) -> None:
        """A stream ended."""
        self.streams.pop(stream.id, None)
        if stream in self.queue:
            self.queue.remove(stream)
        self.admit_waiting()

    def set_overload(self, level: int, action: str) -> None:
        """Trade something for speed, in all streams."""
        self.overload = level
        for stream in self.streams.values():
            stream.tell(Overloaded(level, action))

    async def restart(self, pause_s: float) -> None:
        """Replace the engine's process."""
        self.restarts += 1
        await asyncio.gather(*(stream.restart(pause_s) for stream in self.streams.values()))

    def check_place(self) -> None:
        """Raise StreamError when there is no room, and none to wait."""
        if len(self.queue) >= self.max_queue:
            self.check_room()

    def check_room(self) -> None:
        """Raise StreamError when no session can be admitted."""
        if self.pages_free < PAGES_PER_SESSION:
            raise StreamError("capacity", "all places are taken", retryable=True, retry_after_s=5)

    def check_prompt(self, prompt: Prompt, param: str) -> None:
        """Raise StreamError for what this model cannot do."""
        texts = [prompt] if isinstance(prompt, str) else [part.text for part in prompt]
        if len(texts) > self.max_texts:
            raise StreamError("unsupported", "one text is supported", param=param)
        if max(map(len, texts)) > self.max_characters:
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
            busy_s=self.busy_s,
            queue_length=len(self.queue),
            overload=self.overload,
            restarts=self.restarts,
            pages=self.max_sessions * PAGES_PER_SESSION,
            sessions_running=sum(stream.holds_pages for stream in self.streams.values()),
        )

    def _tell_places(self) -> None:
        for position, stream in enumerate(self.queue):
            stream.wait_at(position, (position + 1) * self.place_wait_s)

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
            priority=config.priority or "live",
            run_unwatched=config.run_unwatched,
        )
