"""Layers with the non-linearity that follows them, in one pass over memory.

On a CPU, oneDNN applies it while it stores the results of a product. torch reaches that by
operators that have no public name; its compiler uses them too. Where they are missing, on other
devices and under autograd the same is computed in steps.
"""

from __future__ import annotations

import functools
from typing import Final, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FUSED: Final = ("_convolution_pointwise", "_linear_pointwise")


class ConvReLU(nn.Conv2d):
    """A convolution, an optional sum, and the ReLU after them; fastest with channels last."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return relu(conv(x) + residual), `[n, C, h, w]`."""
        if not can_fuse(x):
            out = super().forward(x)
            return F.relu(out if residual is None else out + residual)
        place = (self.padding, self.stride, self.dilation, self.groups)
        end: tuple[str, list[float], None] = ("relu", [], None)
        fused = torch.ops.mkldnn._convolution_pointwise
        if residual is None:
            return cast(Tensor, fused(x, self.weight, self.bias, *place, *end))
        summed = fused.binary(x, residual, self.weight, self.bias, *place, "add", None, *end)
        return cast(Tensor, summed)


class LinearBias(nn.Linear):
    """A linear layer whose bias is added while results are stored, not before.

    Only in bfloat16: in float32 torch's own way is as fast.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return linear(x)."""
        if x.dtype != torch.bfloat16 or not can_fuse(x):
            return super().forward(x)
        return cast(
            Tensor, torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        )


class LinearGELU(nn.Linear):
    """A linear layer and the GELU, by default approximated by tanh, after it.

    Together only in bfloat16: in float32 oneDNN's GELU takes longer than what is spared.
    """

    def __init__(
        self, inputs: int, outputs: int, approximate: Literal["tanh", "none"] = "tanh"
    ) -> None:
        super().__init__(inputs, outputs)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Return gelu(linear(x))."""
        if x.dtype != torch.bfloat16 or not can_fuse(x):
            return F.gelu(super().forward(x), approximate=self.approximate)
        fused = torch.ops.mkldnn._linear_pointwise
        return cast(Tensor, fused(x, self.weight, self.bias, "gelu", [], self.approximate))


def can_fuse(x: Tensor) -> bool:
    """Return whether oneDNN may take a product of x together with what follows."""
    return (
        in_steps(x)
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")  # oneDNN takes operands of one format
        and has_products(x.dtype)
        and all(hasattr(torch.ops.mkldnn, name) for name in FUSED)
    )


@functools.cache
def has_products(dtype: torch.dtype) -> bool:
    """Return whether oneDNN multiplies numbers of this format on this processor.

    Without AVX-512 most processors have none of bfloat16: torch's own operators convert instead.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
        return supported is not None and bool(supported())
    return dtype == torch.float32


def in_steps(x: Tensor) -> bool:
    """Return whether x is computed with on a CPU, one operator after the other.

    Compilers fuse by themselves, and other devices have kernels of their own.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()
