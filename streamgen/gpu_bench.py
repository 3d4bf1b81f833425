"""Frames a second of a model's shape with random weights: speed does not depend on their values.

Of each size, window and way of running, passes are timed by rows, and decodes of both decoders by
themselves; frames a second of so many sessions follow from them, as they do for the account, whose
prediction stands beside.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kvcache import WindowConfig
from streamgen import account_causal
from streamgen.account_cards import CARDS, COMPILED, EAGER, Card
from streamgen.account_causal import Load
from streamgen.account_shapes import CAUSAL_MODELS, CausalModel
from streamgen.cuda_graph import compile_blocks, cuda_graphs
from streamgen.decoder import measure_decode
from streamgen.model_runner import ModelRunner, RunnerConfig
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.taehv import TAEHV, TAEHVConfig
from streamgen.models.wan_vae import WanVAE, WanVAEConfig

GIB: Final = 2**30
WAN_1_3B: Final = DiTConfig(dim=1536, ffn_dim=8960, num_layers=30, num_heads=12)
CHUNK_FRAMES, STEPS, PIXEL_FRAMES = 3, 4, 12
BATCHES: Final = (1, 2, 3, 4)
# Of fused passes: the first one of a chunk has two rows a session.
ROWS: Final = tuple(sorted({n for batch in BATCHES for n in (batch, 2 * batch)}))
LATENT_CHANNELS: Final = 16
WAYS: Final = ("eager", "compiled", "graphed", "compiled and graphed")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is measured."""

    dit: DiTConfig = WAN_1_3B
    sizes: tuple[tuple[int, int], ...] = ((832, 480), (640, 368), (448, 256))
    windows: tuple[int, ...] = (21, 12)
    ways: tuple[str, ...] = WAYS
    decoders: Mapping[str, TAEHVConfig | WanVAEConfig] = dataclasses.field(
        default_factory=lambda: {"full": WanVAEConfig(), "tiny": TAEHVConfig()}
    )
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Frames a second of all sessions together, measured and as the account predicts them."""

    size: str
    window: int
    decoder: str
    way: str
    sessions: int
    pass_ms: float
    decode_ms: float
    fps: float
    predicted_fps: float | None
    peak_gib: float | None  # on a card, since the way began
    note: str = ""


class NoText:
    """A text encoder for a model that is not asked what it shows."""

    def __init__(self, dit: DiTConfig) -> None:
        self._shape = (dit.text_len, dit.text_dim)

    def encode(self, prompts: list[str]) -> Tensor:
        """Return zeros."""
        return torch.zeros(len(prompts), *self._shape)


def find_card(name: str) -> Card | None:
    """Return the account's card of a device's name, or None where it has none."""
    words = name.lower().replace("-", " ").split()
    return next((card for key, card in CARDS.items() if key in words), None)


def measure(sweep: Sweep, device: torch.device, tell: Callable[[BenchRow], None]) -> list[BenchRow]:
    """Return all rows; `tell` hears each as soon as it is there."""
    rows = []
    for size in sweep.sizes:
        decode_s = {
            name: decode_seconds(config, size, device, sweep.dtype)
            for name, config in sweep.decoders.items()
        }
        for window in sweep.windows:
            for way in sweep.ways:
                for row in _rows_of(sweep, size, window, way, decode_s, device):
                    tell(row)
                    rows.append(row)
    return rows


def decode_seconds(
    config: TAEHVConfig | WanVAEConfig,
    size: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
) -> float:
    """Return the seconds of a steady chunk's decode."""
    vae = TAEHV(config) if isinstance(config, TAEHVConfig) else WanVAE(config)
    vae.requires_grad_(False).eval().to(device, dtype)
    channels = config.latent_channels if isinstance(config, TAEHVConfig) else config.z_dim
    latents = torch.randn(CHUNK_FRAMES, channels, size[1] // 8, size[0] // 8)
    return measure_decode(vae, latents.to(device, dtype))[0]


def pass_seconds(
    sweep: Sweep, size: tuple[int, int], window: int, way: str, device: torch.device
) -> tuple[dict[int, float], str]:
    """Return the seconds of passes by rows with a full window, and which attention they had."""
    with torch.device(device):
        dit = CausalDiT(sweep.dit).requires_grad_(False).eval()
    frames = window + CHUNK_FRAMES * (max(ROWS) + 1)
    config = RunnerConfig(
        latent_shape=(sweep.dit.in_dim, size[1] // 8, size[0] // 8), chunk_frames=CHUNK_FRAMES,
        num_frames=frames, max_rows=max(ROWS), text_slots=2, device=device, visible_frames=window,
    )  # fmt: skip
    runner = ModelRunner(dit, NoText(sweep.dit), sweep.dtype, config)
    if way.startswith("compiled"):
        compile_blocks(runner.dit)
    if way.endswith("graphed"):
        runner.capture_graphs(cuda_graphs())
    seconds = runner.measure_s(WindowConfig(window), ROWS)
    note = "not captured" if way.endswith("graphed") and not runner.graphs.sizes else ""
    return seconds, note


def _rows_of(
    sweep: Sweep,
    size: tuple[int, int],
    window: int,
    way: str,
    decode_s: Mapping[str, float],
    device: torch.device,
) -> Iterator[BenchRow]:
    on_card = device.type == "cuda"
    if on_card:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    pass_s, note = pass_seconds(sweep, size, window, way, device)
    peak = torch.cuda.max_memory_allocated(device) / GIB if on_card else None
    card = find_card(torch.cuda.get_device_name(device)) if on_card else None
    for decoder, seconds in decode_s.items():
        for sessions in BATCHES:
            chunk_s = chunk_seconds(pass_s.__getitem__, seconds, sessions)
            yield BenchRow(
                f"{size[0]}x{size[1]}", window, decoder, way, sessions,
                1000 * pass_s[sessions], 1000 * seconds, PIXEL_FRAMES * sessions / chunk_s,
                predicted_fps(sweep, size, window, decoder, way, sessions, card), peak, note,
            )  # fmt: skip


def chunk_seconds(pass_s: Callable[[int], float], decode_s: float, sessions: int) -> float:
    """Return the seconds in which so many sessions make a chunk each, all on one device.

    Commits ride with the first pass; decodes take their time from the passes.
    """
    return (STEPS - 1) * pass_s(sessions) + pass_s(2 * sessions) + sessions * decode_s


def predicted_fps(
    sweep: Sweep,
    size: tuple[int, int],
    window: int,
    decoder: str,
    way: str,
    sessions: int,
    card: Card | None,
) -> float | None:
    """Return what the account says of the same, or None for a card that it does not know."""
    if card is None:
        return None
    load = Load(
        dataclasses.replace(
            _model(sweep, decoder), size=size, window_frames=window,
            element_bytes=sweep.dtype.itemsize, vae_element_bytes=sweep.dtype.itemsize,
        ),
        card,
        COMPILED if way.startswith("compiled") else EAGER,
    )  # fmt: skip
    decode_s = account_causal.decode_stage(load).seconds
    chunk_s = chunk_seconds(lambda rows: account_causal.pass_s(load, rows), decode_s, sessions)
    return PIXEL_FRAMES * sessions / chunk_s


def _model(sweep: Sweep, decoder: str) -> CausalModel:
    base = CAUSAL_MODELS["causal-wan-1.3b"]
    return dataclasses.replace(base, dit=sweep.dit, vae=sweep.decoders[decoder])


def markdown(rows: Sequence[BenchRow], title: str) -> str:
    """Return a table for people."""
    lines = [
        f"# {title}",
        "",
        "| size | window | decoder | way | sessions | ms a pass | ms a decode | fps | predicted "
        "| peak GiB | |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        predicted = "" if row.predicted_fps is None else f"{row.predicted_fps:.1f}"
        peak = "" if row.peak_gib is None else f"{row.peak_gib:.2f}"
        lines.append(
            f"| {row.size} | {row.window} | {row.decoder} | {row.way} | {row.sessions} "
            f"| {row.pass_ms:.1f} | {row.decode_ms:.1f} | {row.fps:.1f} | {predicted} | {peak} "
            f"| {row.note} |"
        )
    return "\n".join([*lines, ""])


def document(rows: Sequence[BenchRow], machine: Mapping[str, Any]) -> str:
    """Return the same as JSON."""
    return json.dumps({"machine": dict(machine), "rows": [asdict(row) for row in rows]}, indent=1)
