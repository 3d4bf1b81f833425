"""Where decodes run beside passes: on a stream of their own where the device has streams."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Moment = Any
"""A point in the work of the device, or None where nothing has to be waited for."""


class DecodeLane(Protocol):
    """Order decodes after what they read, and bring pixels to the host."""

    def now(self) -> Moment:
        """Return the point that the caller's work for the device has reached."""

    def after(self, moment: Moment, *inputs: Tensor) -> AbstractContextManager[Any]:
        """Enter the lane: what is done inside comes after a moment, and may read these inputs."""

    def fetch(self, pixels: Tensor) -> npt.NDArray[np.uint8]:
        """Return pixels on the host, when they are there."""


class HostLane:
    """A CPU's: its work is done when a call returns."""

    def now(self) -> Moment:
        return None

    def after(self, moment: Moment, *inputs: Tensor) -> AbstractContextManager[Any]:
        return nullcontext()

    def fetch(self, pixels: Tensor) -> npt.NDArray[np.uint8]:
        return pixels.cpu().numpy()


class CudaLane:
    """A CUDA stream. Decodes wait for the passes that made their latents, and for no others.

    Pixels come to pinned memory by a copy that runs beside the next pass; only the decoder's
    thread waits for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def now(self) -> Moment:
        moment = torch.cuda.Event()
        moment.record(torch.cuda.current_stream(self._device))
        return moment

    def after(self, moment: Moment, *inputs: Tensor) -> AbstractContextManager[Any]:
        self._stream.wait_event(moment)
        for tensor in inputs:
            if tensor.is_cuda:  # not to be used again before this stream has read it
                tensor.record_stream(self._stream)
        return torch.cuda.stream(self._stream)

    def fetch(self, pixels: Tensor) -> npt.NDArray[np.uint8]:
        host = torch.empty(pixels.shape, dtype=pixels.dtype, pin_memory=True)
        host.copy_(pixels, non_blocking=True)
        self._stream.synchronize()
        return host.numpy()


def decode_lane(device: torch.device) -> DecodeLane:
    """Return the lane for a device."""
    return CudaLane(device) if device.type == "cuda" else HostLane()
