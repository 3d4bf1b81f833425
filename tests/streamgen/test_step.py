"""How a stream divides into chunks and passes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from streamgen.sampler import FlowSchedule, Sampler
from streamgen.step import ChunkPlan, ChunkSteps, Pass, PassKind


def sampler(kind: str = "renoise") -> Sampler:
    schedule = FlowSchedule(5.0)
    return Sampler(schedule, schedule.warp([1000, 500]), kind)  # type: ignore[arg-type]


def test_passes_denoise_then_commit() -> None:
    """Timesteps in order, then the commit at t = 0 over the finished latents."""
    steps = ChunkSteps(sampler(), lambda k: torch.full((2,), float(k)))
    flow = torch.ones(2)
    passes = []
    while not steps.is_denoised:
        passes.append(steps.current_pass)
        x0 = steps.advance(flow)
    passes.append(steps.current_pass)
    assert passes == [
        Pass(0, PassKind.DENOISE, 1000.0),
        Pass(1, PassKind.DENOISE, 833.3333129882812),
        Pass(2, PassKind.COMMIT, 0.0),
    ]
    assert steps.latents is x0


@pytest.mark.parametrize(("kind", "draws"), [("renoise", [0, 1]), ("euler", [0])])
def test_noise_is_drawn_once_a_pass_and_only_where_needed(kind: str, draws: list[int]) -> None:
    """Pass 0 always draws; later passes only to renoise; the commit never."""
    drawn: list[int] = []

    def draw(pass_index: int) -> Tensor:
        drawn.append(pass_index)
        return torch.zeros(2)

    steps = ChunkSteps(sampler(kind), draw)
    while not steps.is_denoised:
        steps.advance(torch.ones(2))
    assert drawn == draws


def test_a_chunk_tried_again_is_the_same_chunk() -> None:
    """Steps touch nothing outside: a second walk with the same noise gives the same latents."""

    def walk() -> Tensor:
        steps = ChunkSteps(sampler(), lambda k: torch.full((2,), float(k)))
        while not steps.is_denoised:
            steps.advance(steps.latents * 0.5)
        return steps.latents

    assert torch.equal(walk(), walk())


@pytest.mark.parametrize(
    ("plan", "lengths", "pixels"),
    [
        (ChunkPlan(3), [3, 3, 3], [9, 12, 12]),
        (ChunkPlan(1), [1, 1, 1], [1, 4, 4]),
        (ChunkPlan(3, first_chunk_frames=1), [1, 3, 3], [1, 12, 12]),
        (ChunkPlan(21), [21, 21], [81, 84]),
        (ChunkPlan(2, temporal_factor=2), [2, 2], [3, 4]),
    ],
)
def test_q27_chunks_decode_to_one_frame_less_than_their_share_at_the_start(
    plan: ChunkPlan, lengths: list[int], pixels: list[int]
) -> None:
    """The stream's first latent gives one frame, every later one the temporal factor."""
    assert [plan.num_frames(i) for i in range(len(lengths))] == lengths
    assert [plan.first_frame(i) for i in range(len(lengths))] == [
        sum(lengths[:i]) for i in range(len(lengths))
    ]
    assert [plan.first_pixel_frame(i) for i in range(len(pixels))] == [
        sum(pixels[:i]) for i in range(len(pixels))
    ]


@pytest.mark.parametrize(
    ("requested", "chunks_of_3", "chunks_of_1", "chunks_of_21", "first_of_1"),
    [
        (1, 1, 1, 1, 1),
        (2, 1, 2, 1, 2),
        (4, 1, 2, 1, 2),
        (5, 1, 2, 1, 2),
        (9, 1, 3, 1, 2),
        (10, 2, 4, 1, 2),
        (80, 7, 21, 1, 8),
        (81, 7, 21, 1, 8),
        (82, 8, 22, 2, 8),
        (83, 8, 22, 2, 8),
    ],
)
def test_q27_any_frame_count_is_covered_by_the_fewest_chunks(
    requested: int, chunks_of_3: int, chunks_of_1: int, chunks_of_21: int, first_of_1: int
) -> None:
    """80 to 83 frames, and 1, are all servable: the last chunk is cut to what was asked for."""
    assert ChunkPlan(3).chunks_for_pixels(requested) == chunks_of_3
    assert ChunkPlan(1).chunks_for_pixels(requested) == chunks_of_1
    assert ChunkPlan(21).chunks_for_pixels(requested) == chunks_of_21
    assert ChunkPlan(3, first_chunk_frames=1).chunks_for_pixels(requested) == first_of_1


@pytest.mark.parametrize("requested", [0, -1])
def test_q27_no_frames_are_refused_with_a_sentence(requested: int) -> None:
    """0 and -1 frames are a ValueError, never an assertion."""
    with pytest.raises(ValueError, match=f"{requested} frames asked for"):
        ChunkPlan(3).chunks_for_pixels(requested)
    with pytest.raises(ValueError, match=f"{requested} frames asked for"):
        ChunkPlan(3).chunks_for_latents(requested)


@pytest.mark.parametrize(("latents", "chunks"), [(20, 7), (21, 7), (22, 8)])
def test_q27_latents_need_not_divide_by_the_chunk(latents: int, chunks: int) -> None:
    """20 latents in chunks of 3 are 7 chunks, the last one cut."""
    assert ChunkPlan(3).chunks_for_latents(latents) == chunks


@given(
    requested=st.integers(1, 2000),
    chunk=st.integers(1, 21),
    first=st.none() | st.integers(1, 21),
    factor=st.sampled_from([1, 2, 4]),
)
def test_q27_the_chunks_cover_the_request_and_one_less_would_not(
    requested: int, chunk: int, first: int | None, factor: int
) -> None:
    """Frames before the last chunk < requested <= frames up to its end."""
    plan = ChunkPlan(chunk, first, factor)
    num_chunks = plan.chunks_for_pixels(requested)
    assert plan.first_pixel_frame(num_chunks - 1) < requested
    assert requested <= plan.first_pixel_frame(num_chunks)


@pytest.mark.parametrize("plan", [(0, None, 4), (3, 0, 4), (3, 1, 0)])
def test_plan_refuses_empty_chunks(plan: tuple[int, int | None, int]) -> None:
    """A length below 1 is refused when the plan is made."""
    with pytest.raises(ValueError, match="at least 1"):
        ChunkPlan(*plan)
