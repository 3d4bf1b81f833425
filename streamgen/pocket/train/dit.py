"""Train pocket's diffusion transformer by flow matching with teacher forcing.

    python -m streamgen.pocket.train.dit --data runs/data --out runs/dit --stage images --minutes 30
    python -m streamgen.pocket.train.dit --data runs/data --out runs/dit --stage clips --minutes 60

Every chunk of a clip is trained at once: a clean row and a noisy row a chunk share one forward, the
noisy row seeing the clean rows of the window before it and itself. Resumes from `--out`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from streamgen.models.causal_dit import CausalDiT, SelfAttention
from streamgen.pocket.config import CHUNK_FRAMES, DIT, WINDOW_FRAMES
from streamgen.pocket.openings import STRENGTH, marks
from streamgen.pocket.text_encoder import codebook
from streamgen.pocket.train.data import load_shards
from streamgen.pocket.train.optim import Average, Optimizers, ramp
from streamgen.pocket.train.precision import mixed_precision

SHIFT = 5.0
OBJECT_WEIGHT = 5.0
DROP_ALL, DROP_ONE = 0.08, 0.08


def prompt_embeds(labels: Tensor) -> Tensor:
    """Return the exact codes `[n, 6, 64]` of label slots `[n, 6]`."""
    book = codebook().to(labels.device)
    return book[torch.arange(len(book), device=labels.device), labels.long()]


def dropped(labels: Tensor) -> Tensor:
    """Forget single attributes, and sometimes all of a clip's, `[clips, chunks, 6]`."""
    clips, _, attributes = labels.shape
    drop = torch.rand(clips, 1, attributes, device=labels.device) < DROP_ONE
    drop |= torch.rand(clips, 1, 1, device=labels.device) < DROP_ALL
    return labels.masked_fill(drop, 0)


def sample_sigma(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Draw noise levels; shifted towards 1, where the layout of a scene is decided."""
    u = torch.rand(shape, device=device)
    early = torch.rand(shape, device=device) < 0.3
    u = torch.where(early, 1 - 0.25 * u, u)
    return SHIFT * u / (1 + (SHIFT - 1) * u)


def alone(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Let every row see itself only."""
    q, k, v = (x.transpose(1, 2) for x in (q.to(v.dtype), k.to(v.dtype), v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def teacher_forcing(num_chunks: int, window_chunks: int) -> SelfAttention:
    """Return an attention over rows laid out by `teacher_forcing_rows`.

    Clean chunk i sees the clean chunks of its window; noisy chunk i sees the clean chunks before it
    and itself. Every row gathers the rows it sees; where the stream has not begun, a masked one.
    """
    place = torch.cat([torch.arange(num_chunks - 1), torch.arange(num_chunks)])
    seen = place[:, None] - torch.arange(window_chunks - 1, -1, -1)  # [rows, window]
    mask = seen >= 0
    seen = seen.clamp(min=0)
    seen[:, -1] = torch.arange(len(place))  # itself, clean or noisy

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, tokens, _, _ = q.shape
        gathered = []
        for x in (k, v):
            by_clip = x.to(v.dtype).unflatten(0, (-1, len(place)))
            gathered.append(by_clip[:, seen].flatten(2, 3).flatten(0, 1).transpose(1, 2))
        bias = torch.zeros(mask.shape, dtype=v.dtype, device=v.device).masked_fill(
            ~mask.to(v.device), float("-inf")
        )
        bias = bias.repeat_interleave(tokens, 1).repeat(rows // len(place), 1)[:, None, None]
        query = q.to(v.dtype).transpose(1, 2)
        key, value = gathered
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2)

    return attend


def flow_of(model: CausalDiT, rows: dict[str, Tensor], attention: SelfAttention) -> Tensor:
    """Run the model over prepared rows."""
    k, v = model.text_kv(prompt_embeds(rows["labels"]))
    flow = model(
        rows["latents"],
        rows["t"],
        rows["frame_index"],
        lambda layer: (k[layer], v[layer]),
        attention,
    )
    result: Tensor = flow.float()
    return result


def teacher_forcing_rows(
    clean: Tensor, context: Tensor, noisy: Tensor, sigma: Tensor, labels: Tensor
) -> dict[str, Tensor]:
    """Lay out rows clip by clip: the context chunks but the last, then all noisy chunks.

    Latents are `[clips, chunks, 3, C, h, w]`, `sigma` and `labels` one a chunk.
    """
    clips, chunks = clean.shape[:2]
    latents = torch.cat([context[:, :-1], noisy], dim=1)
    t = torch.cat([torch.zeros_like(sigma[:, 1:]), 1000 * sigma], dim=1)
    place = torch.cat([torch.arange(chunks - 1), torch.arange(chunks)]).to(clean.device)
    return {
        "latents": latents.flatten(0, 1),
        "t": t.flatten()[:, None].expand(-1, CHUNK_FRAMES),
        "frame_index": (place * CHUNK_FRAMES).repeat(clips),
        "labels": torch.cat([labels[:, :-1], labels], dim=1).flatten(0, 1),
    }


def image_loss(model: CausalDiT, batch: dict[str, Tensor]) -> Tensor:
    """Return the flow loss on single latent frames, `latents` `[n, 1, C, h, w]`."""
    x0 = batch["latents"].float()
    labels = dropped(batch["labels"])[:, 0]
    sigma = sample_sigma((len(x0), 1), x0.device)
    s, noise = sigma[..., None, None, None], torch.randn_like(x0)
    rows = {
        "latents": (1 - s) * x0 + s * noise,
        "t": 1000 * sigma,
        "frame_index": torch.zeros(len(x0), dtype=torch.int64, device=x0.device),
        "labels": labels,
    }
    return weighted(flow_of(model, rows, alone) - (noise - x0), batch["object"])


def clip_loss(model: CausalDiT, batch: dict[str, Tensor], own_context: float) -> Tensor:
    """Return the flow loss on clips, with the model's own guesses as context now and then."""
    x0 = batch["latents"].float().unflatten(1, (-1, CHUNK_FRAMES))
    clips, chunks = x0.shape[:2]
    labels = dropped(batch["labels"])
    sigma = sample_sigma((clips, chunks), x0.device)
    s, noise = sigma[..., None, None, None, None], noise_of(x0, batch["start"])
    noisy = (1 - s) * x0 + s * noise
    attention = teacher_forcing(chunks, WINDOW_FRAMES // CHUNK_FRAMES)
    context = x0 + 0.1 * torch.rand(clips, chunks, 1, 1, 1, 1, device=x0.device) * torch.randn_like(
        x0
    )
    if torch.rand(()) < own_context:
        with torch.no_grad():
            rows = teacher_forcing_rows(x0, context, noisy, sigma, labels)
            flow = noisy_part(flow_of(model, rows, attention), clips, chunks)
        guess = noisy - s * flow
        # A guess from nearly pure noise shows another scene than the truth: those stay clean.
        usable = (s < 0.93) & (torch.rand_like(s) < 0.7)
        context = torch.where(usable, guess, context)
    rows = teacher_forcing_rows(x0, context, noisy, sigma, labels)
    error = noisy_part(flow_of(model, rows, attention), clips, chunks) - (noise - x0)
    return weighted(openings_only(error, batch["start"]).flatten(1, 2), batch["object"])


def noise_of(clips: Tensor, start: Tensor) -> Tensor:
    """Return noise like `clips` `[n, chunks, 3, C, h, w]`; `start` marks that of first chunks."""
    noise = torch.randn_like(clips)
    marked = STRENGTH * marks(clips.shape[2:]).to(clips.device)[start.clamp(min=0).long()]
    noise[:, 0] += torch.where((start >= 0)[:, None, None, None, None], marked, 0)
    return noise


def openings_only(error: Tensor, start: Tensor) -> Tensor:
    """Forget the errors of first chunks that no stream begins with, `start` -1."""
    counts = torch.ones(error.shape[:2], device=error.device)
    counts[:, 0] = start >= 0
    return error * counts[:, :, None, None, None, None]


def noisy_part(flow: Tensor, clips: int, chunks: int) -> Tensor:
    """Return the rows of the noisy chunks, `[clips, chunks, 3, C, h, w]`."""
    by_clip: Tensor = flow.unflatten(0, (clips, -1))
    return by_clip[:, -chunks:]


def weighted(error: Tensor, mask: Tensor) -> Tensor:
    """Return the mean square of `[n, frames, C, h, w]`, the object's cells counted more."""
    weight = 1 + (OBJECT_WEIGHT - 1) * mask[:, :, None].float()
    return (weight * error**2).mean() / weight.mean()


def batches(data: dict[str, Tensor], size: int, device: str) -> Callable[[], dict[str, Tensor]]:
    """Return a function that draws a random batch."""
    count = len(data["latents"])

    def draw() -> dict[str, Tensor]:
        index = torch.randint(count, (size,))
        return {name: tensor[index].to(device) for name, tensor in data.items()}

    return draw


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", choices=("images", "clips"), required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--own-context", type=float, default=0.25)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train(args)


def train(args: argparse.Namespace) -> None:
    """Train until the time is spent; save `dit.safetensors` (the average) as it goes."""
    model = CausalDiT(DIT).to(args.device)
    checkpoint = args.out / "checkpoint.pt"
    optimizers = optimizers_of(model, args.lr)
    initialise(model)
    average = Average(model, 0.998)
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=args.device, weights_only=True)
        model.load_state_dict(state["model"])
        average.weights = state["average"]
        optimizers.load_state_dict(state["optimizers"])
    if args.compile:
        for block in model.layers:
            for half in ("before_attention", "after_attention"):
                setattr(block, half, torch.compile(getattr(block, half)))
    loss_of = clips_of(model, args) if args.stage == "clips" else images_of(model, args)
    started, step, losses = time.monotonic(), 0, [0.0]
    while (spent := (time.monotonic() - started) / (60 * args.minutes)) < 1:
        # The fused kernel's backward is five times slower than plain products at these sizes.
        with mixed_precision(args.device), sdpa_kernel(SDPBackend.MATH):
            loss = loss_of()
        loss.backward()
        optimizers.step(min(ramp(step, 10**9), ramp(int(spent * 1000), 1000, warmup=1)))
        average.update(model)
        losses.append(float(loss.detach()))
        step += 1
        if step % 100 == 0:
            mean = sum(losses[-100:]) / 100
            rate = step / (time.monotonic() - started)
            print(f"step {step} spent {spent:.3f} loss {mean:.4f} {rate:.2f}/s", flush=True)
        if step % 500 == 0:
            save(model, average, optimizers, args.out)
    save(model, average, optimizers, args.out)


def images_of(model: CausalDiT, args: argparse.Namespace) -> Callable[[], Tensor]:
    """Return a function that returns the loss on a random batch of single frames."""
    draw = batches(load_shards(args.data, "images"), args.batch or 64, args.device)
    return lambda: image_loss(model, draw())


def clips_of(model: CausalDiT, args: argparse.Namespace) -> Callable[[], Tensor]:
    """Return a function that returns the loss on a random batch of clips."""
    draw = batches(load_shards(args.data, "clips"), args.batch or 4, args.device)
    return lambda: clip_loss(model, draw(), args.own_context)


def optimizers_of(model: CausalDiT, lr: float) -> Optimizers:
    """Return Muon for the blocks and AdamW for what faces the outside."""
    outside = ("patch_embedding", "head", "text_embedding.0", "time_embedding.0")
    return Optimizers(model, muon_lr=lr, adam_lr=lr / 3, adam_names=outside)


def initialise(model: CausalDiT) -> None:
    """Start as the identity: gates and output closed, modulation rows near zero."""
    torch.nn.init.zeros_(model.head.head.weight)
    torch.nn.init.zeros_(model.head.head.bias)
    for parameter in model.time_projection.parameters():
        torch.nn.init.zeros_(parameter)


def save(model: CausalDiT, average: Average, optimizers: Optimizers, out: Path) -> None:
    """Write the checkpoint to resume from and the averaged weights."""
    state = {
        "model": model.state_dict(),
        "average": average.weights,
        "optimizers": optimizers.state_dict(),
    }
    torch.save(state, out / "checkpoint.partial")
    (out / "checkpoint.partial").rename(out / "checkpoint.pt")
    save_file({k: v.contiguous() for k, v in average.weights.items()}, out / "dit.safetensors")


if __name__ == "__main__":
    main()
