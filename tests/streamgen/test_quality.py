"""Sampled quality: chunks made again on the reference path are the ones that were shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from streamgen.device_state import measures_of, memory
from streamgen.errors import Capacity
from streamgen.measures import Measures
from streamgen.messages import SetPrompt, Update
from streamgen.quality import MOST_DB, QualitySampler, psnr_db
from streamgen.session import Session
from tests.streamgen.studio import Studio
from tests.streamgen.tiny import TINY

OFTEN = 0.001  # seconds of the studio's clock: each chunk that can be


def finish(studio: Studio) -> Measures:
    """Let the sampler do what waits, as an engine's worker does, and return what was measured."""
    sampler = studio.engine.watch.sampler
    assert isinstance(sampler, QualitySampler)
    assert sampler.reference is not None
    while studio.engine.watch.step() or sampler.reference.num_decoding:
        sampler.reference.emit_decoded(wait_for=sampler.reference.num_decoding)
    return measures_of(studio.engine)


def sampled(studio: Studio, session: Session, num_chunks: int) -> list[float]:
    """Make so many chunks, each sampled before the next if it is taken; return the figures."""
    figures: list[float] = []
    for _ in range(num_chunks):
        studio.more(session, 1)
        figures += finish(studio).quality_db
    return figures


def test_chunks_with_their_whole_past_are_made_again_exactly() -> None:
    """Batched, fused, with another session: in float32 the last bits are all that differs."""
    with Studio(sample_quality=OFTEN) as studio:
        session, _ = studio.open(), studio.open("another", seed=7)
        figures = sampled(studio, session, 6)
        assert len(figures) >= 3
        assert min(figures) > 70


def test_prompts_seeds_steps_and_scenes_are_those_of_the_chunk() -> None:
    with Studio(sample_quality=OFTEN, window=12) as studio:
        session = studio.open()
        figures = sampled(studio, session, 1)
        for control in (
            SetPrompt("a blue star"), Update(seed=9, steps=1), SetPrompt("the sea", "reset"),
        ):  # fmt: skip
            studio.engine.control(session.id, control)
            figures += sampled(studio, session, 1)
        figures += sampled(studio, session, 2)
        assert len(figures) >= 4
        assert min(figures) > 70


def test_a_path_that_went_wrong_shows() -> None:
    """The engine's own weights are off by a little, as a bad kernel or format has them."""
    with Studio(sample_quality=OFTEN) as studio:
        session = studio.open()
        good = sampled(studio, session, 1)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in studio.engine.runner.dit.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(0.05 * parameter.abs().mean() * noise)
        studio.engine.control(session.id, SetPrompt("a star", "reset"))
        studio.more(session, 2)
        bad = [*finish(studio).quality_db, *sampled(studio, session, 2)]
        assert min(bad) < min(good) - 20


def test_bf16_costs_something() -> None:
    with Studio(sample_quality=OFTEN, dtype="bf16") as studio:
        figures = sampled(studio, studio.open(), 3)
        assert figures
        assert all(10 < figure < 70 for figure in figures)


def test_chunks_whose_past_cannot_be_made_again_are_let_pass() -> None:
    with Studio(sample_quality=OFTEN) as studio:
        session = studio.open()
        sampled(studio, session, TINY.window_frames // 3 + 1)
        assert sampled(studio, session, 4) == []  # the window has moved on
        studio.engine.control(session.id, SetPrompt("a star", "reset"))
        sampled(studio, session, 2)
        studio.engine.control(session.id, SetPrompt("a box", "recache"))
        studio.more(session, 1)
        finish(studio)
        assert sampled(studio, session, 3) == []


def test_only_one_in_an_interval_is_taken() -> None:
    with Studio(sample_quality=1000.0) as studio:
        session, other = studio.open(), studio.open("b", seed=3)
        assert len(sampled(studio, session, 3)) == 1
        assert sampled(studio, other, 1) == []


def test_the_session_is_not_touched() -> None:
    """The same latents, whether it is sampled or not."""
    with Studio(deterministic=True, sample_quality=OFTEN) as studio:
        session = studio.open()
        sampled(studio, session, 4)
        latents = [chunk.latents for chunk in studio.made(session)]
        assert memory(studio.engine)["reference"] > 0
    with Studio(deterministic=True) as studio:
        plain = [chunk.latents for chunk in studio.make(studio.open(), len(latents))]
    for one, other in zip(latents, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_cannot_be_made_again_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Studio(sample_quality=OFTEN) as studio:
        session = studio.open()
        sampler = studio.engine.watch.sampler
        assert isinstance(sampler, QualitySampler)
        reference = sampler.reference
        assert reference is not None

        def full(record: object) -> None:
            raise Capacity("no page is free")

        with monkeypatch.context() as patch:
            patch.setattr(reference, "restore", full)
            assert sampled(studio, session, 1) == []
        assert "no page is free" in caplog.text
        assert len(sampled(studio, session, 1)) == 1


def test_psnr() -> None:
    frames = np.full((2, 4, 4, 3), 100, np.uint8)
    assert psnr_db(frames, frames) == MOST_DB
    assert psnr_db(frames, frames + np.uint8(1)) == pytest.approx(48.13, abs=0.01)
    assert psnr_db(frames, np.zeros_like(frames)) == pytest.approx(8.13, abs=0.01)
