"""LPIPS through the package `lpips`, where it is installed with its weights."""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np
import torch

from streamgen.distances import Pixels
from streamgen.errors import Unsupported

PACKAGE: Final = "lpips"
NET: Final = "alex"  # the network whose distances its authors recommend for evaluation


class Lpips:
    """The distance of two pictures that a network sees: 0 for equal ones, larger for unlike ones.

    Raises Unsupported with the reason when the package or the weights of its network are missing;
    the package brings its own small layers and has torchvision fetch AlexNet. Zhang, Isola, Efros,
    Shechtman, Wang: The unreasonable effectiveness of deep features as a perceptual metric, 2018.
    """

    def __init__(self) -> None:
        try:
            package: Any = importlib.import_module(PACKAGE)
        except ImportError as error:
            raise Unsupported(f"the package {PACKAGE} cannot be imported ({error})") from error
        try:
            self._network = package.LPIPS(net=NET, verbose=False)
        except (OSError, RuntimeError) as error:
            raise Unsupported(f"the weights of {NET} could not be had ({error})") from error

    @torch.inference_mode()
    def __call__(self, a: Pixels, b: Pixels) -> float:
        """Return the distance of two pictures `[h, w, 3]`."""
        return float(self._network(_tensor(a), _tensor(b), normalize=True))


def _tensor(picture: Pixels) -> torch.Tensor:
    """Return a picture as `[1, 3, h, w]` in [0, 1]."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255
