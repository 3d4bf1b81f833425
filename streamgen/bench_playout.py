"""Simulated viewers: each plays a session at its frame rate, by a clock that stops for nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from streamgen.bench_report import percentiles
from streamgen.config import EngineConfig
from streamgen.errors import GenerationFailed
from streamgen.messages import (
    Applied,
    Chunk,
    Event,
    Failed,
    Overloaded,
    SetPrompt,
    StateChanged,
)
from streamgen.models.presets import Preset
from streamgen.session import Session
from streamgen.session_config import SessionRequest
from streamgen.startup import start_engine

IDLE_S: Final = 0.001


@dataclass(slots=True)
class Playout:
    """A viewer that plays at the frame rate, and counts the chunks that came too late.

    The first frame is shown when it comes, each later one a frame's time after the one before, or
    when it comes if that is later: then playout had run dry, the chunk missed its deadline, and the
    clock starts anew. What is counted is counted since `forget`.
    """

    fps: float
    came_at: float = 0.0  # when somebody wanted to watch
    placed_at: float | None = None  # when the session got its pages
    num_ready: int = 0  # frames that are there
    num_played: int = 0
    next_at: float | None = None  # when the next frame is due
    is_over: bool = False  # no further chunk will come
    asked_at: dict[str, float] = field(default_factory=dict)  # by event, controls not shown yet
    shown_from: dict[int, str] = field(default_factory=dict)  # by frame, the control it begins
    num_chunks: int = 0
    num_missed: int = 0
    num_shown: int = 0
    stall_s: float = 0.0
    first_frame_s: float | None = None  # from when somebody wanted to watch
    chunk_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)  # between frames that were shown
    control_s: list[float] = field(default_factory=list)  # from a control to its first frame
    _shown_at: float | None = None

    def take(self, chunk: Chunk, now: float) -> None:
        """Take a chunk; after a miss the clock starts anew."""
        self.play(now)
        self.num_chunks += 1
        self.chunk_s.append(chunk.generation_s)
        if self.next_at is None:
            self.first_frame_s, self.next_at = now - self.came_at, now
        elif self.is_dry(now):
            self.num_missed += 1
            self.stall_s += now - self.next_at
            self.next_at = now
        self.num_ready = chunk.first_frame_index + len(chunk.frames)

    def is_dry(self, now: float) -> bool:
        """Return whether a frame is due that is not there."""
        due = self.next_at is not None and now > self.next_at
        return due and self.num_played == self.num_ready and not self.is_over

    def play(self, now: float) -> int | None:
        """Play what is due; return the index of the last frame that was played, if any was."""
        while self.next_at is not None and self.num_played < self.num_ready and now >= self.next_at:
            self._show(self.num_played, self.next_at)
            self.num_played += 1
            self.next_at += 1 / self.fps
        return self.num_played - 1 if self.num_played else None

    @property
    def is_done(self) -> bool:
        """Return whether all that will ever come was played."""
        return self.is_over and self.num_played == self.num_ready

    def overdue_s(self, now: float, since: float) -> float:
        """Return how long, since a time, it has waited for a chunk that is still not there."""
        if not self.is_dry(now):
            return 0.0
        assert self.next_at is not None
        return now - max(self.next_at, since)

    def forget(self, now: float) -> None:
        """Count from nothing, and from here on a stall that goes on."""
        self.num_chunks = self.num_missed = self.num_shown = 0
        self.stall_s, self.first_frame_s = 0.0, None
        self.chunk_s, self.gap_s, self.control_s = [], [], []
        if self.is_dry(now):
            self.next_at = now

    def _show(self, index: int, at: float) -> None:
        if self._shown_at is not None:
            self.gap_s.append(at - self._shown_at)
        self._shown_at = at
        self.num_shown += 1
        event_id = self.shown_from.pop(index, None)
        if event_id is not None:
            self.control_s.append(at - self.asked_at.pop(event_id))


class Audience:
    """An engine and the viewers of its sessions, all in real time on one thread."""

    def __init__(self, config: EngineConfig, preset: Preset) -> None:
        self.playouts: dict[str, Playout] = {}  # by session, while there is something to play
        self.left: list[Playout] = []  # that have played all, since `forget`
        self.overloads: list[int] = []
        self.playing_s = 0.0  # sessions being shown, summed over time
        self.most_playing = 0
        self._ticked_at: float | None = None
        self.engine = start_engine(config, self._deliver, preset=preset)

    def open(self, request: SessionRequest, came_at: float | None = None) -> Session:
        """Open a session and watch it; Capacity when it may not even wait."""
        now = time.monotonic()
        session = self.engine.open(request)
        playout = Playout(session.fps, now if came_at is None else came_at)
        if session.table is not None:
            playout.placed_at = now
        self.playouts[session.id] = playout
        return session

    def ask(self, session_id: str, control: SetPrompt) -> None:
        """Change a session's prompt, and time how long its viewer waits for the first frame."""
        assert control.event_id is not None
        self.playouts[session_id].asked_at[control.event_id] = time.monotonic()
        self.engine.control(session_id, control)

    @staticmethod
    def now() -> float:
        """Return the time by the viewers' clock."""
        return time.monotonic()

    def run(self, seconds: float, each: Callable[[float], None] = lambda now: None) -> None:
        """Let everything run in real time; `each` is called with the time before each pass."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            self._play(now)
            each(now)
            if not self.engine.step():
                time.sleep(IDLE_S)

    def forget(self) -> None:
        """Count from nothing."""
        now = time.monotonic()
        for playout in self.playouts.values():
            playout.forget(now)
        self.left.clear()
        self.overloads.clear()
        self.playing_s, self.most_playing, self._ticked_at = 0.0, 0, None

    def watched(self) -> list[Playout]:
        """Return the viewers since `forget`, those that have left among them."""
        return [*self.left, *self.playouts.values()]

    def close(self) -> None:
        """End the engine."""
        self.engine.decoder.close()

    def _play(self, now: float) -> None:
        for session_id, playout in list(self.playouts.items()):
            played = playout.play(now)
            if played is not None:
                self.engine.played(session_id, played)
            if playout.is_done:
                self.left.append(self.playouts.pop(session_id))
        playing = sum(playout.next_at is not None for playout in self.playouts.values())
        self.most_playing = max(self.most_playing, playing)
        self.playing_s += playing * (now - (now if self._ticked_at is None else self._ticked_at))
        self._ticked_at = now

    def _deliver(self, session_id: str, item: Chunk | Event) -> None:
        """Take what the engine sends; the first events of a session come before it is watched."""
        if isinstance(item, Failed):
            raise GenerationFailed(item.message)
        if isinstance(item, Overloaded):
            self.overloads.append(item.level)
        playout = self.playouts.get(session_id)
        if playout is None:
            return
        now = time.monotonic()
        if isinstance(item, Chunk):
            playout.take(item, now)
        elif isinstance(item, Applied) and item.event_id in playout.asked_at:
            playout.shown_from[item.frame_index] = item.event_id
        elif isinstance(item, StateChanged) and item.state == "closed":
            playout.is_over = True
        elif isinstance(item, StateChanged) and playout.placed_at is None:
            playout.placed_at = now if item.state == "starting" else None


def played_figures(playouts: Sequence[Playout], since: float, now: float) -> dict[str, Any]:
    """Return what viewers saw between two times.

    A chunk meets its deadline when it comes before playout runs dry; one that is overdue at the end
    has missed it. The first chunk of a session has none: for it there is the time to first frame.
    """
    overdue = [s for s in (p.overdue_s(now, since) for p in playouts) if s > 0]
    missed = sum(playout.num_missed for playout in playouts) + len(overdue)
    firsts = [p.first_frame_s for p in playouts if p.first_frame_s is not None]
    due = sum(playout.num_chunks for playout in playouts) - len(firsts) + len(overdue)
    stalled = sum(playout.stall_s for playout in playouts) + sum(overdue)
    shown = sum(playout.num_shown for playout in playouts)
    played = sum(playout.num_shown / playout.fps for playout in playouts)
    gaps = [gap for playout in playouts for gap in playout.gap_s]
    return {
        "chunks": sum(playout.num_chunks for playout in playouts),
        "frames_shown": shown,
        "deadline_attainment": 1 - missed / due if due else None,
        "underruns": missed,
        "continuous_play": played / (played + stalled) if shown else None,
        **percentiles("ttff_ms", firsts),
        **percentiles("chunk_ms", [s for playout in playouts for s in playout.chunk_s]),
        **percentiles("gap_ms", gaps),
        "gap_ms_max": 1000 * max(gaps) if gaps else None,
        **percentiles("control_to_frame_ms", [s for p in playouts for s in p.control_s]),
    }
