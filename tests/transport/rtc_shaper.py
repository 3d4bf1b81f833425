"""A bad network in user space: what a server sends over ICE is delayed, lost and held back."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

from transport.webrtc import Peer


@dataclass
class Shaper:
    """A link with a buffer of so many seconds at its rate, which loses what does not fit.

    Fields may be changed while it runs. `delay_s` is one way. `arrivals` has when packets arrive by
    rights: the machine that runs the test may be late.
    """

    bps: float = 1e9
    buffer_s: float = 0.1
    delay_s: float = 0.02
    loss: float = 0.0
    seed: int = 1
    num_sent: int = 0
    num_lost: int = 0
    free_at: float = 0.0
    arrivals: dict[bytes, float] = field(default_factory=dict)
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def shape(self, peer: Peer) -> None:
        """Put the link between a server and one viewer, as soon as it may send."""
        ice = peer._transceiver.sender.transport.transport
        original = ice._send
        loop = asyncio.get_running_loop()

        async def send(data: bytes) -> None:
            self.num_sent += 1
            now = loop.time()
            self.free_at = max(self.free_at, now) + 8 * len(data) / self.bps
            waits_s = self.free_at - now
            if waits_s > self.buffer_s + 8 * 1500 / self.bps:
                self.free_at -= 8 * len(data) / self.bps
                self.num_lost += 1
            elif self.random.random() < self.loss:
                self.num_lost += 1
            else:
                # By RTP's sequence number and stream, which SRTP leaves readable.
                self.arrivals[data[2:4] + data[8:12]] = time.time() + waits_s + self.delay_s
                loop.call_later(waits_s + self.delay_s, deliver, data)

        def deliver(data: bytes) -> None:
            if ice.state == "completed":
                keep: Any = loop.create_task(original(data))
                tasks.add(keep)
                keep.add_done_callback(tasks.discard)

        tasks: set[Any] = set()
        ice._send = send
