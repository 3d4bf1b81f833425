"""`streamgen bench live`: as many live sessions as are admitted, played in real time.

Sessions are opened until one more is refused. Viewers play each at its frame rate; a chunk that
arrives after its playout ran dry is a miss. Then the same again with changes of prompt that make
the window's K/V again. Beside that: what a recache and a fork cost, and an audit of the pages.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Final

from streamgen.bench_playout import Audience, played_figures
from streamgen.bench_report import BenchReport, Row, facts_line, figure_lines, write
from streamgen.command_options import BenchConfig
from streamgen.config import EngineConfig
from streamgen.engine_facts import engine_facts, video_facts
from streamgen.errors import Capacity
from streamgen.messages import SetPrompt
from streamgen.models.presets import Preset, find_preset
from streamgen.session import Session
from streamgen.session_config import SessionRequest

RECACHE_EVERY_S: Final = 20.0  # of each session
SETTLE_S: Final = 3.0  # before anything counts: every session is on its way by then
FORKS: Final = 20
WARM_UP: Final = "the engine is warm and every session on its way before anything is counted"


class LiveBench(Audience):
    """An engine at the bound of admission, and the viewers of its sessions."""

    refusal = ""

    def fill(self) -> None:
        """Open sessions until one is refused, a moment apart as people come."""
        while not self.refusal:
            number = len(self.playouts)
            prompt = f"a red ball bounces on the grass, take {number}"
            try:
                self.open(SessionRequest(prompt=prompt, seed=number))
            except Capacity as error:
                self.refusal = error.message
            else:
                self.run(0.4)

    def run_with_recaches(self, seconds: float) -> None:
        """Let everything run, and change every session's prompt now and then."""
        due = {id: time.monotonic() + i for i, id in enumerate(self.playouts)}

        def change(now: float) -> None:
            for session_id, at in due.items():
                if now >= at:
                    due[session_id] = now + RECACHE_EVERY_S
                    prompt = f"a blue star drifts over the sea, take {now:.0f}"
                    self.engine.control(session_id, SetPrompt(prompt, "recache"))

        self.run(seconds, change)

    def measure(self, seconds: float, *, recache: bool = False) -> dict[str, Any]:
        """Return the figures of so many seconds."""
        self.forget()
        began, busy = time.monotonic(), self.engine.passes.busy_s
        if recache:
            self.run_with_recaches(seconds)
        else:
            self.run(seconds)
        now = time.monotonic()
        admissions, sessions = self.engine.admissions, self.engine.sessions.values()
        return {
            "recaches": recache,
            "sessions": len(self.playouts),
            "seconds": round(now - began, 1),
            **played_figures(self.watched(), began, now),
            "utilisation": admissions.utilisation(sessions),
            "scatter": self.engine.costs.usual.scatter,
            "busy_predicted": admissions.busy_share(sessions),
            "busy_measured": (self.engine.passes.busy_s - busy) / (now - began),
            "overload_levels": list(self.overloads),
        }


def run(engine: EngineConfig, options: BenchConfig, *, preset: Preset | None = None) -> int:
    """Measure, print, write the files and return 0; ConfigError for several numbers of places."""
    places = options.one_count("live") or engine.max_sessions
    preset = preset or find_preset(engine.model)
    # What a single chunk costs is not measured in real time: no clock, so nothing is late.
    bench = LiveBench(dataclasses.replace(engine, max_utilisation=None), preset)
    machine, single = engine_facts(bench.engine), measure_single(bench)
    config = {**video_facts(bench.engine.config, preset), "seconds": options.seconds}
    bench.close()
    print("\n".join([facts_line("machine", machine), *figure_lines(single), ""]), flush=True)
    bench = LiveBench(dataclasses.replace(engine, max_sessions=places, max_queue=0), preset)
    rows: list[Row] = []
    try:
        bench.fill()
        print(f"one more is refused: {bench.refusal}", flush=True)
        bench.run(SETTLE_S)
        for recache in (False, True):
            rows.append(bench.measure(options.seconds, recache=recache))
            print("\n".join([*figure_lines(rows[-1]), ""]), flush=True)
    finally:
        bench.close()
    more = {"single": single, "refusal": bench.refusal}
    write(BenchReport("live", machine, config, rows, (WARM_UP,), more=more), options)
    return 0


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
