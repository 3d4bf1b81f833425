"""Train pocket's video auto-encoder on rendered clips.

    python -m streamgen.pocket.train.vae --out runs/vae [--minutes 25]
    python -m streamgen.pocket.train.vae --out runs/decoder --init runs/vae/vae.safetensors \
        --freeze-encoder

Resumes from `--out` when it holds a checkpoint. The encoder is causal in groups of four frames; the
first frame stands alone, so it is repeated three times in front of the clip.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from streamgen.models.loader import load_safetensors_strict
from streamgen.models.taehv import STARTUP_FRAMES, TAEHV, MemoryBlock
from streamgen.pocket.config import VAE
from streamgen.pocket.scenery import SIZE, VEIL_PERIOD, veil
from streamgen.pocket.train.optim import Average, Optimizers, ramp
from streamgen.pocket.train.precision import mixed_precision
from streamgen.pocket.world import Scene, random_scene, render_with_object

CLIP_FRAMES = 9
CROP = 64
POOL_CLIPS = 300
FALLING_WEIGHT = 5.0  # of pixels behind rain or snow: few, thin, and else forgotten
# What moves is the hardest to draw, and the first thing seen: its outline counts more, half of the
# crops hold it, and most clips move.
EDGE_WEIGHT = 4.0
EDGE = 7  # pixels, odd
HELD_SHARE = 0.5
MOTIONS = {"bounces": 0.5, "drifts": 0.3, "rests": 0.2}


def encode_clip(vae: TAEHV, video: Tensor) -> Tensor:
    """Encode 4n - 3 frames `[b, f, 3, H, W]` in [0, 1] to n latents, as the decoder expects."""
    lead_in = video[:, :1].expand(-1, STARTUP_FRAMES, -1, -1, -1)
    return vae.encode_step(torch.cat([lead_in, video], dim=1), vae.encoder_state())[0]


def random_start(rng: np.random.Generator) -> int:
    """Draw the world's frame that a clip begins with; what falls is then at its period's start."""
    return int(rng.integers(0, 96 // VEIL_PERIOD)) * VEIL_PERIOD


def random_clip(rng: np.random.Generator, num_frames: int) -> np.ndarray:
    """Render a clip of one scene, or in a third of the draws of a change between two.

    Returns uint8 `[n, H, W, 5]`: colours, 255 where rain or snow passes, and 255 on the thing.
    """
    first, start = moving_scene(rng), random_start(rng)
    entries = [(0, first)]
    if rng.random() < 0.33:
        entries.append((start + int(rng.integers(-8, num_frames)), moving_scene(rng)))
    frames = np.arange(start, start + num_frames, dtype=np.float32)
    falling = np.max([veil(scene.weather, frames) for _, scene in entries], axis=0) > 0.05
    pixels, thing = render_with_object(entries, num_frames, start)
    masks = 255 * np.stack([falling, thing], axis=-1).astype(np.uint8)
    return np.concatenate([pixels, masks], axis=-1)


def moving_scene(rng: np.random.Generator) -> Scene:
    """Draw a scene whose motion has the share it has in training."""
    motion = str(rng.choice(list(MOTIONS), p=list(MOTIONS.values())))
    return dataclasses.replace(random_scene(rng), motion=motion)


def batch(
    pool: list[np.ndarray], rng: np.random.Generator, size: int, device: str
) -> tuple[Tensor, Tensor]:
    """Cut crops out of the pool: pixels `[size, 9, 3, 64, 64]` in [0, 1] and weights."""
    crops = []
    for _ in range(size):
        clip = pool[rng.integers(len(pool))]
        y, x = crop_of(clip, rng)
        crops.append(clip[:, y : y + CROP, x : x + CROP])
    stacked = torch.from_numpy(np.stack(crops)).permute(0, 1, 4, 2, 3).to(device).float() / 255
    video, falling, thing = stacked.split([3, 1, 1], dim=2)
    weight = 1 + (FALLING_WEIGHT - 1) * falling + (EDGE_WEIGHT - 1) * edge_of(thing)
    return video, weight


def crop_of(clip: np.ndarray, rng: np.random.Generator) -> tuple[int, int]:
    """Draw a crop's corner, a multiple of 8; half of them hold the thing near their middle."""
    most = SIZE - CROP
    if rng.random() < HELD_SHARE and clip[..., 4].any():
        middle = np.argwhere(clip[..., 4]).mean(axis=0)[1:]
        near = middle - CROP / 2 + rng.uniform(-CROP / 4, CROP / 4, 2)
        y, x = (np.clip(near, 0, most) / 8).round().astype(int) * 8
        return int(y), int(x)
    y, x = rng.integers(0, most // 8 + 1, 2) * 8
    return int(y), int(x)


def edge_of(thing: Tensor) -> Tensor:
    """Return 1 within `EDGE` // 2 pixels of a mask's edge, `[clips, n, 1, H, W]`."""
    spread = nn.MaxPool2d(EDGE, stride=1, padding=EDGE // 2)
    flat = thing.flatten(0, 1)
    edge: Tensor = (spread(flat) + spread(-flat)).unflatten(0, thing.shape[:2])
    return edge


def loss_of(
    vae: TAEHV, video: Tensor, weight: Tensor, freeze_encoder: bool
) -> tuple[Tensor, Tensor]:
    """Return the training loss and the mean squared pixel error."""
    with (
        torch.set_grad_enabled(not freeze_encoder),
        mixed_precision(video.device.type),
    ):
        latents = encode_clip(vae, video * 1.0)
    latents = latents.float()
    if not freeze_encoder:
        # Whitened by the batch, as the DiT's noise has variance 1; `fold` puts it in the weights.
        mean = latents.mean(dim=(0, 1, 3, 4), keepdim=True)
        std = latents.std(dim=(0, 1, 3, 4), keepdim=True)
        latents = (latents - mean) / std
    noise = torch.rand(len(latents), 1, 1, 1, 1, device=video.device) * 0.2
    with mixed_precision(video.device.type):
        raw, _ = vae.decode_raw(latents + noise * torch.randn_like(latents), vae.decoder_state())
    out = raw[:, STARTUP_FRAMES:].float()
    off = out - video
    error = (weight * (off.abs() + 2 * off**2)).mean() / weight.mean()
    for dim in (-1, -2):
        error = error + (out.diff(dim=dim) - video.diff(dim=dim)).abs().mean()
    error = error + (out.diff(dim=1) - video.diff(dim=1)).abs().mean()
    if not freeze_encoder:
        error = error + 0.01 * std.log().square().mean()  # whitening would let the scale run away
    return error, F.mse_loss(out.clamp(0, 1), video).detach()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--init", type=Path, help="weights to begin with")
    parser.add_argument("--freeze-encoder", action="store_true")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train(args)


def train(args: argparse.Namespace) -> None:
    """Train until the time is spent; save `vae.safetensors` (the average) as it goes."""
    rng = np.random.default_rng()
    vae = TAEHV(VAE).to(args.device)
    checkpoint = args.out / "checkpoint.pt"
    if checkpoint.exists():
        vae.load_state_dict(torch.load(checkpoint, weights_only=True))
    elif args.init is not None:
        load_safetensors_strict(vae, args.init)
    else:
        initialise(vae)
    if args.freeze_encoder:
        vae.encoder.requires_grad_(False)
    optimizers = Optimizers(vae, muon_lr=1e-3, adam_lr=1e-3)
    average = Average(vae, 0.995)
    pool = [random_clip(rng, CLIP_FRAMES) for _ in range(POOL_CLIPS)]
    started, step, errors = time.monotonic(), 0, []
    while (spent := (time.monotonic() - started) / (60 * args.minutes)) < 1:
        for _ in range(2):
            pool[rng.integers(len(pool))] = random_clip(rng, CLIP_FRAMES)
        video, weight = batch(pool, rng, args.batch, args.device)
        loss, mse = loss_of(vae, video, weight, args.freeze_encoder)
        loss.backward()
        optimizers.step(min(ramp(step, 10**9), ramp(int(spent * 1000), 1000, warmup=1)))
        average.update(vae)
        errors.append(float(mse))
        step += 1
        if step % 100 == 0:
            psnr = -10 * np.log10(np.mean(errors[-100:]))
            print(f"step {step} spent {spent:.2f} loss {loss:.4f} psnr {psnr:.2f}", flush=True)
        if step % 200 == 0:
            torch.save(vae.state_dict(), checkpoint)
            save(average.weights, args.out / "vae.safetensors")
    torch.save(vae.state_dict(), checkpoint)
    vae.load_state_dict(average.weights)
    if not args.freeze_encoder:
        fold(vae, torch.cat([batch(pool, rng, 16, args.device)[0] for _ in range(8)]))
    save(vae.state_dict(), args.out / "vae.safetensors")


@torch.no_grad()
def fold(vae: TAEHV, video: Tensor) -> None:
    """Scale the encoder's last layer so that latents have mean 0 and variance 1 a channel."""
    latents = encode_clip(vae, video)
    mean, std = latents.mean(dim=(0, 1, 3, 4)), latents.std(dim=(0, 1, 3, 4))
    weight, bias = vae.encoder[-1].parameters()
    weight.div_(std[:, None, None, None])
    bias.sub_(mean).div_(std)


@torch.no_grad()
def initialise(vae: TAEHV) -> None:
    """Start with memory blocks that pass their input on."""
    for module in reversed(list(vae.modules())):  # convolutions before the block that holds them
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, MemoryBlock):
            list(module.conv.parameters())[-2].mul_(0.1)
    weight, bias = vae.decoder[-1].parameters()
    weight.mul_(0.1)
    bias.fill_(0.5)


def save(weights: dict[str, Tensor], path: Path) -> None:
    """Write weights."""
    save_file({k: v.contiguous() for k, v in weights.items()}, path)


if __name__ == "__main__":
    main()
