"""What one row of a forward writes and reads."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rotation:
    """Say where the keys of some pages are wanted at another distance.

    Every forward brings K of `source_pages`, moved on by `num_frames` frames, and V as it is, to
    `target_pages` before anybody reads. The source stays as it was written, so errors do not add
    up over the chunks of a long stream.
    """

    source_pages: tuple[int, ...]
    target_pages: tuple[int, ...]
    num_frames: int


@dataclass(frozen=True, slots=True)
class Staging:
    """Say what one row writes and reads, as handed to an attention backend.

    `write_pages` are the pages of frames `frame_index` .. `frame_index + num_frames - 1` in token
    order. `visible_pages` hold `visible_frames`, frame by frame in the same order; the order means
    nothing to attention and is chosen so that pages are neighbours. With a `rotation`, the sink is
    read from its target pages.
    """

    frame_index: int
    num_frames: int
    write_pages: tuple[int, ...]
    visible_pages: tuple[int, ...]
    visible_frames: tuple[int, ...]
    rotation: Rotation | None = None

    @property
    def read_pages(self) -> tuple[int, ...]:
        """Return every page whose content the row depends on."""
        return self.visible_pages + (self.rotation.source_pages if self.rotation else ())


def cut_rows(frames: Sequence[int], longest: int) -> list[list[int]]:
    """Cut ascending frames into rows of consecutive ones, counted from the newest back.

    So they fall together with the chunks of a stream whose first chunk may be shorter.
    """
    rows: list[list[int]] = []
    for frame in reversed(frames):
        if rows and rows[-1][0] == frame + 1 and len(rows[-1]) < longest:
            rows[-1].insert(0, frame)
        else:
            rows.append([frame])
    return rows[::-1]
