"""The account's shapes against the modules they describe, counted by torch."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from streamgen import account, account_memory
from streamgen.account_cards import CARDS
from streamgen.account_causal import Load
from streamgen.account_shapes import (
    WAN_1_3B,
    WAN_14B,
)
from streamgen.account_vae import decoder_cost, vae_parameters
from streamgen.config import EngineConfig
from streamgen.model_runner import ModelRunner
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.presets import POCKET, build
from streamgen.models.taehv import TAEHV, TAEHVConfig
from streamgen.models.wan_vae import WanVAE, WanVAEConfig
from streamgen.plan_models import planned_model
from streamgen.startup import resolve, runner_config

H100 = CARDS["h100"]


@pytest.mark.parametrize("shape", [WAN_1_3B, WAN_14B], ids=["1.3B", "14B"])
def test_parameters_are_those_of_the_module(shape: DiTConfig) -> None:
    config = DiTConfig(shape.dim, shape.ffn_dim, shape.num_layers, shape.num_heads)
    with torch.device("meta"):
        held = sum(p.numel() for p in CausalDiT(config).parameters())
    assert account.parameters(config) == account.parameters(shape) == held


def test_the_tiny_decoder_counted_by_torch() -> None:
    config = TAEHVConfig(latent_channels=4, encoder_width=8, decoder_widths=(16, 12, 8, 6))
    vae = TAEHV(config)
    latents = torch.randn(1, 3, 4, 6, 8)
    _, state = vae.decode_step(latents, vae.decoder_state())
    with FlopCounterMode(display=False) as counter:  # with gradients: fused layers are not counted
        _, state = vae.decode_step(latents, state)
    cost = decoder_cost(config, 3, 6, 8)
    assert cost.flops == counter.get_total_flops()
    assert 4 * cost.state == state.nbytes
    assert vae_parameters(config) == sum(p.numel() for p in vae.parameters())


def test_the_full_decoder_counted_by_torch() -> None:
    statistics = {"latent_mean": (0.0,) * 4, "latent_std": (1.0,) * 4}
    config = WanVAEConfig(dim=8, z_dim=4, **statistics)
    vae = WanVAE(config)
    latents = torch.randn(1, 3, 4, 4, 4)
    with torch.no_grad():
        _, state = vae.decode_step(latents, vae.decoder_state())
        with FlopCounterMode(display=False) as counter:
            _, state = vae.decode_step(latents, state)
    cost = decoder_cost(config, 3, 4, 4)
    attention = 4 * 3 * (4 * 4) ** 2 * 32  # which the counter does not know on a CPU
    assert cost.flops in (counter.get_total_flops() + attention, counter.get_total_flops())
    assert 4 * cost.state == state.nbytes
    # Norms are left out.
    held = sum(p.numel() for p in vae.parameters())
    assert vae_parameters(config) == pytest.approx(held, rel=2e-3)


@pytest.mark.parametrize("sessions", [1, 8])
def test_bytes_of_pocket_are_those_the_engine_allocates(sessions: int) -> None:
    config = resolve(EngineConfig(max_sessions=sessions), POCKET)
    sizes = runner_config(config, POCKET, torch.device("cpu"))
    model = build(POCKET, dummy=True)
    runner = ModelRunner(model.dit, model.text_encoder, torch.bfloat16, sizes)
    vae = cast("TAEHV", model.vae).to(torch.bfloat16)
    latents = torch.zeros(3, *sizes.latent_shape, dtype=torch.bfloat16)
    with torch.inference_mode():
        _, state = vae.decode_step(latents[None], vae.decoder_state())
    pages = runner.pool.num_pages * runner.pool.geometry.page_bytes
    encoder = cast("nn.Module", model.text_encoder)
    held = sum(p.nbytes for m in (runner.dit, vae, encoder) for p in m.parameters())
    held += pages + runner.text.nbytes + sessions * state.nbytes

    planned = planned_model(EngineConfig(), (2, 2))
    ledger = account_memory.memory(Load(planned, H100), sessions)
    assert ledger.kept == pytest.approx(held, rel=0.05)
