"""How packets leave: the bucket, what is sent again, and the rate that a connection is given."""

from __future__ import annotations

import pytest

from transport.rtc_pacer import BURST_S, RESEND_GAP_S, Pacer, ResendLimiter
from transport.rtc_rate import DEEPEST, LEAST_BPS, START_BPS, RateControl


def test_a_frame_is_spread() -> None:
    """At 2 Mbps 50 kB take 0.2 s, and never more than a little leaves at once."""
    pacer = Pacer(2e6)
    now, sent = 100.0, []
    for _ in range(50):
        now += pacer.delay(now)
        pacer.sent(now, 1000)
        sent.append(now)
    assert sent[-1] - sent[0] == pytest.approx(0.2, abs=0.02)
    for begin in sent:
        bits = 8000 * sum(begin <= at < begin + 0.02 for at in sent)
        assert bits <= 2e6 * (0.02 + 2 * BURST_S) + 8000
    pacer.sent(200.0, 1000)
    assert pacer.delay(200.0) == 0.0, "what was saved up is not spent later, nor missed"


def test_resends_are_bounded() -> None:
    """Not the same one within 80 ms, and 30 % of the rate in all."""
    limiter = ResendLimiter()
    assert limiter.allow(7, 0.0, 1e6)
    assert not limiter.allow(7, 0.9 * RESEND_GAP_S, 1e6)
    assert limiter.allow(7, 1.1 * RESEND_GAP_S, 1e6)
    limiter = ResendLimiter()
    allowed = sum(limiter.allow(n % 65_536, n / 1000, 1e6) for n in range(10_000))
    assert 8 * 1300 * allowed <= 0.3 * 1e6 * 10.6
    assert 8 * 1300 * allowed >= 0.3 * 1e6 * 9.0


def run(
    rate: RateControl, begin: float, seconds: float, bps: float | None = None, lost: float = 0.0
) -> float:
    """Send for a while, at the target unless told, and lose a share; return the time after."""
    now, owed = begin, 0.0
    while now < begin + seconds:
        rate.sent(now, 1200)
        owed += lost
        rate.lost(now, int(owed))
        owed -= int(owed)
        now += 8 * 1200 / (rate.target_bps if bps is None else bps)
    return now


def test_it_climbs_while_it_is_used() -> None:
    """From the start to 3 Mbps within 8 s; not at all while less is sent."""
    rate = RateControl()
    assert rate.target_bps == START_BPS
    run(rate, 0.0, 8.0)
    assert rate.target_bps > 3e6
    idle = RateControl()
    run(idle, 0.0, 8.0, bps=0.3 * START_BPS)
    assert idle.target_bps == START_BPS


def test_a_bad_link_is_no_full_one() -> None:
    """1 % of loss does not slow the climb; 5 % holds; 20 % lowers it by and by."""
    rate = RateControl(1e6)
    now = run(rate, 0.0, 5.0, lost=0.01)
    assert rate.target_bps > 2e6
    before = rate.target_bps
    now = run(rate, now, 3.0, lost=0.05)
    assert rate.target_bps == pytest.approx(before, rel=0.15)
    now = run(rate, now, 1.0, lost=0.2)
    assert 0.7 * before < rate.target_bps < before
    assert rate.num_breaks == 0


def test_a_full_link_is_left_room() -> None:
    """From 3 Mbps on a link of 1: within a second less than it carries, and told as broken."""
    rate = RateControl(3e6)
    now = run(rate, 0.0, 2.0, bps=3e6)
    begin = now
    while rate.target_bps > 1e6:
        now = run(rate, now, 0.1, lost=max(0.0, 1 - 1e6 / rate.target_bps))
        assert now - begin < 1.5
    assert rate.num_breaks >= 1
    assert rate.target_bps > 0.25e6
    assert rate.careful(now)
    assert not rate.careful(now + 10)


def test_estimates() -> None:
    """One that falls below what is sent counts, by no more than half; one that is low does not."""
    rate = RateControl(2e6)
    now = run(rate, 0.0, 2.0, bps=2e6)
    rate.estimated(now, 1.9e6)
    rate.estimated(now, 2.5e6)
    before = rate.target_bps
    rate.estimated(now, 1.5e6)
    assert rate.target_bps == pytest.approx(0.95 * 1.5e6)
    rate.estimated(now + 0.1, 1.3e6)
    assert rate.target_bps == pytest.approx(0.95 * 1.5e6), "a fall is given time to tell"
    rate.estimated(now + 1.0, 1e3)
    assert rate.target_bps == pytest.approx(DEEPEST * 0.95 * 1.5e6)
    assert before > rate.target_bps
    quiet = RateControl(2e6)
    now = run(quiet, 0.0, 2.0, bps=5e4)
    quiet.estimated(now, 6e4)
    quiet.estimated(now, 5.5e4)
    assert quiet.target_bps == 2e6, "a still picture says nothing of the link"


def test_a_still_picture_on_a_bad_link() -> None:
    """Losses of a stream that is far below its target do not lower that for when it moves."""
    rate = RateControl(2e6)
    now = run(rate, 0.0, 60.0, bps=5e4, lost=0.4)
    rate.reported(now, 0.5)
    assert rate.target_bps == 2e6


def test_reports_without_nacks() -> None:
    """Who asks for nothing again is heard by its reports; there is a floor."""
    rate = RateControl(1e6)
    now = run(rate, 0.0, 2.0, bps=1e6)
    rate.reported(now, 0.05)
    assert rate.num_falls == 0
    for i in range(40):
        rate.reported(now + i, 0.9)
    assert rate.target_bps == LEAST_BPS
