"""Fixtures of kind `schedule`: sigma tables, warped step lists, look-ups and conversions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from streamgen.parity.check import Check, compare, count_differences
from streamgen.parity.fixture import Fixture, FixtureError, blaming
from streamgen.sampler import FlowSchedule

INPUTS: Final = r"sample\.(flow|noise|x0)"
_LOOKUPS: Final = "lookups [t, index, sigma]"

Lookup = list[tuple[float, int, float]]
"""Timestep, index of the nearest table entry, its sigma."""


def check(fixture: Fixture) -> Iterator[Check]:
    """Compare a `FlowSchedule` of every listed shift with its tables."""
    for shift, lookup in _lookups(fixture):
        prefix = f"shift{shift:g}"
        with blaming(prefix):
            schedule = FlowSchedule(shift, len(fixture.tensor(f"{prefix}.sigmas")))
        yield from _check_tables(fixture, schedule, prefix)
        found = [schedule.index(t) for t, _, _ in lookup]
        sigmas = [schedule.sigma(t) for t, _, _ in lookup]
        listed = [[index, sigma] for _, index, sigma in lookup]
        pairs = [list(pair) for pair in zip(found, sigmas, strict=True)]
        yield count_differences(f"{prefix}.lookup", pairs, listed)
        name = f"{prefix}.lookup_index"
        if name in fixture.tensors:
            yield count_differences(name, found, fixture.tensor(name).tolist())
        yield from _check_conversions(fixture, schedule, prefix, [t for t, _, _ in lookup])


def _lookups(fixture: Fixture) -> Iterator[tuple[float, Lookup]]:
    for entry in fixture.items(_LOOKUPS):
        try:
            shift, lookup = float(entry["shift"]), [(t, i, s) for t, i, s in entry["lookup"]]
        except (KeyError, TypeError, ValueError) as error:
            raise FixtureError(f"{_LOOKUPS!r} has an odd entry: {entry!r:.80}") from error
        yield shift, lookup


def _check_tables(fixture: Fixture, schedule: FlowSchedule, prefix: str) -> Iterator[Check]:
    tolerance = fixture.number("tolerance", "tables", "max_abs_err")
    # The tolerance is meant for timesteps, which are train_steps times the sigmas.
    sigma_tolerance = tolerance / schedule.train_steps
    sigmas, timesteps = f"{prefix}.sigmas", f"{prefix}.timesteps"
    yield compare(sigmas, schedule.sigmas, fixture.tensor(sigmas), sigma_tolerance)
    yield compare(timesteps, schedule.timesteps, fixture.tensor(timesteps), tolerance)
    for name in sorted(fixture.tensors):
        if not re.fullmatch(re.escape(prefix) + r"\.warped\d+", name):
            continue
        with blaming(f"warped_lists.{name}"):
            warped = schedule.warp(fixture.integers("warped_lists", name, "requested"))
        yield compare(name, torch.tensor(warped), fixture.tensor(name), tolerance)
        looked_up = torch.tensor([schedule.sigma(t) for t in warped])
        listed = torch.tensor(fixture.numbers("warped_lists", name, "sigmas"))
        yield compare(f"{name}.sigmas", looked_up, listed, sigma_tolerance)


def _check_conversions(
    fixture: Fixture, schedule: FlowSchedule, prefix: str, timesteps: list[float]
) -> Iterator[Check]:
    """Convert the sample, whose frame j is at the j-th timestep of the look-ups."""
    x0 = fixture.tensor("sample.x0")
    if len(x0) != len(timesteps):
        raise FixtureError(f"sample.x0 has {len(x0)} frames, the look-ups {len(timesteps)}")
    tolerance = fixture.number("tolerance", "add_noise and x0_from_flow", "max_abs_err")
    for method, other in (("add_noise", "sample.noise"), ("x0_from_flow", "sample.flow")):
        name = f"{prefix}.{method}"
        if name not in fixture.tensors:
            continue
        frames = zip(x0, fixture.tensor(other, *x0.shape), timesteps, strict=True)
        convert = getattr(schedule, method)
        got: list[Tensor] = [convert(x, y, t) for x, y, t in frames]
        yield compare(name, torch.stack(got), fixture.tensor(name), tolerance)
