"""Random sessions against a model that knows nothing of pages.

Every frame written carries a stamp of its own; keys rotated by n frames lie n times TURN higher. A
page with two owners, a page reused too early, a shared page written or a rollback that left a trace
would change a stamp somebody still sees.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache import KVGeometry, KVPool, PageTable, PoolExhausted, Staging, WindowConfig

GEOMETRY = KVGeometry(2, 1, 1, 2, 1, torch.float64)
CHUNK = 3
POOL_FRAMES = 40
TURN = 2.0**20


Stream = list[tuple[int, float]]  # frames and their stamps, oldest first


@dataclass
class Session:
    """Hold what a session should contain."""

    table: PageTable
    stream: Stream = field(default_factory=list)
    staging: Staging | None = None
    staged: Stream = field(default_factory=list)
    first_frame: int = 0
    next_frame: int = 0
    commit_row: tuple[Staging, Stream] | None = None  # may run until the next commit

    def in_view(self) -> Stream:
        """The first sink frames and the newest others, no more than the window in all."""
        everything = self.stream + self.staged
        window, sink = self.table.config.window_frames, self.table.config.sink_frames
        if window is None or len(everything) <= window:
            return everything
        return everything[:sink] + everything[len(everything) - (window - sink) :]

    def recached(self, rebuild_sink: bool) -> list[int]:
        frames = [frame for frame, _ in self.stream]
        if rebuild_sink:
            window = self.table.config.window_frames or self.table.num_slots
            return list(range(max(self.first_frame, self.next_frame - window), self.next_frame))
        if frames == list(range(self.first_frame, self.next_frame)):
            return frames
        return frames[self.table.config.sink_frames :]


configs = st.sampled_from(
    [
        WindowConfig(6, 0),
        WindowConfig(6, 3),
        WindowConfig(7, 1),
        WindowConfig(3, 0),
        WindowConfig(12, 2),
        WindowConfig(None, 0, 10),
        WindowConfig(6, 3, rotary="relative"),
        WindowConfig(8, 2, rotary="relative"),
        WindowConfig(7, 4, rotary="relative"),
    ]
)


class PageTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        pages = POOL_FRAMES * GEOMETRY.pages_per_frame
        self.pool = KVPool(GEOMETRY, pages, poison_freed=True)
        self.sessions: list[Session] = []
        self.stamp = 0.0

    def write(self, pages: tuple[int, ...]) -> list[float]:
        """Stamp whole frames and return their stamps."""
        stamps = []
        step = GEOMETRY.pages_per_frame
        for start in range(0, len(pages), step):
            self.stamp += 1
            stamps.append(self.stamp)
            for offset, page in enumerate(pages[start : start + step]):
                for layer in range(GEOMETRY.num_layers):
                    self.pool.k[layer][page] = self.stamp + offset / 4 + layer / 16
                    self.pool.v[layer][page] = -self.pool.k[layer][page]
        return stamps

    def rotate(self, staging: Staging) -> None:
        """Do what every forward does between its writes and its reads."""
        if staging.rotation is not None:
            source, target = (list(p) for p in (staging.rotation.source_pages,
                                                staging.rotation.target_pages))  # fmt: skip
            for k, v in zip(self.pool.k, self.pool.v, strict=True):
                k[target] = k[source] + TURN * staging.rotation.num_frames
                v[target] = v[source]

    def seen(self, staging: Staging) -> Stream:
        """Return what a row sees, frames ascending, once the rotation has been done."""
        rotation = staging.rotation
        turned = dict.fromkeys(rotation.target_pages, rotation.num_frames) if rotation else {}
        stamps = self.read(staging.visible_pages, turned)
        return sorted(zip(staging.visible_frames, stamps, strict=True))

    def read(self, pages: tuple[int, ...], turned: dict[int, int] | None = None) -> list[float]:
        """Return the stamps of whole frames, NaN where a page does not belong to its frame."""
        stamps = []
        step = GEOMETRY.pages_per_frame
        for start in range(0, len(pages), step):
            found = {
                stamp - offset / 4 - layer / 16
                for offset, page in enumerate(pages[start : start + step])
                for layer in range(GEOMETRY.num_layers)
                for stamp in (
                    float(self.pool.k[layer][page]) - TURN * (turned or {}).get(page, 0),
                    -float(self.pool.v[layer][page]),
                )
            }
            stamps.append(found.pop() if len(found) == 1 else torch.nan)
        return stamps

    def fits(self, num_pages: int) -> bool:
        return num_pages <= self.pool.num_pages - self.pool.num_reserved

    @rule(config=configs, fused=st.booleans(), first_frame=st.sampled_from([0, 5000]))
    def open(self, config: WindowConfig, fused: bool, first_frame: int) -> None:
        num_pages = config.reserved_frames(CHUNK, fused) * GEOMETRY.pages_per_frame
        if not self.fits(num_pages):
            with pytest.raises(PoolExhausted):
                PageTable(self.pool, config, CHUNK, fused=fused, first_frame=first_frame)
            return
        table = PageTable(self.pool, config, CHUNK, fused=fused, first_frame=first_frame)
        self.sessions.append(Session(table, first_frame=first_frame, next_frame=first_frame))

    @precondition(lambda self: any(not s.staging for s in self.sessions))
    @rule(data=st.data(), num_frames=st.integers(1, CHUNK))
    def begin(self, data: st.DataObject, num_frames: int) -> None:
        session = data.draw(st.sampled_from([s for s in self.sessions if not s.staging]))
        table = session.table
        if table.config.max_frames and len(session.stream) + num_frames > table.config.max_frames:
            return
        staging = table.begin(num_frames)
        assert (staging.frame_index, staging.num_frames) == (session.next_frame, num_frames)
        assert all(self.pool.allocator.refcount(page) == 1 for page in staging.write_pages)
        frames = range(session.next_frame, session.next_frame + num_frames)
        stamps = self.write(staging.write_pages)
        session.staged = list(zip(frames, stamps, strict=True))
        session.staging = staging

    @precondition(lambda self: any(s.staging for s in self.sessions))
    @rule(data=st.data())
    def another_pass(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([s for s in self.sessions if s.staging]))
        assert session.staging is not None
        stamps = self.write(session.staging.write_pages)
        frames = [frame for frame, _ in session.staged]
        session.staged = list(zip(frames, stamps, strict=True))

    @precondition(lambda self: any(s.staging for s in self.sessions))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([s for s in self.sessions if s.staging]))
        session.table.commit()
        assert session.staging is not None
        if session.table.fused:
            session.commit_row = session.staging, sorted(session.in_view())
        session.next_frame += len(session.staged)
        session.stream = session.in_view()
        session.staging, session.staged = None, []

    @precondition(lambda self: any(s.staging for s in self.sessions))
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([s for s in self.sessions if s.staging]))
        session.table.rollback()
        if not session.table.fused:
            session.stream = [entry for entry in session.stream if entry in session.in_view()]
        session.staging, session.staged = None, []

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        config, fused = session.table.config, session.table.fused
        if not self.fits(config.reserved_frames(CHUNK, fused) * GEOMETRY.pages_per_frame):
            with pytest.raises(PoolExhausted):
                session.table.fork()
            return
        stream = list(session.stream)
        if not session.table.fused:
            stream = [entry for entry in stream if entry in session.in_view()]
        child = session.table.fork()
        fork = Session(child, stream, None, [], session.first_frame, session.next_frame)
        self.sessions.append(fork)

    @precondition(lambda self: any(s.stream and not s.staging for s in self.sessions))
    @rule(data=st.data(), causal=st.booleans(), rebuild_sink=st.booleans())
    def recache(self, data: st.DataObject, causal: bool, rebuild_sink: bool) -> None:
        eligible = [s for s in self.sessions if s.stream and not s.staging]
        session = data.draw(st.sampled_from(eligible))
        frames = session.recached(rebuild_sink)
        kept = [] if rebuild_sink else [e for e in session.stream if e[0] not in frames]
        stagings = session.table.recache(causal=causal, rebuild_sink=rebuild_sink)
        assert stagings == session.table.recache(causal=causal, rebuild_sink=rebuild_sink)
        written: Stream = []
        for staging in stagings:
            assert staging.num_frames <= CHUNK
            stop = staging.frame_index + staging.num_frames
            stamps = self.write(staging.write_pages)
            written += zip(range(staging.frame_index, stop), stamps, strict=True)
        assert [frame for frame, _ in written] == frames
        session.stream = kept + written
        session.commit_row = None
        for staging in stagings:
            self.rotate(staging)
        for staging in stagings:
            stop = staging.frame_index + staging.num_frames
            assert self.seen(staging) == [e for e in session.stream if e[0] < stop or not causal]

    @precondition(lambda self: any(s.stream and not s.staging for s in self.sessions))
    @rule(data=st.data(), num_frames=st.integers(1, 5))
    def skip(self, data: st.DataObject, num_frames: int) -> None:
        eligible = [s for s in self.sessions if s.stream and not s.staging]
        session = data.draw(st.sampled_from(eligible))
        if len(session.stream) >= session.table.config.sink_frames:
            session.next_frame += num_frames
            session.table.skip_to(session.next_frame)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), first_frame=st.sampled_from([0, 77]))
    def reset(self, data: st.DataObject, first_frame: int) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        session.table.reset(first_frame)
        session.stream, session.staged, session.staging = [], [], None
        session.first_frame = session.next_frame = first_frame
        session.commit_row = None

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        self.sessions.remove(session)
        session.table.release()

    @invariant()
    def everybody_sees_their_own_frames(self) -> None:
        rows: list[tuple[Staging, Stream]] = []
        for session in self.sessions:
            table, view = session.table, dict(session.in_view())
            committed = [frame for frame in view if frame not in dict(session.staged)]
            assert list(table.frames) == committed
            assert table.next_frame == session.next_frame
            assert self.read(sum(map(table.pages_of, committed), ())) == [
                view[frame] for frame in committed
            ]
            if session.staging:
                rows.append((session.staging, sorted(view.items())))
            if session.commit_row:
                rows.append(session.commit_row)
        for staging, _ in rows:  # as in one forward of all rows there can be
            self.rotate(staging)
        for staging, view in rows:
            assert self.seen(staging) == view

    @invariant()
    def a_relative_sink_lies_right_before_the_rest(self) -> None:
        for session in self.sessions:
            if session.staging:
                sink, frames = session.table.config.sink_frames, dict(session.in_view())
                gap = 0
                if session.table.config.rotary == "relative" and len(frames) > sink:
                    gap = sorted(frames)[sink] - sorted(frames)[sink - 1] - 1
                rotation = session.staging.rotation
                assert (rotation.num_frames if rotation else 0) == gap

    @invariant()
    def books_balance(self) -> None:
        allocator, pool = self.pool.allocator, self.pool
        allocator.audit()
        tables = [session.table for session in self.sessions]
        held = Counter(p for t in tables for pages in (*t._slots, t._rotated.pages) for p in pages)
        for page in range(pool.num_pages):
            assert allocator.refcount(page) == held[page]
        assert allocator.num_free + allocator.num_used == pool.num_pages
        reserved = sum(t.config.reserved_frames(CHUNK, t.fused) for t in tables)
        reserved *= GEOMETRY.pages_per_frame
        assert allocator.num_used <= reserved == pool.num_reserved <= pool.num_pages
        free = [page for page in range(pool.num_pages) if not held[page]]
        assert all(tensor[free].isnan().all() for tensor in (*pool.k, *pool.v))


PageTableMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestPageTableMachine = PageTableMachine.TestCase
