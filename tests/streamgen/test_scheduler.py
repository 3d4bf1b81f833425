"""Who runs next, under a fake clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgen.cost_table import CostTable
from streamgen.scheduler import Scheduler
from tests.streamgen.simulated_device import BETWEEN, COMPUTE_BOUND, LAUNCH_BOUND, Cost, table


@dataclass
class Ready:
    """A session that needs `passes` passes a chunk and is played without pause."""

    name: str
    deadline: float
    passes: int = 3
    is_mid_chunk: bool = False
    may_begin: bool = True
    num_rows: int = 1
    is_batch: bool = False
    done: int = 0

    @property
    def passes_left(self) -> int:
        return self.passes - self.done % self.passes

    def deadline_s(self, now: float) -> float:
        return self.deadline

    def run_pass(self, chunk_s: float) -> None:
        self.done += 1
        self.is_mid_chunk = self.done % self.passes != 0
        if not self.is_mid_chunk:
            self.deadline += chunk_s


def scheduler(max_rows: int = 16, costs: CostTable | None = None) -> Scheduler:
    return Scheduler(max_rows, costs or table(LAUNCH_BOUND))


def names(sessions: list[Ready]) -> str:
    return "".join(session.name for session in sessions)


def test_the_earliest_deadline_comes_first() -> None:
    sessions = [Ready("a", 3.0), Ready("b", 1.0), Ready("c", 2.0)]
    assert names(scheduler().pick(sessions, 0.0)) == "bca"


def test_a_batch_is_cut_at_the_least_urgent() -> None:
    sessions = [Ready("a", 3.0), Ready("b", 1.0), Ready("c", 2.0)]
    assert names(scheduler(2).pick(sessions, 0.0)) == "bc"


def test_equals_keep_their_order() -> None:
    assert names(scheduler().pick([Ready(n, 1.0) for n in "abc"], 0.0)) == "abc"


def test_a_session_mid_chunk_goes_on_and_one_that_may_not_begin_rests() -> None:
    running = Ready("a", 9.0, is_mid_chunk=True, may_begin=False)
    resting = Ready("b", 0.0, may_begin=False)
    assert names(scheduler().pick([resting, running], 5.0)) == "a"
    assert scheduler().pick([resting], 5.0) == []
    assert scheduler().pick([], 5.0) == []


def test_where_every_row_costs_the_same_sessions_take_turns() -> None:
    sessions = [Ready(n, 9.0) for n in "abc"]
    assert names(scheduler(costs=table(COMPUTE_BOUND)).pick(sessions, 0.0)) == "a"


def test_where_a_pass_costs_the_same_they_share_it() -> None:
    sessions = [Ready(n, 9.0) for n in "abc"]
    assert names(scheduler(costs=table(LAUNCH_BOUND)).pick(sessions, 0.0)) == "abc"


def test_a_batch_that_gains_less_than_two_percent_is_not_made() -> None:
    costs = CostTable({1: 0.010, 2: 0.0197, 3: 0.0292}, decode_s=0.001, recache_s=0.1)
    sessions = [Ready(n, 9.0) for n in "ab"]
    assert names(scheduler(costs=costs).pick(sessions, 0.0)) == "a"  # 1.5 % cheaper a row
    assert names(scheduler(costs=costs).pick([*sessions, Ready("c", 9.0)], 0.0)) == "abc"  # 2.7 %


def test_nobody_rides_along_where_that_would_break_the_deadline_of_the_urgent() -> None:
    """3 passes of 14 ms and a decode of 4 end at 46 ms; one of two rows and two alone at 50."""
    costs = table(BETWEEN)
    urgent, other = Ready("a", 0.048), Ready("b", 9.0)
    assert names(scheduler(costs=costs).pick([urgent, other], 0.0)) == "a"
    urgent.deadline = 0.051
    assert names(scheduler(costs=costs).pick([urgent, other], 0.0)) == "ab"


def test_when_time_is_too_short_for_all_the_most_is_made_of_it() -> None:
    """One after another only the first would be in time: together they lose less."""
    costs = table(BETWEEN)
    sessions = [Ready(n, 0.048) for n in "abcdefgh"]
    assert names(scheduler(costs=costs).pick(sessions, 0.0)) == "abcdefgh"


def test_who_ends_together_waits_for_the_decoder_in_turn() -> None:
    """Both passes end at 18 ms and the second decode at 58; one by one it ends at 54."""
    costs = table(BETWEEN, decode_s=0.020)
    sessions = [Ready("a", 0.040, passes=1), Ready("b", 0.056, passes=1)]
    assert names(scheduler(costs=costs).pick(sessions, 0.0)) == "a"
    sessions[1].deadline = 0.060
    assert names(scheduler(costs=costs).pick(sessions, 0.0)) == "ab"


def test_where_costs_scatter_nobody_rides_along_that_would_be_late_in_a_bad_moment() -> None:
    """50 ms with both in a pass, which the other leaves at 46; a bad moment has 12 % more."""
    urgent, other = Ready("a", 0.052), Ready("b", 9.0)
    for scatter, chosen in ((0.0, "ab"), (0.06, "a")):
        costs = table(BETWEEN, scatter=scatter)
        assert names(scheduler(costs=costs).pick([urgent, other], 0.0)) == chosen


@pytest.mark.parametrize("scatter", [0.0, 0.06, 0.5])
def test_a_deadline_that_a_bad_moment_would_break_is_kept_in_all_others(scatter: float) -> None:
    """Alone it is done at 46 ms, together at 50; in a bad moment it is late either way."""
    costs = table(BETWEEN, scatter=scatter)
    sessions = [Ready("a", 0.048), Ready("b", 9.0)]
    assert names(scheduler(costs=costs).pick(sessions, 0.0)) == "a"


def test_rows_are_counted_not_sessions() -> None:
    sessions = [Ready(n, i, num_rows=2) for i, n in enumerate("abc", start=10)]
    assert names(scheduler(5).pick(sessions, 0.0)) == "ab"
    assert names(scheduler(6).pick(sessions, 0.0)) == "abc"


def test_more_rows_of_one_session_than_fit_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="7 rows of one session > 4"):
        scheduler(4).pick([Ready("a", 1.0, num_rows=7)], 0.0)


def test_batch_jobs_come_after_all_live_sessions() -> None:
    job, live = Ready("a", 0.0, is_batch=True), Ready("b", 9.0)
    assert names(scheduler(costs=table(COMPUTE_BOUND)).pick([job, live], 0.0)) == "b"
    live.may_begin = False
    assert names(scheduler(costs=table(COMPUTE_BOUND)).pick([job, live], 0.0)) == "a"


def test_a_batch_job_rides_along_only_where_no_live_session_is_late_for_it() -> None:
    """3 passes of 14 ms and a decode of 4 end at 46 ms; one of two rows and two alone at 50."""
    job, live = Ready("a", 0.0, is_batch=True), Ready("b", 0.051)
    assert names(scheduler(costs=table(BETWEEN)).pick([job, live], 0.0)) == "ba"
    live.deadline = 0.049
    assert names(scheduler(costs=table(BETWEEN)).pick([job, live], 0.0)) == "b"
    live.deadline = -1.0  # late as it is
    assert names(scheduler(costs=table(BETWEEN)).pick([job, live], 0.0)) == "b"


def test_a_commit_alone_runs_when_there_is_time_or_where_it_costs_nothing() -> None:
    commit = Ready("a", math.inf, passes=1, is_mid_chunk=True)
    other = Ready("b", 9.0)
    assert names(scheduler(costs=table(COMPUTE_BOUND)).pick([commit, other], 0.0)) == "b"
    assert names(scheduler(costs=table(LAUNCH_BOUND)).pick([commit, other], 0.0)) == "ba"
    assert names(scheduler().pick([commit], 0.0)) == "a"


@pytest.mark.parametrize("cost", [COMPUTE_BOUND, BETWEEN, LAUNCH_BOUND])
def test_under_overload_sessions_take_turns(cost: Cost) -> None:
    """Three sessions, room for one row, all late for ever: nobody is left behind."""
    one_row, now = scheduler(1, table(cost)), 0.0
    sessions = [Ready(n, deadline=0.0) for n in "abc"]
    for _ in range(90):
        now += 1.0
        (chosen,) = one_row.pick(sessions, now)
        chosen.run_pass(chunk_s=0.75)
    assert [session.done for session in sessions] == [30, 30, 30]


READY = st.builds(
    Ready,
    name=st.text("xyz", min_size=1, max_size=1),
    deadline=st.one_of(st.floats(-5, 5), st.just(math.inf)),
    passes=st.integers(1, 8),
    is_mid_chunk=st.booleans(),
    may_begin=st.booleans(),
    num_rows=st.integers(1, 4),
    is_batch=st.booleans(),
)


@given(
    st.lists(READY, max_size=12),
    st.integers(4, 16),
    st.sampled_from([COMPUTE_BOUND, BETWEEN, LAUNCH_BOUND]),
)
def test_whoever_is_there_the_urgent_are_picked_first_and_fit(
    sessions: list[Ready], max_rows: int, cost: Cost
) -> None:
    chosen = scheduler(max_rows, table(cost)).pick(sessions, 0.0)
    ready = [s for s in sessions if s.is_mid_chunk or s.may_begin]
    assert bool(chosen) == bool(ready)
    assert sum(s.num_rows for s in chosen) <= max_rows
    assert len({id(s) for s in chosen}) == len(chosen)
    ready.sort(key=lambda s: (s.is_batch, s.deadline))
    assert all(a is b for a, b in zip(chosen, ready, strict=False))
