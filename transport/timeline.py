"""The controls of one session: those on their way to a frame, and the prompts so far."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass
from typing import Final

from transport.fields import Prompt

MAX_PENDING: Final = 256
MAX_PROMPTS: Final = 64
NUM_LATENCIES: Final = 32


@dataclass(slots=True)
class PromptEntry:
    """One prompt; `chunk_index` is the first chunk played under it, None while there is none."""

    prompt_revision: int
    prompt: Prompt
    chunk_index: int | None = None


class Timeline:
    """Remembers a bounded number of controls and prompts, in the order of their coming."""

    def __init__(self, prompt: Prompt | None = None) -> None:
        self.prompts: deque[PromptEntry] = deque(maxlen=MAX_PROMPTS)
        if prompt is not None:
            self.accepted(0, prompt)
        self._current: PromptEntry | None = None  # that of the picture
        self._sent: dict[str, tuple[str, float]] = {}
        self._latencies_s: deque[float] = deque(maxlen=NUM_LATENCIES)

    @property
    def control_to_frame_s(self) -> float | None:
        """Median time from a control's arrival to its first frame, of the latest ones."""
        if not self._latencies_s:
            return None
        return sorted(self._latencies_s)[len(self._latencies_s) // 2]

    def until(self, chunk_index: int | None) -> Timeline:
        """Return the timeline of a session that leaves this one after a chunk, None for now."""
        timeline = Timeline()
        for entry in self.prompts:
            begun = entry.chunk_index
            if begun is not None and (chunk_index is None or begun <= chunk_index):
                timeline._current = dataclasses.replace(entry)
                timeline.prompts.append(timeline._current)
        return timeline

    def sent(self, event_id: str, kind: str, now: float) -> None:
        """A control is handed to the engine."""
        if len(self._sent) >= MAX_PENDING:
            del self._sent[next(iter(self._sent))]
        self._sent[event_id] = (kind, now)

    def accepted(self, prompt_revision: int, prompt: Prompt) -> None:
        """A prompt has a revision."""
        self.prompts.append(PromptEntry(prompt_revision, prompt))

    def dropped(self, event_id: str) -> None:
        """A control will have no effect."""
        self._sent.pop(event_id, None)

    def applied(self, event_id: str, now: float) -> tuple[str, float] | None:
        """The first frame that obeys a control leaves; return its kind and the seconds it took.

        None for one that nobody sent here, as of a score.
        """
        if event_id not in self._sent:
            return None
        kind, sent_at = self._sent.pop(event_id)
        self._latencies_s.append(now - sent_at)
        return kind, now - sent_at

    def playing(self, prompt_revision: int, chunk_index: int, prompt: Prompt | None) -> None:
        """A chunk under this revision begins to be played.

        Prompts that nobody sent here, of a score, a snapshot or after a rewind, are added.
        """
        if self._current and self._current.prompt_revision == prompt_revision:
            return
        entry = next((one for one in self.prompts if _awaits(one, prompt_revision)), None)
        if entry is None and prompt is not None:
            entry = PromptEntry(prompt_revision, prompt)
            self.prompts.append(entry)
        if entry is not None:
            entry.chunk_index = chunk_index
            self._current = entry


def _awaits(entry: PromptEntry, prompt_revision: int) -> bool:
    return entry.prompt_revision == prompt_revision and entry.chunk_index is None
