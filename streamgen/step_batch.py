"""The rows of a forward, and which of them have to be together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvcache import RowPages, Staging


@dataclass(frozen=True, slots=True)
class Row:
    """One session's next pass: its latents `[frames, C, h, w]` and what they may see."""

    latents: Tensor
    timestep: float
    staging: Staging
    text_slot: int

    @property
    def pages(self) -> RowPages:
        """Return the pages it writes and reads."""
        staging = self.staging
        return RowPages(staging.write_pages, staging.visible_pages, staging.rotation)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one forward. Rows may have different numbers of frames; short ones are padded.

    A row may read what another one writes: a chunk's first pass its predecessor's commit, the rows
    of a recache one another.
    """

    rows: tuple[Row, ...]

    @property
    def num_frames(self) -> int:
        """Return the frames of the longest row."""
        return max(row.staging.num_frames for row in self.rows)

    def by_length(self) -> dict[int, list[int]]:
        """Return the positions of the rows of each number of frames."""
        groups: dict[int, list[int]] = {}
        for position, row in enumerate(self.rows):
            groups.setdefault(row.staging.num_frames, []).append(position)
        return groups

    def alike(self) -> list[list[int]]:
        """Return the positions of rows of one length, rows before those that read what they write.

        Rows that read from one another, or along a chain, are not taken apart: those are a group.
        """
        writers = {p: i for i, row in enumerate(self.rows) for p in row.staging.write_pages}
        sources = [
            {writers[page] for page in row.staging.read_pages if page in writers} - {i}
            for i, row in enumerate(self.rows)
        ]
        together = _chains(sources)
        bound: set[int] = set().union(*together)
        groups = [[i for i in group if i not in bound] for group in self.by_length().values()]
        halves = (
            [i for i in group if bool(sources[i]) is reads]
            for reads in (False, True)
            for group in groups
        )
        return [*(sorted(chain) for chain in together), *(half for half in halves if half)]


def _chains(sources: list[set[int]]) -> list[set[int]]:
    """Return the rows that hang together and among which one reads what a reader wrote."""
    components: list[set[int]] = []
    for row, read in enumerate(sources):
        touched = [c for c in components if c & (read | {row})]
        components = [c for c in components if c not in touched]
        components.append(set().union({row}, read, *touched))
    return [c for c in components if any(sources[i] for row in c for i in sources[row])]
