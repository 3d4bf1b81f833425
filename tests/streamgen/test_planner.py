"""Who may come in, by bytes and by time."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcache import KVGeometry, WindowConfig
from streamgen.cost_table import CostTable
from streamgen.planner import (
    BOUND,
    RECACHE_PERIOD_S,
    Admission,
    Planner,
    RecacheBudget,
    Refusal,
    SessionLoad,
    Space,
)
from tests.streamgen.simulated_device import BETWEEN, COMPUTE_BOUND, LAUNCH_BOUND, Cost, table

# A session of the reference model, Wan 1.3B at 832x480, and a device with room for eight.
GEOMETRY = KVGeometry(
    num_layers=30, num_heads=12, head_dim=128,
    tokens_per_frame=1560, page_tokens=1560, dtype=torch.bfloat16,
)  # fmt: skip
WAN = Space(
    page_bytes=GEOMETRY.bytes_for(WindowConfig(21).reserved_frames(3, fused=True)),
    decoder_bytes=67_000_000,
    text_bytes=512 * GEOMETRY.bytes_per_token,
)
ROOM = Space(8 * WAN.page_bytes, 8 * WAN.decoder_bytes, 16 * WAN.text_bytes)
LIVE = SessionLoad(steps=4, chunk_frames=12, fps=16, space=WAN)
JOB = dataclasses.replace(LIVE, is_batch=True)


def planner(cost: Cost = BETWEEN, *, shares: bool = False, decode_s: float = 0.004) -> Planner:
    costs = table(cost, shares=shares, decode_s=decode_s)
    return Planner(costs, 16, ROOM)


def test_a_session_takes_the_bytes_of_its_pages_its_decoder_and_its_prompt() -> None:
    """The account's 6.90 GB of pages, 67 MB of decoder and 94 MB of text."""
    assert Space(6_900_940_800, 67_000_000, 94_371_840) == WAN
    assert WAN.total_bytes == 7_062_312_640


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("page_bytes", "cache pages"),
        ("decoder_bytes", "decoder memory"),
        ("text_bytes", "prompt memory"),
    ],
)
def test_what_does_not_fit_in_bytes_waits_and_says_what_is_missing(kind: str, words: str) -> None:
    short = dataclasses.replace(ROOM, **{kind: getattr(WAN, kind) - 1})
    answer = planner().admit(LIVE, [], short)
    assert isinstance(answer, Refusal)
    assert answer.fits_later
    assert words in answer.reason
    assert f"{getattr(WAN, kind):,} bytes" in answer.reason
    exact = dataclasses.replace(ROOM, **{kind: getattr(WAN, kind)})
    assert isinstance(planner().admit(LIVE, [], exact), Admission)


def test_the_last_place_is_given_to_the_byte() -> None:
    """Eight sessions take all of it, each its exact share."""
    free = ROOM
    for _ in range(8):
        assert isinstance(planner().admit(JOB, [], free), Admission)
        free = Space(*(getattr(free, k) - getattr(WAN, k) for k in Space.__slots__))
    assert free.page_bytes == free.decoder_bytes == 0
    assert isinstance(planner().admit(JOB, [], free), Refusal)


def test_what_is_larger_than_the_device_need_not_wait() -> None:
    huge = dataclasses.replace(LIVE, space=dataclasses.replace(WAN, page_bytes=10**12))
    answer = planner().admit(huge, [], ROOM)
    assert isinstance(answer, Refusal)
    assert not answer.fits_later


def test_where_every_row_costs_the_same_utilisation_is_the_sum_of_cost_over_period() -> None:
    """5 rows of 10 ms for every 0.75 s."""
    assert planner(COMPUTE_BOUND).utilisation([]) == 0.0
    assert planner(COMPUTE_BOUND).utilisation([LIVE]) == pytest.approx(0.05 / 0.75)
    fast = dataclasses.replace(LIVE, steps=2, fps=32)
    mixed = planner(COMPUTE_BOUND).utilisation([LIVE, LIVE, fast])
    assert mixed == pytest.approx(2 * 0.05 / 0.75 + 0.03 / 0.375)


def test_where_batching_pays_utilisation_is_at_the_cost_of_the_batch() -> None:
    """8 rows take 42 ms together: 5.25 ms each instead of 14."""
    assert planner().utilisation([LIVE] * 8) == pytest.approx(8 * 5 * 0.00525 / 0.75)
    assert planner(LAUNCH_BOUND).utilisation([LIVE] * 8) == pytest.approx(5 * 0.0216 / 0.75)


def test_no_batch_makes_one_session_faster_than_its_passes_one_after_another() -> None:
    """4 passes of at least 20 ms in 0.1 s, whoever else is there."""
    fast = dataclasses.replace(LIVE, fps=120)
    assert planner(LAUNCH_BOUND).utilisation([fast] + [LIVE] * 7) >= 4 * 0.0202 / 0.1


def test_a_decode_counts_with_the_passes_only_where_it_takes_their_time() -> None:
    alone, shared = planner(COMPUTE_BOUND), planner(COMPUTE_BOUND, shares=True)
    both = shared.utilisation([LIVE] * 4) - alone.utilisation([LIVE] * 4)
    assert both == pytest.approx(4 * 0.004 / 0.75)


def test_a_decoder_of_its_own_is_a_bound_of_its_own() -> None:
    slow = planner(COMPUTE_BOUND, decode_s=0.3)
    assert slow.utilisation([LIVE] * 2) == pytest.approx(0.8)
    assert isinstance(slow.admit(LIVE, [LIVE] * 2, ROOM), Refusal)


def test_sessions_come_in_up_to_the_bound_and_recaches_count() -> None:
    few_bytes = dataclasses.replace(LIVE, space=Space(1, 1, 1))
    plan, inside = planner(COMPUTE_BOUND), list[SessionLoad]()
    while isinstance(answer := plan.admit(few_bytes, inside, ROOM), Admission):
        inside.append(few_bytes)
        assert answer.utilisation == pytest.approx(len(inside) * 0.05 / 0.75)
    reserved = 0.07 / RECACHE_PERIOD_S
    assert len(inside) == int(BOUND / (0.05 / 0.75 + reserved)) == 12
    assert answer.fits_later
    assert "13 sessions" in answer.reason
    assert "87%" in answer.reason


def test_where_costs_scatter_fewer_come_in_and_what_is_needed_stays_the_same() -> None:
    few_bytes = dataclasses.replace(LIVE, space=Space(1, 1, 1))
    loads = [few_bytes] * 9
    calm, moody = (
        Planner(table(COMPUTE_BOUND, scatter=scatter), 16, ROOM) for scatter in (0.0, 0.2)
    )
    assert moody.utilisation(loads) == calm.utilisation(loads)
    assert moody.busy_share(loads) == calm.busy_share(loads)
    assert isinstance(moody.admit(few_bytes, loads[:7], ROOM), Admission)
    answer = moody.admit(few_bytes, loads, ROOM)
    assert isinstance(answer, Refusal)  # 10 x 0.05 / 0.75, and 40 % of that
    assert "67% of the device, 27% more in bad moments" in answer.reason
    assert isinstance(calm.admit(few_bytes, loads, ROOM), Admission)


def test_a_session_alone_comes_in_however_slow_the_device() -> None:
    slow = dataclasses.replace(LIVE, fps=1000)
    answer = planner().admit(slow, [JOB], ROOM)
    assert isinstance(answer, Admission)
    assert answer.utilisation > 1
    assert isinstance(planner().admit(LIVE, [slow], ROOM), Refusal)


def test_batch_jobs_need_bytes_and_no_time() -> None:
    full = [dataclasses.replace(LIVE, fps=1000)]
    assert isinstance(planner().admit(JOB, full, ROOM), Admission)
    assert isinstance(planner().admit(JOB, full, Space(0, 0, 0)), Refusal)
    assert planner().utilisation([JOB] * 8) == 0.0
    assert planner().busy_share([JOB] * 8) == 0.0


def test_while_overloaded_the_device_takes_no_live_session() -> None:
    assert isinstance(planner().admit(LIVE, [LIVE], ROOM, overload_level=1), Refusal)
    assert isinstance(planner().admit(JOB, [LIVE], ROOM, overload_level=1), Admission)


def test_a_device_that_nobody_plays_on_is_overloaded_for_nobody() -> None:
    """Its ladder may still be up from those who left."""
    assert isinstance(planner().admit(LIVE, [], ROOM, overload_level=5), Admission)
    assert isinstance(planner().admit(LIVE, [JOB], ROOM, overload_level=5), Admission)


def test_recaches_are_free_while_the_device_has_time() -> None:
    """One session uses 9 % of it: twice a second is no burden."""
    plan, budget = planner(), RecacheBudget()
    assert all(plan.may_recache(budget, [LIVE], now / 2) for now in range(100))


def test_at_the_bound_a_session_has_two_recaches_at_once_and_then_its_rate() -> None:
    full = [dataclasses.replace(LIVE, fps=52)] * 8
    plan, budget = planner(), RecacheBudget()
    assert [plan.may_recache(budget, full, 0.0) for _ in range(3)] == [True, True, False]
    wait_s = plan.recache_wait_s(budget, full, 0.0)
    assert wait_s == pytest.approx(RECACHE_PERIOD_S)
    assert not plan.may_recache(budget, full, wait_s - 0.1)
    assert plan.may_recache(budget, full, wait_s + 0.1)
    granted = sum(plan.may_recache(budget, full, 100 + now / 10) for now in range(6000))
    assert granted == pytest.approx(600 / RECACHE_PERIOD_S + 2, abs=1)


def test_a_session_that_may_recache_need_not_wait() -> None:
    assert planner().recache_wait_s(RecacheBudget(), [LIVE], 5.0) == 0.0


LOADS = st.lists(
    st.builds(
        SessionLoad,
        steps=st.integers(1, 8),
        chunk_frames=st.sampled_from([4, 12]),
        fps=st.integers(1, 60),
        space=st.just(WAN),
        is_batch=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
COSTS = st.sampled_from([COMPUTE_BOUND, BETWEEN, LAUNCH_BOUND])


@given(LOADS, COSTS, st.booleans())
def test_the_device_is_busy_at_least_as_much_as_it_must_be_and_no_more_than_always(
    loads: list[SessionLoad], cost: Cost, shares: bool
) -> None:
    plan = planner(cost, shares=shares, decode_s=0.001)
    needed, busy = plan.utilisation(loads), plan.busy_share(loads)
    assert 0 <= busy <= 1
    live = [load for load in loads if not load.is_batch]
    passes = sum(load.num_rows / load.period_s for load in live)
    assert busy >= min(0.99, passes * plan.costs.row_s(plan.costs.batch_size(16))) - 1e-6
    assert needed >= 0


@given(LOADS, COSTS)
def test_one_session_more_never_lowers_utilisation_by_more_than_a_batch_gains(
    loads: list[SessionLoad], cost: Cost
) -> None:
    plan = planner(cost)
    live = [dataclasses.replace(load, is_batch=False) for load in loads]
    assert plan.utilisation(live) >= 0.5 * plan.utilisation(live[:-1])


def test_decodes_beside_passes_are_counted_before_they_run() -> None:
    """Admission asks what passes will cost with the newcomer's decodes, not what they cost now."""
    costs = CostTable({1: 0.010}, decode_s=0.06, recache_s=0.01, slowdown=2.0)
    plan = Planner(costs, 16, ROOM)
    # Five decodes of 60 ms in 750 ms: passes run at 4/5 of their speed; 25 rows of 10 ms in 750 ms.
    assert plan.utilisation([LIVE] * 5) == pytest.approx(25 * 0.010 / 0.75 / 0.8)
    slower = Planner(CostTable({1: 0.0125}, decode_s=0.06, recache_s=0.01), 16, ROOM)
    assert plan.busy_share([LIVE] * 5) == pytest.approx(slower.busy_share([LIVE] * 5))
