"""What the server says of its rate is what a client counts, whatever the model can do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.transport.conftest import RunningServer
from tests.transport.fake_host import FakeHost
from tests.transport.realtime_client import Frame, RealtimeClient

WINDOW_S = 2.0  # that the server's figure is of, as its protocol says
WATCHED_S = 5.0
Serve = Callable[..., Awaitable[RunningServer]]


@dataclass
class Counted:
    """When frames came to a client, and what it was told of them."""

    arrivals: list[float] = field(default_factory=list)
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
                self.arrivals.append(now)
            elif item["type"] == "session.stats":
                self.told.append((now, item["fps"]))

    def counted(self, at: float) -> float:
        """Return the frames a second that came in the window before a time."""
        seen = [t for t in self.arrivals if at - WINDOW_S < t <= at]
        return (len(seen) - 1) / (seen[-1] - seen[0])


@pytest.mark.slow
@pytest.mark.parametrize("num_sessions", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("chunk_s", "made"),
    [
        pytest.param(0.05, 40.0, id="faster-than-played"),
        pytest.param(0.2, 20.0, id="slower-than-played"),
    ],
)
async def test_q34_the_rate_that_is_told_is_the_rate_that_is_counted(
    chunk_s: float, made: float, num_sessions: int, serve: Serve
) -> None:
    """Forty frames a second are asked for, in chunks of four; a slow model makes twenty."""
    server = await serve(FakeHost(fps=40, chunk_frames=4, chunk_s=chunk_s, max_sessions=8))
    clients = [await server.start() for _ in range(num_sessions)]
    counts = [Counted() for _ in clients]
    await asyncio.gather(
        *(count.watch(client, WATCHED_S) for count, client in zip(counts, clients, strict=True))
    )
    for count in counts:
        at, told = count.told[-1]
        assert at - count.arrivals[0] > WINDOW_S
        assert told == pytest.approx(count.counted(at), rel=0.05)
        assert told < 1.1 * made  # and no number that the configuration has
