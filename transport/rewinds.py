"""Which chunks are not played because the session went back before them. Does no I/O.

A rewind is asked for, then accepted; the chunk that begins with it may be there before or after its
receipt. From the receipt on, chunks between the one gone back to and that one are abandoned.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

MAX_REWINDS: Final = 64  # remembered; chunks of older ones are long gone


@dataclass(slots=True, eq=False)
class Rewind:
    """One rewind; `next_chunk` is the first chunk made after it, None until it is there."""

    event_id: str
    to_chunk: int
    accepted: bool = False
    next_chunk: int | None = None


class Rewinds:
    """The rewinds of one session, by ids that their senders chose and may choose again."""

    def __init__(self) -> None:
        self._rewinds: deque[Rewind] = deque(maxlen=MAX_REWINDS)

    def asked(self, event_id: str, to_chunk: int) -> Rewind:
        """Return the rewind that is handed to the engine."""
        rewind = Rewind(event_id, to_chunk)
        self._rewinds.append(rewind)
        return rewind

    def refused(self, rewind: Rewind) -> None:
        """The engine did not accept it."""
        if rewind in self._rewinds:
            self._rewinds.remove(rewind)

    def dropped(self, event_id: str) -> None:
        """A control that was accepted, which may be a rewind, will have no effect.

        Of two with this id it is the newer: the older has begun, or the host had not taken the id.
        """
        if waiting := self._waiting(event_id):
            self._rewinds.remove(waiting[-1])

    def arrived(self, chunk_index: int, started_event_ids: tuple[str, ...]) -> None:
        """A chunk came that begins with these controls."""
        for event_id in started_event_ids:
            if waiting := self._waiting(event_id):
                waiting[0].next_chunk = chunk_index

    def _waiting(self, event_id: str) -> list[Rewind]:
        """Return those with this id whose first chunk is not there, the oldest first."""
        return [r for r in self._rewinds if r.event_id == event_id and r.next_chunk is None]

    def abandon(self, chunk_index: int) -> bool:
        """Return whether a chunk must not be played."""
        return any(
            rewind.accepted
            and rewind.to_chunk < chunk_index
            and (rewind.next_chunk is None or chunk_index < rewind.next_chunk)
            for rewind in self._rewinds
        )
