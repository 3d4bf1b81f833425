"""Prompts at times, as a request lists them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from streamgen import limits
from streamgen.errors import InvalidRequest
from streamgen.messages import Control, SetPrompt

MAX_ENTRIES: Final = 1_000
_TIME_ERROR_S: Final = 1e-6  # of media times, which are sums
FIELDS: Final = frozenset({"at_s", "at_chunk", "prompt", "transition", "chunks", "curve"})


@dataclass(frozen=True, slots=True)
class ScriptEntry:
    """A control that is due with the first chunk at or after `at_chunk`, or at `at_s` of media.

    Without a control, K/V are made again there, as after a suspension.
    """

    control: Control | None
    at_chunk: int | None = None
    at_s: float | None = None

    def is_due(self, chunk_index: int, pts_s: float) -> bool:
        """Return whether it acts with the chunk of this number and time, or has before."""
        if self.at_chunk is not None:
            return self.at_chunk <= chunk_index
        return self.at_s is not None and self.at_s <= pts_s + _TIME_ERROR_S


def check_score(score: object, default_transition: str) -> tuple[ScriptEntry, ...]:
    """Return the changes of prompt that a score lists, in order.

    It is a list of `{"at_s": seconds of media, or "at_chunk": number, "prompt": ..., "transition":
    ..., "chunks": ..., "curve": ...}`, by ascending place. Raises InvalidRequest naming the entry.
    """
    if score is None:
        return ()
    if not isinstance(score, (list, tuple)) or len(score) > MAX_ENTRIES:
        raise InvalidRequest(
            f"the score must be a list of at most {MAX_ENTRIES:,} entries", param="score"
        )
    entries = tuple(_entry(i, entry, default_transition) for i, entry in enumerate(score))
    for i, (one, next_one) in enumerate(pairwise(entries), start=1):
        if (one.at_s is None) != (next_one.at_s is None):
            raise InvalidRequest(
                f"score[{i}]: a score counts in at_s or in at_chunk, not in both", param="score"
            )
        if _place(next_one) <= _place(one):
            raise InvalidRequest(
                f"score[{i}] is at {_place(next_one):g}, not after the entry before it at "
                f"{_place(one):g}",
                param="score",
            )
    return entries


def _place(entry: ScriptEntry) -> float:
    place = entry.at_chunk if entry.at_s is None else entry.at_s
    assert place is not None
    return float(place)


def _entry(index: int, entry: object, default_transition: str) -> ScriptEntry:
    where = f"score[{index}]"
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{where} must be an object with at_s and prompt", param="score")
    if unknown := sorted(map(str, entry.keys() - FIELDS)):
        raise InvalidRequest(f"{where} has an unknown field {unknown[0]!r}", param="score")
    at_s, at_chunk = entry.get("at_s"), entry.get("at_chunk")
    if (at_s is None) == (at_chunk is None):
        raise InvalidRequest(f"{where} needs at_s or at_chunk, one of them", param="score")
    if at_s is not None and not (_is_number(at_s) and 0 < at_s < math.inf):
        raise InvalidRequest(f"{where}: at_s {at_s!r} must be seconds above 0", param="score")
    if at_chunk is not None and (type(at_chunk) is not int or at_chunk < 1):
        raise InvalidRequest(f"{where}: at_chunk {at_chunk!r} must be 1 or more", param="score")
    try:
        limits.check_prompt(entry.get("prompt"))
        transition = entry.get("transition") or default_transition
        limits.check_transition(transition, entry.get("chunks"), entry.get("curve"))
    except InvalidRequest as error:
        raise type(error)(f"{where}: {error.message}", param="score") from error
    control = SetPrompt(entry["prompt"], transition, entry.get("chunks"), entry.get("curve"))
    return ScriptEntry(control, at_chunk, None if at_s is None else float(at_s))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
