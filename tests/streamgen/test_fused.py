"""Fused layers give what their steps give, and are fused where that is possible."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
import torch
from torch.nn import functional as F

from kvcache import WindowConfig
from streamgen.calibrate import resident_bytes
from streamgen.config import EngineConfig
from streamgen.doctor import facts
from streamgen.machine import give_back_freed_memory, keep_freed_memory
from streamgen.models.fused import ConvReLU, LinearBias, LinearGELU, can_fuse, has_products
from streamgen.warm_up import choose_dtypes

TYPES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # and what rounding allows


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_a_convolution_takes_its_relu_along(dtype: torch.dtype, bias: bool, adds: bool) -> None:
    torch.manual_seed(0)
    layer = ConvReLU(8, 8, 3, padding=1, bias=bias).to(dtype=dtype)
    x = torch.randn(2, 8, 6, 10, dtype=dtype).to(memory_format=torch.channels_last)
    residual = (x.flip(0),) if adds else ()
    steps = layer(x, *residual)
    with torch.inference_mode():
        fused = layer(x, *residual)
    torch.testing.assert_close(fused, steps.detach(), atol=TYPES[dtype], rtol=TYPES[dtype])
    assert fused.is_contiguous(memory_format=torch.channels_last)
    assert (fused == 0).any()
    steps.sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_a_product_takes_its_gelu_along(
    dtype: torch.dtype, approximate: Literal["tanh", "none"]
) -> None:
    torch.manual_seed(0)
    layer = LinearGELU(8, 12, approximate).to(dtype=dtype)
    x = 3 * torch.randn(2, 5, 8, dtype=dtype)
    steps = layer(x)
    with torch.inference_mode():
        fused = layer(x)
    torch.testing.assert_close(fused, steps.detach(), atol=TYPES[dtype], rtol=TYPES[dtype])
    product = F.linear(x.float(), layer.weight.float(), layer.bias.float())
    exact = F.gelu(product, approximate=approximate).detach()
    torch.testing.assert_close(fused.float(), exact, atol=TYPES[dtype], rtol=TYPES[dtype])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_product_takes_its_bias_along(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = LinearBias(64, 48).to(dtype=dtype)
    x = torch.randn(3, 100, 64, dtype=dtype)
    steps = layer(x)
    with torch.inference_mode():
        fused = layer(x)
    torch.testing.assert_close(fused, steps.detach(), atol=TYPES[dtype], rtol=TYPES[dtype])
    assert steps.requires_grad


def test_torch_still_has_the_operators() -> None:
    """They have no public name: without them everything works, slower."""
    x = torch.zeros(1)
    assert not can_fuse(x)  # autograd is on
    with torch.inference_mode():
        assert can_fuse(x) == torch.backends.mkldnn.is_available()
        assert not can_fuse(x.to("meta"))


@pytest.fixture
def no_bf16(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be on a processor that has no products of bfloat16, as those without AVX-512."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    has_products.cache_clear()
    yield
    has_products.cache_clear()


@pytest.mark.usefixtures("no_bf16")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_formats_without_products_are_computed_in_steps(dtype: torch.dtype) -> None:
    """oneDNN has no kernel for them and raises."""
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 8, dtype=dtype)
    layers = (ConvReLU(8, 8, 3, padding=1), LinearBias(8, 12), LinearGELU(8, 12))
    with torch.inference_mode():
        assert can_fuse(x.float()) == torch.backends.mkldnn.is_available()
        assert not can_fuse(x)
        for layer in layers:
            rounded = layer.to(dtype)(x)
            torch.testing.assert_close(
                rounded.float(), layer.float()(x.float()), atol=3e-2, rtol=3e-2
            )


@pytest.mark.usefixtures("no_bf16")
def test_a_format_without_products_is_taken_where_it_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a warning; else float32 is, and nothing is measured."""
    sizes: Any = SimpleNamespace(device=torch.device("cpu"), chunk_frames=3, latent_shape=(1, 1, 1))
    model, window = cast(Any, None), WindowConfig(3)
    for asked, taken in (("auto", torch.float32), ("bf16", torch.bfloat16)):
        assert caplog.text == ""
        chosen = choose_dtypes(EngineConfig(dtype=asked), model, sizes, window)
        assert chosen == (taken, taken)
    assert "passes in bf16: this processor has no products of it, fp32 is faster" in caplog.text
    assert "decodes in bf16" in caplog.text
    assert facts()["cpu"].endswith("fp32 (no products of bf16)")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")
def test_glibc_takes_the_option_and_gives_back_when_it_is_told() -> None:
    assert keep_freed_memory()
    large = torch.ones(64 * 2**20, dtype=torch.uint8)
    held = resident_bytes()
    del large
    assert resident_bytes() > held - 2**20
    assert give_back_freed_memory()
    assert resident_bytes() < held - 60 * 2**20


@torch.no_grad()
def test_nothing_is_fused_where_torch_chooses_the_format() -> None:
    x, image = torch.randn(2, 8), torch.randn(1, 8, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert LinearGELU(8, 12)(x.bfloat16()).dtype == torch.bfloat16
        assert ConvReLU(8, 8, 3)(image.bfloat16()).dtype == torch.bfloat16
