"""Who runs next, and together with whom: decided anew before every pass.

Earliest deadline first. Rows share a pass where the cost table says that it makes them cheaper, and
take turns where it does not: the same rule batches on a device that waits for launches and
time-slices on one that computes. A session in the middle of a chunk always may go on; one between
chunks only while the frames it is ahead of its viewers are at most a chunk and two frames. So a
control never waits behind more than that, and a session nobody watches comes to rest by itself.
Knows no tensor and does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeVar

from streamgen.cost_table import MIN_GAIN, CostTable


class Schedulable(Protocol):
    """What the scheduler reads of a session."""

    @property
    def is_mid_chunk(self) -> bool:
        """Whether a pass of a begun chunk is due, be it the commit alone."""

    @property
    def may_begin(self) -> bool:
        """Whether the next chunk may be begun: there is one, and the lead allows it."""

    @property
    def num_rows(self) -> int:
        """Rows of its next pass: 1, or 2 when the last chunk's commit rides along."""

    @property
    def passes_left(self) -> int:
        """Passes until its chunk is denoised, the next one included; 1 for a commit alone."""

    @property
    def is_batch(self) -> bool:
        """Whether nobody watches it live, so that it takes only what others leave."""

    def deadline_s(self, now: float) -> float:
        """When its playout runs dry, on the clock of `now`, in seconds; inf for a commit alone."""


S = TypeVar("S", bound=Schedulable)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether a pass and what follows it come in time, in seconds after the pass.

    `limits_s` are those it may take for nobody to be late: as costs are, and in a bad moment.
    """

    decoded_s: float = 0.0
    limits_s: tuple[float, float] = (inf, inf)

    def then(self, passed_s: float, due_s: float, costs: CostTable) -> Outlook:
        """Return it with one more session, the next in the decoder when its passes are done."""
        decoded_s = max(self.decoded_s, passed_s) + costs.decode_s
        usual_s, bad_s = self.limits_s
        limits_s = min(usual_s, due_s - decoded_s), min(bad_s, due_s / costs.bad_moment - decoded_s)
        return Outlook(decoded_s, limits_s)

    def is_late(self, pass_s: float) -> tuple[bool, bool]:
        """Return whether anybody is late, as costs are and in a bad moment."""
        usual_s, bad_s = self.limits_s
        return pass_s > usual_s, pass_s > bad_s


class Scheduler:
    """Pick the sessions whose rows make up the next pass."""

    def __init__(self, max_rows: int, costs: CostTable) -> None:
        self.max_rows = max_rows
        self.costs = costs

    def pick(self, sessions: Iterable[S], now: float) -> list[S]:
        """Return sessions that can run now, most urgent first, with at most `max_rows` rows.

        Batch jobs come after all live ones. Who is late is the more urgent the later it is, and
        being served moves its deadline on, so that under overload sessions take turns. Equals keep
        their order.
        """
        ready = [s for s in sessions if s.is_mid_chunk or s.may_begin]
        order = sorted((s.is_batch, s.deadline_s(now), i) for i, s in enumerate(ready))
        ready = [ready[i] for _, _, i in order]
        due_s = [inf if is_batch else deadline - now for is_batch, deadline, _ in order]
        return ready[: self._num_taken(ready, due_s)]

    def _num_taken(self, ready: Sequence[Schedulable], due_s: Sequence[float]) -> int:
        """Return how many of the most urgent should share the pass.

        That is the number at which a row costs least. A larger one must make rows 2 % cheaper, and
        miss no deadline in it if the smaller one misses none, neither as costs are nor in a bad
        moment: when time is too short for all, what is made in a second counts. A batch job rides
        along only if nobody misses a deadline. In the estimate either pass is followed by what is
        left of the sessions as urgent, one by one, and chunks are decoded one after another as they
        are done.
        """
        one_s = self.costs.pass_s(1)
        taken = rows = 0
        passed_s = best_s = best_row_s = 0.0
        together = alone = Outlook()  # with all in the pass, and with the first `taken` alone
        for number, session in enumerate(ready, start=1):
            rows += session.num_rows
            if rows > self.max_rows:
                break
            passed_s += (session.passes_left - 1) * one_s
            together = together.then(passed_s, due_s[number - 1], self.costs)
            others_s = (number - taken) * one_s
            alone = alone.then(passed_s + others_s, due_s[number - 1], self.costs)
            pass_s = self.costs.pass_s(rows)
            if taken:
                if pass_s / rows > (1 - MIN_GAIN) * best_row_s:
                    continue
                late = zip(together.is_late(pass_s), alone.is_late(best_s), strict=True)
                if any(worse and (session.is_batch or not before) for worse, before in late):
                    continue
            taken, best_s, best_row_s, alone = number, pass_s, pass_s / rows, together
        assert taken or not ready, f"{rows} rows of one session > {self.max_rows}"
        return taken
