"""What the account needs to know of a device: peaks, memory, price. No tensor, no I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from streamgen.errors import ConfigError

GIB: Final = 2**30
EAGER, COMPILED = 0.31, 0.49  # achieved / peak; FLUX.1-dev on an H100, as recorded
TYPICAL: Final = 0.45
# Convolutions of decoders: many channels-poor layers, norms between them. See docs/account.md.
VAE_ETA: Final = 0.09
MEMORY_ETA: Final = 0.80  # of the bandwidth's peak that long reads get
LINK_ETA: Final = 0.825  # of the link's peak that long copies get: 26 of 31.5 GB/s, PCIe 4 x16


@dataclass(frozen=True, slots=True)
class Card:
    """A device: peaks of dense products in FLOP/s (16 bit, or what it was calibrated in), bytes a
    second, bytes, dollars an hour.

    A peak that is None means that its tensor cores have no such products. `measured` is there for
    a device that was calibrated: its own seconds instead of peaks and etas.
    """

    name: str
    peak_flops: float
    bandwidth: float
    memory_bytes: int
    price: float | None
    fp8_flops: float | None = None
    int4_flops: float | None = None
    measured: Measured | None = None
    link: float | None = None  # bytes a second from main memory, the peak of one direction

    @property
    def knee(self) -> float:
        """Return the FLOPs a byte above which arithmetic is the bound: peak / bandwidth."""
        return self.peak_flops / self.bandwidth


@dataclass(frozen=True, slots=True)
class Measured:
    """What calibration timed with the bundled model: (FLOPs, seconds) pairs, ascending.

    `pass_points` are passes of 1, 2, ... rows; `decode_point` one chunk's decode, which runs
    beside the passes where `decode_shares_device` is false; both were timed while the other ran.
    `host_s` is what a chunk takes beside them, `runtime_bytes` what the process holds beside
    weights, pools and states, `element_bytes` those of passes and of decodes.
    """

    pass_points: tuple[tuple[float, float], ...]
    decode_point: tuple[float, float]
    decode_shares_device: bool
    host_s: float
    runtime_bytes: int
    element_bytes: tuple[int, int]

    def pass_s(self, flops: float) -> float:
        """Return the seconds of a pass: a line through the points next to it, never below them."""
        points = self.pass_points
        if len(points) == 1:
            return flops * points[0][1] / points[0][0]
        i = min(max(bisect_left([f for f, _ in points], flops), 1), len(points) - 1)
        (f0, s0), (f1, s1) = points[i - 1], points[i]
        # Noise may make the larger pass the faster one; then it counts as equally fast.
        slope = max(0.0, (s1 - s0) / (f1 - f0))
        return max(s0 + slope * (flops - f0), s0 * flops / f0 if flops < f0 else 0.0)

    def decode_s(self, flops: float) -> float:
        """Return the seconds of a decode, in proportion to its FLOPs."""
        return flops * self.decode_point[1] / self.decode_point[0]


# Peaks are those of dense products with 32-bit accumulation, no sparsity; prices an hour on demand.
# 4090: NVIDIA Ada GPU architecture whitepaper 2.02, appendix A; price: community clouds, 2025.
# H100 SXM: NVIDIA H100 datasheet; price as in the specification.
# H200 SXM: NVIDIA H200 datasheet (the H100's chip, other memory); price: on-demand clouds, 2025.
# B200: NVIDIA DGX B200 datasheet, divided by its eight; price: on-demand clouds, 2025.
# Links: PCIe x16 at 16 (4) or 32 GT/s (5) a lane, 128b/130b coded. 4090: 4, the same whitepaper;
# H100, H200: 5, the same datasheets (128 GB/s in both directions); B200: 5, as the DGX's CPUs have.
PCIE_4, PCIE_5 = (16 * rate * 1e9 * 128 / 130 / 8 for rate in (16, 32))
CARDS: Final = {
    "4090": Card("4090", 165.2e12, 1.008e12, 24 * GIB, 0.40, 330.3e12, 1321.2e12, link=PCIE_4),
    "h100": Card("h100", 989e12, 3.35e12, 80 * 10**9, 2.50, 1979e12, link=PCIE_5),
    "h200": Card("h200", 989e12, 4.8e12, 141 * 10**9, 3.50, 1979e12, link=PCIE_5),
    "b200": Card("b200", 2250e12, 8.0e12, 180 * 10**9, 5.50, 4500e12, link=PCIE_5),
}


# What a file may say: far beyond any device, and still without overflow.
RANGES: Final[dict[str, tuple[float, float]]] = {
    "peak_flops": (1e6, 1e21),
    "bandwidth": (1e6, 1e18),
    "memory_bytes": (1e6, 1e18),
    "price": (0.001, 1e6),
    "fp8_flops": (1e6, 1e21),
    "int4_flops": (1e6, 1e21),
    "link": (1e6, 1e18),
}
MEASURED_FLOPS: Final = (1.0, 1e21)
MEASURED_S: Final = (1e-9, 1e6)


def card_from(facts: object, origin: str) -> Card:
    """Return the card that a file describes; ConfigError names the key that is wrong.

    Keys: name, peak_flops, bandwidth, memory_bytes, and if wanted price, fp8_flops, int4_flops,
    link, and `measured` as calibration writes it.
    """
    if not isinstance(facts, Mapping):
        raise ConfigError(f"{origin} must be an object of facts about a card", param="gpu")
    unknown = set(facts) - set(RANGES) - {"name", "measured", "machine"}
    if unknown:
        raise ConfigError(f"{origin}: no fact is called {sorted(unknown)[0]!r}", param="gpu")
    name = facts.get("name")
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ConfigError(f"{origin}: name = {name!r}: expected a name", param="gpu")
    values: dict[str, Any] = {key: facts[key] for key in RANGES if facts.get(key) is not None}
    for key in ("peak_flops", "bandwidth", "memory_bytes"):
        values.setdefault(key, None)
    for key, value in values.items():
        _require_within(value, RANGES[key], f"{origin}: {key}")
    values["memory_bytes"] = int(values["memory_bytes"])
    values.setdefault("price", None)
    measured = facts.get("measured")
    return Card(name, **values, measured=None if measured is None else _measured(measured, origin))


def _measured(facts: Any, origin: str) -> Measured:
    try:
        points = tuple((float(f), float(s)) for f, s in facts["pass_points"])
        decode_flops, decode_s = facts["decode_point"]
        passes, decodes = facts["element_bytes"]
        measured = Measured(
            points,
            (float(decode_flops), float(decode_s)),
            bool(facts["decode_shares_device"]),
            float(facts["host_s"]),
            int(facts["runtime_bytes"]),
            (int(passes), int(decodes)),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{origin}: measured is not as `plan --calibrate` writes it: {error!r}", param="gpu"
        ) from error
    if not points or not all(a[0] < b[0] for a, b in pairwise(points)):
        raise ConfigError(f"{origin}: measured needs pass_points, by rising FLOPs", param="gpu")
    for flops, seconds in (*points, measured.decode_point):
        _require_within(flops, MEASURED_FLOPS, f"{origin}: FLOPs of a measured point")
        _require_within(seconds, MEASURED_S, f"{origin}: seconds of a measured point")
    _require_within(measured.host_s, (0, MEASURED_S[1]), f"{origin}: host_s")
    _require_within(measured.runtime_bytes, (0, RANGES["memory_bytes"][1]), f"{origin}: runtime")
    if not {passes, decodes} <= {2, 4}:
        raise ConfigError(
            f"{origin}: element_bytes = {[passes, decodes]}: expected 2 or 4 each", param="gpu"
        )
    return measured


def _require_within(value: object, bounds: tuple[float, float], what: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not bounds[0] <= value <= bounds[1]:  # type: ignore[operator]
        least, most = bounds
        message = f"{what} = {value!r}: expected a number from {least:g} to {most:g}"
        raise ConfigError(message, param="gpu")
