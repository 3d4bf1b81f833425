"""How long a WebRTC viewer may keep frames back to show them evenly. Does no I/O.

Browsers keep some back even where all come evenly, as they leave here. So a viewer is asked to show
each at once (the header extension playout-delay) until it reports that they come unevenly.
"""

from __future__ import annotations

import struct
from typing import Final

UNEVEN_S: Final = 0.02  # of jitter: more than a refresh of most screens
EVEN_S: Final = 0.012


def delay_limits(least_s: float, most_s: float) -> bytes:
    """Return what the header extension playout-delay says: two times of 12 bits, in 10 ms."""
    return struct.pack("!L", round(100 * least_s) << 12 | round(100 * most_s))[1:]


AT_ONCE: Final = delay_limits(0.0, 0.0)
AS_LONG_AS_NEEDED: Final = delay_limits(0.0, 40.95)


class Playout:
    """What one viewer is asked for: `limits`, as the header extension has them."""

    def __init__(self) -> None:
        self.limits = AT_ONCE

    def reported(self, jitter_s: float) -> None:
        """Take note of the jitter that a receiver report has, RFC 3550, 6.4.1."""
        if jitter_s > UNEVEN_S:
            self.limits = AS_LONG_AS_NEEDED
        elif jitter_s < EVEN_S:
            self.limits = AT_ONCE
