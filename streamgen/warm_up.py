"""What is measured before an engine opens: number formats, and what passes and decodes cost."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

import torch
from torch import Tensor

from kvcache import WindowConfig
from streamgen.config import EngineConfig
from streamgen.cost_table import USUAL_S, CostTable
from streamgen.decoder import decode_meanwhile, measure_decode
from streamgen.model_runner import ModelRunner, RunnerConfig
from streamgen.models.fused import has_products
from streamgen.models.presets import Model

logger: Final = logging.getLogger(__name__)

MEASURED_ROWS: Final = (1, 2, 4, 8, 16)
TOGETHER_ROWS: Final = 4
DECODER_THREADS: Final = 1  # a decode runs beside passes, which have the other cores
# bf16 has to be clearly faster: at the same speed fp32 is the better picture.
BF16_GAIN: Final = 0.9


@dataclass(frozen=True, slots=True)
class Measured:
    """Keep what was measured, for the engine and for the one that replaces it."""

    dtypes: tuple[torch.dtype, torch.dtype]  # of passes and of decodes
    pass_s: Mapping[int, float]  # by rows
    recache_s: float
    decode_s: float
    state_bytes: int  # of one decoder stream
    decode_shares_device: bool
    slowdown: float = 1.0  # of a pass that a decode runs beside
    scatter: float = 0.0  # mean absolute deviation of what was measured, as a share of it

    def costs(self) -> CostTable:
        """Return a table that begins with these costs, and beside it one of what is usual."""
        return self._table(usual=self._table(memory_s=USUAL_S))

    def _table(self, memory_s: float | None = None, usual: CostTable | None = None) -> CostTable:
        return CostTable(
            self.pass_s,
            decode_s=self.decode_s,
            recache_s=self.recache_s,
            decode_shares_device=self.decode_shares_device,
            slowdown=self.slowdown,
            scatter=self.scatter,
            memory_s=memory_s,
            usual=usual,
        )


def measure(
    runner: ModelRunner, model: Model, decode_dtype: torch.dtype, window: WindowConfig
) -> Measured:
    """Return what passes of several sizes and a decode cost; the VAE is where it is to run."""
    config = runner.config
    samples = runner.sample_s(window, [n for n in MEASURED_ROWS if n <= config.max_rows])
    pass_s = {n: median(times) for n, times in samples.items()}
    latents = torch.zeros(config.chunk_frames, *config.latent_shape, device=config.device)
    latents = latents.to(decode_dtype)
    decode_s, state_bytes = measure_decode(model.vae, latents)
    shares_device = config.device.type == "cuda"
    slowdown, series = 1.0, list(samples.values())
    if not shares_device:
        # A decode seldom runs alone: while sessions keep the device busy, passes run beside it.
        rows, beside, decodes = sample_together(runner, model, latents, window, list(samples))
        slowdown, decode_s = max(1.0, median(beside) / pass_s[rows]), median(decodes)
        series += [beside, decodes]
    scatter = scatter_of(series)
    held = window.window_frames or window.max_frames or config.chunk_frames
    refill = -(-held // config.chunk_frames)
    logger.info(
        "%s on %s: %s ms a pass, %.2f times that beside a decode, which is %.1f ms; +-%.0f %%",
        model.preset.name, config.device,
        ", ".join(f"{n} rows {1000 * s:.1f}" for n, s in pass_s.items()), slowdown, 1000 * decode_s,
        100 * scatter,
    )  # fmt: skip
    return Measured(
        dtypes=(runner.dtype, decode_dtype),
        pass_s=pass_s,
        recache_s=pass_s[min(pass_s, key=lambda n: abs(n - refill))],
        decode_s=decode_s,
        state_bytes=state_bytes,
        decode_shares_device=shares_device,
        slowdown=slowdown,
        scatter=scatter,
    )


def scatter_of(series: Sequence[Sequence[float]]) -> float:
    """Return the mean absolute deviation of samples from their series' median, as a share of it.

    A stall counts as what takes twice as long, as it does later.
    """
    return fmean(min(abs(x / median(each) - 1), 1.0) for each in series for x in each)


def sample_together(
    runner: ModelRunner,
    model: Model,
    latents: Tensor,
    window: WindowConfig,
    sizes: Sequence[int],
) -> tuple[int, list[float], list[float]]:
    """Return the rows of passes, one of `sizes`, their seconds beside decodes, and the decodes'.

    `latents` are a chunk's, as the decoder takes them.
    """
    rows = max(n for n in sizes if n <= TOGETHER_ROWS)
    with decode_meanwhile(model.vae, latents, DECODER_THREADS) as decoded_s:
        beside_s = runner.sample_s(window, (rows,))[rows]
    return rows, beside_s, decoded_s


def choose_dtypes(
    config: EngineConfig, model: Model, room_for_one: RunnerConfig, window: WindowConfig
) -> tuple[torch.dtype, torch.dtype]:
    """Return the number formats of passes and decodes, as asked for or the faster ones."""
    device = room_for_one.device
    latents = torch.zeros(room_for_one.chunk_frames, *room_for_one.latent_shape, device=device)

    def pass_s(dtype: torch.dtype) -> float:
        dit = copy.deepcopy(model.dit)
        return ModelRunner(dit, model.text_encoder, dtype, room_for_one).measure_s(window)[1]

    def chunk_s(dtype: torch.dtype) -> float:
        return measure_decode(copy.deepcopy(model.vae).to(device, dtype), latents.to(dtype))[0]

    return (
        _choose_dtype(config, device, "passes", pass_s),
        _choose_dtype(config, device, "decodes", chunk_s),
    )


def fixed_dtype(config: EngineConfig, device: torch.device) -> torch.dtype | None:
    """Return the format that is used without a measurement, or None.

    On cards bfloat16 is the faster one wherever its products are built in, from Ampere on. A
    processor without them converts, which is slower than float32: nothing to measure.
    """
    if config.dtype != "auto":
        return {"bf16": torch.bfloat16, "fp32": torch.float32}[config.dtype]
    if config.deterministic:
        return torch.float32  # who asks for every bit wants the better bits
    if device.type == "cuda":
        has_bf16 = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if has_bf16 else torch.float32
    return None if has_products(torch.bfloat16) else torch.float32


def _choose_dtype(
    config: EngineConfig,
    device: torch.device,
    work: str,
    seconds: Callable[[torch.dtype], float],
) -> torch.dtype:
    """Return the format that is fixed, or the one that is faster on this machine."""
    fixed = fixed_dtype(config, device)
    if fixed is not None:
        if fixed == torch.bfloat16 and device.type == "cpu" and not has_products(fixed):
            logger.warning("%s in bf16: this processor has no products of it, fp32 is faster", work)
        return fixed
    fp32_s, bf16_s = seconds(torch.float32), seconds(torch.bfloat16)
    dtype = torch.bfloat16 if bf16_s < BF16_GAIN * fp32_s else torch.float32
    logger.info("%s in %s: fp32 %.1f ms, bf16 %.1f ms", work, dtype, 1000 * fp32_s, 1000 * bf16_s)
    return dtype
