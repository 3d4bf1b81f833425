"""`streamgen bench live`: as many live sessions as are admitted, played in real time.

Sessions are opened until one more is refused. Viewers play each at its frame rate; a chunk that
arrives after its playout ran dry is a miss. Then the same again with changes of prompt that make
the window's K/V again. Beside that: what a recache and a fork cost, and an audit of the pages.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from streamgen import machine
from streamgen.command_options import BenchConfig
from streamgen.config import EngineConfig
from streamgen.errors import Capacity, GenerationFailed
from streamgen.messages import Chunk, Event, Failed, Overloaded, SetPrompt
from streamgen.models.presets import Preset, find_preset
from streamgen.session import Session
from streamgen.session_config import SessionRequest
from streamgen.startup import num_cores, start_engine

RECACHE_EVERY_S: Final = 20.0  # of each session
SETTLE_S: Final = 3.0  # before anything counts: every session is on its way by then
IDLE_S: Final = 0.001
FORKS: Final = 20


@dataclass(slots=True)
class Playout:
    """A viewer that plays at the frame rate, and counts the chunks that came too late."""

    fps: float
    num_ready: int = 0  # frames that are there
    num_played: int = 0
    next_at: float | None = None  # when the next frame is due
    num_chunks: int = 0
    num_missed: int = 0
    chunk_s: list[float] = field(default_factory=list)

    def take(self, chunk: Chunk, now: float) -> None:
        """Take a chunk; after a miss the clock starts anew."""
        self.num_chunks += 1
        self.chunk_s.append(chunk.generation_s)
        if self.next_at is not None and self.num_played == self.num_ready and now > self.next_at:
            self.num_missed += 1
            self.next_at = now
        self.next_at = now if self.next_at is None else self.next_at
        self.num_ready = chunk.first_frame_index + len(chunk.frames)

    def play(self, now: float) -> int | None:
        """Play what is due; return the index of the last frame played, if any was."""
        before = self.num_played
        while self.next_at is not None and self.num_played < self.num_ready and now >= self.next_at:
            self.num_played += 1
            self.next_at += 1 / self.fps
        return self.num_played - 1 if self.num_played > before else None

    def forget(self) -> None:
        """Count from nothing."""
        self.num_chunks = self.num_missed = 0
        self.chunk_s.clear()


class LiveBench:
    """An engine at the bound of admission, and the viewers of its sessions."""

    def __init__(self, config: EngineConfig, preset: Preset) -> None:
        self.playouts: dict[str, Playout] = {}
        self.overloads: list[int] = []
        self.engine = start_engine(config, self._deliver, preset=preset)
        self.refusal = ""

    def fill(self) -> None:
        """Open sessions until one is refused, a moment apart as people come."""
        while not self.refusal:
            number = len(self.playouts)
            prompt = f"a red ball bounces on the grass, take {number}"
            try:
                session = self.engine.open(SessionRequest(prompt=prompt, seed=number))
            except Capacity as error:
                self.refusal = error.message
            else:
                self.playouts[session.id] = Playout(session.fps)
                self.run(0.4)

    def run(self, seconds: float, *, recache: bool = False) -> None:
        """Let everything run in real time."""
        until = time.monotonic() + seconds
        asked = {id: time.monotonic() + i for i, id in enumerate(self.playouts)}
        while (now := time.monotonic()) < until:
            for session_id, playout in self.playouts.items():
                played = playout.play(now)
                if played is not None:
                    self.engine.played(session_id, played)
                if recache and now >= asked[session_id]:
                    asked[session_id] = now + RECACHE_EVERY_S
                    prompt = f"a blue star drifts over the sea, take {now:.0f}"
                    self.engine.control(session_id, SetPrompt(prompt, "recache"))
            if not self.engine.step():
                time.sleep(IDLE_S)

    def measure(self, seconds: float, *, recache: bool = False) -> dict[str, Any]:
        """Return the figures of so many seconds."""
        for playout in self.playouts.values():
            playout.forget()
        self.overloads.clear()
        began, busy = time.monotonic(), self.engine.passes.busy_s
        self.run(seconds, recache=recache)
        elapsed = time.monotonic() - began
        admissions, sessions = self.engine.admissions, self.engine.sessions.values()
        chunks = sum(playout.num_chunks for playout in self.playouts.values())
        missed = sum(playout.num_missed for playout in self.playouts.values())
        return {
            "recaches": recache,
            "sessions": len(self.playouts),
            "seconds": round(elapsed, 1),
            "chunks": chunks,
            "missed": missed,
            "missed_share": missed / max(1, chunks),
            "utilisation": admissions.utilisation(sessions),
            "busy_predicted": admissions.busy_share(sessions),
            "busy_measured": (self.engine.passes.busy_s - busy) / elapsed,
            "overload_levels": list(self.overloads),
        }

    def close(self) -> None:
        """End the engine."""
        self.engine.decoder.close()

    def _deliver(self, session_id: str, item: Chunk | Event) -> None:
        if isinstance(item, Failed):
            raise GenerationFailed(item.message)
        if isinstance(item, Overloaded):
            self.overloads.append(item.level)
        if isinstance(item, Chunk) and session_id in self.playouts:
            self.playouts[session_id].take(item, time.monotonic())


def run(engine: EngineConfig, options: BenchConfig, *, preset: Preset | None = None) -> int:
    """Measure, print, write the JSON file and return 0."""
    preset = preset or find_preset(engine.model)
    # What a single chunk costs is not measured in real time: no clock, so nothing is late.
    bench = LiveBench(dataclasses.replace(engine, max_utilisation=None), preset)
    report: dict[str, Any] = {"machine": _facts(bench), "single": measure_single(bench)}
    bench.close()
    print(", ".join(f"{key} {value}" for key, value in report["machine"].items()), flush=True)
    show(report["single"])
    bench = LiveBench(dataclasses.replace(engine, max_queue=0), preset)
    try:
        bench.fill()
        report["refusal"] = bench.refusal
        print(f"one more is refused: {bench.refusal}", flush=True)
        bench.run(SETTLE_S)
        report["rows"] = []
        for recache in (False, True):
            report["rows"].append(bench.measure(options.seconds, recache=recache))
            show(report["rows"][-1])
    finally:
        bench.close()
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _facts(bench: LiveBench) -> dict[str, Any]:
    return {
        "cpu": machine.cpu_name(),
        "cores": num_cores(),
        "torch": torch.__version__,
        "dtype": str(bench.engine.runner.dtype).removeprefix("torch."),
        "commit": machine.commit(),
    }


def show(figures: dict[str, Any]) -> None:
    """Print figures by name."""
    for name, value in figures.items():
        print(f"  {name}: {value:.4g}" if isinstance(value, float) else f"  {name}: {value}")
    print(flush=True)


def measure_single(bench: LiveBench) -> dict[str, Any]:
    """Return what one session's chunk, recache and fork cost, with a full window."""
    engine = bench.engine
    session = engine.open(SessionRequest(prompt="a red ball rests on the grass", seed=0))
    chunk_s = _chunk_s(bench, session, 12)
    recached_s = [_recached_s(bench, session, number) for number in range(5)]
    pool, geometry = engine.runner.pool, engine.runner.pool.geometry
    used, times = pool.allocator.num_used, []
    for _ in range(FORKS):
        start = time.perf_counter()
        child = engine.fork(session.id)
        times.append(time.perf_counter() - start)
        assert child.table is not None
        assert session.table is not None
        shared = sum(
            child.table.pages_of(f) == session.table.pages_of(f) for f in session.table.frames
        )
        engine.close(child.id)
    pool.allocator.audit()
    frames = session.config.window.reserved_frames(engine.runner.config.chunk_frames, fused=True)
    expected = frames * geometry.pages_per_frame
    result = {
        "chunk_ms": 1000 * sorted(chunk_s)[len(chunk_s) // 2],
        "recache_chunks": sorted(recached_s)[2] / sorted(chunk_s)[len(chunk_s) // 2] - 1,
        "fork_ms": 1000 * sorted(times)[FORKS // 2],
        "frames_shared": f"{shared} of {len(session.table.frames)}" if session.table else "",
        "pages_used": used,
        "pages_of_geometry": expected,
        "pool_bytes": pool.nbytes,
        "pool_bytes_of_geometry": pool.num_pages * geometry.page_bytes,
    }
    engine.close(session.id)
    return result


def _chunk_s(bench: LiveBench, session: Session, count: int) -> list[float]:
    """Return the seconds of steady chunks, each played as soon as it is denoised."""
    times = []
    for _ in range(count):
        times.append(_next_chunk_s(bench, session))
    return times[count // 2 :]


def _recached_s(bench: LiveBench, session: Session, number: int) -> float:
    """Return the seconds of a chunk that a recache comes before."""
    session.recaches.tokens = 2.0  # the budget is not what is measured
    bench.engine.control(session.id, SetPrompt(f"a blue star, take {number}", "recache"))
    seconds = _next_chunk_s(bench, session)
    _next_chunk_s(bench, session)
    return seconds


def _next_chunk_s(bench: LiveBench, session: Session) -> float:
    engine, generated = bench.engine, session.num_generated
    engine.played(session.id, generated - 1)
    start = time.perf_counter()
    while session.num_generated == generated:
        engine.step()
    return time.perf_counter() - start
