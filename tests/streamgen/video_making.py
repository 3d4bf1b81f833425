"""Videos of the tiny model for tests of `generate`."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from streamgen import generate
from streamgen.command_options import GenerateConfig
from tests.streamgen.tiny import TINY, tiny_config


def make(
    folder: Path, prompt: str = "a red ball", *, name: str = "out.mp4", **options: object
) -> Path:
    """Make a video with the tiny model and return its path.

    Its random weights decode to black: what decides the pixels shows in the latents beside it.
    """
    path = folder / name
    options = {"seconds": 0.5, "seed": 7, "latents": path.with_suffix(".safetensors"), **options}
    assert generate.run(prompt, path, tiny_config(), GenerateConfig(**options), preset=TINY) == 0
    return path


def read(path: Path) -> npt.NDArray[np.uint8]:
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def read_latents(video: Path) -> tuple[npt.NDArray[np.float32], dict[str, str]]:
    """Return the latents beside a video, and what is said of them."""
    with safe_open(video.with_suffix(".safetensors"), "np") as file:
        return file.get_tensor("latents"), file.metadata()
