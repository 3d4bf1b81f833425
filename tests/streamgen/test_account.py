"""The account: every figure of the specification, computed from shapes."""

from __future__ import annotations

import math

import pytest
import torch

from kvcache import KVGeometry, WindowConfig
from streamgen import account
from streamgen.account_cards import CARDS, COMPILED, EAGER, GIB, TYPICAL
from streamgen.account_causal import Load
from streamgen.account_options import (
    FLUX_OVERHEAD,
    SPARSE_SPEED_UP,
    STACKED_FP8,
    STACKED_STEP_CACHE,
    offload,
    request_cost,
    serving_ladder,
)
from streamgen.account_recorded import flux_recorded, wan_recorded
from streamgen.account_shapes import (
    CAUSAL_MODELS,
    REFERENCES,
    WAN_1_3B,
    WAN_14B,
    FluxDiT,
    FullVAE,
    TinyVAE,
)
from streamgen.account_vae import decoder_cost
from streamgen.models.causal_dit import DiTConfig

FLUX, SCHNELL = REFERENCES["flux-1-dev"], REFERENCES["flux-schnell"]
WAN = REFERENCES["wan-14b-720p"]
H100 = CARDS["h100"]
TOLERANCE = 0.04  # of the specification


def near(figure: float) -> object:
    return pytest.approx(figure, rel=TOLERANCE)


# Many-step references.


def test_flux_on_one_card() -> None:
    cost = request_cost(FLUX, H100)
    assert cost.tokens == 4096 + 512
    assert account.token_parameters(FLUX.dit) == near(6.45e9)
    assert account.parameters(FLUX.dit) == near(11.9e9)
    assert account.num_layers(FLUX.dit) == 57
    assert cost.step.total == near(74.3e12)
    assert cost.dit.flops == near(2.08e15)
    overstated = account.parameters(FLUX.dit) / account.token_parameters(FLUX.dit) - 1
    assert overstated == near(0.85)
    assert cost.seconds == near(4.8)
    assert cost.text_vae_share == near(0.026)
    weights = 2 * account.parameters(FLUX.dit)
    assert account.intensity(cost.step.total, weights) == near(3100)
    assert H100.knee == near(295)
    assert cost.dit.bound == "arithmetic"


def test_schnell() -> None:
    cost = request_cost(SCHNELL, H100)
    assert cost.dit.flops == near(0.30e15)
    assert request_cost(FLUX, H100).dit.flops / cost.dit.flops == near(7)
    assert cost.seconds == near(0.80)
    assert cost.text_vae_share == near(0.156)


def test_wan_on_one_card() -> None:
    cost = request_cost(WAN, H100)
    assert cost.tokens == 75_600
    assert cost.step.total == near(6.5e15)
    assert cost.step.attention == near(4.7e15)
    assert cost.step.attention_share == near(0.72)
    assert cost.dit.flops == near(650e15)
    assert cost.seconds == near(24 * 60)
    assert account.score_bytes(40, cost.tokens) == near(425 * GIB)


def test_attention_is_as_much_as_the_matrices_at_six_widths() -> None:
    assert account.crossover_tokens(FLUX.dit) == near(6 * 3072)
    # Wan's MLP is narrower, 2.7 widths: "about".
    assert account.crossover_tokens(WAN_14B) == pytest.approx(6 * 5120, rel=0.06)
    tokens = round(account.crossover_tokens(WAN_14B))
    step = account.step_flops(WAN_14B, tokens)
    assert step.attention == pytest.approx(step.linear, rel=1e-3)


def test_a_longer_clip() -> None:
    short, long = (request_cost(WAN, H100, frames=frames).step.total for frames in (17, 129))
    assert long / short == near(21)


def test_sparse_attention() -> None:
    share = request_cost(WAN, H100).step.attention_share
    assert account.amdahl(0.72, 3.5) == near(2.06)
    assert account.amdahl(share, SPARSE_SPEED_UP) == near(2.06)
    assert account.amdahl(share, math.inf) == near(3.57)
    sparse = request_cost(WAN, H100, sparsity=3.5).dit.seconds
    assert request_cost(WAN, H100).dit.seconds / sparse == near(2.06)
    assert account.needed_speed_up(0.8, account.amdahl(0.8, 1.7)) == pytest.approx(1.7)


def test_layers_in_host_memory() -> None:
    wan = offload(WAN_14B, 75_600, 2, H100, TYPICAL)
    assert wan.compute_s == pytest.approx(0.7, abs=0.05)  # given with one digit
    assert wan.transfer_s == near(0.027)
    assert wan.slowdown == 1
    flux = offload(FLUX.dit, 4608, 1, H100, COMPILED)
    assert flux.compute_s == near(0.0027)
    assert flux.transfer_s == near(0.016)
    assert flux.slowdown == near(6)


RECORDED = [*flux_recorded(FLUX, SCHNELL), *wan_recorded(WAN)]


@pytest.mark.parametrize("row", RECORDED, ids=[row.figure for row in RECORDED])
def test_what_others_measured_is_explained(row: object) -> None:
    assert abs(row.error) < TOLERANCE, row  # type: ignore[attr-defined]
    assert row.assumption  # type: ignore[attr-defined]


def test_every_recorded_row_of_the_specification_is_there() -> None:
    figures = {
        name: sorted(row.recorded for row in RECORDED if row.figure.startswith(name))
        for name in {row.figure.partition(",")[0] for row in RECORDED}
    }
    assert figures == {
        "DiT eager": [6.71],
        "DiT compiled": [1.56, 1.63, 4.30],
        "DiT compiled on 4 cards": [1.63],
        "FP8 end to end": [1.3, 1.5],
        "weights": [5.5, 6.5, 22.0],
        "SVDQuant on a 4090": [3.0],
        "SVDQuant on an H100": [1.0],
        "step cache": [1.5, 1.8, 2.0],
        "cards for 100 a second": [80, 170, 290, 390, 670],
        "a step with guidance": [4, 29],
        "5 s of video": [40],
        "the same": [320],
    }


# Parallelism.


def test_bytes_between_four_cards() -> None:
    assert account.tensor_parallel_bytes(4, 4608, 3072, 57) == near(4.8e9)
    assert account.ulysses_bytes(4, 4608, 3072, 57) == near(1.2e9)
    assert account.cfg_parallel_bytes(4096, 64) == near(0.52e6)
    assert account.cfg_parallel_bytes(4608, 64) == near(0.6e6)
    assert account.pipefusion_bytes(4608, 3072) == near(28e6)


def test_more_cards_shorten_and_never_save() -> None:
    assert account.efficiency(4, FLUX_OVERHEAD) == near(0.66)
    assert 4 * account.efficiency(4, FLUX_OVERHEAD) == near(2.63)
    for cards in (2, 4, 8):
        assert 1 < cards * account.efficiency(cards, FLUX_OVERHEAD) < cards


# Causal, few-step.


@pytest.mark.parametrize(
    ("dit", "token", "chunk", "window", "cross"),
    [(WAN_1_3B, 184_320, 0.863e9, 6.04e9, 94e6), (WAN_14B, 819_200, 3.83e9, 26.8e9, 419e6)],
)
def test_kv(dit: DiTConfig, token: int, chunk: float, window: float, cross: float) -> None:
    assert account.kv_bytes_per_token(dit) == token
    assert 4680 * token == near(chunk)
    assert 32_760 * token == near(window)
    assert account.cross_kv_bytes(dit) == near(cross)
    geometry = KVGeometry(
        dit.num_layers, dit.num_heads, dit.dim // dit.num_heads, 1560, 1560, torch.bfloat16
    )
    assert geometry.bytes_per_token == token
    name = "causal-wan-1.3b" if dit is WAN_1_3B else "causal-wan-14b"
    load = Load(CAUSAL_MODELS[name], H100)
    assert load.tokens_per_frame == 1560
    assert load.kv_frame_bytes == geometry.frame_bytes


def test_tokens_and_reservation_of_a_session() -> None:
    load = Load(CAUSAL_MODELS["causal-wan-1.3b"], H100)
    assert load.tokens_per_frame == 1560
    assert 3 * load.tokens_per_frame == 4680
    assert 21 * load.tokens_per_frame == 32_760
    assert account.reserved_frames(21, 3) * load.kv_frame_bytes == near(6.90e9)
    assert account.latent_bytes(16, 60, 104, 21, 2) == near(4.2e6)
    assert account.latent_bytes(16, 60, 104, 3, 2) == near(0.6e6)


@pytest.mark.parametrize(
    ("dit", "teraflops", "chunk"),
    [
        (WAN_1_3B, {3: 16.2, 6: 20.2, 12: 28.3, 21: 40.4}, 202),
        (WAN_14B, {3: 132, 6: 150, 12: 186, 21: 239.5}, 1197),
    ],
)
def test_causal_passes(dit: DiTConfig, teraflops: dict[int, float], chunk: float) -> None:
    for visible, expected in teraflops.items():
        assert account.pass_flops(dit, 3, 1560, visible).total == near(expected * 1e12)
    assert 5 * account.pass_flops(dit, 3, 1560, 21).total == near(chunk * 1e12)


def test_attention_is_most_of_a_full_window() -> None:
    assert account.pass_flops(WAN_1_3B, 3, 1560, 21).attention_share == near(0.70)


@pytest.mark.parametrize(("window", "sink"), [(21, 0), (9, 3), (6, 3), (7, 1), (None, 0)], ids=str)
def test_frames_in_view_are_those_of_the_cache(window: int | None, sink: int) -> None:
    config = WindowConfig(window, sink, max_frames=60 if window is None else None)
    held: list[int] = []
    for first in range(0, 60, 3):
        gone = set(config.pushed_out(held, 3))
        held = [frame for frame in held if frame not in gone] + list(range(first, first + 3))
        assert account.visible_frames(first, 3, window, sink) == len(held)
        assert held[: min(sink, len(held))] == list(range(min(sink, len(held))))
    if window is not None:
        for fused in (False, True):
            expected = config.reserved_frames(3, fused)
            assert account.reserved_frames(window, 3, fused=fused) == expected


def test_a_window_without_room_is_refused_with_the_sum() -> None:
    with pytest.raises(ValueError, match="sink 4 \\+ chunk 3 = 7 > window 6"):
        account.visible_frames(0, 3, 6, 4)


def test_decoders_of_a_chunk() -> None:
    full = decoder_cost(FullVAE(), 3, 60, 104)
    assert full.flops == near(40.7e12)
    assert 2 * full.state == near(1.8 * GIB)
    tiny = decoder_cost(TinyVAE(), 3, 60, 104)
    assert tiny.flops == near(1.63e12)
    assert 2 * tiny.state == near(67e6)


# Serving.


def test_a_hundred_pictures_a_second() -> None:
    rows = serving_ladder(FLUX, H100, SCHNELL)
    cards = [account.cards_for(100, row.gpu_s) for row in rows]
    assert cards == [near(expected) for expected in (670, 390, 290, 170, 80)]
    dollars = [account.price_of(row.gpu_s, 2.50) for row in rows]
    assert dollars[0] == near(0.0047)
    assert dollars[-1] == pytest.approx(0.0006, abs=0.00005)  # given with one digit
    assert [row.factor for row in rows[2:4]] == [STACKED_FP8, STACKED_STEP_CACHE] == [1.35, 1.7]
    compiled = request_cost(FLUX, H100, eta=COMPILED).dit.seconds
    assert compiled / rows[1].gpu_s == pytest.approx(1.10)
    assert rows[0].gpu_s == request_cost(FLUX, H100, eta=EAGER).dit.seconds


def test_wan_with_every_option() -> None:
    gpu_s = next(row for row in wan_recorded(WAN) if "all cards" in row.figure)
    assert gpu_s.recorded == 320
    assert account.price_of(gpu_s.computed, 2.50) == near(0.22)


def test_a_few_step_model_has_no_step_cache_in_its_ladder() -> None:
    names = [row.name for row in serving_ladder(SCHNELL, H100, None)]
    assert names == ["eager", "compile + FA3", "+ FP8"]


def test_flux_has_no_second_pass() -> None:
    assert isinstance(FLUX.dit, FluxDiT)
    assert request_cost(FLUX, H100).passes == 28
    assert request_cost(WAN, H100).passes == 100
