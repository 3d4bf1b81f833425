"""What the two kinds of plan have in common."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from streamgen import account
from streamgen.account_cards import COMPILED, EAGER, TYPICAL, Card
from streamgen.account_exchanges import Exchange, next_best

ETAS: Final = {"eager": EAGER, "typical": TYPICAL, "compiled": COMPILED}

Document = dict[str, Any]


def card_facts(card: Card, eta: float) -> Document:
    """Return the facts that the figures rest on."""
    return {
        "name": card.name,
        "peak_flops": card.peak_flops,
        "bandwidth": card.bandwidth,
        "memory_bytes": card.memory_bytes,
        "price": card.price,
        "knee": card.knee,
        "eta": None if card.measured else eta,
        "is_measured": card.measured is not None,
    }


def price_of(card: Card, gpu_s: float) -> float | None:
    """Return the dollars of so many seconds on one card, if it has a price."""
    return None if card.price is None else account.price_of(gpu_s, card.price)


def served(name: str, gpu_s: float, assumption: str, card: Card, qps: float) -> Document:
    """Return a row of the serving table: cards and dollars for a load."""
    return {
        "name": name,
        "gpu_s": gpu_s,
        "cards": account.cards_for(qps, gpu_s),
        "price_a_request": price_of(card, gpu_s),
        "assumption": assumption,
    }


def advice(exchanges: list[Exchange]) -> Document:
    """Return the exchanges that are left, and which is the next."""
    return {
        "exchanges": [dataclasses.asdict(exchange) for exchange in exchanges],
        "next": dataclasses.asdict(next_best(exchanges)),
    }
