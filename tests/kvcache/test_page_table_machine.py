"""Random sessions against a model that knows nothing of pages.

Every frame written carries a stamp of its own. A page with two owners, a page reused too early, a
copy that did not happen or a rollback that left a trace would change a stamp somebody still sees.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache import KVGeometry, KVPool, PageTable, PoolExhausted, Staging, WindowConfig

GEOMETRY = KVGeometry(2, 1, 1, 2, 1, torch.float32)
CHUNK = 3
POOL_FRAMES = 40


@dataclass
class Session:
    """Hold what a session should contain: its stream as (frame, stamp) pairs, oldest first."""

    table: PageTable
    stream: list[tuple[int, float]] = field(default_factory=list)
    staging: Staging | None = None
    staged: list[tuple[int, float]] = field(default_factory=list)
    next_frame: int = 0

    def in_view(self) -> list[tuple[int, float]]:
        """The first sink frames and the newest others, no more than the window in all."""
        everything = self.stream + self.staged
        window, sink = self.table.config.window_frames, self.table.config.sink_frames
        if window is None or len(everything) <= window:
            return everything
        return everything[:sink] + everything[len(everything) - (window - sink) :]


configs = st.sampled_from(
    [
        WindowConfig(6, 0),
        WindowConfig(6, 3),
        WindowConfig(7, 1),
        WindowConfig(3, 0),
        WindowConfig(12, 2),
        WindowConfig(None, 0, 10),
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

    def read(self, pages: tuple[int, ...]) -> list[float]:
        """Return the stamps of whole frames, NaN where a page does not belong to its frame."""
        stamps = []
        step = GEOMETRY.pages_per_frame
        for start in range(0, len(pages), step):
            found = {
                float(tensor) - offset / 4 - layer / 16
                for offset, page in enumerate(pages[start : start + step])
                for layer in range(GEOMETRY.num_layers)
                for tensor in (self.pool.k[layer][page], -self.pool.v[layer][page])
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
        self.sessions.append(Session(table, next_frame=first_frame))

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
        if not self.fits(session.table.num_slots * GEOMETRY.pages_per_frame):
            with pytest.raises(PoolExhausted):
                session.table.fork()
            return
        stream = list(session.stream)
        if not session.table.fused:
            stream = [entry for entry in stream if entry in session.in_view()]
        child = session.table.fork()
        self.sessions.append(Session(child, stream, next_frame=session.next_frame))

    @precondition(lambda self: any(s.stream and not s.staging for s in self.sessions))
    @rule(data=st.data(), causal=st.booleans())
    def recache(self, data: st.DataObject, causal: bool) -> None:
        eligible = [s for s in self.sessions if s.stream and not s.staging]
        session = data.draw(st.sampled_from(eligible))
        position = data.draw(st.integers(0, len(session.stream) - 1))
        frame = session.stream[position][0]
        staging = session.table.restage(frame, 1, causal=causal)
        visible = [f for f, _ in session.stream if f <= frame or not causal]
        assert sorted(staging.visible_frames) == visible
        [stamp] = self.write(staging.write_pages)
        session.stream[position] = (frame, stamp)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), first_frame=st.sampled_from([0, 77]))
    def reset(self, data: st.DataObject, first_frame: int) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        session.table.reset(first_frame)
        session.stream, session.staged, session.staging = [], [], None
        session.next_frame = first_frame

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        self.sessions.remove(session)
        session.table.release()

    @invariant()
    def everybody_sees_their_own_frames(self) -> None:
        for session in self.sessions:
            table, view = session.table, dict(session.in_view())
            committed = [frame for frame in view if frame not in dict(session.staged)]
            assert list(table.frames) == committed
            assert table.next_frame == session.next_frame
            assert self.read(sum(map(table.pages_of, committed), ())) == [
                view[frame] for frame in committed
            ]
            if session.staging:
                frames = session.staging.visible_frames
                assert len(frames) == len(view)
                assert self.read(session.staging.visible_pages) == [view[f] for f in frames]

    @invariant()
    def books_balance(self) -> None:
        allocator, pool = self.pool.allocator, self.pool
        allocator.audit()
        held = Counter(page for s in self.sessions for pages in s.table._slots for page in pages)
        for page in range(pool.num_pages):
            assert allocator.refcount(page) == held[page]
        assert allocator.num_free + allocator.num_used == pool.num_pages
        reserved = sum(s.table.num_slots for s in self.sessions) * GEOMETRY.pages_per_frame
        assert allocator.num_used <= reserved == pool.num_reserved <= pool.num_pages
        free = [page for page in range(pool.num_pages) if not held[page]]
        assert all(tensor[free].isnan().all() for tensor in (*pool.k, *pool.v))


PageTableMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestPageTableMachine = PageTableMachine.TestCase
