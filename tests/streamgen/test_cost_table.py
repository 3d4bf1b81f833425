"""What a pass costs: between the measured sizes, beyond them, and as the machine changes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgen.cost_table import LARGEST_CHANGE, CostTable
from streamgen.warm_up import scatter_of
from tests.streamgen.simulated_device import BETWEEN, COMPUTE_BOUND, LAUNCH_BOUND, table


def new_table(pass_s: dict[int, float]) -> CostTable:
    return CostTable(pass_s, decode_s=0.02, recache_s=0.06)


def test_a_size_that_was_not_measured_lies_on_the_line_between_its_neighbours() -> None:
    costs = new_table({1: 0.010, 2: 0.012, 8: 0.036})
    assert [costs.pass_s(n) for n in (1, 2, 5, 8)] == pytest.approx([0.010, 0.012, 0.024, 0.036])
    assert costs.row_s(8) == pytest.approx(0.0045)


def test_beyond_the_largest_size_the_last_line_goes_on() -> None:
    assert new_table({1: 0.010, 4: 0.022}).pass_s(10) == pytest.approx(0.046)
    assert new_table({1: 0.010}).pass_s(10) == pytest.approx(0.100)


def test_beyond_the_largest_size_nothing_gets_cheaper_by_noise() -> None:
    assert new_table({1: 0.010, 4: 0.009}).pass_s(100) == pytest.approx(0.009)


def test_a_table_without_the_cost_of_one_row_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="single row"):
        new_table({2: 0.010})


def test_batches_are_as_large_as_each_growth_makes_rows_two_percent_cheaper() -> None:
    assert table(COMPUTE_BOUND).batch_size(16) == 1
    assert table(LAUNCH_BOUND).batch_size(16) == 16
    assert table(BETWEEN).batch_size(8) == 8
    assert new_table({1: 0.010, 2: 0.0197}).batch_size(2) == 1  # 1.5 % cheaper
    assert new_table({1: 0.010, 2: 0.0195}).batch_size(2) == 2  # 2.5 %


def test_costs_follow_a_machine_that_becomes_slower() -> None:
    costs = table(BETWEEN)
    for _ in range(60):
        costs.observe(4, 2 * BETWEEN(4))
        costs.observe_decode(0.012)
        costs.observe_recache(0.1)
    assert costs.pass_s(4) == pytest.approx(2 * BETWEEN(4), rel=0.02)
    assert costs.decode_s == pytest.approx(0.012, rel=0.02)
    assert costs.recache_s == pytest.approx(0.1, rel=0.02)


def test_one_stalled_pass_moves_a_cost_by_a_few_percent_at_most() -> None:
    costs = table(BETWEEN)
    costs.observe(4, 30.0)
    assert costs.pass_s(4) == pytest.approx(BETWEEN(4), rel=0.04)


def test_a_size_that_is_not_run_is_believed_to_change_as_those_that_are() -> None:
    """Else a size that was measured in a bad moment would look dear for ever."""
    costs = table(BETWEEN)
    for _ in range(3000):
        costs.observe(1, BETWEEN(1) / 2)
    assert costs.pass_s(8) == pytest.approx(BETWEEN(8) / 2, rel=0.02)


def test_sizes_that_are_both_run_keep_their_own_costs() -> None:
    costs = table(BETWEEN)
    for _ in range(1000):
        costs.observe(1, BETWEEN(1))
        costs.observe(8, 1.5 * BETWEEN(8))
    assert costs.pass_s(1) == pytest.approx(BETWEEN(1), rel=0.03)
    assert costs.pass_s(8) == pytest.approx(1.5 * BETWEEN(8), rel=0.03)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 1e6)), max_size=60))
def test_whatever_is_observed_costs_stay_positive_and_bounded(
    seen: list[tuple[int, float]],
) -> None:
    costs = table(BETWEEN)
    for rows, seconds in seen:
        costs.observe(rows, seconds)
    for rows in range(1, 41):
        assert math.isfinite(costs.pass_s(rows))
        assert costs.pass_s(rows) >= BETWEEN(1) / LARGEST_CHANGE


def slowed_table() -> CostTable:
    """Return a table of a machine on which decodes beside passes double their time."""
    return CostTable({1: 0.010, 4: 0.022}, decode_s=0.02, recache_s=0.06, slowdown=2.0)


def test_a_pass_takes_longer_the_more_decodes_run_beside_it() -> None:
    """For half of its time beside decodes it advances at 3/4 of its speed."""
    costs = slowed_table()
    assert costs.pass_s(4) == pytest.approx(0.022)  # nothing was decoded yet
    assert costs.pass_s(4, 0.5) == pytest.approx(0.022 / 0.75)
    assert costs.pass_s(4, 1.0) == pytest.approx(0.044)
    assert costs.row_s(4, 1.0) == pytest.approx(0.011)


def test_what_was_seen_beside_decodes_is_kept_as_what_it_would_be_alone() -> None:
    """So that the cost with more or fewer sessions is known from what runs now."""
    costs = slowed_table()
    for _ in range(100):
        costs.observe(4, 1.5 * 0.022 / 0.75, beside=0.5)
    assert costs.pass_s(4, 0.0) == pytest.approx(1.5 * 0.022, rel=0.02)
    assert costs.pass_s(4) == pytest.approx(1.5 * 0.022 / 0.75, rel=0.02)


def test_decodes_that_were_measured_in_a_lucky_moment_never_make_passes_faster() -> None:
    costs = CostTable({1: 0.010}, decode_s=0.02, recache_s=0.06, slowdown=0.9)
    assert costs.pass_s(1, 1.0) == 0.010


def test_a_clock_that_stands_still_does_no_harm() -> None:
    costs = table(BETWEEN)
    for _ in range(10_000):
        costs.observe(1, 0.0)
        costs.observe_decode(0.0)
    assert costs.pass_s(1) > 0
    assert costs.decode_s > 0


def test_how_much_costs_scatter_is_learnt_from_passes_and_decodes() -> None:
    costs = table(BETWEEN)
    assert costs.scatter == 0.0
    for _ in range(1000):
        for factor in (0.9, 1.1):
            costs.observe(4, factor * BETWEEN(4))
            costs.observe_decode(factor * 0.004)
    assert costs.scatter == pytest.approx(0.1, rel=0.15)
    assert costs.bad_moment == 1 + 2 * costs.scatter


def test_a_stall_is_no_more_than_one_bad_moment() -> None:
    costs = table(BETWEEN, scatter=0.02)
    costs.observe(1, 100 * BETWEEN(1))
    assert costs.scatter < 0.03


def test_what_is_usual_forgets_no_mood_of_seconds() -> None:
    """Half a second quick, half a second slow: one table is right all the time, the other knows."""
    costs = table(BETWEEN)
    for second in range(200):
        for _ in range(70):
            costs.observe(1, BETWEEN(1) * (0.7, 1.3)[second % 2])
    assert costs.scatter < 0.2
    assert costs.usual.scatter == pytest.approx(0.3, rel=0.1)
    assert costs.usual.pass_s(1) == pytest.approx(BETWEEN(1), rel=0.1)
    assert costs.pass_s(1) == pytest.approx(1.3 * BETWEEN(1), rel=0.05)


def test_what_is_unlike_what_was_measured_is_no_scatter() -> None:
    """Passes over smaller windows, and on a shared device those beside a decode."""
    costs, shared = table(BETWEEN), table(BETWEEN, shares=True)
    for _ in range(20):
        for factor in (0.6, 1.0):
            costs.observe(2, factor * BETWEEN(2), is_equal=False)
            shared.observe(2, factor * BETWEEN(2), beside=factor)
            shared.observe_decode(factor * 0.004)
    assert costs.scatter == shared.scatter == 0.0


def test_a_stall_at_warm_up_counts_as_one_bad_pass() -> None:
    assert scatter_of([[1.0] * 9 + [60.0], [2.0] * 10]) == pytest.approx(1 / 20)
    assert scatter_of([[0.9, 1.0, 1.1]]) == pytest.approx(0.2 / 3)
