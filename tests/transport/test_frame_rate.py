"""What the server says of its rate is what a client counts, whatever the model can do."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.transport.conftest import RunningServer
from tests.transport.fake_host import FakeHost
from tests.transport.realtime_client import Frame, RealtimeClient

WINDOW_S = 2.0  # that the server's figure is of, as its protocol says
PATIENCE_S = 60.0
Serve = Callable[..., Awaitable[RunningServer]]


@dataclass
class Counted:
    """When frames came to a client, and what it was told of them."""

    arrivals: list[tuple[float, int]] = field(default_factory=list)  # when, which
    told: list[tuple[float, float]] = field(default_factory=list)  # when, frames a second

    async def watch(self, client: RealtimeClient, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                item: dict[str, Any] | Frame = await client.receive(left)
            except (TimeoutError, asyncio.TimeoutError):
                return
            now = time.monotonic()
            if isinstance(item, Frame):
                self.arrivals.append((now, item.index))
            elif item["type"] == "session.stats":
                self.told.append((now, item["fps"]))

    def counted(self, at: float) -> float:
        """Return the frames a second in the window before a time, skipped ones among them.

        Who is too slow for some frames sees by the numbers of the others how many there were.
        """
        seen = self.seen(at)
        (first_at, first), (last_at, last) = seen[0], seen[-1]
        return (last - first) / (last_at - first_at)

    def seen(self, at: float) -> list[tuple[float, int]]:
        """Return what came in the window before a time."""
        return [arrival for arrival in self.arrivals if at - WINDOW_S < arrival[0] <= at]

    def agrees(self) -> bool:
        """Return whether four times in a row told / counted was 1, in the median."""
        began_at = self.arrivals[0][0] if self.arrivals else math.inf
        full = [(at, told) for at, told in self.told if at - began_at > WINDOW_S]
        ratios = [told / self.counted(at) for at, told in full if len(self.seen(at)) > 1][-4:]
        return len(ratios) == 4 and abs(statistics.median(ratios) - 1) <= 0.05

    async def watch_until(self, client: RealtimeClient, enough: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not enough():
            assert time.monotonic() < until, self.told
            await self.watch(client, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("num_sessions", [1, 8])
@pytest.mark.parametrize(
    ("chunk_s", "most"),
    [
        pytest.param(0.05, 42.0, id="faster-than-played"),
        pytest.param(0.2, 22.0, id="slower-than-played"),
    ],
)
async def test_q34_the_rate_that_is_told_is_the_rate_that_is_counted(
    chunk_s: float, most: float, num_sessions: int, serve: Serve
) -> None:
    """Forty frames a second are asked for, in chunks of four; a slow model makes twenty at most."""
    server = await serve(FakeHost(fps=40, chunk_frames=4, chunk_s=chunk_s, max_sessions=8))
    clients = [await server.start() for _ in range(num_sessions)]
    counts = [Counted() for _ in clients]

    def enough() -> bool:  # more where something held the machine up
        return all(count.agrees() for count in counts)

    await asyncio.gather(
        *(count.watch_until(client, enough) for count, client in zip(counts, clients, strict=True))
    )
    for count in counts:
        assert statistics.median(told for _, told in count.told) < most  # no configured number
