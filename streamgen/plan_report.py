"""A plan as text: tables that a person reads from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from streamgen.account_causal import MOST_SESSIONS
from streamgen.account_exchanges import GATE, ORDER

GIB: Final = 2**30
MAGNITUDES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def scaled(number: float, unit: str = "") -> str:
    """Return a number with three digits and the letter of its magnitude, as in 40.4 T."""
    for size, letter in MAGNITUDES:
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {letter}{unit}"
    return f"{number:.3g} {unit}".rstrip()


def duration(seconds: float) -> str:
    """Return seconds in the unit in which they are read."""
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def causal_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the text of a causal model's plan."""
    settings, work = document["settings"], document["pass"]
    head = (
        f"{document['model']} {settings['size']}, {settings['fps']} fps, "
        f"{_plural(settings['steps'], 'step')},"
        f" window {settings['window']} with sink {settings['sink']},"
        f" chunks of {settings['chunk_frames']} frames"
    )
    beside = ", the decode beside the passes" if document["decode_is_beside"] else ""
    price = document["price_an_hour_of_video"]
    return [
        head + (", K/V in 8 bits" if settings["kv_cache_dtype"] == "fp8" else ""),
        _card_line(document["card"]),
        f"a pass: {scaled(work['total'], 'FLOP')}, attention {work['attention_share']:.0%}; "
        f"{work['intensity']:,.0f} FLOP a byte of weights",
        "",
        *_stage_table(document["stages"], "a chunk"),
        *_host_line(document["host_s"]),
        *_offload_line(document["offload"]),
        f"a prompt, once: {scaled(document['text']['flops'], 'FLOP')}",
        "",
        f"a chunk every {duration(document['chunk_s'])}{beside}; it plays "
        f"{duration(document['period_s'])}; {document['fps']:.1f} fps for one session, bound by "
        f"{document['bound']}",
        f"from a chunk's begin to its frames {duration(document['latency_s'])}",
        "",
        *_memory_table(document["memory"]),
        f"sessions by time {_by_time(document['sessions_by_time'])}, by memory "
        f"{document['sessions_by_memory']}",
        f"an hour of video: {'no price is known; give --price' if price is None else _usd(price)}",
        *_serving_table(document.get("serving")),
        *_exchange_lines(document),
    ]


def reference_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the text of a reference's plan."""
    settings, step = document["settings"], document["step"]
    guided = " with guidance" if settings["guidance"] else ""
    price, hour = document["price_a_request"], document["price_an_hour_of_video"]
    layer = document["offload"]
    cost = "no price is known; give --price" if price is None else _usd(price)
    return [
        f"{document['model']} {settings['size']}, {_plural(settings['frames'], 'frame')}, "
        f"{settings['effective_steps']:.3g} steps{guided}, {document['tokens']:,} tokens",
        _card_line(document["card"]),
        f"a token passes {scaled(document['token_parameters'])} of "
        f"{scaled(document['parameters'])} parameters",
        f"a step: {scaled(step['total'], 'FLOP')}, attention {step['attention_share']:.0%}; "
        f"{step['intensity']:,.0f} FLOP a byte of weights",
        "",
        *_stage_table(document["stages"], "a request"),
        "",
        f"a request: {duration(document['request_s'])} on {_plural(settings['cards'], 'card')}, "
        + cost
        + (f"; an hour of video {_usd(hour)}" if hour is not None else ""),
        _communication_line(document["communication_bytes_a_step"]),
        f"layers in host memory, {layer['link'] / 1e9:.0f} GB/s: "
        f"{duration(layer['compute_s'])} of arithmetic and {duration(layer['transfer_s'])} of "
        f"transfer each, {layer['slowdown']:.1f}x the time",
        *_serving_table(document.get("serving")),
        *_recorded_table(document["recorded"]),
        *_exchange_lines(document),
    ]


def calibration_line(facts: Mapping[str, Any], path: Path) -> str:
    """Return what was measured, in a line or two."""
    points, made = facts["measured"]["pass_points"], facts["machine"]
    passes = ", ".join(f"{scaled(f, 'FLOP')} {duration(s)}" for f, s in points)
    return (
        f"{facts['name']}: {scaled(facts['peak_flops'], 'FLOP/s')}, "
        f"{scaled(facts['bandwidth'], 'B/s')}; passes {passes}; "
        f"decode {duration(facts['measured']['decode_point'][1])}; "
        f"a chunk of {made['model']} every {duration(made['chunk_s'])}\nwritten to {path}\n"
    )


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _by_time(sessions: int) -> str:
    if sessions == 0:
        return "0 (one alone is slower than it plays)"
    return f"{MOST_SESSIONS} or more" if sessions >= MOST_SESSIONS else str(sessions)


def _card_line(card: Mapping[str, Any]) -> str:
    eta = "calibrated" if card["is_measured"] else f"eta {card['eta']:g}"
    price = "" if card["price"] is None else f", {_usd(card['price'])} an hour"
    return (
        f"on {card['name']}: {scaled(card['peak_flops'], 'FLOP/s')}, "
        f"{scaled(card['bandwidth'], 'B/s')}, {card['memory_bytes'] / GIB:.0f} GiB{price}; knee "
        f"{card['knee']:.0f} FLOP a byte; {eta}"
    )


def _stage_table(stages: Sequence[Mapping[str, Any]], what: str) -> list[str]:
    total = sum(stage["seconds"] for stage in stages)
    lines = [f"{what:<16} {'FLOP':>9} {'bytes':>9} {'time':>9} {'share':>6}  bound by"]
    for stage in stages:
        lines.append(
            f"{stage['name']:<16} {scaled(stage['flops']):>9} {scaled(stage['bytes']):>9} "
            f"{duration(stage['seconds']):>9} {stage['seconds'] / total:>6.0%}  {stage['bound']}"
        )
    return lines


def _host_line(host_s: float) -> list[str]:
    return [f"{'host':<36} {duration(host_s):>9}"] if host_s else []


def _offload_line(layers: Mapping[str, float] | None) -> list[str]:
    if layers is None:
        return []
    slowdown = layers["slowdown"]
    cost = "free" if slowdown == 1 else f"{slowdown:.1f}x the time of a session alone"
    return [
        f"layers in main memory: {scaled(layers['bytes_a_pass'], 'B')} a pass at "
        f"{scaled(layers['link'], 'B/s')} take {duration(layers['transfer_s'])}, and a pass of one "
        f"session {duration(layers['compute_s'])}: {cost}"
    ]


def _memory_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = {
        "weights": "DiT", "text_weights": "text", "vae_weights": "VAE", "kv": "K/V",
        "cross_kv": "prompts", "decoder_state": "decoders", "latents": "latents",
        "gathered_kv": "gather", "graphs": "graphs", "runtime": "runtime", "total": "total",
    }  # fmt: skip
    head = " ".join(f"{name:>9}" for name in columns.values())
    lines = [f"sessions {head} {'time used':>9}   (bytes)"]
    for row in rows:
        cells = " ".join(f"{scaled(row[key]):>9}" for key in columns)
        lines.append(f"{row['sessions']:>8} {cells} {row['utilisation']:>9.0%}")
    return lines


def _serving_table(rows: Sequence[Mapping[str, Any]] | None) -> list[str]:
    if rows is None:
        return []
    lines = ["", f"{'serving':<16} {'GPU-s':>9} {'cards':>9} {'a request':>10}  assumed"]
    for row in rows:
        price = "-" if row["price_a_request"] is None else _usd(row["price_a_request"])
        lines.append(
            f"{row['name']:<16} {row['gpu_s']:>9.3g} {row['cards']:>9,.1f} {price:>10}  "
            f"{row['assumption']}"
        )
    return lines


def _recorded_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = ["", f"{'measured by others (H100, 4090)':<40} {'theirs':>9} {'ours':>9}  explained by"]
    for row in rows:
        unit = row["unit"]
        lines.append(
            f"{row['figure']:<40} {row['recorded']:>6.4g} {unit:<3}{row['computed']:>6.3g} "
            f"{unit:<3} {row['assumption']}"
        )
    return lines


def _communication_line(row: Mapping[str, float]) -> str:
    schemes = ", ".join(f"{name} {scaled(row[name], 'B')}" for name in row if name != "cards")
    return f"on {row['cards']:.0f} cards a step sends: {schemes}"


def _exchange_lines(document: Mapping[str, Any]) -> list[str]:
    lines, best = [""], document["next"]
    for kind in ORDER:
        offers = [e for e in document["exchanges"] if e["kind"] == kind]
        if not offers:
            continue
        lines.append(f"{kind} ({GATE})" if kind.startswith("lossy") else kind)
        for offer in offers:
            if offer["refused"]:
                lines.append(f"      no  {offer['name']}: {offer['refused']}")
                continue
            gain = "" if offer["gain"] is None else f"{offer['gain']:.2f}x"
            lines.append(f"  {gain:>6}  {offer['name']}: {offer['text']}")
    return [*lines, "", f"next: {best['name']} ({best['kind']})"]


def _usd(dollars: float) -> str:
    if dollars >= 0.1:
        return f"${dollars:.2f}"
    return f"${dollars:#.2g}"
