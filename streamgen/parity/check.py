"""One comparison of a replayed output with the reference's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Check:
    """An output's largest absolute error beside its tolerance; NaN never passes."""

    name: str
    max_abs_err: float
    tolerance: float
    note: str = ""

    @property
    def ok(self) -> bool:
        """Return whether the error is within the tolerance."""
        return self.max_abs_err <= self.tolerance

    def line(self, prefix: str) -> str:
        """Return the report line: name, error, tolerance, verdict and why."""
        verdict = "ok" if self.ok else "FAIL"
        note = f"  {self.note}" if self.note else ""
        return f"{prefix}/{self.name} {self.max_abs_err:.3g} {self.tolerance:.3g} {verdict}{note}"


def compare(name: str, got: Tensor, expected: Tensor, tolerance: float) -> Check:
    """Compare two tensors, in float64; different shapes fail."""
    if got.shape != expected.shape:
        note = f"shape {list(got.shape)}, expected {list(expected.shape)}"
        return Check(name, math.nan, tolerance, note)
    error = (got.double() - expected.double()).abs()
    return Check(name, float(error.max()) if error.numel() else 0.0, tolerance)


def count_differences(name: str, got: Sequence[object], expected: Sequence[object]) -> Check:
    """Compare two lists entry by entry; the error is the number of entries that differ."""
    pairs = list(zip(got, expected, strict=False))
    wrong = [f"{g}, expected {e}" for g, e in pairs if g != e]
    num_wrong = len(wrong) + abs(len(got) - len(expected))
    if len(got) != len(expected):
        wrong.append(f"{len(got)} entries, expected {len(expected)}")
    return Check(name, float(num_wrong), 0.0, wrong[0] if wrong else "")
