"""What others measured, beside what the account computes and the assumption that explains it."""

from __future__ import annotations

from dataclasses import dataclass

from streamgen import account
from streamgen.account_cards import CARDS, COMPILED, EAGER, GIB, TYPICAL
from streamgen.account_options import (
    BRANCH_RANK,
    FLUX_OVERHEAD,
    FP8_SPEED_UP,
    GROUP,
    INT4_SPEED_UP,
    SPARSE_SPEED_UP,
    STEP_CACHE,
    WAN_OVERHEAD,
    flux_int4_bytes,
    quantized_speed_up,
    request_cost,
    serving_ladder,
)
from streamgen.account_shapes import FluxDiT, Reference


@dataclass(frozen=True, slots=True)
class Recorded:
    """A figure that others measured, the account's own, and the assumption that explains it."""

    figure: str
    recorded: float
    computed: float
    unit: str
    assumption: str

    @property
    def error(self) -> float:
        """Return how far the computed figure is from the recorded one."""
        return self.computed / self.recorded - 1


def flux_recorded(flux: Reference, schnell: Reference) -> list[Recorded]:
    """Return what was measured with FLUX on H100 and 4090, explained."""
    h100 = CARDS["h100"]
    eager, compiled = (request_cost(flux, h100, eta=eta) for eta in (EAGER, COMPILED))
    share = compiled.step.linear_share
    rows = [
        Recorded("DiT eager", 6.71, eager.dit.seconds, "s", f"eta {EAGER}"),
        Recorded("DiT compiled", 4.30, compiled.dit.seconds, "s", f"eta {COMPILED}"),
        Recorded(
            "DiT compiled, gain", 1.56, eager.dit.seconds / compiled.dit.seconds, "x",
            f"eta {EAGER} to {COMPILED}",
        ),
    ]  # fmt: skip
    for recorded, speed_up in zip((1.3, 1.5), FP8_SPEED_UP, strict=True):
        rows.append(
            Recorded(
                "FP8 end to end", recorded, account.amdahl(share, speed_up), "x",
                f"Amdahl, linear share {share:.2f}, effective s {speed_up}",
            )
        )  # fmt: skip
    rows += _flux_weights(flux, share)
    for (threshold, full), recorded in zip(STEP_CACHE.items(), (1.5, 1.8, 2.0), strict=True):
        rows.append(
            Recorded(
                f"step cache, threshold {threshold}", recorded, flux.steps / full, "x",
                f"{full} full steps, {flux.steps - full} reused for nothing",
            )
        )  # fmt: skip
    four_s = compiled.dit.seconds / (4 * account.efficiency(4, FLUX_OVERHEAD))
    rows.append(Recorded("DiT compiled on 4 cards", 1.63, four_s, "s", "e(4) 0.66"))
    cards = (670, 390, 290, 170, 80)
    for row, recorded in zip(serving_ladder(flux, h100, schnell), cards, strict=True):
        rows.append(
            Recorded(
                f"cards for 100 a second, {row.name}", recorded,
                account.cards_for(100, row.gpu_s), "", row.assumption,
            )
        )  # fmt: skip
    return rows


def wan_recorded(wan: Reference) -> list[Recorded]:
    """Return what was measured with Wan 14B on H100, explained."""
    h100 = CARDS["h100"]
    step_s = request_cost(wan, h100).dit.seconds / wan.steps
    eight = 8 * account.efficiency(8, WAN_OVERHEAD)
    computed = wan.steps * STEP_CACHE["0.4"] / 28
    stacked = request_cost(
        wan, h100, eta=COMPILED, steps=computed, quantize="fp8", sparsity=SPARSE_SPEED_UP
    )
    stacked_s = stacked.dit.seconds / eight
    why = (
        f"DiT only: eta {COMPILED}, FP8 {sum(FP8_SPEED_UP) / 2:.2f} in matrix products, sparse "
        f"attention {SPARSE_SPEED_UP}, {computed:.1f} of {wan.steps} steps, e(8) 0.91"
    )
    return [
        Recorded("a step with guidance, 1 card", 29, step_s, "s", f"eta {TYPICAL}"),
        Recorded("a step with guidance, 8 cards", 4, step_s / eight, "s", "e(8) 0.91"),
        Recorded("5 s of video, every option, 8 cards", 40, stacked_s, "s", why),
        Recorded("the same, on all cards together", 320, 8 * stacked_s, "s", why),
    ]


def _flux_weights(flux: Reference, share: float) -> list[Recorded]:
    """Return what 4-bit weights take and gain."""
    h100, rtx = CARDS["h100"], CARDS["4090"]
    assert isinstance(flux.dit, FluxDiT)
    all_parameters = account.parameters(flux.dit)
    return [
        Recorded("weights, 16 bit", 22.0, 2 * all_parameters / GIB, "GiB", "11.9 B parameters"),
        Recorded("weights, 4 bit alone", 5.5, all_parameters / 2 / GIB, "GiB", "half a byte each"),
        Recorded(
            "weights, SVDQuant", 6.5, flux_int4_bytes(flux.dit) / GIB, "GiB",
            f"scales of {GROUP}, a 16-bit branch of rank {BRANCH_RANK}, 16-bit embedders",
        ),
        Recorded(
            "SVDQuant on a 4090", 3.0,
            account.amdahl(share, quantized_speed_up("int4", rtx)), "x",
            f"Amdahl, effective s {INT4_SPEED_UP:.0f} of the 8 of the INT4 peak",
        ),
        Recorded(
            "SVDQuant on an H100", 1.0,
            account.amdahl(share, quantized_speed_up("int4", h100)), "x",
            "no INT4 tensor cores",
        ),
    ]  # fmt: skip
