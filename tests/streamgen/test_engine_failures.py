"""A pass or a decode that fails once changes nothing; twice, it ends one session."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from streamgen.messages import Failed, SetPrompt, StateChanged
from streamgen.model_runner import StepBatch
from tests.streamgen.studio import (
    FRAMES,
    PASSES,
    Studio,
    alone,
    assert_same,
    failing,
    slot_of,
)
from tests.streamgen.tiny import TINY


@pytest.mark.parametrize("failing_pass", range(3 * PASSES))
def test_a_pass_that_fails_once_is_rolled_back_and_changes_nothing(failing_pass: int) -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 3)
        for _ in range(failing_pass):
            studio.step()
        with failing(studio, lambda batch: True):
            studio.step()
        assert_same(studio.make(session, 6), expected)


def test_a_session_that_fails_twice_ends_alone_and_its_viewers_are_told() -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session, bad = studio.open(), studio.open("bad", seed=1)
        studio.make(session, 2)
        while bad.work is None:
            studio.step()
        with failing(
            studio, lambda batch: any(r.text_slot == slot_of(studio, "bad") for r in batch.rows)
        ):
            while bad.id in studio.engine.sessions:
                studio.step()
        assert studio.events[bad.id][-2:] == [
            Failed("internal", "a pass failed twice: out of luck", True),
            StateChanged("failed", "internal"),
        ]
        assert_same(studio.make(session, 6), expected)
        assert studio.audit() == studio.pool.num_pages - FRAMES


def test_running_out_of_memory_twice_has_its_own_code() -> None:
    with Studio() as studio:
        session = studio.open()

        def full(batch: StepBatch) -> list[Tensor]:
            raise torch.OutOfMemoryError("no room")

        studio.engine.runner.run = full  # type: ignore[method-assign]
        for _ in range(2):
            studio.step()
        (failed,) = [e for e in studio.events[session.id] if isinstance(e, Failed)]
        assert (failed.code, failed.retryable) == ("out_of_memory", True)


@pytest.mark.parametrize("times", [1, 2])
def test_values_that_are_not_finite_never_leave(times: int) -> None:
    expected = alone(4)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 2)
        studio.rest(session)
        begun = session.num_chunks
        run = studio.engine.runner.run

        def poisoned(batch: StepBatch) -> list[Tensor]:
            return [torch.full_like(flow, torch.nan) for flow in run(batch)]

        studio.engine.runner.run = poisoned  # type: ignore[method-assign]
        for _ in range(times * TINY.steps):
            studio.step()
        studio.engine.runner.run = run  # type: ignore[method-assign]
        if times == 1:
            assert_same(studio.make(session, 4), expected)
        else:
            (failed,) = [e for e in studio.events[session.id] if isinstance(e, Failed)]
            assert "not finite" in failed.message
            assert len(studio.chunks[session.id]) == begun
            assert studio.audit() == studio.pool.num_pages


def test_a_text_encoder_that_fails_once_loses_no_control() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 2)
        studio.rest(session)
        begun = session.num_chunks
        encoder = studio.engine.runner.text_encoder
        studio.engine.runner.text_encoder = None  # type: ignore[assignment]
        studio.engine.control(session.id, SetPrompt("a star", event_id="e"))
        studio.step()
        studio.engine.runner.text_encoder = encoder
        chunk = studio.make(session, begun + 1)[-1]
        assert (chunk.prompt_revision, chunk.started_event_ids) == (1, ("e",))


@pytest.mark.parametrize("times", [1, 2])
def test_a_decode_that_fails_is_tried_again_once(times: int) -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 1)
        vae = studio.engine.decoder._vae
        studio.engine.decoder._vae = FailingVAE(vae, times)  # type: ignore[assignment]
        if times == 1:
            assert len(studio.make(session, 2)[-1].frames) == 12
        else:
            while session.id in studio.engine.sessions:
                studio.step()
            assert isinstance(studio.events[session.id][-2], Failed)
            assert studio.audit() == studio.pool.num_pages


class FailingVAE:
    """A decoder that raises a few times before it works."""

    def __init__(self, vae: Any, times: int) -> None:
        self.vae, self.times = vae, times

    def decode_step(self, latents: Tensor, state: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("out of luck")
        return self.vae.decode_step(latents, state)
