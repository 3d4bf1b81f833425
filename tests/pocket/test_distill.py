"""The few-step distillation: where segments begin, and what is learnt on them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from streamgen.models.causal_dit import CausalDiT, SelfAttention
from streamgen.pocket.config import CHUNK_FRAMES, DIT
from streamgen.pocket.train import distill
from streamgen.pocket.train.distill import (
    Clips,
    Models,
    guided_flow,
    level,
    noised,
    opening_loss,
    rolled_out,
    segment_error,
    walked,
)
from streamgen.pocket.train.dit import alone

SPEED = 2.0


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> CausalDiT:
    """Return a model along whose flow everything moves at one speed."""

    def flow_of(model: CausalDiT, rows: dict[str, Tensor], attention: SelfAttention) -> Tensor:
        return torch.full_like(rows["latents"], SPEED)

    monkeypatch.setattr(distill, "flow_of", flow_of)
    with torch.device("meta"):
        return CausalDiT(DIT)


def some_clips(count: int, chunks: int = 1) -> Clips:
    x0 = torch.randn(count, chunks, CHUNK_FRAMES, 2, 4, 4)
    return Clips(x0, x0, torch.zeros(count, chunks, 6, dtype=torch.int64))


def test_segments_are_the_shifted_schedule() -> None:
    assert level(torch.arange(5)).tolist() == pytest.approx([1, 0.9375, 5 / 6, 0.625, 0])


def test_noised_clips_begin_as_noise_and_end_as_themselves() -> None:
    x0 = some_clips(2).x0
    noise = torch.randn_like(x0)
    begun = noised(x0, noise, torch.tensor([[0], [distill.NUM_PASSES]]))
    assert torch.equal(begun, torch.stack([noise[0], x0[1]]))


def test_a_roll_out_goes_as_far_as_each_chunks_segment(model: CausalDiT) -> None:
    clips, segment = some_clips(4), torch.arange(4)[:, None]
    noise = torch.randn_like(clips.x0)
    reached = rolled_out(model, clips, noise, segment)
    way = (level(segment) - 1)[:, :, None, None, None, None] * SPEED
    torch.testing.assert_close(reached, noise + way)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("substeps", [1, 3])
def test_who_walks_as_the_teacher_does_has_no_error(
    model: CausalDiT, chunks: int, substeps: int
) -> None:
    clips = some_clips(4, chunks)
    segment = torch.arange(4)[:, None].expand(-1, chunks)
    begun = noised(clips.x0, torch.randn_like(clips.x0), segment)
    ended = walked(Models(model, model, 1.6, substeps), clips, begun, segment)
    error = segment_error(model, clips, begun, ended, segment)
    assert error.shape == clips.x0.shape
    torch.testing.assert_close(error, torch.zeros_like(error), atol=1e-4, rtol=0)


def test_no_guidance_asks_the_teacher_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Tensor] = []

    def flow_of(model: CausalDiT, rows: dict[str, Tensor], attention: SelfAttention) -> Tensor:
        asked.append(rows["labels"])
        return rows["labels"].float()

    monkeypatch.setattr(distill, "flow_of", flow_of)
    with torch.device("meta"):
        model = CausalDiT(DIT)
    rows = {"labels": torch.full((2, 6), 3)}
    plain = guided_flow(Models(model, model, 1.0, 1), rows, alone)
    assert len(asked) == 1
    assert bool((plain == 3).all())
    pushed = guided_flow(Models(model, model, 1.6, 1), rows, alone)
    assert len(asked) == 3
    assert pushed.flatten().tolist() == pytest.approx([4.8] * 12)


def test_first_chunks_are_led_to_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says at once which way the clip lies, from wherever it is, has no error."""
    torch.manual_seed(0)
    x0 = torch.randn(CHUNK_FRAMES, 12, 16, 16)
    batch = {
        "latents": x0.repeat(8, 1, 1, 1, 1),
        "labels": torch.zeros(8, 1, 6, dtype=torch.int64),
        "object": torch.ones(8, CHUNK_FRAMES, 16, 16, dtype=torch.bool),
        "start": torch.zeros(8, dtype=torch.int8),
    }

    def flow_of(model: CausalDiT, rows: dict[str, Tensor], attention: SelfAttention) -> Tensor:
        sigma = rows["t"][:, :1, None, None, None] / 1000
        return (rows["latents"] - x0) / sigma

    monkeypatch.setattr(distill, "flow_of", flow_of)
    with torch.device("meta"):
        model = CausalDiT(DIT)
    assert float(opening_loss(model, batch)) < 1e-8
    monkeypatch.setattr(distill, "flow_of", lambda *rest: flow_of(*rest) + 0.5)
    assert float(opening_loss(model, batch)) > 0.1
