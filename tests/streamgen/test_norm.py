"""The root-mean-square norm against torch's own, with and without gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from streamgen.models.norm import RMSNorm

EPS = 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_torchs_norm_and_leaves_what_it_was_given(dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 24, dtype=dtype)
    norm = RMSNorm(24, EPS).to(dtype)
    torch.nn.init.normal_(norm.weight)
    given = x.clone()
    with torch.inference_mode():
        out = norm(x)
    expected = F.rms_norm(x.float(), (24,), norm.weight.float(), EPS).to(dtype)
    torch.testing.assert_close(out, expected)
    assert torch.equal(x, given)


def test_gradients_are_torchs() -> None:
    x = torch.randn(3, 24, requires_grad=True)
    norm = RMSNorm(24, EPS)
    torch.nn.init.normal_(norm.weight)
    got = torch.autograd.grad(norm(x).square().sum(), (x, norm.weight))
    expected = F.rms_norm(x, (24,), norm.weight, EPS).square().sum()
    for mine, torchs in zip(got, torch.autograd.grad(expected, (x, norm.weight)), strict=True):
        torch.testing.assert_close(mine, torchs)
