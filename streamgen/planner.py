"""Who may come in: what a session takes, in bytes and in time, against what there is.

A session inside is never slowed for one that comes. Knows no tensor and does no I/O; whoever asks
says what is free and what time it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import exp, log
from typing import Final

from streamgen.cost_table import CostTable

BOUND: Final = 0.85  # the rest is for first chunks, for what comes unevenly, and for batch jobs
# What each live session can count on: so many recaches and rebuilds, and two at once. Of what the
# bound leaves over, all have an equal share besides.
RECACHE_PERIOD_S: Final = 20.0
RECACHE_BURST: Final = 2.0
# Sessions are seldom all ready at once: a larger batch that gains less is not counted on.
SURE_GAIN: Final = 0.05
FULL: Final = 0.999  # of the time at work is as good as all of it
BISECTIONS: Final = 60


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes on the device: what a session takes, or what is free."""

    page_bytes: int  # of the latent frames that it reserves
    decoder_bytes: int  # of its decoder's memory
    text_bytes: int  # of its prompt's cross-attention K/V

    @property
    def total_bytes(self) -> int:
        """Return the sum."""
        return self.page_bytes + self.decoder_bytes + self.text_bytes

    def lacking(self, free: Space) -> str | None:
        """Return in words what does not fit into `free`, or None."""
        for field in fields(self):
            needed, there = getattr(self, field.name), getattr(free, field.name)
            if needed > there:
                kind = {"page_bytes": "cache pages", "decoder_bytes": "decoder memory"}
                name = kind.get(field.name, "prompt memory")
                return f"{needed:,} bytes of {name} are needed and {there:,} are free"
        return None


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """What a session asks of the device for as long as it runs."""

    steps: int  # denoise passes of a chunk
    chunk_frames: int  # pixel frames of a steady chunk
    fps: int
    space: Space
    is_batch: bool = False

    @property
    def period_s(self) -> float:
        """Return the seconds that a chunk plays, in which the next one must be made."""
        return self.chunk_frames / self.fps

    @property
    def num_rows(self) -> int:
        """Return the rows of a chunk: its denoise passes and the commit."""
        return self.steps + 1


@dataclass(frozen=True, slots=True)
class Admission:
    """Come in. `utilisation` counts the newcomer."""

    utilisation: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Not now; or not ever on this device, unless it `fits_later`. `reason` names the figures."""

    reason: str
    fits_later: bool = True


@dataclass(slots=True)
class RecacheBudget:
    """The recaches and rebuilds that a session may ask for at once. Belongs to one session."""

    tokens: float = RECACHE_BURST
    filled_at: float | None = None

    def fill(self, rate: float, now: float) -> None:
        """Add what came in since the last time, at `rate` a second."""
        if self.filled_at is not None:
            self.tokens = min(RECACHE_BURST, self.tokens + rate * (now - self.filled_at))
        self.filled_at = now


class Planner:
    """Weigh sessions against one device: its costs, the rows of its passes and its `capacity`.

    `bound` is the utilisation in bad moments up to which live sessions are admitted.
    """

    def __init__(
        self, costs: CostTable, max_rows: int, capacity: Space, bound: float = BOUND
    ) -> None:
        self.bound = bound
        self.costs = costs
        self.max_rows = max_rows
        self.capacity = capacity

    def admit(
        self,
        load: SessionLoad,
        loads: Sequence[SessionLoad],
        free: Space,
        *,
        overload_level: int = 0,
    ) -> Admission | Refusal:
        """Decide about a newcomer, `loads` being those that hold a place and `free` what is left.

        A live session needs time within the bound, recaches included; one alone never lacks it, as
        nobody is slowed by it. Batch jobs take the time that others leave, so only bytes count.
        """
        if lacking := load.space.lacking(self.capacity):
            return Refusal(f"this session is too large for the device: {lacking}", False)
        if lacking := load.space.lacking(free):
            return Refusal(f"every place is taken: {lacking}")
        live = [other for other in loads if not other.is_batch]
        if load.is_batch:
            return Admission(self.utilisation(live))
        if overload_level and live:  # nobody is slowed where nobody plays
            return Refusal("the device is overloaded and takes no new session")
        used = self.utilisation([*live, load])
        more = self.utilisation_in_bad_moments([*live, load]) - used
        reserved = self._reserved_share(len(live) + 1)
        if live and used + more + reserved > self.bound:
            return Refusal(
                f"{len(live) + 1} sessions would use {used:.0%} of the device, {more:.0%} more in "
                f"bad moments and {reserved:.0%} for changes of prompt, more than the "
                f"{self.bound:.0%} at which none is late"
            )
        return Admission(used)

    def utilisation(self, loads: Iterable[SessionLoad]) -> float:
        """Return the share of the device that live sessions need, at its most efficient.

        That is the sum of cost / period at the cost of the batch they form when all are ready; 1.0
        is all the device can do. No less than the share that one session's passes, which must
        follow each other, take of its own period, nor than the decoder's.
        """
        live = [load for load in loads if not load.is_batch]
        if not live:
            return 0.0
        best = self._utilisation(live, 1)
        for rows in range(2, min(len(live), self.max_rows) + 1):
            larger = self._utilisation(live, rows)
            if larger <= (1 - SURE_GAIN) * best:
                best = larger
        return best

    def utilisation_in_bad_moments(self, loads: Iterable[SessionLoad]) -> float:
        """Return the utilisation while costs are as high as they seldom are, for their scatter."""
        return self.utilisation(loads) * self.costs.bad_moment

    def busy_share(self, loads: Iterable[SessionLoad]) -> float:
        """Return the share of time in which the device is expected to be at work for live sessions.

        More than `utilisation` where batching pays, as sessions that began at unrelated times are
        seldom all ready. A closed queue of sessions that rest and are served at the rate of the
        batch that those ready form; its states' odds do not depend on how either time is
        distributed (Baskett, Chandy, Muntz and Palacios 1975). The resting time is what gives the
        sessions' rate of chunks.
        """
        live = [load for load in loads if not load.is_batch]
        if not live:
            return 0.0
        rate = sum(1 / load.period_s for load in live)
        rows = sum(load.num_rows / load.period_s for load in live) / rate
        beside = self._beside(live)
        decode_s = self.costs.decode_s if self.costs.decode_shares_device else 0.0
        sizes = [self.costs.batch_size(min(n, self.max_rows)) for n in range(1, len(live) + 1)]
        chunk_s = [rows * self.costs.row_s(size, beside) + decode_s for size in sizes]
        return _busy_share(chunk_s, rate)

    def may_recache(self, budget: RecacheBudget, loads: Sequence[SessionLoad], now: float) -> bool:
        """Take a recache or rebuild from a session's budget, if it holds one."""
        budget.fill(self._recache_rate(loads), now)
        if budget.tokens < 1:
            return False
        budget.tokens -= 1
        return True

    def recache_wait_s(
        self, budget: RecacheBudget, loads: Sequence[SessionLoad], now: float
    ) -> float:
        """Return the seconds until `may_recache` will say yes."""
        rate = self._recache_rate(loads)
        budget.fill(rate, now)
        return max(0.0, (1 - budget.tokens) / rate)

    def _utilisation(self, live: Sequence[SessionLoad], rows: int) -> float:
        """Return the utilisation if all passes have this many rows."""
        beside = self._beside(live)
        row_s, pass_s = self.costs.row_s(rows, beside), self.costs.pass_s(rows, beside)
        passes = sum(load.num_rows * row_s / load.period_s for load in live)
        decodes = self._decodes(live)
        longest = max(load.steps * pass_s / load.period_s for load in live)
        if self.costs.decode_shares_device:
            return max(passes + decodes, longest)
        return max(passes, decodes, longest)

    def _decodes(self, live: Sequence[SessionLoad]) -> float:
        return sum(self.costs.decode_s / load.period_s for load in live)

    def _beside(self, live: Sequence[SessionLoad]) -> float:
        """Return the share of their time that passes will have decodes beside them."""
        return 0.0 if self.costs.decode_shares_device else min(1.0, self._decodes(live))

    def _reserved_share(self, num_live: int) -> float:
        return num_live * self._bad_recache_s / RECACHE_PERIOD_S

    @property
    def _bad_recache_s(self) -> float:
        return self.costs.recache_s * self.costs.bad_moment

    def _recache_rate(self, loads: Sequence[SessionLoad]) -> float:
        """Return the recaches a second that each live session may have."""
        num_live = max(1, sum(not load.is_batch for load in loads))
        spare = self.bound - self.utilisation_in_bad_moments(loads)
        return max(1 / RECACHE_PERIOD_S, spare / (num_live * self._bad_recache_s))


def _busy_share(chunk_s: Sequence[float], rate: float) -> float:
    """Return how often any of n sessions is ready, if `rate` chunks a second are made in all.

    `chunk_s[k - 1]` are the seconds a chunk takes of the device while k sessions are ready.
    """
    if rate * chunk_s[-1] >= FULL:
        return 1.0
    low, high = 0.0, 1 / chunk_s[-1]  # at which a session that rests becomes ready
    while _chunks_made(_odds(chunk_s, high), chunk_s) < rate:
        high *= 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        enough = _chunks_made(_odds(chunk_s, middle), chunk_s) >= rate
        low, high = (low, middle) if enough else (middle, high)
    return 1 - _odds(chunk_s, high)[0]


def _odds(chunk_s: Sequence[float], wakes: float) -> list[float]:
    """Return the odds of 0 to n ready sessions when each that rests wakes at this rate."""
    logs = [0.0]  # of the odds but for a factor: of many sessions they span more than a float does
    for ready, seconds in enumerate(chunk_s):
        logs.append(logs[-1] + log(wakes * (len(chunk_s) - ready) * seconds))
    weights = [exp(each - max(logs)) for each in logs]
    total = sum(weights)
    return [weight / total for weight in weights]


def _chunks_made(odds: Sequence[float], chunk_s: Sequence[float]) -> float:
    """Return the chunks a second that come of these odds."""
    return sum(share / seconds for share, seconds in zip(odds[1:], chunk_s, strict=True))
