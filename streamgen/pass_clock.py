"""How long passes take, without waiting for the device that runs them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

Note = Callable[[float], None]
"""Take the seconds of a pass."""


class PassClock(Protocol):
    """Time what is done between two calls."""

    def start(self) -> Any:
        """Return the moment at which a pass begins."""

    def stop(self, started: Any, note: Note) -> None:
        """Say that a pass ends here; `note` hears its seconds as soon as they are known."""


class HostClock:
    """For a device whose work is done when a call returns."""

    def start(self) -> float:
        return time.perf_counter()

    def stop(self, started: float, note: Note) -> None:
        note(time.perf_counter() - started)


class CudaClock:
    """For CUDA: events mark begin and end in the stream, and are read when they have been passed.

    Seconds are those of the device: a host that runs ahead does not shorten them.
    """

    def __init__(self) -> None:
        self._open: deque[tuple[torch.cuda.Event, torch.cuda.Event, Note]] = deque()

    def start(self) -> torch.cuda.Event:
        moment = torch.cuda.Event(enable_timing=True)
        moment.record()
        return moment

    def stop(self, started: torch.cuda.Event, note: Note) -> None:
        ended = self.start()
        self._open.append((started, ended, note))
        while self._open and self._open[0][1].query():
            begin, end, tell = self._open.popleft()
            tell(begin.elapsed_time(end) / 1000)


def pass_clock(device: torch.device) -> PassClock:
    """Return the clock for a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
