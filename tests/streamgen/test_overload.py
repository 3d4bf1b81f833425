"""What is traded under overload, in which order, and when it is given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamgen.overload import ACTIONS, LEVELS, OverloadLadder, Settings, traded

ASKED = Settings(steps=4, window_frames=21, fps=16)
LEAST = Settings(steps=2, window_frames=6, fps=8)


def run(
    ladder: OverloadLadder,
    start: float,
    seconds: float,
    *,
    late: bool = False,
    utilisation: float = 0.8,
    asked: float = 0.8,
) -> list[int]:
    """Go on for a while, four chunks a second; return the levels entered."""
    levels = []
    for tick in range(int(4 * seconds)):
        now = start + tick / 4
        ladder.note_chunk(now, late=late)
        if ladder.update(now, utilisation=utilisation, asked=asked):
            levels.append(ladder.level)
    return levels


def test_while_nobody_is_late_nothing_is_traded() -> None:
    ladder = OverloadLadder()
    assert run(ladder, 0.0, 60.0) == []
    assert ladder.level == 0


def test_one_late_chunk_is_an_accident() -> None:
    ladder = OverloadLadder()
    ladder.note_chunk(1.0, late=True)
    assert run(ladder, 1.0, 9.0) == []


def test_while_chunks_are_late_one_level_after_another_is_entered() -> None:
    ladder = OverloadLadder()
    assert run(ladder, 0.0, 60.0, late=True) == list(LEVELS)


def test_each_level_has_time_to_show_what_it_does() -> None:
    ladder = OverloadLadder()
    assert run(ladder, 0.0, 1.5, late=True) == [1]
    assert run(ladder, 1.5, 0.5, late=True) == []
    assert run(ladder, 2.0, 1.0, late=True) == [2]


def test_a_level_that_helps_is_the_last_and_is_kept_until_all_fits_again() -> None:
    ladder = OverloadLadder()
    run(ladder, 0.0, 3.0, late=True)
    assert ladder.level == 2
    assert run(ladder, 3.0, 60.0, utilisation=0.7, asked=1.1) == []
    assert run(ladder, 63.0, 60.0, utilisation=0.5, asked=0.8) == [1, 0]


def test_too_much_work_is_seen_before_anybody_is_late() -> None:
    assert run(OverloadLadder(), 0.0, 1.0, utilisation=1.1, asked=1.1) == [1]


def test_calm_must_last_before_each_step_back() -> None:
    ladder = OverloadLadder()
    run(ladder, 0.0, 3.0, late=True)
    assert run(ladder, 3.0, 9.0) == []
    assert run(ladder, 12.0, 2.0) == [1]
    ladder.note_chunk(14.0, late=True)
    assert run(ladder, 14.0, 9.9) == []
    assert run(ladder, 24.0, 1.0) == [0]


def test_a_step_back_that_fails_makes_the_next_one_wait_longer() -> None:
    ladder = OverloadLadder()
    run(ladder, 0.0, 3.0, late=True)
    assert run(ladder, 3.0, 11.0) == [1]
    assert run(ladder, 14.0, 1.5, late=True) == [2]
    assert run(ladder, 15.5, 15.0) == []
    assert run(ladder, 30.5, 5.0) == [1]


def test_when_nobody_plays_any_more_everything_is_given_back_at_once() -> None:
    ladder = OverloadLadder()
    for now in (0.0, 3.0, 6.0):
        assert ladder.update(now, utilisation=2.0, asked=2.0)
    assert ladder.level == 3
    assert ladder.update(6.1, utilisation=0.0, asked=0.0)
    assert ladder.level == 0
    assert not ladder.update(6.2, utilisation=0.0, asked=0.0)
    assert not ladder.update(7.0, utilisation=0.5, asked=0.5)


def test_levels_that_change_nothing_here_are_passed_over() -> None:
    ladder = OverloadLadder(levels=(1, 4, 5))
    assert run(ladder, 0.0, 60.0, late=True) == [1, 4, 5]
    assert OverloadLadder(levels=()).update(0.0, utilisation=2.0, asked=2.0) is False


def test_every_level_has_a_sentence_of_its_own_for_viewers() -> None:
    assert sorted(ACTIONS) == [0, *LEVELS]
    assert len(set(ACTIONS.values())) == len(ACTIONS)
    ladder = OverloadLadder()
    assert ladder.action == ACTIONS[0]
    run(ladder, 0.0, 1.0, late=True)
    assert ladder.action == ACTIONS[1]


def test_what_each_level_leaves_of_a_session() -> None:
    assert [traded(level, ASKED, LEAST) for level in range(6)] == [
        ASKED,
        ASKED,
        Settings(2, 21, 16),
        Settings(2, 11, 16),
        Settings(2, 11, 12),
        Settings(2, 11, 12),
    ]


@given(st.integers(0, 5), st.builds(Settings, *[st.integers(1, 60)] * 3))
def test_nothing_is_traded_below_the_least_or_above_what_was_asked(
    level: int, asked: Settings
) -> None:
    left = traded(level, asked, LEAST)
    for name in ("steps", "window_frames", "fps"):
        whole, least = getattr(asked, name), getattr(LEAST, name)
        assert min(whole, least) <= getattr(left, name) <= whole


@given(
    st.lists(st.tuples(st.floats(0, 3), st.booleans(), st.floats(0, 2), st.floats(0.01, 2))),
    st.sampled_from([LEVELS, (1,), (2, 5), ()]),
)
def test_levels_change_one_by_one_and_not_sooner_than_they_show(
    story: list[tuple[float, bool, float, float]], levels: tuple[int, ...]
) -> None:
    ladder, now, changed_at, rungs = OverloadLadder(levels), 0.0, float("-inf"), [0, *levels]
    for wait_s, late, utilisation, asked in story:
        now += wait_s
        ladder.note_chunk(now, late=late)
        before = ladder.level
        if ladder.update(now, utilisation=utilisation, asked=asked):
            assert abs(rungs.index(ladder.level) - rungs.index(before)) == 1
            assert now - changed_at >= 2.0
            changed_at = now
        else:
            assert ladder.level == before
