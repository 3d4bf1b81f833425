"""Which frames a session sees, and on which pages they lie."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvcache.errors import WindowError
from kvcache.pool import KVPool
from kvcache.window import WindowConfig


@dataclass(frozen=True, slots=True)
class Staging:
    """Say what one row writes and reads, as handed to an attention backend.

    `write_pages` are the pages of frames `frame_index` .. `frame_index + num_frames - 1` in token
    order. `visible_pages` hold `visible_frames`, frame by frame in the same order; the order means
    nothing to attention and is chosen so that pages are neighbours.
    """

    frame_index: int
    num_frames: int
    write_pages: tuple[int, ...]
    visible_pages: tuple[int, ...]
    visible_frames: tuple[int, ...]


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
        self.config = config
        self.chunk_frames = chunk_frames
        self.fused = fused
        self.first_frame = first_frame
        self.num_slots = config.reserved_frames(chunk_frames, fused)
        self._num_pages = self.num_slots * pool.geometry.pages_per_frame
        pool.reserve(self._num_pages)
        self._start()

    def _start(self) -> None:
        step = self.pool.geometry.pages_per_frame
        pages = self.pool.allocate(self._num_pages)
        self._slots = [tuple(pages[i : i + step]) for i in range(0, len(pages), step)]
        # First in, first out: the slots behind the sink become a ring, its free part one hole.
        self._spare = list(range(self.num_slots))
        # Frame to slot, frames ascending. The sink is never evicted, so it is the head of _held.
        self._held: dict[int, int] = {}
        self._staged: dict[int, int] = {}
        self._evicted: dict[int, int] = {}
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
        self._check_open()
        if self._staged:
            raise WindowError(f"frames {list(self._staged)} are still staged: commit or roll back")
        if not 1 <= num_frames <= self.chunk_frames:
            raise WindowError(f"num_frames {num_frames} is outside 1 .. {self.chunk_frames}")
        evicted = self._pushed_out(num_frames)
        self._evicted = {frame: self._held.pop(frame) for frame in evicted}
        if not self.fused:
            self._retire_evicted()
        slots, self._spare = self._spare[:num_frames], self._spare[num_frames:]
        for slot in slots:
            self._make_private(slot, copy=False)
        self._staged = {self.next_frame + i: slot for i, slot in enumerate(slots)}
        return self._staging(self._staged, self._held | self._staged)

    def commit(self) -> None:
        """Make the staged frames the newest of the history. Raises WindowError without any."""
        if not self._staged:
            raise WindowError("nothing is staged")
        self.next_frame += len(self._staged)
        self._held |= self._staged
        self._staged = {}
        self._retire_evicted()

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

    def restage(self, frame_index: int, num_frames: int, *, causal: bool = False) -> Staging:
        """Describe a row that writes committed frames again (recache), on private pages.

        It sees all frames in view, or, when `causal`, none after its own. Raises WindowError when
        a frame is not held.
        """
        stop = frame_index + num_frames
        frames = {frame: self._slot_of(frame) for frame in range(frame_index, stop)}
        for frame in frames:
            self.ensure_private(frame)
        visible = {f: slot for f, slot in self._held.items() if f < stop or not causal}
        return self._staging(frames, visible)

    def ensure_private(self, frame: int) -> tuple[int, ...]:
        """Copy the shared pages of a frame, so that it can be written, and return its pages.

        Raises WindowError when the frame is not held.
        """
        slot = self._slot_of(frame)
        self._make_private(slot, copy=True)
        return self._slots[slot]

    def fork(self) -> "PageTable":
        """Return a table with the same committed history on shared pages.

        A chunk being staged stays with the parent. The child's reservation is full and its own.
        Raises PoolExhausted, leaving this table untouched.
        """
        self._check_open()
        child = PageTable(
            self.pool,
            self.config,
            self.chunk_frames,
            fused=self.fused,
            first_frame=self.first_frame,
        )
        child.next_frame = self.next_frame
        child._held = dict(sorted((self._held | self._evicted).items()))
        child._spare = [slot for slot in child._spare if slot not in child._held.values()]
        for slot in child._held.values():
            self.pool.free(child._slots[slot])
            self.pool.allocator.share(self._slots[slot])
            child._slots[slot] = self._slots[slot]
        return child

    def reset(self, first_frame: int | None = None) -> None:
        """Empty the table, as good as new, and number its next frame `first_frame`.

        By default numbering starts again where this table started.
        """
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

    def _pushed_out(self, num_frames: int) -> list[int]:
        needed = len(self._held) + num_frames
        window = self.config.window_frames
        if window is not None:
            sink = self.config.sink_frames
            return list(self._held)[sink : sink + max(0, needed - window)]
        if needed > self.num_slots:
            raise WindowError(
                f"{len(self._held)} frames held + {num_frames} new = {needed} > "
                f"max_frames {self.num_slots} of the unlimited window"
            )
        return []

    def _staging(self, written: dict[int, int], visible: dict[int, int]) -> Staging:
        ordered = sorted(visible, key=visible.__getitem__)
        return Staging(
            frame_index=min(written),
            num_frames=len(written),
            write_pages=self._pages(written.values()),
            visible_pages=self._pages(visible[frame] for frame in ordered),
            visible_frames=tuple(ordered),
        )

    def _pages(self, slots: Iterable[int]) -> tuple[int, ...]:
        return tuple(page for slot in slots for page in self._slots[slot])

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
        self.pool.forget(page for page in self._pages(slots) if refcount(page) == 1)

    def _make_private(self, slot: int, *, copy: bool) -> None:
        pages = self._slots[slot]
        shared = [page for page in pages if self.pool.allocator.refcount(page) > 1]
        if not shared:
            return
        private = dict(zip(shared, self.pool.allocate(len(shared)), strict=True))
        if copy:
            for source, target in private.items():
                self.pool.copy_page(source, target)
        self.pool.free(shared)
        self._slots[slot] = tuple(private.get(page, page) for page in pages)

    def _free_slots(self) -> None:
        self.pool.free(page for pages in self._slots for page in pages)
