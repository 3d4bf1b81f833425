"""Faults on purpose: named points where an engine can be told to fail, for tests and rehearsals.

A rule says where, how and when: `POINT[:KIND][@FIRST[xTIMES]]`, several of them with commas
between. `vae.decode:oom@3x2` runs out of memory in the third decode and the one after it,
`worker.stall:30@10` stops the engine for 30 seconds at its tenth pass. Rules come from an option of
the engine only, never from a request. A process that replaces another one has none.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

RAISING: Final = ("error", "oom", "fatal")  # fatal: the device is lost, and the process with it
STALL_S: Final = 30.0
# Point to the kinds it knows, the first is the default.
POINTS: Final[dict[str, tuple[str, ...]]] = {
    "text.encode": RAISING,
    "pass.denoise": RAISING,
    "pass.commit": RAISING,
    "pass.nan": ("nan",),
    "cache.write": RAISING,
    "vae.decode": RAISING,
    "graph.capture": ("error", "oom"),  # a device that is lost shows in the next pass
    "worker.kill": ("kill",),
    "worker.stall": ("SECONDS",),
}

_RULE: Final = re.compile(
    r"(?P<point>[a-z.]+)(:(?P<kind>[a-z]+|\d+(\.\d+)?))?"
    r"(@(?P<first>[1-9]\d{0,8})(x(?P<times>[1-9]\d{0,8}))?)?"
)


class FaultError(RuntimeError):
    """The error that a fault of kind `error` raises; no site catches it by name."""


@dataclass(frozen=True, slots=True)
class FaultRule:
    """Fail at a point, from its `first` passing on (1 is the first), `times` in a row."""

    point: str
    kind: str
    first: int = 1
    times: int = 1
    stall_s: float = STALL_S

    @classmethod
    def parse(cls, text: str) -> FaultRule:
        """Read one rule; ValueError names what is wrong with it."""
        match = _RULE.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"{text.strip()!r} is no fault; expected POINT[:KIND][@FIRST[xTIMES]], as in "
                "vae.decode:oom@3"
            )
        point, kind = match["point"], match["kind"]
        if point not in POINTS:
            raise ValueError(f"no fault point is called {point!r}; there are {', '.join(POINTS)}")
        stall_s = STALL_S
        if POINTS[point] == ("SECONDS",) and kind and kind[0].isdigit():
            kind, stall_s = "SECONDS", float(kind)
        kind = kind or POINTS[point][0]
        if kind not in POINTS[point]:
            raise ValueError(f"{point} cannot fail by {kind!r}; expected {_kinds(point)}")
        return cls(point, kind, int(match["first"] or 1), int(match["times"] or 1), stall_s)

    def holds(self, passing: int) -> bool:
        """Return whether the point fails when it is passed for the `passing`th time."""
        return self.first <= passing < self.first + self.times


class Faults:
    """The faults of one engine. `hit` may be called from any thread; without rules it is free."""

    def __init__(self, rules: tuple[FaultRule, ...] = ()) -> None:
        self._rules = rules
        self._points = frozenset(rule.point for rule in rules)
        self._passed: Counter[str] = Counter()
        self._lock = threading.Lock()

    @classmethod
    def parse(cls, text: str | None) -> Faults:
        """Read rules with commas between, none for None; ValueError names the wrong one."""
        return cls(tuple(FaultRule.parse(rule) for rule in (text or "").split(",") if rule.strip()))

    def hit(self, point: str) -> bool:
        """Pass a point: raise, stop or end the process if a rule says so.

        Returns True where the site itself has to spoil something: `pass.nan`.
        """
        assert point in POINTS, f"{point} is not in {POINTS}"
        if point not in self._points:
            return False
        with self._lock:
            self._passed[point] += 1
            passing = self._passed[point]
        due = [rule for rule in self._rules if rule.point == point and rule.holds(passing)]
        return any(_fail(rule, passing) for rule in due)


NO_FAULTS: Final = Faults()


def fault_rules(value: object) -> str | None:
    """Parse the option: the rules as they were written, checked; "none" means no faults."""
    if value is None or value == "none":
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected POINT[:KIND][@FIRST[xTIMES]], as in vae.decode:oom@3, or none")
    Faults.parse(value)
    return value


def _fail(rule: FaultRule, passing: int) -> bool:
    """Do what a rule says; return whether the site has to do it."""
    said = f"fault {rule.point}:{rule.kind} at passing {passing}"
    if rule.kind == "error":
        raise FaultError(said)
    if rule.kind == "oom":
        import torch  # options are read without it

        raise torch.OutOfMemoryError(said)
    if rule.kind == "fatal":
        import torch

        raise torch.AcceleratorError(said)
    if rule.kind == "SECONDS":
        time.sleep(rule.stall_s)
    elif rule.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return rule.kind == "nan"


def _kinds(point: str) -> str:
    return " or ".join("a number of seconds" if k == "SECONDS" else k for k in POINTS[point])
