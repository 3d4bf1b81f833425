"""What `bench transport` makes of its measurements: figures, ratios, marks, ages of frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from streamgen.errors import StreamgenError

LEAST_SHARE: Final = 0.9  # of frames and bits, for a figure to count


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `mark` is what it should stay under, None when it only informs."""

    name: str
    value: float | None
    unit: str
    mark: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the mark is met, None where there is none."""
        return None if self.mark is None or self.value is None else self.value < self.mark

    def row(self) -> dict[str, Any]:
        """Return what the files get."""
        return {
            "figure": self.name,
            "value": self.value,
            "unit": self.unit,
            "mark": self.mark,
            "met": self.met,
        }

    def line(self) -> str:
        """Return what is printed."""
        value = "-" if self.value is None else f"{self.value:.2f}"
        verdict = {None: "not known", True: "met", False: "missed"}[self.met]
        mark = "" if self.mark is None else f"under {self.mark:g}: {verdict}"
        return f"{self.name:<68}{value:>9} {self.unit:<8}{mark}".rstrip()


@dataclass(frozen=True, slots=True)
class Load:
    """What a server needed for its viewers, and what each of them was sent.

    CPU is in % of a core, of the server, of the processes it started (None when unknown) and of
    the process of the viewers; `lag_ms` has every look at the event loop.
    """

    viewers: int
    cpu: float
    fps: float
    mbps: float
    engine_cpu: float | None
    viewers_cpu: float
    lag_ms: Sequence[float]

    @property
    def frame_ms(self) -> float:
        """What a frame costs the server, in ms of CPU.

        A server that a busy machine keeps from sending all frames is not taken for a thrifty one.
        """
        return 10 * self.cpu / self.fps if self.fps else 0.0

    def figures(self, server: str) -> list[Figure]:
        """Return the figures of a server with so many viewers."""
        name = f"{server}, viewers {self.viewers}"
        return [
            Figure(f"{name}: server CPU", self.cpu, "%"),
            Figure(f"{name}: server CPU of a frame", self.frame_ms, "ms"),
            Figure(f"{name}: frames of each", self.fps, "/s"),
            Figure(f"{name}: sent to each", self.mbps, "Mbit/s"),
            Figure(f"{name}: lag, p99", percentile(self.lag_ms, 99), "ms"),
            Figure(f"{name}: CPU of the viewers", self.viewers_cpu, "%"),
        ]


@dataclass(frozen=True, slots=True)
class Growth:
    """A server's load with one viewer and with many."""

    one: Load
    many: Load

    @property
    def further_ms(self) -> float:
        """What a frame costs for each viewer after the first, in ms of CPU."""
        further = max(1, self.many.viewers - self.one.viewers)
        return (self.many.frame_ms - self.one.frame_ms) / further

    def figure(self, server: str, mark: float | None = None) -> Figure:
        """Return how many times the CPU of one viewer many take."""
        name = f"server CPU, {server}, WebRTC viewers {self.many.viewers} : {self.one.viewers}"
        return Figure(name, ratio(self.many.frame_ms, self.one.frame_ms), "x", mark)


def ratios(ours: Growth, others: Mapping[str, Growth], mark: float) -> list[Figure]:
    """Return what many viewers cost beside one, here and where each is encoded for."""
    figures = [ours.figure("streamgen", mark)]
    for name, other in others.items():
        first, further = (f"server CPU of {which} viewer" for which in ("the first", "a further"))
        pair = f"{name} : streamgen"
        figures += [
            other.figure(name),
            Figure(f"{first}, {pair}", ratio(other.one.frame_ms, ours.one.frame_ms), "x"),
            Figure(f"{further}, {pair}", ratio(other.further_ms, ours.further_ms), "x"),
        ]
    return figures


def doubts(growths: Mapping[str, Growth], fps: float, mbps: Mapping[str, float]) -> list[str]:
    """Return what speaks against figures: viewers missed frames, or were sent less than the rate.

    `fps` is the picture's, `mbps` what each server should send to a viewer, where that is known.
    """
    found = []
    for name, growth in growths.items():
        for load in (growth.one, growth.many):
            where = f"{name}, viewers {load.viewers}"
            if load.fps < LEAST_SHARE * fps:
                found.append(f"{where}: {load.fps:.1f} of {fps:g} frames a second arrived")
            if load.mbps < LEAST_SHARE * mbps.get(name, 0.0):
                found.append(f"{where}: {load.mbps:.2f} of {mbps[name]:g} Mbit/s arrived")
    return found


def ratio(value: float, other: float) -> float | None:
    """Return how many times the other a value is, None when the other is too small to tell."""
    return value / other if other > 0 else None


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile; raise StreamgenError when there is no value."""
    if not values:
        raise StreamgenError("nothing came that could be measured: give a phase more --seconds")
    return float(np.percentile(values, percent))


Name: TypeAlias = int | bytes
Due: TypeAlias = tuple[int, float, Mapping[str, bytes]]  # index, when, the ends of the packets


def ages_ms(
    arrivals: Sequence[tuple[Name, float]], dues: Sequence[Due], encoding: str
) -> list[float]:
    """Return the age of each frame that arrived, in ms, from its name and time.

    JPEG frames are known by their index, video frames by the end of their packet; two frames of
    one name are left out, and of a frame that came twice the first counts.
    """
    names = [index if encoding == "jpeg" else tails.get(encoding) for index, _, tails in dues]
    num_seen = Counter(names)
    due_at = {name: due[1] for name, due in zip(names, dues, strict=True) if num_seen[name] == 1}
    came_at: dict[Name, float] = {}
    for name, at_s in arrivals:
        came_at.setdefault(name, at_s)
    return [1000 * (at_s - due_at[name]) for name, at_s in came_at.items() if name in due_at]
