"""Rows that read what others write, run apart for the last bit or together."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from kvcache import PageTable, Staging, WindowConfig
from streamgen.model_runner import ModelRunner, Row, RunnerConfig, StepBatch
from streamgen.parity.replay import GivenText
from streamgen.text import TextMix
from tests.streamgen.static_runner import small_dit

SHAPE = (4, 4, 4)
CHUNK = 3


def staging(write: tuple[int, ...], visible: tuple[int, ...]) -> Staging:
    return Staging(0, len(write), write, visible, visible)


def batch(*stagings: Staging) -> StepBatch:
    return StepBatch(tuple(Row(torch.zeros(0), 0.0, s, 0) for s in stagings))


def test_rows_of_one_length_are_together() -> None:
    rows = [staging((0, 1, 2), (0, 1, 2)), staging((3,), (3,)), staging((4, 5, 6), (4, 5, 6))]
    assert batch(*rows).alike() == [[0, 2], [1]]


def test_a_commit_runs_before_the_row_that_reads_it() -> None:
    """Whatever the order and company; a first chunk may be shorter than the next."""
    other = staging((7, 8, 9), (7, 8, 9))
    commit, follower = staging((0,), (0,)), staging((1, 2, 3), (0, 1, 2, 3))
    assert batch(other, commit, follower).alike() == [[0], [1], [2]]
    assert batch(follower, commit, other).alike() == [[2], [1], [0]]


def test_rows_that_read_one_another_stay_together() -> None:
    everything = (0, 1, 2, 3, 4)
    assert batch(staging((0, 1), everything), staging((2, 3, 4), everything)).alike() == [[0, 1]]
    causal = staging((0,), (0,)), staging((1, 2), (0, 1, 2)), staging((3,), (0, 1, 2, 3))
    assert batch(*causal).alike() == [[0, 1, 2]]


def test_a_rotated_read_is_a_read() -> None:
    config = WindowConfig(7, 4, rotary="relative")
    runner = new_runner(deterministic=True, num_frames=config.reserved_frames(CHUNK, fused=True))
    table = PageTable(runner.pool, config, CHUNK)
    commits = []
    for _ in range(3):
        commits.append(table.begin(CHUNK))
        table.commit()
    # Frame 3 is in the sink and in chunk 1, and chunk 2 sees it moved.
    assert batch(commits[1], commits[2]).alike() == [[0], [1]]


def new_runner(*, deterministic: bool, num_frames: int = 20) -> ModelRunner:
    model = small_dit()
    config = RunnerConfig(
        latent_shape=SHAPE,
        chunk_frames=CHUNK,
        num_frames=num_frames,
        max_rows=4,
        text_slots=1,
        device=torch.device("cpu"),
        deterministic=deterministic,
        poison_freed=True,
    )
    prompts = (torch.randn(5, 6, generator=torch.Generator().manual_seed(3)),)
    return ModelRunner(model.requires_grad_(False), GivenText(prompts), torch.float32, config)


def recached(*, deterministic: bool, causal: bool, rotary: str) -> Tensor:
    """Return the flow of the chunk after a recache of rows of 2, 3 and 3 frames."""
    runner = new_runner(deterministic=deterministic)
    window = WindowConfig(10, 2, rotary=rotary)  # type: ignore[arg-type]
    table = PageTable(runner.pool, window, CHUNK, fused=False)
    slot = runner.acquire_text(TextMix.of("0"))
    clean = torch.randn(18, *SHAPE, generator=torch.Generator().manual_seed(4))

    def run(*stagings: Staging) -> list[Tensor]:
        rows = [Row(clean[s.frame_index :][: s.num_frames], 0.0, s, slot) for s in stagings]
        return runner.run(StepBatch(tuple(rows)))

    for _ in range(5):
        run(table.begin(CHUNK))
        table.commit()
    stagings = table.recache(causal=causal)
    assert [s.num_frames for s in stagings] == [2, 3, 3]
    run(*stagings)
    return run(table.begin(CHUNK))[0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rotary", ["absolute", "relative"])
def test_a_recache_of_unequal_rows_is_one_forward(causal: bool, rotary: str) -> None:
    """Deterministic or not: split up, a row would read K/V that is not there yet."""
    flows = [recached(deterministic=d, causal=causal, rotary=rotary) for d in (False, True)]
    torch.testing.assert_close(*flows, atol=1e-5, rtol=1e-5)


def test_more_rows_than_the_runner_has_place_for_are_not_run() -> None:
    runner = new_runner(deterministic=False)
    table = PageTable(runner.pool, WindowConfig(12), CHUNK)
    row = Row(torch.zeros(CHUNK, *SHAPE), 0.0, table.begin(CHUNK), 0)
    rows = [row, *(dataclasses.replace(row) for _ in range(4))]
    with pytest.raises(AssertionError, match=r"\(5, 4\)"):
        runner.run(StepBatch(tuple(rows)))
