"""A device, its decoder and its viewers in memory, under a fake clock: passes cost what is said."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from streamgen.cost_table import CostTable
from streamgen.planner import SessionLoad, Space
from streamgen.scheduler import Scheduler
from streamgen.warm_up import Measured

NO_SPACE = Space(0, 0, 0)
LEAD_SLACK_FRAMES = 2
FIRST_CHUNK_TARGET_S = 1.0
MOOD_S = 4.0  # that a machine which is shared is quicker or slower at a time

Cost = Callable[[int], float]  # seconds of a pass by its rows


def linear(first_s: float, row_s: float) -> Cost:
    """Return the cost of a pass: what it takes to start, and what each row takes."""
    return lambda rows: first_s + row_s * rows


COMPUTE_BOUND = linear(0.0, 0.010)
LAUNCH_BOUND = linear(0.020, 0.0002)
BETWEEN = linear(0.010, 0.004)  # 8 rows together cost 1.8 times less a row than one alone


def table(
    cost: Cost, *, decode_s: float = 0.004, shares: bool = False, scatter: float = 0.0
) -> CostTable:
    """Return a table that knows the cost at the sizes a warm-up measures."""
    known = {rows: cost(rows) for rows in (1, 2, 4, 8, 16)}
    return Measured(
        (torch.float32, torch.float32), known, cost(7), decode_s, 0, shares, scatter=scatter
    ).costs()


@dataclass(eq=False)
class Video:
    """A session that is watched from its first frame on, and whose viewers never pause."""

    name: str
    load: SessionLoad
    opened_at: float = 0.0
    recaches: bool = False  # whether the next chunk begins with one
    now: float = 0.0
    num_generated: int = 0
    passes_done: int | None = None  # of the chunk in work
    owes_commit: bool = False
    first_frame_at: float | None = None
    num_chunks: int = 0
    num_missed: int = 0
    late_s: float = 0.0
    first_chunk_s: float = math.inf

    @property
    def lead_frames(self) -> int:
        if self.first_frame_at is None:
            return self.num_generated
        shown = 1 + math.floor((self.now - self.first_frame_at) * self.load.fps + 1e-6)
        return self.num_generated - min(max(shown, 0), self.num_generated)

    @property
    def may_begin(self) -> bool:
        leads = self.lead_frames > self.load.chunk_frames + LEAD_SLACK_FRAMES
        return self.passes_done is None and self.now >= self.opened_at and not leads

    @property
    def is_commit_alone(self) -> bool:
        return self.owes_commit and self.passes_done is None and not self.may_begin

    @property
    def is_mid_chunk(self) -> bool:
        return self.passes_done is not None or self.is_commit_alone

    @property
    def num_rows(self) -> int:
        if self.recaches and self.may_begin:
            return 7
        return 1 + (self.owes_commit and self.may_begin)

    @property
    def passes_left(self) -> int:
        if self.is_commit_alone:
            return 1
        return self.load.steps - (self.passes_done or 0) + (self.recaches and self.may_begin)

    @property
    def is_batch(self) -> bool:
        return self.load.is_batch

    def deadline_s(self, now: float) -> float:
        if self.is_commit_alone:
            return math.inf
        if self.first_frame_at is None:
            return self.opened_at + FIRST_CHUNK_TARGET_S
        return self.first_frame_at + self.num_generated / self.load.fps

    def run_pass(self) -> bool:
        """Take a pass; return whether it was the last one before frames."""
        if self.is_commit_alone:
            self.owes_commit = False
            return False
        if self.passes_done is None:
            self.owes_commit, self.passes_done = False, 0
            if self.recaches:
                self.recaches = False
                return False
        self.passes_done += 1
        if self.passes_done < self.load.steps:
            return False
        self.passes_done, self.owes_commit = None, True
        self.num_generated += self.load.chunk_frames
        return True

    def take_frames(self, at: float) -> None:
        """Play a decoded chunk; if it comes late, all that follows moves by as much."""
        if self.first_frame_at is None:
            self.first_frame_at, self.first_chunk_s = at, at - self.opened_at
        first_frame = self.num_chunks * self.load.chunk_frames
        late_s = at - (self.first_frame_at + first_frame / self.load.fps)
        if late_s > 1e-9:
            self.num_missed += 1
            self.late_s += late_s
            self.first_frame_at += late_s
        self.num_chunks += 1

    def next_event_s(self) -> float:
        """Return when it can begin again, while it rests."""
        if self.now < self.opened_at:
            return self.opened_at
        if self.first_frame_at is None:
            return math.inf  # its frames are in the decoder
        waits_for = self.num_generated - self.load.chunk_frames - LEAD_SLACK_FRAMES - 1
        return self.first_frame_at + waits_for / self.load.fps


@dataclass
class Device:
    """Run passes and decodes of `videos` one after another; keep the books."""

    scheduler: Scheduler
    cost: Cost
    videos: list[Video]
    jitter: float = 0.0  # relative, of each pass
    moods: float = 0.0  # relative, either way, of all passes of a few seconds
    now: float = 0.0
    busy_s: float = 0.0
    decoder_free_at: float = 0.0
    batches: list[int] = field(default_factory=list)  # rows of each pass
    random: random.Random = field(default_factory=lambda: random.Random(0))
    _decoded: list[tuple[float, Video]] = field(default_factory=list)

    def run(self, until: float, on_pass: Callable[[Device], None] = lambda device: None) -> None:
        """Go on until the clock says so."""
        while self.now < until:
            self._tell_time()
            chosen = self.scheduler.pick(self.videos, self.now)
            if chosen:
                self._run_pass(chosen)
                on_pass(self)
                continue
            events = [video.next_event_s() for video in self.videos]
            events += [at for at, _ in self._decoded]
            self.now = max(min([until, *(at for at in events if at > self.now)]), self.now + 1e-6)

    def _tell_time(self) -> None:
        ready = sorted((d for d in self._decoded if d[0] <= self.now), key=lambda d: d[0])
        self._decoded = [d for d in self._decoded if d[0] > self.now]
        for at, video in ready:
            video.take_frames(at)
        for video in self.videos:
            video.now = self.now

    def _mood(self) -> float:
        source = random.Random(int(self.now / MOOD_S))
        return 1 + self.moods * source.uniform(-1, 1)

    def _run_pass(self, chosen: Sequence[Video]) -> None:
        costs, rows = self.scheduler.costs, sum(video.num_rows for video in chosen)
        assert rows <= self.scheduler.max_rows
        seconds = self.cost(rows) * (1 + self.jitter * self.random.random()) * self._mood()
        costs.observe(rows, seconds)
        self.batches.append(rows)
        self.now += seconds
        self.busy_s += seconds
        for video in chosen:
            if not video.run_pass():
                continue
            if costs.decode_shares_device:
                self.now += costs.decode_s
                self.busy_s += costs.decode_s
                self.decoder_free_at = self.now
            else:
                self.decoder_free_at = max(self.decoder_free_at, self.now) + costs.decode_s
            self._decoded.append((self.decoder_free_at, video))


def simulate(
    cost: Cost,
    loads: Sequence[SessionLoad],
    opened_at: Sequence[float],
    seconds: float,
    *,
    max_rows: int = 16,
    jitter: float = 0.0,
    shares: bool = False,
) -> Device:
    """Return a device after it has served these sessions."""
    costs = table(cost, shares=shares)
    videos = [
        Video(str(i), load, at) for i, (load, at) in enumerate(zip(loads, opened_at, strict=True))
    ]
    device = Device(Scheduler(max_rows, costs), cost, videos, jitter)
    device.run(seconds)
    return device
