"""Rotary positions: any frame number, and keys moved from one to another."""

from __future__ import annotations

import pytest
import torch

from streamgen.models.rope import frame_turn, rotate, rotation

CPU = torch.device("cpu")


@pytest.mark.parametrize("head_dim", [12, 32, 128])
@pytest.mark.parametrize("num_frames", [1, 3, 1000, 10**6])
def test_a_turned_key_is_the_key_of_a_later_frame(head_dim: int, num_frames: int) -> None:
    """Rows and columns stay where they are; far frames are as exact as near ones."""
    generator = torch.Generator().manual_seed(head_dim)
    keys = torch.randn(2 * 3 * 4, 2, head_dim, generator=generator)
    here, there = (
        rotate(keys[None], rotation(torch.tensor([[first, first + 1]]), 3, 4, head_dim))[0]
        for first in (7, 7 + num_frames)
    )
    turned = frame_turn(num_frames, head_dim, CPU)(here)
    torch.testing.assert_close(turned, there, atol=2e-6, rtol=1e-5)
    assert torch.equal(turned[..., -2:], here[..., -2:])  # the last lane is the column's


def test_turning_keeps_the_type() -> None:
    keys = torch.randn(4, 2, 12, dtype=torch.bfloat16)
    turned = frame_turn(5, 12, CPU)(keys)
    assert turned.dtype is torch.bfloat16
    exact = frame_turn(5, 12, CPU)(keys.float())
    assert torch.equal(turned, exact.bfloat16())  # rounded once


def test_turns_made_under_inference_mode_serve_outside() -> None:
    with torch.inference_mode():
        turn = frame_turn(77, 12, CPU)
    keys = torch.randn(4, 2, 12, requires_grad=True)
    with torch.no_grad():
        assert torch.isfinite(turn(keys)).all()
