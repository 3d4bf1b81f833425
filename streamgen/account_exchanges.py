"""Which exchange to make next, in the order of what it costs: nothing, bits, money. No I/O.

Count first: what dominates is what pays. Then what is lossless on one card; what is lossy, behind a
quality gate; more cards; fewer steps; serving; at last watching, which tells when to begin again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from streamgen import account, account_causal, account_memory
from streamgen.account_cards import COMPILED, Card
from streamgen.account_causal import Load
from streamgen.account_options import (
    FLUX_OVERHEAD,
    SPARSE_SPEED_UP,
    STEP_CACHE,
    WAN_OVERHEAD,
    RequestCost,
    quantized_speed_up,
)
from streamgen.account_shapes import Reference, TinyVAE
from streamgen.errors import ConfigError

ORDER: Final = (
    "count", "lossless on one card", "lossy, with a gate", "more cards", "fewer steps", "serving",
    "watching",
)  # fmt: skip
WORTH_IT: Final = 1.03
GATE: Final = "PSNR above 35 dB is invisible, one below 30 dB is rejected"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A thing to do. `gain` is in seconds of a chunk or a request; None where it is none of time.

    `refused` says why it cannot be had; then there is no gain.
    """

    kind: str
    name: str
    gain: float | None
    text: str
    refused: str | None = None


def next_best(exchanges: Sequence[Exchange]) -> Exchange:
    """Return the first kind's best that is worth it; watching when nothing is."""
    for kind in ORDER[1:-1]:
        offers = [
            e for e in exchanges if e.kind == kind and not e.refused and (e.gain or 0) >= WORTH_IT
        ]
        if offers:
            return max(offers, key=lambda e: e.gain or 0)
    return next(e for e in exchanges if e.kind == "watching")


def causal_exchanges(load: Load) -> list[Exchange]:
    """Return the exchanges that are left to a causal few-step model."""
    now_s, stages = account_causal.chunk_s(load), account_causal.chunk_stages(load)

    def gain(other: Load) -> float:
        return now_s / account_causal.chunk_s(other)

    gains = account_causal.gains_without(load)
    exchanges = [_count(stages, gains)]
    if load.card.measured is None and load.eta < COMPILED:
        exchanges.append(
            Exchange(
                ORDER[1], "compile and CUDA graphs", gain(replace(load, eta=COMPILED)),
                f"eta {load.eta:g} to {COMPILED}; few steps leave no time to launch kernels",
            )
        )  # fmt: skip
    if not load.fused:
        exchanges.append(
            Exchange(
                ORDER[1], "fused commit", gain(replace(load, fused=True)),
                "the commit rides with the next chunk's first pass",
            )
        )  # fmt: skip
    if load.card.link is not None and load.quantize == "none" and not load.offloaded:
        exchanges.append(_offload(load))
    exchanges += _lossy_causal(load, now_s)
    exchanges += _refused(is_few_step=True)
    if load.card.measured is None:
        two = gain(replace(load, cards=2 * load.cards))
        text = "shortens a chunk; GPU-seconds do not fall, so sessions on cards of their own serve"
        exchanges.append(Exchange(ORDER[3], "twice the cards a session", two, f"{text} more"))
    if load.model.steps > 2:
        fewer = replace(load, model=replace(load.model, steps=load.model.steps - 1))
        exchanges.append(
            Exchange(
                ORDER[4], f"{fewer.model.steps} steps", gain(fewer),
                "only where the model was made for it",
            )
        )  # fmt: skip
    return [*exchanges, _batching(load), _watching()]


def reference_exchanges(
    reference: Reference,
    card: Card,
    cost: RequestCost,
    *,
    eta: float,
    quantize: str = "none",
    step_cache: bool = False,
    sparsity: float = 1.0,
    cards: int = 1,
) -> list[Exchange]:
    """Return the exchanges that are left to a one-shot reference, its DiT split over `cards`."""
    dit = replace(cost.dit, seconds=cost.dit.seconds / _split(reference, cards))
    stages = (cost.text, dit, cost.vae)
    total = sum(stage.seconds for stage in stages)
    share = dit.seconds / total
    gains = {s.name: account.amdahl(s.seconds / total, math.inf) for s in stages}
    exchanges = [_count(stages, gains)]
    if eta < COMPILED:
        text = f"eta {eta:g} to {COMPILED}"
        gain = account.amdahl(share, COMPILED / eta)
        exchanges.append(Exchange(ORDER[1], "compile and FlashAttention", gain, text))
    if quantize == "none":
        linear = share * cost.step.linear_share
        exchanges += _quantisers(card, linear)
    if not reference.is_few_step and not step_cache:
        gain = account.amdahl(share, 28 / STEP_CACHE["0.4"])
        full = reference.steps * STEP_CACHE["0.4"] / 28
        text = f"threshold 0.4: {full:.0f} of {reference.steps} steps are computed; about 30 dB"
        exchanges.append(Exchange(ORDER[2], "step cache", gain, text))
    if sparsity == 1.0:
        attention = share * cost.step.attention_share
        gain = account.amdahl(attention, SPARSE_SPEED_UP)
        text = f"s {SPARSE_SPEED_UP} in blocks of 128, at most {1 / (1 - attention):.2f}x"
        exchanges.append(Exchange(ORDER[2], "sparse attention", gain, text))
    exchanges += _cards_for_one(reference, share, cards)
    exchanges += _refused(is_few_step=reference.is_few_step)
    if not reference.is_few_step:
        gain = account.amdahl(share, cost.passes / 4)
        text = "another checkpoint; kills step cache, PipeFusion and CFG parallel"
        exchanges.append(Exchange(ORDER[4], "a 4-step distillation", gain, text))
    text = "a request's time is known on arrival: pools by length, shortest first, price before"
    return [*exchanges, Exchange(ORDER[5], "queues by length", None, text), _watching()]


def _count(stages: Sequence[account.Stage], gains: Mapping[str, float]) -> Exchange:
    """Name the stage without which all would gain most; `gains` say how much, by stage."""
    total = sum(stage.seconds for stage in stages)
    first = max(stages, key=lambda stage: gains[stage.name])
    text = (
        f"{first.seconds / total:.0%} of the work, bound by {first.bound}; without it all would be "
        f"{gains[first.name]:.2f}x as fast, and no exchange there gains more"
    )
    return Exchange(ORDER[0], first.name, None, text)


def _lossy_causal(load: Load, now_s: float) -> list[Exchange]:
    stages = {stage.name: stage.seconds for stage in account_causal.chunk_stages(load)}
    exchanges = []
    if load.quantize == "none" and load.card.measured is None:
        exchanges += _quantisers(load.card, stages["linear"] / now_s)
    if load.card.measured is None and not load.model.quantized_kv:
        exchanges.append(_eight_bit_kv(load))
    vae = load.model.vae
    if not hasattr(vae, "decoder_widths"):
        tiny = replace(load, model=replace(load.model, vae=TinyVAE()))
        gain = now_s / account_causal.chunk_s(tiny)
        exchanges.append(Exchange(ORDER[2], "tiny VAE", gain, "a decoder distilled from it"))
    least = load.model.sink_frames + load.model.chunk_frames
    half = max(least, load.model.window_frames // 2)
    if half < load.model.window_frames:
        shorter = replace(load, model=replace(load.model, window_frames=half))
        gain = now_s / account_causal.chunk_s(shorter)
        text = "and half the K/V; the model forgets sooner"
        exchanges.append(Exchange(ORDER[2], f"window {half}", gain, text))
    return exchanges


def _offload(load: Load) -> Exchange:
    away = replace(load, offloaded=True, graphs=False)
    name, gain = (
        "layers in main memory",
        account_causal.chunk_s(load) / account_causal.chunk_s(away),
    )
    take_s, pass_s = account_causal.transfer_s(load), account_causal.pass_s(load, 1)
    took = f"bringing them takes {1000 * take_s:.0f} ms, a pass {1000 * pass_s:.0f} ms"
    if gain < 1:
        return Exchange(ORDER[1], name, None, "", took)
    now, then = (account_memory.sessions_by_memory(each) for each in (load, away))
    text = f"free: {took}; memory for {then} sessions in place of {now}, without CUDA graphs"
    return Exchange(ORDER[1], name, gain, text)


def _eight_bit_kv(load: Load) -> Exchange:
    small = replace(load, model=replace(load.model, quantized_kv=True))
    now, then = (account_memory.sessions_by_memory(each) for each in (load, small))
    text = f"memory for {then} sessions in place of {now}, no faster: converted as they are read"
    return Exchange(ORDER[2], "FP8 K/V", 1.0, text)


def _quantisers(card: Card, linear_share: float) -> list[Exchange]:
    exchanges = []
    for quantize, label in (("fp8", "FP8 weights"), ("int4", "4-bit weights")):
        try:
            speed_up = quantized_speed_up(quantize, card)
        except ConfigError as error:
            exchanges.append(Exchange(ORDER[2], label, None, "", error.message))
            continue
        gain = account.amdahl(linear_share, speed_up)
        text = f"s {speed_up:.2f} on a linear share of {linear_share:.0%}"
        if speed_up == 1:
            text = "saves memory and no time: no INT4 tensor cores"
        exchanges.append(Exchange(ORDER[2], label, gain, text))
    return exchanges


def _cards_for_one(reference: Reference, share: float, now: int) -> list[Exchange]:
    """Offer more cards than there are `now`."""
    exchanges = []
    for cards in (n for n in (4, 8) if n > now):
        speed_up = _split(reference, cards)
        e = speed_up / cards
        text = f"e({cards}) {e:.2f}; shortens a request, and costs {1 / e:.2f}x the GPU-seconds"
        gain = account.amdahl(share, speed_up / _split(reference, now))
        exchanges.append(Exchange(ORDER[3], f"Ulysses on {cards}", gain, text))
    return exchanges


def _split(reference: Reference, cards: int) -> float:
    """Return how many times as fast the DiT is on so many cards."""
    overhead = WAN_OVERHEAD if reference.guided else FLUX_OVERHEAD
    return cards * account.efficiency(cards, overhead)


def _refused(*, is_few_step: bool) -> list[Exchange]:
    if not is_few_step:
        return []
    why = "few steps are too unlike one another"
    guidance = "guidance is distilled in: there is one pass a step"
    return [
        Exchange(ORDER[2], "step cache", None, "", why),
        Exchange(ORDER[3], "PipeFusion", None, "", why),
        Exchange(ORDER[3], "CFG parallel", None, "", guidance),
    ]


def _batching(load: Load) -> Exchange:
    sessions = max(1, account_causal.sessions_by_time(load))
    alone = account_causal.utilisation(load, 1)
    together = account_causal.utilisation(load, sessions) / sessions
    text = f"{sessions} at once: each takes {together:.0%} of the device, alone {alone:.0%}"
    return Exchange(ORDER[5], "sessions in one batch", alone / together, text)


def _watching() -> Exchange:
    text = "alerts: step time +20 %, cache hit rate +-30 %, sampled quality -3 dB"
    return Exchange(ORDER[6], "watch", None, text)
