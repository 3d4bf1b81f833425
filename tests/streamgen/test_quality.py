"""Sampled quality: chunks made again on the reference path are the ones that were shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen.device_state import measures_of, memory
from streamgen.errors import Capacity
from streamgen.measures import Measures
from streamgen.messages import SetPrompt, Update
from streamgen.model_runner import StepBatch
from streamgen.quality import QualitySampler, Remaker
from streamgen.session import Session
from streamgen.text import TextBlend
from tests.streamgen.studio import PASSES, Studio
from tests.streamgen.tiny import TINY

CHUNKS_IN_WINDOW = TINY.window_frames // TINY.chunks.chunk_frames
OFTEN = 0.001  # seconds of the studio's clock: each chunk that can be


def finish(studio: Studio) -> Measures:
    """Let the sampler do what waits, as an engine's worker does, and return what was measured."""
    engines = [maker.engine for maker in (sampler_of(studio).reference, sampler_of(studio).again)]
    while studio.engine.watch.step() or any(engine.num_decoding for engine in engines):
        for engine in engines:
            engine.emit_decoded(wait_for=engine.num_decoding)
    return measures_of(studio.engine)


def sampler_of(studio: Studio) -> QualitySampler:
    """Return an engine's sampler."""
    sampler = studio.engine.watch.sampler
    assert isinstance(sampler, QualitySampler)
    return sampler


def count_passes(maker: Remaker, monkeypatch: pytest.MonkeyPatch) -> list[StepBatch]:
    """Return a list that gets each pass of one that makes chunks again."""
    runner, passes = maker.engine.runner, list[StepBatch]()
    run = runner.run

    def counted(batch: StepBatch) -> list[Tensor]:
        passes.append(batch)
        return run(batch)

    monkeypatch.setattr(runner, "run", counted)
    return passes


def sampled(studio: Studio, session: Session, num_chunks: int) -> list[float]:
    """Make so many chunks, each sampled before the next if it is taken; return the figures."""
    figures: list[float] = []
    for _ in range(num_chunks):
        studio.more(session, 1)
        figures += finish(studio).quality_db
    return figures


def test_chunks_that_see_all_of_their_past_are_compared_as_they_were_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batched, fused, with another session: in float32 the last bits are all that differs."""
    with Studio(sample_quality=OFTEN) as studio:
        session, _ = studio.open(), studio.open("another", seed=7)
        again = count_passes(sampler_of(studio).again, monkeypatch)
        passes = count_passes(sampler_of(studio).reference, monkeypatch)
        figures = sampled(studio, session, CHUNKS_IN_WINDOW)
        assert len(figures) == CHUNKS_IN_WINDOW
        assert min(figures) > 70
        assert not again
        assert all(len(batch.rows) == 1 for batch in passes)
        # Each chunk's passes, and before them one for each chunk of its past.
        assert len(passes) >= CHUNKS_IN_WINDOW * PASSES


@pytest.mark.parametrize("pixel_format", ["rgb", "i420"])
def test_later_chunks_are_made_again_on_both_paths(
    pixel_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What went before them is not known exactly, and is the same for both."""
    with Studio(sample_quality=OFTEN, sink=1, pixel_format=pixel_format) as studio:
        session = studio.open()
        assert min(sampled(studio, session, CHUNKS_IN_WINDOW + 1)) > 70
        again = count_passes(sampler_of(studio).again, monkeypatch)
        figures = sampled(studio, session, 3)
        assert len(again) >= 3 * PASSES
        assert len(figures) == 3
        assert min(figures) > 70
        studio.engine.control(session.id, SetPrompt("a box", "recache"))
        assert min(sampled(studio, session, 2)) > 70


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
        assert len(figures) == 6
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
        studio.more(session, 1)  # its passes had begun
        finish(studio)
        bad = sampled(studio, session, CHUNKS_IN_WINDOW + 2)
        assert max(bad) < min(good) - 20


def test_bf16_costs_something() -> None:
    with Studio(sample_quality=OFTEN, dtype="bf16") as studio:
        figures = sampled(studio, studio.open(), 3)
        assert figures
        assert all(10 < figure < 70 for figure in figures)


def test_chunks_of_a_blend_are_let_pass() -> None:
    """On the way from one text to another; its last chunk has the new one and is taken."""
    with Studio(sample_quality=OFTEN) as studio:
        session = studio.open()
        sampled(studio, session, 2)
        studio.engine.control(session.id, SetPrompt("a star", "blend", 4))
        made = len(studio.made(session))
        figures = sampled(studio, session, 7)
        texts = [chunk.record.text for chunk in studio.made(session)[made:]]
        blended = sum(isinstance(text, TextBlend) for text in texts)
        assert blended >= 3
        assert len(figures) == len(texts) - blended


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
        reference = sampler_of(studio).reference.engine

        def full(record: object) -> None:
            raise Capacity("no page is free")

        with monkeypatch.context() as patch:
            patch.setattr(reference, "restore", full)
            assert sampled(studio, session, 1) == []
        assert "no page is free" in caplog.text
        assert len(sampled(studio, session, 1)) == 1
