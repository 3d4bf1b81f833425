"""Pair each opening with noise that resembles it, so that noise alone tells where a scene begins.

With independent noise a few-step model meets its first pass with all starts of a motion equally
likely, and draws their mean: a thing in two places. Here the noise of a first chunk is drawn under
the condition that, of all starts of the motion, it resembles the clip's most. Starts and noise then
determine each other, and over all starts the noise is as normal as before, so nothing changes where
the model runs. It is the coupling of optimal transport (Pooladian et al., 2023; Tong et al., 2023)
reduced to the few directions that matter.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from streamgen.models.taehv import FRAMES_PER_LATENT, STARTUP_FRAMES, TAEHV
from streamgen.pocket.config import CHUNK_FRAMES
from streamgen.pocket.train.vae import encode_clip
from streamgen.pocket.world import STARTS, Scene, random_scene, render, start_of

FIRST_FRAMES: Final = CHUNK_FRAMES * FRAMES_PER_LATENT - STARTUP_FRAMES
SCENES: Final = 12  # that a start's looks are the mean of
TRIES: Final = 128  # draws, of which one resembles the wanted start most; the best is taken else
FIRST_IDS: Final[dict[str, int]] = dict(
    zip(STARTS, np.cumsum([0, *STARTS.values()]).tolist(), strict=False)
)


def start_id(scene: Scene) -> int:
    """Return how a scene begins, of all starts of all motions."""
    return FIRST_IDS[scene.motion] + start_of(scene)


@torch.inference_mode()
def start_latents(vae: TAEHV) -> Tensor:
    """Return what each start looks like, less the mean of its motion, `[starts, 3, C, h, w]`.

    The mean of first chunks that differ in nothing else.
    """
    looks = []
    for motion, starts in STARTS.items():
        rng = np.random.default_rng(21)
        total = torch.zeros(())
        for _ in range(SCENES):
            scene = random_scene(rng)
            clips = [render(_beginning(scene, motion, i), FIRST_FRAMES) for i in range(starts)]
            pixels = torch.from_numpy(np.stack(clips)).permute(0, 1, 4, 2, 3).float() / 255
            total = total + encode_clip(vae, pixels)
        looks.append(total - total.mean(0, keepdim=True))
    return torch.cat(looks).contiguous()


def _beginning(scene: Scene, motion: str, start: int) -> Scene:
    """Return the scene with a motion, and a seed under which it begins so."""
    scenes = (replace(scene, motion=motion, seed=seed) for seed in count())
    return next(scene for scene in scenes if start_of(scene) == start)


class Pairing:
    """Draws noise for first chunks."""

    def __init__(self, looks: Tensor) -> None:
        """Take what `start_latents` returned."""
        self.looks = torch.nn.functional.normalize(looks.flatten(1).float())
        self.basis = torch.linalg.qr(self.looks.T).Q.T  # [directions, values], orthonormal
        self.scores = self.looks @ self.basis.T  # what a coordinate adds to the likeness to a start
        self.motion = torch.tensor([i for i, n in enumerate(STARTS.values()) for _ in range(n)])

    @classmethod
    def of(cls, folder: Path, device: str) -> Pairing:
        """Read what `train.data` wrote beside its shards."""
        return cls(load_file(folder / "starts.safetensors", device=device)["latents"])

    def noise(self, clips: Tensor, start: Tensor) -> Tensor:
        """Return noise like `clips` `[n, chunks, 3, C, h, w]`.

        The first chunk's resembles `start` `[n]` more than all other starts of its motion; where
        that is -1 it is drawn as all other noise is.
        """
        noise = torch.randn_like(clips)
        for row in (start >= 0).nonzero()[:, 0].tolist():
            noise[row, 0] = self._resembling(noise[row, 0], int(start[row]))
        return noise

    def _resembling(self, noise: Tensor, start: int) -> Tensor:
        """Draw a chunk's noise anew in the directions of the starts, until it resembles one."""
        tries = torch.randn(TRIES, len(self.basis), device=noise.device)
        likeness = tries @ self.scores.T
        others = (self.motion == self.motion[start]).to(noise.device)
        others[start] = False
        lead = likeness[:, start] - likeness[:, others].amax(1)
        # Any that leads is an honest draw; should none lead, the nearest to it.
        chosen = tries[int(lead.clamp(max=0).argmax())]
        change: Tensor = (chosen - self.basis @ noise.flatten()) @ self.basis
        return noise + change.unflatten(0, noise.shape)
