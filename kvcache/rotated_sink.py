"""Where a sink with relative rotary positions is read."""

from collections.abc import Mapping

from kvcache.staging import Rotation


class RotatedSink:
    """Hold the private pages of a session's rotated sink, frame by frame: one set or two.

    The sink keeps its own pages, with its keys at their absolute frames; once frames behind it are
    gone, a row reads copies here, right before the oldest other frame it sees. The two rows of a
    fused forward may differ in that frame and take turns with the sets. Without pages the sink is
    read where it is kept.
    """

    def __init__(self, sink_frames: int, frames: list[tuple[int, ...]]) -> None:
        self.sink_frames = sink_frames
        self._frames = frames  # those of the next row first

    @property
    def pages(self) -> tuple[int, ...]:
        """Return all pages."""
        return tuple(page for pages in self._frames for page in pages)

    @property
    def next_frames(self) -> list[tuple[int, ...]]:
        """Return the pages of each sink frame for the next row."""
        return self._frames[: self.sink_frames]

    @property
    def next_pages(self) -> tuple[int, ...]:
        """Return the same without the division."""
        return tuple(page for pages in self.next_frames for page in pages)

    def advance(self) -> None:
        """Leave the set in use to the row that has it."""
        self._frames = self._frames[self.sink_frames :] + self._frames[: self.sink_frames]

    def rotation(self, visible: Mapping[int, tuple[int, ...]]) -> Rotation | None:
        """Return what the next row needs that sees these frames, ascending, on these pages."""
        frames, sink = list(visible), self.sink_frames
        if not self._frames or len(frames) <= sink:
            return None
        num_missing = frames[sink] - frames[sink - 1] - 1
        if not num_missing:
            return None
        source = tuple(page for frame in frames[:sink] for page in visible[frame])
        return Rotation(source, self.next_pages, num_missing)
