"""Which chunks are not played because the session went back before them. Does no I/O.

A rewind is asked for, then accepted; the chunk that begins with it may be there before or after its
receipt. From the receipt on, chunks between the one gone back to and that one are abandoned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_REWINDS: Final = 64  # remembered; chunks of older ones are long gone


@dataclass(slots=True)
class Rewind:
    """One rewind; `next_chunk` is the first chunk made after it, None until it is there."""

    to_chunk: int
    accepted: bool = False
    next_chunk: int | None = None


class Rewinds:
    """The rewinds of one session."""

    def __init__(self) -> None:
        self._rewinds: dict[str, Rewind] = {}

    def asked(self, event_id: str, to_chunk: int) -> None:
        """A rewind is handed to the engine."""
        if len(self._rewinds) >= MAX_REWINDS:
            del self._rewinds[next(iter(self._rewinds))]
        self._rewinds[event_id] = Rewind(to_chunk)

    def accepted(self, event_id: str) -> None:
        """The engine accepted it."""
        if rewind := self._rewinds.get(event_id):
            rewind.accepted = True

    def dropped(self, event_id: str) -> None:
        """A control, which may be a rewind, will have no effect."""
        self._rewinds.pop(event_id, None)

    def arrived(self, chunk_index: int, started_event_ids: tuple[str, ...]) -> None:
        """A chunk came that begins with these controls."""
        for event_id in started_event_ids:
            if rewind := self._rewinds.get(event_id):
                rewind.next_chunk = chunk_index

    def abandon(self, chunk_index: int) -> bool:
        """Return whether a chunk must not be played."""
        return any(
            rewind.accepted
            and rewind.to_chunk < chunk_index
            and (rewind.next_chunk is None or chunk_index < rewind.next_chunk)
            for rewind in self._rewinds.values()
        )
