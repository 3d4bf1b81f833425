"""A stream without a model: one task makes chunks, and stops for back-pressure and pause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.transport.fake_scene import Scene, to_blob
from tests.transport.painting import Shot
from transport.fields import Prompt
from transport.stream import (
    Chunk,
    Event,
    Failed,
    Queued,
    Receipt,
    Restarted,
    State,
    StateChanged,
    StreamConfig,
    StreamError,
    Superseded,
)
from transport.wire import Control, ScoreEntry, SessionInteraction, SessionRewind, Transition

if TYPE_CHECKING:
    from tests.transport.fake_host import FakeHost

ENDED = ("closed", "failed")
Turn = tuple[str, int, Prompt, Transition]


class FakeStream:
    """Fits Stream. Begins when `start` is called; until then it waits in the queue."""

    def __init__(self, host: FakeHost, stream_id: str, config: StreamConfig, scene: Scene) -> None:
        self.id = stream_id
        self.config = config
        self.state: State = "queued"
        self.holds_pages = False
        self.num_released = 0
        self.revision = scene.revision  # of the newest prompt accepted
        self.score: list[ScoreEntry] = []
        self.played_frame = scene.num_frames - 1
        self.scene = scene  # after the newest chunk
        self.past: dict[int, Scene] = {}  # after each chunk
        self.obeys = asyncio.Event()  # until it is set, controls wait
        self.obeys.set()
        self._host = host
        self._pending: Turn | None = None
        self._rewind: tuple[str, Scene] | None = None
        self._updates: list[str] = []
        self._log: list[dict[str, object]] = []
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def num_chunks(self) -> int:
        """Chunks made so far, on the wire's count."""
        return self.scene.num_chunks

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the chunks."""
        while chunk := await self._chunks.get():
            yield chunk

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events."""
        while event := await self._events.get():
            yield event

    async def control(self, message: Control) -> Receipt:
        """Accept a control; the newest prompt wins, and a rewind over what came before it."""
        await self.obeys.wait()
        assert message.event_id is not None
        if isinstance(message, SessionInteraction):
            self._host.check_prompt(message.prompt, "interaction.event.prompt")
            if (mode := message.transition.mode) not in (None, *self._host.transitions):
                where = "interaction.transition.mode"
                raise StreamError("unsupported", f"{mode} is not offered", param=where)
            self._replace_prompt()
            self.revision += 1
            self._pending = (message.event_id, self.revision, message.prompt, message.transition)
        elif isinstance(message, SessionRewind):
            past = self._scene_after(message.to_chunk, "to_chunk")
            self._replace_prompt()
            if self._rewind:
                self._events.put_nowait(Superseded(self._rewind[0]))
            self._rewind = (message.event_id, past)
        else:
            seed = self.config.seed if message.seed is None else message.seed
            fps = self.config.fps if message.fps is None else message.fps
            self.config = replace(self.config, seed=seed, fps=fps)
            self.scene = replace(self.scene, seed=seed)
            if message.paused is not None:
                self.enter("paused" if message.paused else "running")
            self._updates.append(message.event_id)
        return Receipt(message.event_id, self.revision)

    def played(self, frame_index: int) -> None:
        """Let the next chunk start when the lead allows."""
        assert frame_index == self.played_frame + 1, (frame_index, self.played_frame)
        self.played_frame = frame_index
        self._changed.set()

    async def fork(self, at_chunk: int | None) -> FakeStream:
        """Begin a second stream."""
        scene = self.scene if at_chunk is None else self._scene_after(at_chunk, "at_chunk")
        config = replace(self.config, prompt=scene.prompt, seed=scene.seed)
        child = await self._host.admit(config, scene)
        child.past = {i: past for i, past in self.past.items() if i < scene.num_chunks}
        return child

    async def snapshot(self) -> bytes:
        """Return the scene as JSON."""
        return to_blob(self.scene, self.config)

    async def replay(self) -> bytes:
        """Return what has taken effect, by chunk."""
        lines = [{"model": self.config.model, "seed": self.config.seed}, *self._log]
        return "".join(json.dumps(line) + "\n" for line in lines).encode()

    def start(self) -> None:
        """Take pages and begin."""
        self.holds_pages = True
        self._task = asyncio.get_running_loop().create_task(self._generate())

    async def suspend(self) -> None:
        """Free the pages; the chunk under way is lost."""
        if self.state not in (*ENDED, "suspended"):
            self._stop()
            self.enter("suspended")
            self._host.admit_waiting()

    async def resume(self) -> None:
        """Take pages again and go on."""
        if not self.holds_pages and self.state == "suspended":
            self._host.check_room()
            self.enter("running")
            self.start()

    async def close(self) -> None:
        """End."""
        if self.state not in ENDED:
            self._end("closed")

    def fail(self, failure: Failed) -> None:
        """End with an error."""
        self.tell(failure)
        self._end("failed")

    async def restart(self, pause_s: float) -> None:
        """Lose the chunk under way, as when the engine's process is replaced."""
        if self.holds_pages:
            self._stop()
            await asyncio.sleep(pause_s)
            if self.state not in (*ENDED, "suspended"):
                self.tell(Restarted())
                self.start()

    def tell(self, event: Event) -> None:
        """Report an event."""
        self._events.put_nowait(event)

    def wait_at(self, position: int, estimated_wait_s: float) -> None:
        """Learn the place in the queue."""
        self.tell(Queued(position, estimated_wait_s))

    def enter(self, state: State) -> None:
        """Change state."""
        self.state = state
        self.tell(StateChanged(state))
        self._changed.set()

    def _scene_after(self, index: int, param: str) -> Scene:
        if index not in self.past:
            oldest = min(self.past, default=0)
            message = f"chunk {index} is not kept; the oldest that is is {oldest}"
            raise StreamError("invalid_request", message, param=param)
        return self.past[index]

    def _replace_prompt(self) -> None:
        if self._pending:
            self.tell(Superseded(self._pending[0]))
            self._pending = None

    def _stop(self) -> None:
        self.holds_pages = False
        if self._task:
            self._task.cancel()

    def _end(self, state: State) -> None:
        self._stop()
        self.state = state
        self._chunks.put_nowait(None)
        self._events.put_nowait(None)
        self._host.forget(self)

    async def _generate(self) -> None:
        while self._left() is None or self._left():
            while self.state == "paused" or self._lead() > self.config.chunk_frames + 2:
                self._changed.clear()
                await self._changed.wait()
            started = self._apply()
            try:
                await asyncio.sleep(self._host.chunk_s)
            except asyncio.CancelledError:
                self._updates = [*started, *self._updates]  # they begin with the chunk's successor
                raise
            self._chunks.put_nowait(self._chunk(started))
            if self.state == "starting":
                self.enter("running")
        self.tell(StateChanged("closed", "done"))  # made, and not yet played
        self._chunks.put_nowait(None)
        self._events.put_nowait(None)

    def _left(self) -> int | None:
        limit = self.config.num_frames
        return None if limit is None else limit - self.scene.num_frames

    def _lead(self) -> int:
        return self.scene.num_frames - self.played_frame - 1

    def _apply(self) -> tuple[str, ...]:
        """Take over what was asked for, and return the ids."""
        started, self._updates = self._updates, []
        if self._rewind:
            event_id, past = self._rewind
            self.scene, self._rewind = self.scene.gone_back(past), None
            self.config = replace(self.config, prompt=past.prompt, seed=past.seed)
            started.append(event_id)
        while self.score and self.score[0].at_s <= self.scene.pts_s:
            due = self.score.pop(0)
            self._replace_prompt()
            self.revision += 1
            how = due.transition or Transition()
            self._pending = (f"score-{self.revision}", self.revision, due.prompt, how)
        if self._pending:
            self.scene = self.scene.turned(*self._pending)
            self.config = replace(self.config, prompt=self.scene.prompt)
            started.append(self._pending[0])
            self._pending = None
        self._log.extend({"chunk": self.num_chunks, "event_id": event_id} for event_id in started)
        return tuple(started)

    def _chunk(self, started: tuple[str, ...]) -> Chunk:
        config, scene = self.config, self.scene
        left = self._left()
        num_frames = config.chunk_frames if left is None else min(config.chunk_frames, left)
        blended = min(scene.blended + 1, scene.blend_chunks)
        under_way = scene.blend_id if scene.blended < scene.blend_chunks else None
        active = (under_way,) if under_way and blended < scene.blend_chunks else ()
        done = (under_way,) if under_way and not active else ()
        shot = Shot(
            scene.prompt,
            scene.revision,
            config.seed,
            config.width,
            config.height,
            scene.frame,
            num_frames,
            scene.before,
            blended / scene.blend_chunks,
        )
        self.scene = replace(
            scene,
            frame=scene.frame + num_frames,
            num_chunks=scene.num_chunks + 1,
            num_frames=scene.num_frames + num_frames,
            pts_s=scene.pts_s + num_frames / config.fps,
            blended=blended,
        )
        self.past[scene.num_chunks] = self.scene
        while len(self.past) > self._host.keep_chunks:
            del self.past[min(self.past)]
        return Chunk(
            index=scene.num_chunks,
            first_frame_index=scene.num_frames,
            pts_s=scene.pts_s,
            fps=config.fps,
            prompt_revision=scene.revision,
            seed=config.seed,
            frames=self._host.paint(shot),
            generation_s=self._host.chunk_s,
            release=self._released,
            started_event_ids=started,
            active_event_ids=active,
            completed_event_ids=tuple(dict.fromkeys((*set(started) - set(active), *done))),
            prompt=scene.prompt,
        )

    def _released(self) -> None:
        self.num_released += 1
