"""Who runs next, under a fake clock."""

from __future__ import annotations

from dataclasses import dataclass

from streamgen.scheduler import Scheduler


@dataclass
class Video:
    """A session that needs `passes` passes a chunk and is played without pause."""

    name: str
    deadline: float
    passes: int = 3
    is_mid_chunk: bool = False
    may_begin: bool = True
    done: int = 0

    def deadline_s(self, now: float) -> float:
        return self.deadline

    def run_pass(self, chunk_s: float) -> None:
        self.done += 1
        self.is_mid_chunk = self.done % self.passes != 0
        if not self.is_mid_chunk:
            self.deadline += chunk_s


def names(videos: list[Video]) -> str:
    return "".join(video.name for video in videos)


def test_the_earliest_deadline_comes_first() -> None:
    videos = [Video("a", 3.0), Video("b", 1.0), Video("c", 2.0)]
    assert names(Scheduler(8).pick(videos, 0.0)) == "bca"


def test_a_batch_is_cut_at_the_least_urgent() -> None:
    videos = [Video("a", 3.0), Video("b", 1.0), Video("c", 2.0)]
    assert names(Scheduler(2).pick(videos, 0.0)) == "bc"


def test_equals_keep_their_order() -> None:
    assert names(Scheduler(8).pick([Video(n, 1.0) for n in "abc"], 0.0)) == "abc"


def test_a_session_mid_chunk_goes_on_and_one_that_may_not_begin_rests() -> None:
    running = Video("a", 9.0, is_mid_chunk=True, may_begin=False)
    resting = Video("b", 0.0, may_begin=False)
    assert names(Scheduler(8).pick([resting, running], 5.0)) == "a"
    assert Scheduler(8).pick([resting], 5.0) == []
    assert Scheduler(8).pick([], 5.0) == []


def test_under_overload_sessions_take_turns() -> None:
    """Three sessions, room for one row, all late for ever: nobody is left behind."""
    scheduler, now = Scheduler(1), 0.0
    videos = [Video(n, deadline=0.0) for n in "abc"]
    for _ in range(90):
        now += 1.0
        (chosen,) = scheduler.pick(videos, now)
        chosen.run_pass(chunk_s=0.75)
    assert [video.done for video in videos] == [30, 30, 30]


def test_below_the_bound_no_deadline_is_missed() -> None:
    """Four videos, 3 passes of 50 ms for every 0.75 s played, one row a pass: 80 % busy."""
    scheduler, now = Scheduler(1), 0.0
    videos = [Video(n, deadline=1.0) for n in "abcd"]
    while now < 60.0:
        for video in videos:
            assert video.deadline > now, (video, now)
            video.may_begin = video.deadline - now < 1.0  # the lead's bound
        chosen = scheduler.pick(videos, now)
        now += 0.05
        for video in chosen:
            video.run_pass(chunk_s=0.75)
