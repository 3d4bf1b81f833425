"""8-bit products: what they lose, what they leave alone, and where they are refused."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from kvcache import WindowConfig
from streamgen import quantize, startup
from streamgen.errors import ConfigError
from streamgen.model_runner import ModelRunner
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.fused import LinearGELU
from streamgen.quantize import FP8Linear, psnr_db, quantize_blocks, quantized, sample
from streamgen.startup import resolve, runner_config, start_engine
from tests.streamgen.tiny import TINY, HashEncoder, tiny_config


def test_values_lose_three_bits_and_rows_do_not_matter_to_one_another() -> None:
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    rows *= torch.tensor([1e-6, 1.0, 1e4, 3.0, 0.0])[:, None]
    values, scale = quantized(rows)
    assert (values.dtype, scale.dtype) == (torch.float8_e4m3fn, torch.float32)
    again = values.float() * scale
    assert again.isfinite().all()
    # Four bits of mantissa: half a step is a sixteenth; and below a 2^-15th of the largest, 0.
    bound = rows.abs() / 16 + rows.abs().amax(1, keepdim=True) / 448 * 2**-10
    assert ((again - rows).abs() <= bound * 1.001).all()
    assert (again[4] == 0).all()
    assert torch.equal(quantized(rows[1:2])[0].float(), values[1:2].float())


@pytest.mark.parametrize("kind", [nn.Linear, LinearGELU])
@pytest.mark.parametrize("shape", [(7, 64), (2, 3, 64)])
def test_a_layer_is_what_it_was_but_for_the_rounding(
    kind: type[nn.Linear], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    layer = kind(64, 32).requires_grad_(False).bfloat16()
    x = torch.randn(shape).bfloat16()
    found, expected = FP8Linear(layer)(x), layer(x)
    assert found.dtype == torch.bfloat16
    assert found.shape == expected.shape
    assert 25 < psnr_db(found.float(), expected.float()) < 60


def test_only_the_blocks_matrices_change() -> None:
    dit = CausalDiT(DiTConfig(dim=48, ffn_dim=64, num_layers=2, num_heads=2)).bfloat16()
    before = copy.deepcopy(dit.state_dict())
    assert quantize_blocks(dit) == 2 * 10
    after = dit.state_dict()
    gone = before.keys() - after.keys()
    assert len(gone) == 20
    assert all(name.startswith("blocks.") and name.endswith(".weight") for name in gone)
    assert all(torch.equal(before[name], after[name]) for name in before.keys() & after.keys())
    assert quantize_blocks(dit) == 0


def test_the_figure_is_told_and_no_trace_is_left() -> None:
    config = resolve(tiny_config(), TINY)
    torch.manual_seed(0)
    dit = CausalDiT(TINY.dit).requires_grad_(False).eval()
    sizes = runner_config(config, TINY, torch.device("cpu"))
    runner = ModelRunner(dit, HashEncoder(), torch.bfloat16, sizes)
    window = WindowConfig(9)
    before = sample(runner, TINY, window)
    assert torch.equal(sample(runner, TINY, window), before)
    psnr = quantize.quantize(runner, TINY, window)
    assert 20 < psnr < 70
    assert psnr == psnr_db(sample(runner, TINY, window), before)
    assert runner.pool.num_reserved == runner.pool.allocator.num_used == 0
    assert runner.text.num_pinned == 0


def test_psnr_is_that_of_the_definition() -> None:
    expected = torch.tensor([0.0, 4.0])
    assert psnr_db(expected + 0.4, expected) == pytest.approx(20.0)
    assert psnr_db(expected, expected) == math.inf


def test_what_is_not_there_is_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(startup, "build", lambda *a, **k: pytest.fail("weights are read"))
    with pytest.raises(ConfigError, match="fp8: 8-bit products need a CUDA device"):
        start_engine(tiny_config(device="cpu", quantization="fp8"), lambda *item: None, preset=TINY)


@pytest.mark.parametrize(
    ("capability", "dtype", "said"),
    [
        ((8, 6), torch.bfloat16, "compute capability 8.9"),
        ((8, 9), torch.float32, "give bfloat16, and the model is in torch.float32"),
        ((8, 9), torch.bfloat16, None),
    ],
)
def test_older_cards_and_other_formats_are_refused(
    capability: tuple[int, int], dtype: torch.dtype, said: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = quantize.refusal(torch.device("cuda"), dtype)
    assert found is None if said is None else found is not None and said in found


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
            ],
        ),
    ],
)
def test_the_product_is_that_of_the_scaled_values(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 64, generator=generator).to(device) for n in (100, 32))
    (values, scale), (weight, weight_scale) = quantized(x), quantized(w)
    found = quantize.scaled_product(values, scale, weight, weight_scale.T.contiguous())
    expected = (values.float() * scale) @ (weight.float() * weight_scale).T
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.01)
    assert psnr_db(found.float(), x @ w.T) > 35
