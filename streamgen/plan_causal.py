"""The plan of a causal few-step model: its sessions on a device."""

from __future__ import annotations

import dataclasses
from typing import Final

from streamgen import account, account_causal, account_memory
from streamgen.account_cards import COMPILED, Card
from streamgen.account_causal import Load
from streamgen.account_exchanges import causal_exchanges
from streamgen.account_shapes import CAUSAL_MODELS, TinyVAE
from streamgen.command_options import PlanConfig
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError
from streamgen.plan_models import planned_model
from streamgen.plan_options import causal_options
from streamgen.plan_parts import ETAS, Document, advice, card_facts, served

SIXTEEN_BIT: Final = (2, 2)
FLOAT32: Final = (4, 4)


def plan_causal(card: Card, engine: EngineConfig, options: PlanConfig) -> Document:
    """Return the account of a causal model's sessions."""
    load = causal_load(card, engine, options)
    by_time = account_causal.sessions_by_time(load)
    by_memory = account_memory.sessions_by_memory(load)
    counts = options.sessions or tuple(sorted({1, max(1, min(by_time, by_memory))}))
    document = {
        "model": load.model.name,
        "settings": _settings(load),
        "card": card_facts(card, load.eta),
        **_work(load),
        "kv_frame_bytes": load.kv_frame_bytes,
        "memory": [_memory(load, count) for count in counts],
        "sessions_by_time": by_time,
        "sessions_by_memory": by_memory,
        "price_an_hour_of_video": account_causal.price_an_hour(load),
        "offload": _offload(load) if load.offloaded else None,
        "options": causal_options(load),
        **advice(causal_exchanges(load)),
    }
    if options.qps is not None:
        document["serving"] = _serving(load, options.qps, options.seconds)
    return document


def causal_load(card: Card, engine: EngineConfig, options: PlanConfig) -> Load:
    """Return what is to be accounted for. Raises ConfigError for what was never measured."""
    sizes = FLOAT32 if engine.dtype == "fp32" else SIXTEEN_BIT
    if card.measured is not None:
        asked, sizes = sizes, card.measured.element_bytes
        if engine.dtype != "auto" and asked != sizes:
            raise ConfigError(
                f"{card.name} was calibrated with elements of {sizes[0]} bytes in passes and "
                f"{sizes[1]} in decodes, not as {engine.dtype}: calibrate with --dtype",
                param="dtype",
            )
        _check_measured(card, engine, options)
    if engine.offload_layers:
        _check_offload(card, options)
    model = planned_model(engine, sizes)
    is_card = card.measured is None or card.measured.decode_shares_device
    if is_card and engine.model not in CAUSAL_MODELS and engine.text_device == "cpu":
        model = dataclasses.replace(model, text_parameters=0)  # it stays in main memory
    if options.vae == "tiny" and not hasattr(model.vae, "decoder_widths"):
        model = dataclasses.replace(model, vae=TinyVAE())
    return Load(
        model,
        card,
        options.eta or ETAS[options.execution],
        options.quantize,
        options.sparsity,
        options.cards,
        engine.fused,
        bound=engine.max_utilisation or 1.0,
        graphs=not (engine.enforce_eager or engine.offload_layers),
        offloaded=engine.offload_layers,
    )


def _check_offload(card: Card, options: PlanConfig) -> None:
    """Raise ConfigError for what layers in main memory cannot be combined with."""
    why = None
    if card.link is None and card.measured is None:
        why = f"nothing is known of the link of {card.name} to main memory; its file may say `link`"
    if options.quantize != "none":
        why = "all weights are quantised on the card at once; leave --quantize out"
    if why is not None:
        raise ConfigError(f"offload_layers: {why}", param="offload_layers")


def _check_measured(card: Card, engine: EngineConfig, options: PlanConfig) -> None:
    """Raise ConfigError for an exchange whose effect here calibration did not measure."""
    asked: list[tuple[object, object, str]] = [
        (options, PlanConfig(), name)
        for name in ("quantize", "sparsity", "cards", "eta", "execution")
    ]
    asked += [(engine, EngineConfig(), name) for name in ("kv_cache_dtype", "offload_layers")]
    for given, defaults, name in asked:
        if getattr(given, name) != getattr(defaults, name):
            raise ConfigError(
                f"{name} was not measured on {card.name}: leave it out, or name a card with --gpu",
                param=name,
            )


def _settings(load: Load) -> Document:
    model = load.model
    return {
        "size": "{}x{}".format(*model.size),
        "fps": model.fps,
        "steps": model.steps,
        "window": model.window_frames,
        "sink": model.sink_frames,
        "chunk_frames": load.chunk_pixel_frames,
        "fused": load.fused,
        "cards": load.cards,
        "quantize": load.quantize,
        "kv_cache_dtype": "fp8" if model.quantized_kv else "auto",
        "offload_layers": load.offloaded,
        "sparsity": load.sparsity,
    }


def _work(load: Load) -> Document:
    """Return what a pass and a chunk compute, move and take."""
    model, flops = load.model, account_causal.row_flops(load)
    stages = account_causal.chunk_stages(load)
    weights = account.token_parameters(model.dit) * model.element_bytes
    chunk_s, gains = account_causal.chunk_s(load), account_causal.gains_without(load)
    return {
        "pass": {
            **dataclasses.asdict(flops),
            "total": flops.total,
            "attention_share": flops.attention_share,
            "intensity": account.intensity(flops.total, weights),
        },
        "text": dataclasses.asdict(account_causal.text_stage(load)),
        "stages": [dataclasses.asdict(stage) for stage in stages],
        "host_s": account_causal.host_s(load),
        "chunk_s": chunk_s,
        "latency_s": account_causal.latency_s(load),
        "period_s": load.period_s,
        "fps": load.chunk_pixel_frames / chunk_s,
        "bound": max(gains, key=lambda name: gains[name]),
        "decode_is_beside": not load.shares_device,
    }


def _offload(load: Load) -> Document:
    """Return what bringing the layers costs a pass of one session."""
    transfer_s = account_causal.transfer_s(load)
    computed_s = account_causal.pass_s(dataclasses.replace(load, offloaded=False), 1)
    return {
        "link": account_causal.transfer_bytes(load) / transfer_s,
        "bytes_a_pass": account_causal.transfer_bytes(load),
        "transfer_s": transfer_s,
        "compute_s": computed_s,
        "slowdown": max(1.0, transfer_s / computed_s),
    }


def _memory(load: Load, count: int) -> Document:
    ledger = account_memory.memory(load, count)
    used = account_causal.utilisation(load, count)
    return {**dataclasses.asdict(ledger), "total": ledger.total, "utilisation": used}


def _serving(load: Load, qps: float, seconds: float) -> list[Document]:
    """Return cards for requests of so many `seconds` of video, as options are stacked."""
    chunks = -(-round(seconds * load.model.fps) // load.chunk_pixel_frames)
    ladder = [("as calibrated", load, "measured")]
    if load.card.measured is None:
        ladder = [
            (name, dataclasses.replace(load, eta=ETAS[name], quantize="none"), f"eta {ETAS[name]}")
            for name in ("eager", "compiled")
        ]
        if load.card.fp8_flops is not None:
            fp8 = dataclasses.replace(load, eta=COMPILED, quantize="fp8")
            ladder.append(("+ FP8", fp8, "s 1.55 in matrix products"))
    return [
        served(name, chunks * account_causal.chunk_s(each) * each.cards, why, load.card, qps)
        for name, each, why in ladder
    ]
