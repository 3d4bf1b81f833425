"""What a suspended session keeps, and what is made again."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen.errors import Capacity
from streamgen.messages import Queued, SetPrompt, Update
from streamgen.record import ChunkRecord
from streamgen.session import Session
from tests.streamgen.studio import (
    PASSES,
    Studio,
    alone,
    assert_same,
    watch_prompts,
)


@pytest.mark.parametrize("passes_done", range(3 * PASSES))
def test_a_suspended_session_goes_on_where_it_stopped(passes_done: int) -> None:
    """Nothing was evicted yet, so what is made again is what was there, bit for bit."""
    expected = alone(3)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        for _ in range(passes_done):
            studio.step()
        studio.engine.suspend(session.id)
        studio.engine.suspend(session.id)
        assert studio.audit() == studio.pool.num_pages
        assert not any(studio.engine.runner.text._pins)
        studio.engine.resume(session.id)
        studio.engine.resume(session.id)
        assert_same(studio.make(session, 3), expected)


def test_what_was_before_a_reset_is_not_rebuilt() -> None:
    fresh = alone(3)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 4)
        studio.engine.control(session.id, Update(reset="cache"))
        begun = session.num_chunks
        studio.make(session, begun + 2)
        studio.engine.suspend(session.id)
        studio.engine.resume(session.id)
        chunks = studio.make(session, begun + 3)[begun:]
    for chunk, reference in zip(chunks, fresh, strict=True):
        np.testing.assert_array_equal(chunk.latents, reference.latents)
        np.testing.assert_array_equal(chunk.frames, reference.frames)


@pytest.mark.parametrize("sink", [0, 1, 3])
def test_a_rebuilt_window_holds_the_same_frames_each_under_its_own_prompt(sink: int) -> None:
    with Studio(deterministic=True, sink=sink) as studio:
        session = studio.open()
        for n in range(1, 8):
            studio.make(session, n)
            studio.engine.control(session.id, SetPrompt(f"scene {n}"))
        studio.rest(session)
        held = session.table.frames
        kept = [c for c in session.history.in_window() if {*frames_of(c)} & {*held}]
        studio.engine.suspend(session.id)
        texts = watch_prompts(studio)
        studio.engine.resume(session.id)
        while session.needs_rebuild:
            studio.step()
        assert session.table.frames == held
        assert [{str(k.text)} for k in kept] == list(texts[session.id].values())
        rebuilt = keys_of(studio, session)
        studio.engine.suspend(session.id)
        studio.engine.resume(session.id)
        while session.needs_rebuild:
            studio.step()
        again = keys_of(studio, session)
        assert torch.equal(rebuilt, again)
        frames = len(studio.chunks[session.id])
        assert len(studio.make(session, frames + 1)[-1].frames) == 12  # no seam in the decoder


def test_resuming_takes_a_place_like_opening() -> None:
    with Studio(max_sessions=1) as studio:
        session = studio.open()
        studio.make(session, 1)
        studio.engine.suspend(session.id)
        other = studio.open("other")
        with pytest.raises(Capacity) as caught:
            studio.engine.resume(session.id)
        assert caught.value.retry_after_s
        studio.engine.close(other.id)
        studio.engine.resume(session.id)
        studio.make(session, 2)


def frames_of(chunk: ChunkRecord) -> range:
    return range(chunk.first_latent, chunk.first_latent + len(chunk.latents))


def keys_of(studio: Studio, session: Session) -> Tensor:
    """Return a copy of all K and V that a session holds, frames ascending."""
    assert session.table is not None
    pages = [p for frame in session.table.frames for p in session.table.pages_of(frame)]
    return torch.stack([layer[pages] for layer in (*studio.pool.k, *studio.pool.v)])


def test_those_behind_are_told_when_one_that_waits_is_suspended() -> None:
    with Studio(max_sessions=1, max_queue=3) as studio:
        studio.open()
        _, leaving, behind = [studio.open(f"scene {n}") for n in range(3)]
        assert positions(studio, behind) == [2]
        studio.engine.suspend(leaving.id)
        assert positions(studio, behind) == [2, 1]
        studio.engine.resume(leaving.id)
        assert positions(studio, leaving)[-1] == 2
        studio.engine.close(behind.id)
        assert positions(studio, leaving)[-1] == 1


def positions(studio: Studio, session: Session) -> list[int]:
    """Return the places in the queue that a session was told, each once in a row."""
    told = [e.position for e in studio.events[session.id] if isinstance(e, Queued)]
    return [place for place, _ in groupby(told)]
