"""Turn the trained transformer into a few-step one by phased regression onto itself.

    python -m streamgen.pocket.train.distill --data runs/data --teacher runs/dit/dit.safetensors \
        --out runs/distilled --minutes 20

The student's four passes cut the noise range into four segments. On each, the teacher walks three
guided Euler steps from a noised clip, and the student learns the straight line from where that walk
began to where it ended. Half of the context is what the student itself makes of noised chunks, so
that it meets its own habits in training.

First chunks are trained on alone as well, most of them from where the student's own passes lead. Of
them no teacher is asked: a prompt that says everything and a mark in the noise leave one right
answer, and the line leads there. A shipped student can be trained on as its own teacher, which
walks a segment in one step (`--substeps 1 --guidance 1`). Resumes from `--out`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from streamgen.models.causal_dit import CausalDiT, SelfAttention
from streamgen.pocket.config import CHUNK_FRAMES, DIT, WINDOW_FRAMES
from streamgen.pocket.train.data import load_shards
from streamgen.pocket.train.dit import (
    SHIFT,
    alone,
    batches,
    dropped,
    flow_of,
    noise_of,
    noisy_part,
    openings_only,
    optimizers_of,
    save,
    teacher_forcing,
    teacher_forcing_rows,
    weighted,
)
from streamgen.pocket.train.optim import Average, ramp
from streamgen.pocket.train.precision import mixed_precision

NUM_PASSES = 4
# First chunks trained on alone: how often each segment is drawn (the first reads the mark in the
# noise), and the share that begins where the student's own passes lead.
OPENING_SEGMENTS = (2.0, 1.0, 2.0, 2.0)
OWN_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Models:
    """Who learns from whom; how far the teacher is pushed away from no prompt, in which steps."""

    student: CausalDiT
    teacher: CausalDiT
    guidance: float  # 1 is the teacher as it is
    substeps: int  # of the teacher on a segment


@dataclass(frozen=True, slots=True)
class Clips:
    """Latents `[clips, chunks, frames, C, h, w]`, and the context that later chunks see of them."""

    x0: Tensor
    context: Tensor
    labels: Tensor


def level(segment: Tensor) -> Tensor:
    """Return the noise level at a place `0..NUM_PASSES` in the row of segments, 1 to 0."""
    u = (1 - segment / NUM_PASSES).clamp(min=0)  # thirds may add up to a hair more than a whole
    return SHIFT * u / (1 + (SHIFT - 1) * u)


def wide(sigma: Tensor) -> Tensor:
    """Shape `[clips, chunks]` to multiply latents `[clips, chunks, frames, C, h, w]`."""
    return sigma[:, :, None, None, None, None]


def guided_flow(models: Models, rows: dict[str, Tensor], attention: SelfAttention) -> Tensor:
    """Return the teacher's flow, pushed away from what it would do without a prompt."""
    flow = flow_of(models.teacher, rows, attention)
    if models.guidance == 1:
        return flow
    blank = {**rows, "labels": torch.zeros_like(rows["labels"])}
    without = flow_of(models.teacher, blank, attention)
    return without + models.guidance * (flow - without)


def distill_loss(models: Models, batch: dict[str, Tensor]) -> Tensor:
    """Return the regression loss on one random segment a chunk."""
    x0 = batch["latents"].float().unflatten(1, (-1, CHUNK_FRAMES))
    labels = dropped(batch["labels"])
    with torch.no_grad():
        context = own_context(models.student, x0, noise_of(x0, batch["start"]), labels)
    segment = torch.randint(NUM_PASSES, x0.shape[:2], device=x0.device)
    clips = Clips(x0, context, labels)
    begun = noised(x0, noise_of(x0, batch["start"]), segment)
    ended = walked(models, clips, begun, segment)
    # As below: what has one right answer goes there.
    known = (labels == batch["labels"]).all(-1)
    known[:, 1:] = False
    ended = torch.where(wide(known), led(begun, x0, segment), ended)
    error = segment_error(models.student, clips, begun, ended, segment)
    return weighted(openings_only(error, batch["start"]).flatten(1, 2), batch["object"])


def opening_loss(student: CausalDiT, batch: dict[str, Tensor]) -> Tensor:
    """Return the loss on first chunks alone, prompts untouched.

    From where its own passes lead the student learns to go where the clip is: to choose where it
    has drawn a thing in two places.
    """
    x0 = batch["latents"].float()[:, None]
    weights = torch.tensor(OPENING_SEGMENTS, device=x0.device)
    segment = torch.multinomial(weights, len(x0), replacement=True)[:, None]
    clips, noise = Clips(x0, x0, batch["labels"]), noise_of(x0, batch["start"])
    is_own = torch.rand(segment.shape, device=x0.device) < OWN_SHARE
    own = rolled_out(student, clips, noise, segment * is_own)
    begun = torch.where(wide(is_own), own, noised(x0, noise, segment))
    error = segment_error(student, clips, begun, led(begun, x0, segment), segment)
    return weighted(error.flatten(1, 2), batch["object"])


def led(begun: Tensor, x0: Tensor, segment: Tensor) -> Tensor:
    """Return where the straight line to the clip has got to at the end of each chunk's segment."""
    return x0 + wide(level(segment + 1) / level(segment)) * (begun - x0)


@torch.no_grad()
def walked(models: Models, clips: Clips, begun: Tensor, segment: Tensor) -> Tensor:
    """Return where the teacher gets to from the start of each chunk's segment.

    `begun` is `[clips, chunks, frames, C, h, w]`, as is the result, `segment` `[clips, chunks]`.
    """
    count, chunks = clips.x0.shape[:2]
    attention = teacher_forcing(chunks, WINDOW_FRAMES // CHUNK_FRAMES)
    x, substeps = begun, models.substeps
    for i in range(substeps):
        here, there = level(segment + i / substeps), level(segment + (i + 1) / substeps)
        rows = teacher_forcing_rows(clips.x0, clips.context, x, here, clips.labels)
        flow = noisy_part(guided_flow(models, rows, attention), count, chunks)
        x = x + wide(there - here) * flow
    return x


def segment_error(
    student: CausalDiT, clips: Clips, begun: Tensor, ended: Tensor, segment: Tensor
) -> Tensor:
    """Return the student's flow less the straight line from `begun` to `ended`, in their shape."""
    begin, end = level(segment), level(segment + 1)
    count, chunks = clips.x0.shape[:2]
    attention = alone if chunks == 1 else teacher_forcing(chunks, WINDOW_FRAMES // CHUNK_FRAMES)
    rows = teacher_forcing_rows(clips.x0, clips.context, begun, begin, clips.labels)
    flow = noisy_part(flow_of(student, rows, attention), count, chunks)
    return flow - (begun - ended) / wide(begin - end)


def noised(x0: Tensor, noise: Tensor, segment: Tensor) -> Tensor:
    """Return clips noised to where their segments begin."""
    sigma = wide(level(segment))
    return (1 - sigma) * x0 + sigma * noise


@torch.no_grad()
def rolled_out(student: CausalDiT, firsts: Clips, noise: Tensor, segment: Tensor) -> Tensor:
    """Return where the student's own passes lead first chunks from noise, up to their segments."""
    x = noise.clone()
    for i in range(NUM_PASSES - 1):
        behind = segment[:, 0] > i
        if not behind.any():
            break
        here = segment[behind].clamp(max=i)
        x0, labels = firsts.x0[behind], firsts.labels[behind]
        rows = teacher_forcing_rows(x0, x0, x[behind], level(here), labels)
        flow = noisy_part(flow_of(student, rows, alone), len(x0), 1)
        x[behind] += wide(level(here + 1) - level(here)) * flow
    return x


def own_context(student: CausalDiT, x0: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
    """Return clean chunks, half of them as the student's last pass would leave them."""
    clips, chunks = x0.shape[:2]
    segment = torch.full((clips, chunks), NUM_PASSES - 1, device=x0.device)
    sigma, noisy = level(segment), noised(x0, noise, segment)
    attention = teacher_forcing(chunks, WINDOW_FRAMES // CHUNK_FRAMES)
    rows = teacher_forcing_rows(x0, x0, noisy, sigma, labels)
    flow = noisy_part(flow_of(student, rows, attention), clips, chunks)
    own = torch.rand(clips, chunks, device=x0.device) < 0.5
    return torch.where(wide(own), noisy - wide(sigma) * flow, x0)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--guidance", type=float, default=1.6)
    parser.add_argument("--substeps", type=int, default=3, help="of the teacher on a segment")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--openings", type=int, default=16, help="first chunks alone, a step")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train(args)


def train(args: argparse.Namespace) -> None:
    """Train until the time is spent; save `dit.safetensors` (the average) as it goes."""
    teacher, student = CausalDiT(DIT).to(args.device), CausalDiT(DIT).to(args.device)
    for model in (teacher, student):
        model.load_state_dict(load_file(args.teacher))
    teacher.requires_grad_(False)
    optimizers = optimizers_of(student, args.lr)
    average = Average(student, 0.99)
    checkpoint = args.out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=args.device, weights_only=True)
        student.load_state_dict(state["model"])
        average.weights = state["average"]
        optimizers.load_state_dict(state["optimizers"])
    draw = batches(load_shards(args.data, "clips"), args.batch, args.device)
    draw_openings = batches(load_shards(args.data, "openings"), args.openings, args.device)
    models = Models(student, teacher, args.guidance, args.substeps)
    started, step, losses = time.monotonic(), 0, []
    while (spent := (time.monotonic() - started) / (60 * args.minutes)) < 1:
        with mixed_precision(args.device), sdpa_kernel(SDPBackend.MATH):
            loss = distill_loss(models, draw())
            opening = opening_loss(student, draw_openings())
        (loss + opening).backward()
        optimizers.step(min(ramp(step, 10**9), ramp(int(spent * 1000), 1000, warmup=1)))
        average.update(student)
        losses.append((float(loss.detach()), float(opening.detach())))
        step += 1
        if step % 20 == 0:
            clip, first = (sum(each) / 20 for each in zip(*losses[-20:], strict=True))
            print(f"step {step} spent {spent:.3f} loss {clip:.4f} opening {first:.4f}", flush=True)
        if step % 100 == 0:
            save(student, average, optimizers, args.out)
    save(student, average, optimizers, args.out)


if __name__ == "__main__":
    main()
