"""Planner and scheduler against a simulated device: what is promised at admission is kept.

Thousands of passes under a fake clock, on devices where every row costs the same, where only the
pass does, and between.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import statistics

import pytest

from streamgen.cost_table import CostTable
from streamgen.overload import OverloadLadder, Settings, traded
from streamgen.planner import BOUND, Admission, Planner, RecacheBudget, SessionLoad
from streamgen.scheduler import Scheduler
from tests.streamgen.simulated_device import (
    BETWEEN,
    COMPUTE_BOUND,
    LAUNCH_BOUND,
    NO_SPACE,
    Cost,
    Device,
    Video,
    linear,
    simulate,
    table,
)

COSTS = {"compute": COMPUTE_BOUND, "between": BETWEEN, "launch": LAUNCH_BOUND}
LIVE = SessionLoad(steps=4, chunk_frames=12, fps=16, space=NO_SPACE)
every_device = pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)


def planner(cost: Cost, *, shares: bool = False) -> Planner:
    return Planner(table(cost, shares=shares), 16, NO_SPACE)


def just_inside(plan: Planner, num_sessions: int) -> list[SessionLoad]:
    """Return the fastest sessions of which so many, and no more, are admitted."""
    for fps in range(240, 0, -1):
        loads = [dataclasses.replace(LIVE, fps=fps)] * num_sessions
        answer = plan.admit(loads[0], loads[1:], NO_SPACE)
        if isinstance(answer, Admission) and answer.utilisation <= BOUND:  # one alone may take more
            return loads
    raise AssertionError(f"{num_sessions} sessions do not fit at any speed")


def missed(device: Device) -> int:
    return sum(video.num_missed for video in device.videos)


def spread(num_sessions: int, seed: int, seconds: float = 10.0) -> list[float]:
    """Return when sessions open that know nothing of each other."""
    source = random.Random(seed)
    return [seconds * source.random() for _ in range(num_sessions)]


@every_device
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("num_sessions", [2, 5, 8])
def test_whoever_is_admitted_is_never_late(cost: Cost, shares: bool, num_sessions: int) -> None:
    """Just below the bound, opened at once or one by one, passes up to 5 % longer than known."""
    loads = just_inside(planner(cost, shares=shares), num_sessions)
    for opened_at in ([0.0] * num_sessions, spread(num_sessions, seed=1)):
        device = simulate(cost, loads, opened_at, 60.0, jitter=0.05, shares=shares)
        assert missed(device) == 0
        assert min(video.num_chunks for video in device.videos) > 50


@every_device
def test_on_a_machine_of_many_moods_whoever_is_admitted_is_never_late_either(cost: Cost) -> None:
    """Costs are up to 50 % off for seconds, 25 % on average: admission knows and leaves room."""
    late, known = {}, table(cost, scatter=0.25)
    for scatter in (0.0, 0.25):
        costs = table(cost, scatter=scatter)
        loads = just_inside(Planner(costs, 16, NO_SPACE), 5)
        videos = [Video(str(i), loads[0], at) for i, at in enumerate(spread(5, seed=3))]
        device = Device(Scheduler(16, costs), cost, videos, moods=0.5)
        device.run(300.0)
        late[scatter] = missed(device)
        # What it has learnt meanwhile lets in no more than a bad moment carries.
        assert costs.usual.scatter == pytest.approx(0.25, abs=0.08)
        later = just_inside(Planner(costs.usual, 16, NO_SPACE), 5)
        assert later[0].fps < 1.25 * just_inside(Planner(known, 16, NO_SPACE), 5)[0].fps
    assert late[0.25] == 0 < late[0.0]


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.2, 0.3, 0.4])
def test_two_sessions_that_a_slow_decoder_has_just_time_for_are_never_late(phase: float) -> None:
    """Passes and decodes of the bundled model in fp32 on a shared machine."""
    costs = CostTable({1: 0.054, 2: 0.090, 4: 0.172}, decode_s=0.265, recache_s=0.2, scatter=0.08)
    known = copy.deepcopy(costs)
    videos = [Video(str(i), LIVE, i * phase) for i in range(2)]
    device = Device(Scheduler(16, costs), known.pass_s, videos, jitter=0.25, moods=0.2)
    device.run(300.0)
    assert missed(device) == 0


@every_device
def test_sessions_of_all_kinds_admitted_one_by_one_are_never_late(cost: Cost) -> None:
    """Random steps and speeds ask for a place all the time; each stays for a while."""
    source, plan, costs = random.Random(2), planner(cost), table(cost)
    device = Device(Scheduler(16, costs), cost, [], jitter=0.05)
    ends: dict[str, float] = {}
    served = refused = 0

    def knock(device: Device) -> None:
        nonlocal served, refused
        staying = [v for v in device.videos if ends[v.name] > device.now]
        if source.random() < 0.05:
            load = SessionLoad(source.randint(2, 8), 12, source.choice([8, 16, 24]), NO_SPACE)
            if isinstance(plan.admit(load, [v.load for v in staying], NO_SPACE), Admission):
                served += 1
                staying.append(Video(str(served), load, device.now))
                ends[str(served)] = device.now + source.uniform(2.0, 60.0)
            else:
                refused += 1
        gone = [v for v in device.videos if ends[v.name] <= device.now]
        assert sum(v.num_missed for v in gone) == 0
        device.videos = staying

    while device.now < 120.0:
        knock(device)
        device.run(device.now + 0.02, on_pass=knock)
    assert missed(device) == 0
    assert served > 30
    assert refused > 20


@every_device
def test_the_first_session_for_which_there_is_no_time_is_refused_and_would_be_late(
    cost: Cost,
) -> None:
    plan, inside = planner(cost), list[SessionLoad]()
    load = dataclasses.replace(LIVE, fps=60)
    while isinstance(plan.admit(load, inside, NO_SPACE), Admission) and len(inside) < 64:
        inside.append(load)
    assert plan.utilisation(inside) <= BOUND < plan.utilisation([*inside, load]) + 0.05
    too_many = inside
    while plan.utilisation(too_many) < 1.1:
        too_many = [*too_many, load]
    assert missed(simulate(cost, inside, [0.0] * len(inside), 20.0)) == 0
    assert missed(simulate(cost, too_many, [0.0] * len(too_many), 20.0)) > 0


@pytest.mark.parametrize(("cost", "least", "most"), [
    (COMPUTE_BOUND, 1.0, 1.1), (BETWEEN, 2.0, 16.0), (LAUNCH_BOUND, 4.0, 16.0),
])  # fmt: skip
def test_a_device_that_computes_slices_time_and_one_that_waits_batches(
    cost: Cost, least: float, most: float
) -> None:
    device = simulate(cost, just_inside(planner(cost), 8), [0.0] * 8, 30.0)
    assert least <= statistics.fmean(device.batches) <= most


@every_device
@pytest.mark.parametrize("num_sessions", [1, 2, 4, 8])
def test_the_predicted_busy_share_is_what_the_device_shows(cost: Cost, num_sessions: int) -> None:
    """Within 10 %, for sessions that began at unrelated times: the mean of many such beginnings."""
    loads = [LIVE] * num_sessions
    shares = []
    for seed in range(8):
        opened_at = spread(num_sessions, seed)
        device = simulate(cost, loads, opened_at, 12.0)
        before = device.busy_s, device.now
        device.run(37.0)
        shares.append((device.busy_s - before[0]) / (device.now - before[1]))
    assert planner(cost).busy_share(loads) == pytest.approx(statistics.fmean(shares), rel=0.10)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("num_sessions", [1, 3, 8])
def test_predicted_utilisation_is_the_busy_share_where_batches_do_not_depend_on_chance(
    num_sessions: int, shares: bool
) -> None:
    for loads in (
        [LIVE] * num_sessions,
        just_inside(planner(COMPUTE_BOUND, shares=shares), num_sessions),
    ):
        device = simulate(COMPUTE_BOUND, loads, [0.0] * num_sessions, 10.0, shares=shares)
        before = device.busy_s, device.now
        device.run(60.0)
        busy = (device.busy_s - before[0]) / (device.now - before[1])
        plan = planner(COMPUTE_BOUND, shares=shares)
        assert plan.utilisation(loads) == pytest.approx(busy, rel=0.03)
        assert plan.busy_share(loads) == pytest.approx(busy, rel=0.03)


@every_device
def test_budgeted_recaches_make_less_than_one_chunk_in_a_hundred_late(cost: Cost) -> None:
    """Eight sessions just below the bound, each asking for one every two seconds."""
    loads = just_inside(planner(cost), 8)
    plan, source = planner(cost), random.Random(3)
    budgets = {str(i): RecacheBudget() for i in range(8)}
    device = simulate(cost, loads, spread(8, seed=3), 10.0)
    asked = granted = 0

    def prompt(device: Device) -> None:
        nonlocal asked, granted
        for video in device.videos:
            if source.random() < 0.5 * device.cost(4) / 8:
                asked += 1
                if plan.may_recache(budgets[video.name], loads, device.now):
                    granted += 1
                    video.recaches = True

    device.run(130.0, on_pass=prompt)
    num_chunks = sum(video.num_chunks for video in device.videos)
    assert asked > granted > 8 * 110 / 20
    assert missed(device) < 0.01 * num_chunks


@every_device
def test_batch_jobs_take_what_is_left_and_make_nobody_late(cost: Cost) -> None:
    loads = just_inside(planner(cost), 6)
    job = SessionLoad(4, 12, 1000, NO_SPACE, is_batch=True)
    device = simulate(cost, [*loads, job, job], [*spread(6, seed=4), 0.0, 0.0], 60.0)
    *live, first_job, second_job = device.videos
    assert sum(video.num_missed for video in live) == 0
    assert min(first_job.num_chunks, second_job.num_chunks) > 50
    assert device.busy_s > 0.97 * device.now


@every_device
def test_under_overload_nobody_starves(cost: Cost) -> None:
    """Twice what the device can do: all slow down alike."""
    loads, plan = [LIVE], planner(cost)
    fps = 16
    while plan.utilisation(loads) < 2.0:
        fps += 4
        loads = [dataclasses.replace(LIVE, fps=fps)] * 10
    device = simulate(cost, loads, spread(10, seed=5, seconds=2.0), 60.0)
    made = [video.num_chunks for video in device.videos]
    assert min(made) > 0.8 * max(made)


@every_device
def test_the_first_chunk_of_a_newcomer_comes_in_time_and_delays_nobody(cost: Cost) -> None:
    loads = just_inside(planner(cost), 8)
    device = simulate(cost, loads, [*spread(7, seed=6, seconds=5.0), 20.0], 40.0, jitter=0.05)
    assert device.videos[-1].first_chunk_s < 1.0
    assert missed(device) == 0


def test_costs_learned_while_running_turn_slices_into_batches() -> None:
    """A warm-up that saw batches dear by accident does not decide for ever."""
    costs = table(linear(0.0, 0.010))
    assert costs.batch_size(8) == 1
    videos = [Video(str(i), dataclasses.replace(LIVE, fps=40)) for i in range(8)]
    device = Device(Scheduler(16, costs), BETWEEN, videos)
    device.run(60.0)
    assert costs.batch_size(8) >= 4
    assert statistics.fmean(device.batches[-200:]) > 2.4  # 2 are one session's: commit and pass


@every_device
def test_a_device_that_becomes_slower_trades_what_it_must_and_gives_it_back(cost: Cost) -> None:
    """Forty seconds at 1.5 times the cost: half the steps make up for it, and nothing more."""
    loads, plan, ladder = just_inside(planner(cost), 6), planner(cost), OverloadLadder()
    asked = Settings(LIVE.steps, 21, loads[0].fps)
    least = Settings(2, 6, 8)
    device = simulate(cost, loads, spread(6, seed=7, seconds=5.0), 20.0)
    plan.costs = device.scheduler.costs
    seen = [(video.num_chunks, video.num_missed) for video in device.videos]
    levels = []

    def follow(device: Device) -> None:
        for i, video in enumerate(device.videos):
            num_chunks, num_missed = seen[i]
            if video.num_chunks > num_chunks:
                ladder.note_chunk(device.now, late=video.num_missed > num_missed)
            seen[i] = video.num_chunks, video.num_missed
            if video.passes_done is None:  # between chunks
                settings = traded(ladder.level, asked, least)
                video.load = dataclasses.replace(video.load, steps=settings.steps)
        running = plan.utilisation(video.load for video in device.videos)
        if ladder.update(device.now, utilisation=running, asked=plan.utilisation(loads)):
            levels.append(ladder.level)

    device.cost = lambda rows: 1.5 * cost(rows)
    device.run(30.0, on_pass=follow)
    late = missed(device)
    device.run(60.0, on_pass=follow)
    assert levels == [1, 2]
    device.cost = cost
    device.run(90.0, on_pass=follow)
    assert levels == [1, 2, 1, 0]
    assert missed(device) == late  # of the first seconds, before it was noticed
