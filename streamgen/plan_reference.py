"""The plan of a published many-step model: one request of it, and a load of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from streamgen import account
from streamgen.account_cards import Card
from streamgen.account_exchanges import reference_exchanges
from streamgen.account_options import (
    FLUX_OVERHEAD,
    LINK,
    STEP_CACHE,
    WAN_OVERHEAD,
    RequestCost,
    offload,
    refuse_dead_options,
    request_cost,
    serving_ladder,
)
from streamgen.account_recorded import Recorded, flux_recorded, wan_recorded
from streamgen.account_shapes import REFERENCES, FluxDiT, Reference
from streamgen.command_options import PlanConfig
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError, Unsupported
from streamgen.limits import check_size
from streamgen.plan_models import MAX_PIXELS
from streamgen.plan_options import CACHED_STEPS, reference_options
from streamgen.plan_parts import ETAS, Document, advice, card_facts, price_of, served

PUBLISHED_FPS: Final = 16  # of Wan's clips


def plan_reference(card: Card, engine: EngineConfig, options: PlanConfig) -> Document:
    """Return the account of one request. Raises ConfigError or Unsupported."""
    assert options.reference is not None
    published = REFERENCES[options.reference]
    if card.measured is not None:
        raise ConfigError(
            f"{published.name} is planned for a card: say --gpu h100, for one", param="gpu"
        )
    reference = _asked(published, engine, options)
    _check_exchanges(reference, options)
    full = None
    if options.step_cache is not None:
        full = reference.steps * STEP_CACHE[options.step_cache] / CACHED_STEPS
    eta = options.eta or ETAS[options.execution]
    cost = request_cost(
        reference, card, eta=eta, steps=full, quantize=options.quantize, sparsity=options.sparsity
    )
    exchanges = reference_exchanges(
        reference,
        card,
        cost,
        eta=eta,
        quantize=options.quantize,
        step_cache=full is not None,
        sparsity=options.sparsity,
        cards=options.cards,
    )
    document = {
        "model": reference.name,
        "settings": _settings(reference, options, full),
        "card": card_facts(card, eta),
        **_work(reference, cost),
        **_request(reference, cost, card, options.cards),
        "communication_bytes_a_step": communication(reference, cost.tokens, options.cards),
        "offload": _offload(reference, cost.tokens, card, eta),
        "recorded": [
            {**dataclasses.asdict(row), "error": row.error} for row in recorded(published.name)
        ],
        "options": reference_options(
            reference, card, cost, eta=eta, steps=full, quantize=options.quantize,
            sparsity=options.sparsity,
        ),
        **advice(exchanges),
    }  # fmt: skip
    if options.qps is not None:
        document["serving"] = _serving(reference, card, options.qps)
    return document


def _asked(published: Reference, engine: EngineConfig, options: PlanConfig) -> Reference:
    """Return a reference at the size, length and steps that are asked for."""
    if options.frames is not None and published.frames == 1:
        raise ConfigError(f"frames is of video; {published.name} makes a picture", param="frames")
    return dataclasses.replace(
        published,
        size=check_size(*(engine.size or published.size), MAX_PIXELS),
        frames=options.frames or published.frames,
        steps=engine.steps or published.steps,
    )


def _serving(reference: Reference, card: Card, qps: float) -> list[Document]:
    few = None
    if reference.name == "flux-1-dev":
        few = dataclasses.replace(REFERENCES["flux-schnell"], size=reference.size)
    return [
        served(row.name, row.gpu_s, row.assumption, card, qps)
        for row in serving_ladder(reference, card, few)
    ]


def recorded(name: str) -> Sequence[Recorded]:
    """Return the figures that others measured with a reference, each explained."""
    if name == "flux-1-dev":
        return flux_recorded(REFERENCES["flux-1-dev"], REFERENCES["flux-schnell"])
    return wan_recorded(REFERENCES["wan-14b-720p"]) if name == "wan-14b-720p" else []


def communication(reference: Reference, tokens: int, cards: int) -> dict[str, float]:
    """Return the bytes a step of each way to split it over `cards`, at least two."""
    dit, p = reference.dit, max(2, cards)
    layers = account.num_layers(dit)
    channels = dit.in_dim if isinstance(dit, FluxDiT) else 4 * dit.out_dim
    return {
        "cards": p,
        "tensor": account.tensor_parallel_bytes(p, tokens, dit.dim, layers),
        "ulysses": account.ulysses_bytes(p, tokens, dit.dim, layers),
        "cfg": account.cfg_parallel_bytes(tokens, channels),
        "pipefusion": account.pipefusion_bytes(tokens, dit.dim),
    }


def _check_exchanges(reference: Reference, options: PlanConfig) -> None:
    refuse_dead_options(reference.is_few_step, options.step_cache, options.parallel)
    if options.parallel != "cfg":
        return
    if not reference.guided:
        raise Unsupported(
            f"cfg: {reference.name} has its guidance distilled in, and no second pass to split",
            param="parallel",
        )
    if options.cards != 2:
        raise ConfigError(
            f"cfg splits two passes over 2 cards, not over {options.cards}", param="cards"
        )


def _settings(reference: Reference, options: PlanConfig, full: float | None) -> Document:
    return {
        "size": "{}x{}".format(*reference.size),
        "frames": reference.frames,
        "steps": reference.steps,
        "effective_steps": reference.steps if full is None else full,
        "guidance": reference.guided,
        "cards": options.cards,
        "parallel": options.parallel,
        "quantize": options.quantize,
        "sparsity": options.sparsity,
    }


def _work(reference: Reference, cost: RequestCost) -> Document:
    """Return what a step and a request compute, move and take."""
    weights = 2 * account.parameters(reference.dit)
    return {
        "tokens": cost.tokens,
        "token_parameters": account.token_parameters(reference.dit),
        "parameters": account.parameters(reference.dit),
        "step": {
            **dataclasses.asdict(cost.step),
            "total": cost.step.total,
            "attention_share": cost.step.attention_share,
            "intensity": account.intensity(cost.step.total, weights),
        },
        "stages": [dataclasses.asdict(stage) for stage in (cost.text, cost.dit, cost.vae)],
        "text_vae_share": cost.text_vae_share,
    }


def _request(reference: Reference, cost: RequestCost, card: Card, cards: int) -> Document:
    """Return the seconds and the price of a request, the DiT split over `cards`."""
    overhead = WAN_OVERHEAD if reference.guided else FLUX_OVERHEAD
    e = account.efficiency(cards, overhead)
    seconds = cost.seconds - cost.dit.seconds * (1 - 1 / (cards * e))
    price = price_of(card, cards * seconds)
    hour = None
    if price is not None and reference.frames > 1:
        hour = price * account.HOUR_S * PUBLISHED_FPS / reference.frames
    return {
        "efficiency": e,
        "request_s": seconds,
        "price_a_request": price,
        "price_an_hour_of_video": hour,
    }


def _offload(reference: Reference, tokens: int, card: Card, eta: float) -> Document:
    layer = offload(reference.dit, tokens, 2 if reference.guided else 1, card, eta)
    return {**dataclasses.asdict(layer), "slowdown": layer.slowdown, "link": LINK}
