"""The ledger of a plan under each option, side by side: what `plan --plot` draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from streamgen import account_causal
from streamgen.account import Stage
from streamgen.account_cards import COMPILED, EAGER, Card
from streamgen.account_causal import Load
from streamgen.account_options import SPARSE_SPEED_UP, STEP_CACHE, RequestCost, request_cost
from streamgen.account_shapes import REFERENCES, Reference, TinyVAE
from streamgen.plan_parts import Document

CACHED_STEPS: Final = 28  # of which the thresholds' full steps were counted


def causal_options(load: Load) -> list[Document]:
    """Return a chunk's ledger as asked for, and with one option changed at a time.

    On a calibrated device only options whose effect its measurements tell.
    """
    model = load.model
    loads = {"as asked": load}
    if load.card.measured is None:
        loads |= {
            "eager": replace(load, eta=EAGER),
            "compiled": replace(load, eta=COMPILED),
        }
        if load.card.fp8_flops is not None and load.quantize == "none":
            loads["FP8 weights"] = replace(load, quantize="fp8")
        loads["twice the cards"] = replace(load, cards=2 * load.cards)
    if not hasattr(model.vae, "decoder_widths"):
        loads["tiny VAE"] = replace(load, model=replace(model, vae=TinyVAE()))
    half = max(model.sink_frames + model.chunk_frames, model.window_frames // 2)
    if half < model.window_frames:
        loads[f"window {half}"] = replace(load, model=replace(model, window_frames=half))
    if model.steps > 1:
        fewer = replace(model, steps=model.steps - 1)
        loads[f"{fewer.steps} steps"] = replace(load, model=fewer)
    loads["commit alone" if load.fused else "fused commit"] = replace(load, fused=not load.fused)
    return [
        _option(name, _chunk(each), account_causal.chunk_s(each)) for name, each in loads.items()
    ]


def reference_options(
    reference: Reference, card: Card, cost: RequestCost, *, eta: float, steps: float | None,
    quantize: str, sparsity: float,
) -> list[Document]:  # fmt: skip
    """Return a request's ledger as asked for, and with one option changed at a time."""

    def other(
        *, eta: float = eta, steps: float | None = steps, quantize: str = quantize,
        sparsity: float = sparsity,
    ) -> RequestCost:  # fmt: skip
        return request_cost(
            reference, card, eta=eta, steps=steps, quantize=quantize, sparsity=sparsity
        )

    costs = {"as asked": cost, "eager": other(eta=EAGER), "compiled": other(eta=COMPILED)}
    if card.fp8_flops is not None and quantize == "none":
        costs["FP8 weights"] = other(quantize="fp8")
    if sparsity == 1.0:
        costs["sparse attention"] = other(sparsity=SPARSE_SPEED_UP)
    if not reference.is_few_step and steps is None:
        full = reference.steps * STEP_CACHE["0.4"] / CACHED_STEPS
        costs["step cache 0.4"] = other(steps=full)
    if reference.name == "flux-1-dev":
        few = replace(REFERENCES["flux-schnell"], size=reference.size)
        costs[few.name] = request_cost(few, card, eta=eta, quantize=quantize, sparsity=sparsity)
    return [
        _option(name, (each.text, each.dit, each.vae), each.seconds) for name, each in costs.items()
    ]


def _chunk(load: Load) -> list[Stage]:
    stages, host_s = account_causal.chunk_stages(load), account_causal.host_s(load)
    return [*stages, Stage("host", 0, 0, host_s, "overhead")] if host_s else stages


def _option(name: str, stages: Sequence[Stage], seconds: float) -> Document:
    return {
        "name": name,
        "stages": [dataclasses.asdict(stage) for stage in stages],
        "seconds": seconds,
    }
