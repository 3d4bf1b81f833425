"""Encode rendered clips to latents, once, so that the DiT's training reads them from memory.

    python -m streamgen.pocket.train.data --vae runs/vae/vae.safetensors --out runs/data \
        --images 40000 --clips 8000 --openings 8000

Shards are safetensors: `latents` float16 `[n, frames, C, 16, 16]`, `labels` uint8 `[n, chunks, 6]`
(slots of the codebook), `object` bool `[n, frames, 16, 16]`, `start` int8 `[n]` (which way the
clip begins; -1 where that is later in the world's time than a stream does). Openings are first
chunks alone. An eighth of all combinations of attributes never appears: they are what the
evaluation calls unseen scenes.
"""

from __future__ import annotations

import argparse
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from streamgen.models.taehv import FRAMES_PER_LATENT, STARTUP_FRAMES, TAEHV
from streamgen.pocket.config import CHUNK_FRAMES, VAE
from streamgen.pocket.text_encoder import label_indices
from streamgen.pocket.train.precision import mixed_precision
from streamgen.pocket.train.vae import encode_clip, random_start
from streamgen.pocket.world import ATTRIBUTES, Scene, random_scene, render_with_object, start_of

CLIP_CHUNKS = 3
SWITCH_SHARE = 0.45
OPENING_SHARE = 0.6  # of clips that begin where a stream does; of those of one chunk all


def is_held_out(scene: Scene) -> bool:
    """Tell whether training never shows this combination of attributes."""
    return zlib.crc32(" ".join(scene.labels().values()).encode()) % 8 == 0


def training_scene(rng: np.random.Generator) -> Scene:
    """Draw a scene that is not held out."""
    while is_held_out(scene := random_scene(rng)):
        pass
    return scene


def changed(scene: Scene, rng: np.random.Generator) -> Scene:
    """Return a scene that differs in one to all attributes; seed and so place and phase stay."""
    while True:
        names = rng.permutation(list(ATTRIBUTES))[: rng.integers(1, len(ATTRIBUTES) + 1)]
        fresh = random_scene(rng)
        new = replace(scene, **{str(name): getattr(fresh, str(name)) for name in names})
        if new != scene and not is_held_out(new):
            return new


def first_frame(chunk: int) -> int:
    """Return the pixel frame that a chunk begins with."""
    return max(0, chunk * CHUNK_FRAMES * FRAMES_PER_LATENT - STARTUP_FRAMES)


def clip_of(rng: np.random.Generator, num_latents: int) -> dict[str, Tensor]:
    """Render a clip from the start of a stream: pixels, the object's cells, labels a chunk."""
    scenes = [training_scene(rng)]
    entries = [(0, scenes[0])]
    chunks = max(1, num_latents // CHUNK_FRAMES)
    if chunks > 1 and rng.random() < SWITCH_SHARE:
        at = int(rng.integers(1, chunks))
        scenes += [scenes[0]] * (at - 1) + [changed(scenes[0], rng)]
        entries.append((first_frame(at), scenes[-1]))
    scenes += [scenes[-1]] * (chunks - len(scenes))
    frames = FRAMES_PER_LATENT * num_latents - STARTUP_FRAMES
    is_opening = num_latents == CHUNK_FRAMES or rng.random() < OPENING_SHARE
    start = 0 if is_opening else random_start(rng)
    timeline = [(first and first + start, scene) for first, scene in entries]
    pixels, mask = render_with_object(timeline, frames, start)
    return {
        "pixels": torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255,
        "object": object_cells(torch.from_numpy(mask)),
        "labels": label_indices(scenes).to(torch.uint8),
        "start": torch.tensor(start_of(scenes[0].seed) if start == 0 else -1, dtype=torch.int8),
    }


def object_cells(mask: Tensor) -> Tensor:
    """Reduce a mask of pixels `[frames, H, W]` to latent cells `[n, H / 8, W / 8]`."""
    cells = F.max_pool2d(mask[:, None].float(), 8)[:, 0]
    padded = torch.cat([cells[:1].expand(STARTUP_FRAMES, -1, -1), cells])
    groups: Tensor = padded.unflatten(0, (-1, FRAMES_PER_LATENT))
    return groups.amax(1) > 0


@torch.inference_mode()
def shard(vae: TAEHV, rng: np.random.Generator, count: int, num_latents: int) -> dict[str, Tensor]:
    """Make one shard of `count` clips."""
    parts: dict[str, list[Tensor]] = {"latents": [], "labels": [], "object": [], "start": []}
    group = max(1, 32 // num_latents)
    for _ in range(0, count, group):
        clips = [clip_of(rng, num_latents) for _ in range(group)]
        pixels = torch.stack([clip["pixels"] for clip in clips])
        with mixed_precision("cpu"):
            parts["latents"].append(encode_clip(vae, pixels).half())
        for name in ("labels", "object", "start"):
            parts[name].append(torch.stack([clip[name] for clip in clips]))
    return {name: torch.cat(tensors).contiguous() for name, tensors in parts.items()}


def load_shards(folder: Path, kind: str) -> dict[str, Tensor]:
    """Join all shards of a kind, `images`, `clips` or `openings`.

    Raises FileNotFoundError when there are none.
    """
    shards = [load_file(path) for path in sorted(folder.glob(f"{kind}-*.safetensors"))]
    if not shards:
        raise FileNotFoundError(f"{folder} holds no {kind}-*.safetensors; run train.data first")
    return {name: torch.cat([s[name] for s in shards]) for name in shards[0]}


def main() -> None:
    """Run the command; it adds the shards that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vae", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--clips", type=int, default=0)
    parser.add_argument("--openings", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    vae = TAEHV(VAE)
    vae.load_state_dict(load_file(args.vae))
    vae.eval()
    for kind, total, size, latents in (
        ("images", args.images, 4000, 1),
        ("clips", args.clips, 500, CLIP_CHUNKS * CHUNK_FRAMES),
        ("openings", args.openings, 1000, CHUNK_FRAMES),
    ):
        for index in range(-(-total // size)):
            path = args.out / f"{kind}-{args.seed}-{index:04}.safetensors"
            if not path.exists():
                rng = np.random.default_rng([args.seed, len(kind), index])
                partial = path.with_suffix(".partial")
                save_file(shard(vae, rng, size, latents), partial)
                partial.rename(path)
                print(path.name, flush=True)


if __name__ == "__main__":
    main()
