"""Sessions come and go for long, played as time goes by: memory stays flat and nobody is late.

`make soak` runs it for 20 minutes, `make test` for a twentieth of that. Its time is that of the
process: what it computes and what it sleeps. So nobody is late because another process had the
cores.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

from streamgen.bench_playout import Playout
from streamgen.errors import Capacity, NotFound
from streamgen.messages import Chunk, Event, Failed, Rewind, SetPrompt, Update
from streamgen.session import Session, SessionState
from streamgen.session_config import SessionRequest
from streamgen.startup import start_engine
from tests.streamgen.tiny import TINY, tiny_config

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
IS_LONG = SECONDS >= 600
GRACE_S = 2.0  # a stream may stand for a moment after a rewind, a recache or a wait for a place
SLOPE_BYTES = 1_000_000  # a thousand chunks or sessions may add so much


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class ProcessClock:
    """Time that stands still while other processes compute."""

    def __init__(self) -> None:
        self._slept_s = 0.0

    def now(self) -> float:
        return time.process_time() + self._slept_s

    def sleep(self, seconds: float) -> None:
        before = time.process_time()
        time.sleep(seconds)
        self._slept_s += max(0.0, seconds - (time.process_time() - before))


class Crowd:
    """People who open sessions, change their minds, fork, go back and leave."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.playouts: dict[str, Playout] = {}
        self.leaves_at: dict[str, float] = {}
        self.excused_until: dict[str, float] = {}
        self.num_sessions = self.num_chunks = self.num_missed = self.num_refused = 0
        self.clock = ProcessClock()
        options = tiny_config(max_utilisation="0.85", max_sessions=4, max_queue=4)
        self.engine = start_engine(options, self.deliver, preset=TINY, clock=self.clock.now)

    def deliver(self, session_id: str, item: Chunk | Event) -> None:
        assert not isinstance(item, Failed), item
        playout = self.playouts.get(session_id)
        if isinstance(item, Chunk) and playout is not None:
            now, missed = self.clock.now(), playout.num_missed
            playout.take(item, now)
            self.num_chunks += 1
            if playout.num_missed > missed and now > self.excused_until[session_id]:
                self.num_missed += 1

    def run(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        act_at = 0.0
        while (now := self.clock.now()) < until:
            for session_id, playout in self.playouts.items():
                if self.engine.sessions[session_id].state is SessionState.QUEUED:
                    self.excused_until[session_id] = now + GRACE_S
                if (played := playout.play(now)) is not None:
                    self.engine.played(session_id, played)
            if now >= act_at:
                self.act(now)
                act_at = now + self.random.uniform(0.02, 0.2)
            if not self.engine.step():
                self.clock.sleep(0.001)

    def act(self, now: float) -> None:
        for session_id in [i for i, at in self.leaves_at.items() if now >= at]:
            self.leave(session_id)
        if self.random.random() < 0.3 or not self.playouts:
            self.come(now)
            return
        session = self.engine.sessions[self.random.choice(list(self.playouts))]
        try:
            self.change(session, now)
        except Capacity:
            self.num_refused += 1

    def come(self, now: float) -> None:
        request = SessionRequest(prompt=f"scene {self.num_sessions}", seed=self.random.randrange(9))
        try:
            self.welcome(self.engine.open(request), now)
        except Capacity:
            self.num_refused += 1

    def welcome(self, session: Session, now: float) -> None:
        self.num_sessions += 1
        playout = Playout(session.fps)
        playout.num_ready = playout.num_played = session.num_generated
        self.playouts[session.id] = playout
        self.leaves_at[session.id] = now + self.random.uniform(1, 8)
        self.excused_until[session.id] = now + GRACE_S

    def change(self, session: Session, now: float) -> None:
        kind = self.random.randrange(8)
        if kind < 4:
            transition = ("cut", "blend", "recache", "reset")[kind]
            chunks = 3 if transition == "blend" else None
            prompt = f"scene {self.random.random()}"  # never the same: no cache may keep them all
            self.engine.control(session.id, SetPrompt(prompt, transition, chunks))
            self.excused_until[session.id] = now + GRACE_S
        elif kind == 4 and len(session.history):
            chunk = self.random.choice(list(session.history))
            try:
                self.engine.control(session.id, Rewind(chunk.index))
            except NotFound:  # the window before it is not kept
                return
            self.excused_until[session.id] = now + GRACE_S
        elif kind == 5:
            self.welcome(self.engine.fork(session.id), now)
        elif kind == 6:
            self.engine.suspend(session.id)
            self.engine.resume(session.id)
            self.excused_until[session.id] = now + GRACE_S
        else:
            self.engine.control(session.id, Update(seed=self.random.randrange(9)))

    def leave(self, session_id: str) -> None:
        self.engine.close(session_id)
        for known in (self.playouts, self.leaves_at, self.excused_until):
            del known[session_id]


def test_q51_memory_is_flat_and_nobody_is_late_while_sessions_come_and_go() -> None:
    crowd = Crowd(seed=1)
    pool, text = crowd.engine.runner.pool, crowd.engine.runner.text
    crowd.run(SECONDS / 3)  # warm: caches are full
    before, chunks, sessions = resident_bytes(), crowd.num_chunks, crowd.num_sessions
    threads = threading.active_count()
    crowd.run(SECONDS * 2 / 3)
    grown, made = resident_bytes() - before, crowd.num_chunks - chunks
    opened = crowd.num_sessions - sessions
    print(f"{made} chunks, {opened} sessions, {crowd.num_missed} late, {grown:,} bytes more")
    for session_id in list(crowd.playouts):
        crowd.leave(session_id)
    for session_id in list(crowd.engine.sessions):
        crowd.engine.close(session_id)
    crowd.engine.step()
    crowd.engine.decoder.close()
    pool.allocator.audit()
    assert (pool.allocator.num_free, pool.num_reserved) == (pool.num_pages, 0)
    assert text.num_pinned == 0
    assert threading.active_count() <= threads
    assert made > SECONDS / 4
    assert grown < SLOPE_BYTES * (1 + made / 1000 + opened / 1000) + (not IS_LONG) * 8_000_000
    assert crowd.num_missed == 0
