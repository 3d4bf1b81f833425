"""How late the event loop wakes: what every viewer waits for when something holds it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 0.1


async def watch_loop(observe: Callable[[float], None]) -> None:
    """Sleep again and again for ever, and tell each time how many seconds too long it was."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        observe(max(0.0, loop.time() - due))
