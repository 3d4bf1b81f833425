"""Matrix products of the blocks in 8-bit floats (E4M3), and how far 8 bits move what is generated.

Weights have a scale for each output, activations one for each token, found as they come: the
largest value of the row becomes the format's largest. Norms, modulation, attention, the embeddings
and the head stay as they are.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kvcache import PageTable, WindowConfig
from streamgen.model_runner import ModelRunner, Row, RunnerConfig, StepBatch
from streamgen.models.causal_dit import CausalDiT
from streamgen.models.fused import LinearGELU
from streamgen.models.presets import Model, Preset
from streamgen.step import COMMIT_TIMESTEP, ChunkSteps
from streamgen.text import TextMix

FORMAT: Final = torch.float8_e4m3fn
LARGEST: Final = torch.finfo(FORMAT).max
SMALLEST_SCALE: Final = 1e-12  # of a row of zeros
NEEDED_CAPABILITY: Final = (8, 9)  # Ada: the first with 8-bit float products
MULTIPLE: Final = 16  # of both sides of a matrix, as the products want it
SAMPLE_CHUNKS: Final = 2
SAMPLE_PROMPT: Final = "a red ball bounces on the grass"


class FP8Linear(nn.Module):
    """A linear layer, and the GELU after it where there was one, with an 8-bit product."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.approximate = linear.approximate if isinstance(linear, LinearGELU) else None
        values, scale = quantized(linear.weight)
        # Not called a weight: a LoRA must not take it for one.
        self.values: Tensor
        self.scale: Tensor
        self.register_buffer("values", values)  # [outputs, inputs]
        self.register_buffer("scale", scale.T.contiguous())  # [1, outputs]
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return gelu(linear(x)), or linear(x), in bfloat16."""
        values, scale = quantized(x.flatten(0, -2))
        out = scaled_product(values, scale, self.values, self.scale)
        if self.bias is not None:
            out = out + self.bias
        if self.approximate is not None:
            out = F.gelu(out, approximate=self.approximate)
        rows: Tensor = out.unflatten(0, x.shape[:-1])
        return rows


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows `[n, m]` in 8 bits and their float32 scales `[n, 1]`: values * scale = rows."""
    scale = rows.abs().amax(dim=1, keepdim=True).float() / LARGEST
    scale = scale.clamp(min=SMALLEST_SCALE)
    return (rows.float() / scale).to(FORMAT), scale


def scaled_product(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """Return (x * x_scale) @ (weight * weight_scale).T in bfloat16.

    `x` is `[n, inputs]`, `weight` `[outputs, inputs]`, the scales `[n, 1]` and `[1, outputs]`.
    """
    by_row = F.ScalingType.RowWise
    return F.scaled_mm(x, weight.T, x_scale, by_row, weight_scale, by_row)


def quantize_blocks(dit: CausalDiT) -> int:
    """Give the blocks' linear layers 8-bit weights; return how many. Move and cast it before."""
    count = 0
    for block in dit.layers:
        for part in [*block.modules()]:
            for name, child in [*part.named_children()]:
                if isinstance(child, nn.Linear) and not any(
                    s % MULTIPLE for s in child.weight.shape
                ):
                    setattr(part, name, FP8Linear(child))
                    count += 1
    return count


def refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a device has no such products, or None."""
    if device.type != "cuda":
        return f"8-bit products need a CUDA device, and this is {device}"
    capability = torch.cuda.get_device_capability(device)
    if capability < NEEDED_CAPABILITY:
        return f"8-bit products need compute capability 8.9, and this card has {capability}"
    if dtype != torch.bfloat16:
        return f"8-bit products give bfloat16, and the model is in {dtype}"
    return None


def sample(runner: ModelRunner, preset: Preset, window: WindowConfig) -> Tensor:
    """Return the latents of the first chunks of a fixed video. Leaves no trace in the pool."""
    table = PageTable(runner.pool, window, preset.chunks.chunk_frames, fused=False)
    slot = runner.acquire_text(TextMix.of(SAMPLE_PROMPT))
    chunks = []
    for chunk in range(SAMPLE_CHUNKS):
        staging = table.begin(preset.chunks.num_frames(chunk))
        shape = (staging.num_frames, *runner.config.latent_shape)

        def noise(index: int, chunk: int = chunk, shape: tuple[int, ...] = shape) -> Tensor:
            return preset.draw_noise(0, chunk, index, shape).to(runner.config.device)

        steps = ChunkSteps(preset.make_sampler(preset.steps), noise)
        while not steps.is_denoised:
            row = Row(steps.latents, steps.current_pass.timestep, staging, slot)
            steps.advance(runner.run(StepBatch((row,)))[0])
        runner.run(StepBatch((Row(steps.latents, COMMIT_TIMESTEP, staging, slot),)))
        table.commit()
        chunks.append(steps.latents.float().cpu())
    table.release()
    runner.release_text(slot)
    return torch.cat(chunks)


def psnr_db(found: Tensor, expected: Tensor) -> float:
    """Return the peak signal-to-noise ratio, the peak being the range of what is expected."""
    error = float((found - expected).square().mean())
    peak = float(expected.max() - expected.min())
    return math.inf if error == 0 else 10 * math.log10(peak**2 / error)


def quantize(runner: ModelRunner, preset: Preset, window: WindowConfig) -> float:
    """Quantise a runner's model; return the PSNR of its latents against those it gave before."""
    before = sample(runner, preset, window)
    quantize_blocks(runner.dit)
    runner.text.clear()
    return psnr_db(sample(runner, preset, window), before)


def plain_sample(
    model: Model,
    dtype: torch.dtype,
    room_for_one: RunnerConfig,
    window: WindowConfig,
) -> Tensor | None:
    """Return what a model gives with K/V in its own format, or None where they are so anyhow.

    It takes no more memory than the sample needs: where K/V are in 8 bits there is little.
    """
    if not room_for_one.quantized_kv:
        return None
    frames = SAMPLE_CHUNKS * room_for_one.chunk_frames
    held = window.window_frames or window.max_frames or frames
    if held >= frames:  # then none is evicted
        window = WindowConfig(frames)
    plain = dataclasses.replace(
        room_for_one,
        quantized_kv=False,
        num_frames=window.reserved_frames(room_for_one.chunk_frames, fused=False),
        max_rows=1,
        text_slots=1,
        visible_frames=min(held, frames),
    )
    return sample(ModelRunner(model.dit, model.text_encoder, dtype, plain), model.preset, window)
