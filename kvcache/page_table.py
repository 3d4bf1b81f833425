"""Which frames a session sees, and on which pages they lie."""

from collections.abc import Iterable, Sequence

from kvcache.errors import WindowError
from kvcache.pool import KVPool
from kvcache.rotated_sink import RotatedSink
from kvcache.staging import Staging, cut_rows
from kvcache.window import WindowConfig


class PageTable:
    """Map the frames of one session to pages of the pool.

    A session owns its whole reservation from the start, one contiguous run if there is one, divided
    into frame slots. A chunk is staged on spare slots by `begin`, joins the history by `commit` and
    leaves no trace by `rollback`. Frames are listed in slot order: with a full window and no spare
    chunk that is the whole run, otherwise the run with one hole. The order depends on the session's
    own history only, not on which pages it got, and so do the sums in attention, to the last bit.

    Fused: commit chunk n, begin chunk n + 1, then run the commit row of n under its own staging
    together with the first row of n + 1. Frames evicted by a `begin` keep their pages until the
    matching `commit`, so neither that row nor a rollback misses them. Not fused: they are reused at
    once; a rollback loses them, and the same `begin` again sees the same frames.

    With relative rotary positions rows may read the sink from a `RotatedSink` instead, whose pages
    lie between the sink and the rest and are never shared.

    Raises WindowError for impossible settings and PoolExhausted when the pool cannot admit it.
    """

    def __init__(
        self,
        pool: KVPool,
        config: WindowConfig,
        chunk_frames: int,
        *,
        fused: bool = True,
        first_frame: int = 0,
    ) -> None:
        config.validate(chunk_frames)
        self.pool = pool
        self.config = config  # may be replaced by one of a shorter window, and back
        self._reserved_for = config
        self.chunk_frames = chunk_frames
        self.fused = fused
        self.first_frame = first_frame
        num_frames = config.reserved_frames(chunk_frames, fused)
        self.num_slots = num_frames - config.rotated_frames(fused)
        self._num_pages = num_frames * pool.geometry.pages_per_frame
        pool.reserve(self._num_pages)
        self._start()

    def _start(self) -> None:
        step = self.pool.geometry.pages_per_frame
        pages = self.pool.allocate(self._num_pages)
        frames = [tuple(pages[i : i + step]) for i in range(0, len(pages), step)]
        sink = self.config.sink_frames
        ring = sink + len(frames) - self.num_slots
        self._slots, rotated = frames[:sink] + frames[ring:], frames[sink:ring]
        self._rotated = RotatedSink(sink, rotated)
        # First in, first out: the slots behind the sink become a ring, its free part one hole.
        self._spare = list(range(self.num_slots))
        # Frame to slot, frames ascending. The sink is never evicted, so it is the head of _held.
        self._held: dict[int, int] = {}
        self._staged: dict[int, int] = {}
        self._evicted: dict[int, int] = {}
        self._pinned: frozenset[int] = frozenset()
        self.next_frame = self.first_frame

    @property
    def frames(self) -> tuple[int, ...]:
        """Absolute numbers of the committed frames in view, ascending."""
        return tuple(self._held)

    def pages_of(self, frame: int) -> tuple[int, ...]:
        """Return the pages of a committed frame in view. Raises WindowError when it is not held."""
        return self._slots[self._slot_of(frame)]

    def begin(self, num_frames: int) -> Staging:
        """Stage the next `num_frames` frames (1 .. chunk_frames) and hide what they push out.

        Raises WindowError, changing nothing, when a chunk is already staged or does not fit.
        """
        self._check_settled()
        if not 1 <= num_frames <= self.chunk_frames:
            raise WindowError(f"num_frames {num_frames} is outside 1 .. {self.chunk_frames}")
        evicted = self.config.pushed_out(self.frames, num_frames, self._pinned)
        self._evicted = {frame: self._held.pop(frame) for frame in evicted}
        if not self.fused:
            self._retire_evicted()
        slots, self._spare = self._spare[:num_frames], self._spare[num_frames:]
        for slot in slots:
            self._make_private(slot)
        self._staged = {self.next_frame + i: slot for i, slot in enumerate(slots)}
        self.pool.forget(self._rotated.next_pages)
        return self._staging(list(self._staged))

    def commit(self) -> None:
        """Make the staged frames the newest of the history. Raises WindowError without any."""
        if not self._staged:
            raise WindowError("nothing is staged")
        self.next_frame += len(self._staged)
        self._held |= self._staged
        self._staged = {}
        self._retire_evicted()
        self._rotated.advance()

    def rollback(self) -> None:
        """Forget the staged frames and bring back what they hid. Does nothing without any."""
        self._forget(self._staged.values())
        self._spare = [*self._staged.values(), *self._spare]
        self._held = dict(sorted((self._held | self._evicted).items()))
        self._staged, self._evicted = {}, {}

    def skip_to(self, frame: int) -> None:
        """Number the next frame `frame`, leaving a gap, as in a rebuild of sink and window.

        Raises WindowError while a chunk is staged or when `frame` lies behind.
        """
        if self._staged or frame < self.next_frame:
            raise WindowError(f"cannot skip to frame {frame} at frame {self.next_frame}")
        self.next_frame = frame

    def pin(self, frames: Iterable[int]) -> None:
        """Keep these frames in view, as an anchor of a new shot, instead of those pinned before.

        A recache that rebuilds the sink ends it. Raises WindowError, changing nothing, when a frame
        is not held or no chunk fits beside them.
        """
        pinned = frozenset(frames)
        for frame in pinned:
            self._slot_of(frame)
        self.config.validate(self.chunk_frames, len(pinned))
        self._pinned = pinned

    def recache_frames(self, *, rebuild_sink: bool = False) -> tuple[int, ...]:
        """Return the frames that `recache` makes again, ascending, each of which must be fed.

        Those in view, without the sink once any other has left; with `rebuild_sink` the newest
        frames of the stream, as many as the window has, evicted ones among them.
        """
        if rebuild_sink:
            window = self.config.window_frames or self.num_slots
            return tuple(range(max(self.first_frame, self.next_frame - window), self.next_frame))
        is_whole = self.frames == tuple(range(self.first_frame, self.next_frame))
        return self.frames if is_whole else self.frames[self.config.sink_frames :]

    def recache(self, *, causal: bool = False, rebuild_sink: bool = False) -> list[Staging]:
        """Describe the rows, for one forward, that make the K/V in view again.

        A row has at most `chunk_frames` of the `recache_frames` and sees all frames in view or,
        when `causal`, none after its own. With `rebuild_sink` the first of them are the sink from
        then on. There is nothing to commit, and a commit row of the newest chunk that has not run
        yet must not: it is made again here. If the forward fails, call this once more.

        Raises WindowError, changing nothing, while a chunk is staged.
        """
        self._check_settled()
        frames = self.recache_frames(rebuild_sink=rebuild_sink)
        if rebuild_sink:
            self._replace_held(frames)
        for frame in frames:
            self._make_private(self._held[frame])
        self._forget(self._held[frame] for frame in frames)
        rows = cut_rows(frames, self.chunk_frames)
        return [self._staging(row, row[-1] if causal else None) for row in rows]

    def rebuild(self, chunks: Sequence[range]) -> list[Staging]:
        """Empty the table, hold these chunks as far as the window goes, and describe their rows.

        Chunks are ascending and may have gaps between them. A row is of one chunk, which may have
        its own text, and sees no later one: rows may run in one forward or in several, in order.
        There is nothing to commit. Raises WindowError when an unlimited window is too short.
        """
        frames = [frame for chunk in chunks for frame in chunk]
        gone = set(self.config.pushed_out(frames, 0))
        self.reset()
        self._replace_held(tuple(frame for frame in frames if frame not in gone))
        self.next_frame = frames[-1] + 1 if frames else self.first_frame
        left = ([frame for frame in chunk if frame not in gone] for chunk in chunks)
        rows = [row for chunk in left for row in cut_rows(chunk, self.chunk_frames)]
        return [self._staging(row, row[-1]) for row in rows]

    def fork(self) -> "PageTable":
        """Return a table with the same committed history on shared pages.

        A chunk being staged stays with the parent. The child's reservation is full and its own.
        Raises PoolExhausted, leaving this table untouched.
        """
        self._check_open()
        child = PageTable(
            self.pool, self._reserved_for, self.chunk_frames,
            fused=self.fused, first_frame=self.first_frame,
        )  # fmt: skip
        child.config = self.config
        child.next_frame, child._pinned = self.next_frame, self._pinned
        child._held = dict(sorted((self._held | self._evicted).items()))
        child._spare = [*self._staged.values(), *self._spare]  # in the same order, as sums go by it
        for slot in child._held.values():
            self.pool.free(child._slots[slot])
            self.pool.allocator.share(self._slots[slot])
            child._slots[slot] = self._slots[slot]
        return child

    def adopt(self, other: "PageTable", num_frames: int) -> Staging:
        """Make the next frames history on the pages of another table that holds them.

        Both histories must be the same up to there, or what is read would be another's. Raises
        WindowError, changing nothing, when the other does not hold the frames.
        """
        frames = range(self.next_frame, self.next_frame + num_frames)
        pages = [other.pages_of(frame) for frame in frames]
        staging = self.begin(num_frames)
        for frame, shared in zip(frames, pages, strict=True):
            slot = self._staged[frame]
            self.pool.free(self._slots[slot])
            self.pool.allocator.share(shared)
            self._slots[slot] = shared
        self.commit()
        return staging

    def reset(self, first_frame: int | None = None) -> None:
        """Empty the table, as good as new, and number from `first_frame`, by default its own."""
        self._check_open()
        self._free_slots()
        self.first_frame = self.first_frame if first_frame is None else first_frame
        self._start()

    def release(self) -> None:
        """Give pages and reservation back. Does nothing the second time."""
        if self._slots:
            self._free_slots()
            self._slots, self._spare = [], []
            self._held, self._staged, self._evicted = {}, {}, {}
            self.pool.unreserve(self._num_pages)

    def _check_open(self) -> None:
        if not self._slots:
            raise WindowError("the page table was released")

    def _check_settled(self) -> None:
        self._check_open()
        if self._staged:
            raise WindowError(f"frames {list(self._staged)} are still staged: commit or roll back")

    def _replace_held(self, frames: tuple[int, ...]) -> None:
        """Hold exactly these frames: new ones take the slots of those that leave."""
        self._pinned = frozenset()
        left = [slot for frame, slot in self._held.items() if frame not in frames]
        free = iter([*left, *self._spare])
        self._held = {f: self._held[f] if f in self._held else next(free) for f in frames}
        self._spare = list(free)

    def _staging(self, frames: Sequence[int], newest: int | None = None) -> Staging:
        """Describe a row that writes these frames and sees all there are, or up to `newest`."""
        slots = self._held | self._staged
        pages = {f: self._slots[slots[f]] for f in slots if newest is None or f <= newest}
        ordered = sorted(pages, key=slots.__getitem__)
        write_pages = tuple(page for frame in frames for page in pages[frame])
        rotation = self._rotated.rotation(pages)
        if rotation is not None:
            pages |= zip(list(pages), self._rotated.next_frames, strict=False)
        return Staging(
            frame_index=frames[0],
            num_frames=len(frames),
            write_pages=write_pages,
            visible_pages=tuple(page for frame in ordered for page in pages[frame]),
            visible_frames=tuple(ordered),
            rotation=rotation,
        )

    def _slot_of(self, frame: int) -> int:
        if frame not in self._held:
            raise WindowError(f"frame {frame} is not among the frames held, {list(self._held)}")
        return self._held[frame]

    def _retire_evicted(self) -> None:
        self._forget(self._evicted.values())
        self._spare.extend(self._evicted.values())
        self._evicted = {}

    def _forget(self, slots: Iterable[int]) -> None:
        refcount = self.pool.allocator.refcount
        pages = (page for slot in slots for page in self._slots[slot])
        self.pool.forget(page for page in pages if refcount(page) == 1)

    def _make_private(self, slot: int) -> None:
        """Leave shared pages to the others. Rows write whole frames, so nothing need be copied."""
        pages = self._slots[slot]
        shared = [page for page in pages if self.pool.allocator.refcount(page) > 1]
        if not shared:
            return
        private = dict(zip(shared, self.pool.allocate(len(shared)), strict=True))
        self.pool.free(shared)
        self._slots[slot] = tuple(private.get(page, page) for page in pages)

    def _free_slots(self) -> None:
        self.pool.free(p for pages in (*self._slots, self._rotated.pages) for p in pages)
