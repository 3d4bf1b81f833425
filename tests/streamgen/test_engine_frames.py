"""How many frames come, what they show, and what their chunk saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from streamgen.errors import InvalidRequest
from streamgen.messages import StateChanged
from streamgen.pixels import to_i420
from streamgen.session import Session
from streamgen.work import ChunkWork
from tests.streamgen.studio import (
    FRAMES,
    Studio,
)
from tests.streamgen.tiny import with_chunks


@pytest.mark.parametrize("wanted", [1, 4, 9, 10, 33, 34])
def test_q27_exactly_the_frames_asked_for_are_delivered(wanted: int) -> None:
    with Studio() as studio:
        session = studio.open(num_frames=wanted)
        while studio.step():
            pass
        assert sum(len(c.frames) for c in studio.chunks[session.id]) == wanted
        assert studio.events[session.id][-1] == StateChanged("closed", "done")
        assert studio.audit() == studio.pool.num_pages


@pytest.mark.parametrize("layout", [(1, None), (2, None), (4, 1), (21, None)])
def test_q27_any_chunk_length_works(layout: tuple[int, int | None]) -> None:
    preset = with_chunks(chunk_frames=layout[0], first_chunk_frames=layout[1])
    with Studio(preset, window=24) as studio:
        session = studio.open(num_frames=90)
        while studio.step():
            pass
        chunks = studio.chunks[session.id]
        assert sum(len(c.frames) for c in chunks) == 90
        firsts = [c.first_frame_index for c in chunks]
        assert firsts == np.cumsum([0, *(len(c.frames) for c in chunks[:-1])]).tolist()


@pytest.mark.parametrize("pixel_format", ["rgb", "i420"])
@pytest.mark.parametrize("suspend_after", [None, 2, 6])
def test_frames_of_a_stream_are_those_of_one_decode(
    suspend_after: int | None, pixel_format: str
) -> None:
    """Also after a resume: the decoder's memory is remade from the last latents."""
    with Studio(pixel_format=pixel_format) as studio:
        session = studio.open()
        if suspend_after is not None:
            studio.make(session, suspend_after)
            studio.engine.suspend(session.id)
            studio.engine.resume(session.id)
        chunks = studio.make(session, 8)
        latents = torch.from_numpy(np.concatenate([c.latents for c in chunks]))
        vae: Any = studio.engine.decoder._vae
        whole, _ = vae.decode_step(latents[None], vae.decoder_state())
        expected = to_i420(whole[0])
        if pixel_format == "rgb":
            expected = whole[0].mul(255).round().to(torch.uint8).permute(0, 2, 3, 1)
        np.testing.assert_array_equal(np.concatenate([c.frames for c in chunks]), expected)


def test_nobody_watching_the_session_comes_to_rest() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.engine.played = lambda *report: None  # type: ignore[method-assign]
        while studio.step():
            pass
        assert session.lead_frames == 21
        assert len(studio.chunks[session.id]) == 2


@pytest.mark.parametrize(
    ("window", "sink", "expected"),
    [
        (12, 0, range(21, 33)),
        (12, 3, [0, 1, 2, *range(24, 33)]),
        (12, 1, [0, *range(22, 33)]),
        (7, 0, range(26, 33)),  # not a multiple of the chunk
        (6, 3, [0, 1, 2, 30, 31, 32]),
    ],
)
@pytest.mark.parametrize("per_session", [False, True])
def test_q39_a_window_is_what_was_asked_for(
    window: int, sink: int, expected: Any, per_session: bool
) -> None:
    options: dict[str, Any] = {"window": window, "sink": sink}
    with Studio(**({"window": 12} if per_session else options)) as studio:
        session = studio.open(**(options if per_session else {}))
        assert seen_at(studio, session, 30) == set(expected)


def test_q39_without_a_window_everything_is_seen() -> None:
    with Studio(window="none", max_session_seconds=10) as studio:
        assert seen_at(studio, studio.open(), 30) == set(range(33))


@pytest.mark.parametrize("num_latents", [9, 10, 12, 60])
def test_q35_a_stream_runs_past_its_window(num_latents: int) -> None:
    with Studio() as studio:
        chunks = studio.make(studio.open(), -(-num_latents // 3))
        assert all(np.isfinite(c.latents).all() for c in chunks)
        assert studio.audit() == studio.pool.num_pages - FRAMES


def test_q35_what_cannot_be_is_refused_at_admission_and_takes_nothing() -> None:
    with Studio() as studio:
        for fields in ({"window": 6, "sink": 6}, {"window": -1}, {"window": 10}, {"window": 2}):
            with pytest.raises(InvalidRequest):
                studio.open(**fields)
        assert studio.audit() == studio.pool.num_pages


def seen_at(studio: Studio, session: Session, frame: int) -> set[int]:
    """Return the latent frames that the chunk with this latent frame attends to."""
    while True:
        assert studio.step()
        work = session.work
        if not isinstance(work, ChunkWork):
            continue
        first = work.staging.frame_index
        if frame in range(first, first + work.staging.num_frames):
            return set(work.staging.visible_frames)
