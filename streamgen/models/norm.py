"""The root-mean-square norm of queries and keys, and what it takes to compute it in few passes.

On a CPU a batch's float32 copy of a projection is larger than the cache that it should stay in: so
what is made on the way is overwritten, where no gradient needs it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamgen.models.fused import in_steps


class RMSNorm(nn.Module):
    """Root-mean-square norm over the full width, all heads together."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis in float32."""
        weight = self.weight.float()
        if not in_steps(x):
            return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)
        exact = x.to(torch.float32, copy=True)
        return times(times(exact, inverse_rms(exact, self.eps)), weight).to(x.dtype)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean of squares + eps) of the last axis, `[..., 1]`."""
    square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()
    return torch.rsqrt(square / x.shape[-1] + eps)


def times(x: Tensor, factor: Tensor) -> Tensor:
    """Return x * factor; x is lost, unless gradients are recorded."""
    return x * factor if torch.is_grad_enabled() else x.mul_(factor)
