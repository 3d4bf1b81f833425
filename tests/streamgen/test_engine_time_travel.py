"""Going back: on from an earlier chunk under new numbers, and time that never does."""

from __future__ import annotations

import numpy as np
import pytest

from streamgen.errors import InvalidRequest, NotFound
from streamgen.messages import Applied, Rejected, Rewind, SetPrompt, Superseded, Update
from streamgen.text import TextMix
from tests.streamgen.studio import (
    PASSES,
    Studio,
    alone,
    assert_numbered,
    assert_same,
    psnr_db,
)

# What is made again from latents is close to what was: 69 to 77 dB were measured with this model,
# where neighbouring chunks are 21 dB apart.
CLOSE_DB = 60.0
RED = TextMix.of("a red ball")


@pytest.mark.parametrize("to_chunk", [1, 4, 7])
def test_a_rewind_goes_on_from_the_earlier_chunk_under_new_numbers(to_chunk: int) -> None:
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 8)
        receipt = studio.engine.control(session.id, Rewind(to_chunk, "back"))
        assert receipt.prompt_revision == 1
        chunks = studio.make(session, 11)
        assert_numbered(chunks)
        branch = chunks[8:]
        assert branch[0].started_event_ids == ("back",)
        assert [c.record.draw for c in branch] == [to_chunk + 1, to_chunk + 2, to_chunk + 3]
        for chunk in branch:
            if chunk.record.draw < 8:
                assert psnr_db(chunk, chunks[chunk.record.draw]) > CLOSE_DB
        (applied,) = [e for e in studio.events[session.id] if isinstance(e, Applied)]
        assert applied == Applied("back", 1, 8, branch[0].first_frame_index, branch[0].pts_s)


def test_a_rewind_brings_back_prompt_seed_steps_and_frame_rate_of_its_chunk() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, SetPrompt("a star"))
        studio.engine.control(session.id, Update(seed=7, steps=4, fps=8))
        studio.rest(session, 6)
        studio.engine.control(session.id, Rewind(2))
        chunks = studio.make(session, 8)
        records = [c.record for c in chunks[6:]]
        assert [(r.text, r.seed, r.steps, r.fps) for r in records] == [(RED, 42, 2, 16)] * 2
        assert [c.prompt_revision for c in chunks] == [0] * 3 + [1] * 3 + [2] * 2
        assert_numbered(chunks)


def test_a_rewind_takes_the_place_of_all_that_was_pending_and_of_no_more() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 5)
        studio.engine.control(session.id, SetPrompt("never shown", event_id="p"))
        studio.engine.control(session.id, Update(seed=7, event_id="u"))
        studio.engine.control(session.id, Rewind(1, "first"))
        studio.engine.control(session.id, Rewind(2, "back"))
        studio.engine.control(session.id, SetPrompt("a star", event_id="after"))
        chunks = studio.make(session, 6)
        events = studio.events[session.id]
        told = [e.event_id for e in events if isinstance(e, Superseded)]
        assert sorted(told) == ["first", "p", "u"]
        assert chunks[5].started_event_ids == ("back", "after")
        assert (str(chunks[5].record.text), chunks[5].seed) == ("a star", 42)
        assert chunks[5].record.draw == 3


@pytest.mark.parametrize("num_steps", range(1, 2 * PASSES + 1))
def test_a_chunk_in_work_is_finished_before_a_rewind(num_steps: int) -> None:
    expected = alone(8)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 5)
        for _ in range(num_steps):
            studio.step()
        begun = session.num_chunks
        studio.engine.control(session.id, Rewind(3, "back"))
        chunks = studio.make(session, begun + 2)
        assert_same(chunks[:begun], expected[:begun])
        assert chunks[begun].started_event_ids == ("back",)
        assert [c.record.draw for c in chunks[begun:]] == [4, 5]


def test_a_rewind_ends_a_blend_and_shows_the_mix_of_its_chunk() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, SetPrompt("a star", "blend", 4, event_id="b"))
        studio.rest(session, 6)
        studio.engine.control(session.id, Rewind(4))
        chunks = studio.make(session, 8)
        half = TextMix((("a red ball", 0.5), ("a star", 0.5)))
        assert [c.record.text for c in chunks[6:]] == [half] * 2
        assert not any(isinstance(e, Superseded) for e in studio.events[session.id])


def test_a_rewind_across_a_reset_is_in_the_earlier_scene_again() -> None:
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.rest(session, 5)
        studio.engine.control(session.id, SetPrompt("the sea", "reset"))
        studio.rest(session, 8)
        studio.engine.control(session.id, Rewind(3))
        chunks = studio.make(session, 10)
        assert [c.record.epoch for c in chunks] == [0] * 5 + [1] * 3 + [0] * 2
        assert psnr_db(chunks[8], chunks[4]) > CLOSE_DB
        assert_numbered(chunks)
        with pytest.raises(NotFound):
            studio.engine.control(session.id, Rewind(6))  # of the branch that was left


@pytest.mark.parametrize("to_chunk", [0, 3, 99])
def test_a_rewind_to_a_chunk_that_is_not_kept_names_those_that_are(to_chunk: int) -> None:
    with Studio(deterministic=True, history_seconds=2) as studio:
        session = studio.open()
        studio.rest(session, 20)
        with pytest.raises(NotFound, match=rf"chunk {to_chunk} is not kept; there is 1\d to 19"):
            studio.engine.control(session.id, Rewind(to_chunk))
        assert_same(studio.make(session, 22), alone(22))


def test_a_rewind_whose_chunk_was_let_go_in_the_meantime_is_rejected() -> None:
    """It waits for the chunk in work, which may push the oldest one out."""
    expected = alone(12)
    with Studio(deterministic=True, history_seconds="none") as studio:
        session = studio.open()
        studio.rest(session, 8)
        studio.step()
        oldest = next(c.index for c in session.history if is_kept(studio, session.id, c.index))
        studio.engine.control(session.id, Rewind(oldest, "back"))
        chunks = studio.make(session, 12)
        (rejected,) = [e for e in studio.events[session.id] if isinstance(e, Rejected)]
        assert (rejected.event_id, rejected.code) == ("back", "not_found")
        assert f"chunk {oldest} is not kept" in rejected.message
        assert_same(chunks, expected)


def is_kept(studio: Studio, session_id: str, index: int) -> bool:
    try:
        studio.engine.find(session_id).history.find(index)
    except NotFound:
        return False
    return True


def test_a_video_with_an_end_is_not_rewound_but_forked() -> None:
    with Studio() as studio:
        session = studio.open(num_frames=40)
        studio.rest(session, 2)
        with pytest.raises(InvalidRequest, match="fork it"):
            studio.engine.control(session.id, Rewind(0))
        child = studio.engine.fork(session.id, 0)
        while studio.step():
            pass
        assert sum(len(c.frames) for c in studio.made(child)) == 40 - 9


@pytest.mark.parametrize("how", ["suspended", "paused"])
def test_a_session_at_rest_can_be_rewound(how: str) -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 6)
        if how == "suspended":
            studio.engine.suspend(session.id)
        else:
            studio.engine.control(session.id, Update(paused=True))
        studio.engine.control(session.id, Rewind(2, "back"))
        if how == "suspended":
            studio.engine.resume(session.id)
        else:
            studio.engine.control(session.id, Update(paused=False))
        chunk = studio.make(session, 7)[-1]
        assert (chunk.index, chunk.record.draw) == (6, 3)
        assert "back" in chunk.started_event_ids


@pytest.mark.parametrize("fps", [4, 60])
def test_a_session_remembers_so_many_seconds_at_whatever_frame_rate(fps: int) -> None:
    with Studio(history_seconds=4) as studio:
        session = studio.open()
        studio.engine.control(session.id, Update(fps=fps))
        chunks = studio.make(session, 40)
        long_ago = next(c for c in chunks if c.pts_s > session.pts_s - 4)
        studio.engine.control(session.id, Rewind(long_ago.index))
        assert len(session.history) <= 4 * fps / 12 + 6


def test_the_frame_rate_may_change_at_any_chunk_and_time_never_goes_back() -> None:
    with Studio(deterministic=True) as studio:
        session = studio.open()
        for n, fps in enumerate((30, 1, 60, 16), start=1):
            studio.rest(session, 2 * n)
            studio.engine.control(session.id, Update(fps=fps))
        chunks = studio.make(session, 10)
        assert [c.fps for c in chunks] == [16] * 2 + [30] * 2 + [1] * 2 + [60] * 2 + [16] * 2
        assert_numbered(chunks)
        for chunk, reference in zip(chunks, alone(10), strict=True):  # the pictures are the same
            np.testing.assert_array_equal(chunk.frames, reference.frames)
