"""The few-step flow sampler: noise levels, x0 from flow, and the input of the next pass.

A sample at noise level sigma is x = (1 - sigma) * x0 + sigma * noise; the model predicts the flow
noise - x0. Timesteps and sigmas are Python floats, so nothing here waits for a device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal, get_args

import torch
from torch import Tensor

from streamgen.limits import MAX_SEED

SamplerKind = Literal["renoise", "euler"]

_MASK64: Final = 2**64 - 1
_GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15


class FlowSchedule:
    """Tabulate the noise levels of a flow-matching model in float32, as its training did.

    With s_i = linspace(1, 0, train_steps + 1)[i] for i < train_steps:
    sigma_i = shift * s_i / (1 + (shift - 1) * s_i) and timestep_i = train_steps * sigma_i.
    Both tables start at their maximum and never contain 0.
    """

    def __init__(self, shift: float, train_steps: int = 1000) -> None:
        if shift <= 0 or train_steps < 1:
            raise ValueError(f"shift {shift} and train_steps {train_steps} must be positive")
        self.shift = shift
        self.train_steps = train_steps
        s = torch.linspace(1, 0, train_steps + 1, dtype=torch.float32)[:-1]
        self.sigmas = shift * s / (1 + (shift - 1) * s)  # [train_steps] float32
        self.timesteps = self.sigmas * train_steps  # [train_steps] float32
        self._sigmas: list[float] = self.sigmas.tolist()
        self._ascending: list[float] = self.timesteps.flip(0).tolist()

    def warp(self, requested: Sequence[int]) -> tuple[float, ...]:
        """Map steps on the unshifted 0..train_steps scale to timesteps of the shifted table.

        Step n is entry train_steps - n; 0 stays 0. Raises ValueError for a step off the scale.
        """
        for step in requested:
            if not 0 <= step <= self.train_steps or step != int(step):
                raise ValueError(f"step {step} is not a whole number in 0..{self.train_steps}")
        descending = [*reversed(self._ascending), 0.0]
        return tuple(descending[self.train_steps - int(step)] for step in requested)

    def index(self, t: float) -> int:
        """Return the index of the table's timestep nearest to `t`, the first one on ties."""
        above = bisect_left(self._ascending, t)  # first entry >= t, in ascending order
        if above == self.train_steps:
            return 0
        below = max(above - 1, 0)
        # The table descends: on a tie the larger timestep has the smaller index.
        nearer_below = t - self._ascending[below] < self._ascending[above] - t
        return self.train_steps - 1 - (below if nearer_below else above)

    def sigma(self, t: float) -> float:
        """Return the sigma of the table entry whose timestep is nearest to `t`."""
        return self._sigmas[self.index(t)]

    def x0_from_flow(self, x: Tensor, flow: Tensor, t: float) -> Tensor:
        """Return x - sigma(t) * flow, computed in float64 and cast back to the type of `x`."""
        return (x.double() - self.sigma(t) * flow.double()).to(x.dtype)

    def add_noise(self, x0: Tensor, noise: Tensor, t: float) -> Tensor:
        """Return (1 - sigma(t)) * x0 + sigma(t) * noise."""
        sigma = self.sigma(t)
        return (1 - sigma) * x0 + sigma * noise


class Sampler:
    """Turn the flows of a chunk's denoise passes into its latents.

    `timesteps` are what the model is given, one a pass, descending. `renoise` mixes x0 with fresh
    noise at the next level; `euler` follows the flow to it: x + (sigma' - sigma) * flow.
    """

    def __init__(
        self, schedule: FlowSchedule, timesteps: Sequence[float], kind: SamplerKind = "renoise"
    ) -> None:
        if kind not in get_args(SamplerKind):
            raise ValueError(f"sampler kind {kind!r} is none of {', '.join(get_args(SamplerKind))}")
        steps = tuple(float(t) for t in timesteps)
        on_scale = all(0 <= t <= schedule.train_steps for t in steps)
        if not steps or not on_scale or any(a <= b for a, b in pairwise(steps)):
            raise ValueError(
                f"timesteps {list(steps)} must descend within [0, {schedule.train_steps}]"
            )
        self.schedule = schedule
        self.timesteps = steps
        self.kind: SamplerKind = kind
        self.sigmas = tuple(schedule.sigma(t) for t in steps)

    @property
    def num_passes(self) -> int:
        """Return the number of denoise passes of a chunk."""
        return len(self.timesteps)

    def draws_noise(self, pass_index: int) -> bool:
        """Return whether pass `pass_index` needs noise: the first always, later ones to renoise."""
        return pass_index == 0 or self.kind == "renoise"

    def x0_from_flow(self, x: Tensor, flow: Tensor, pass_index: int) -> Tensor:
        """Return the estimate of the clean latents after pass `pass_index`."""
        return self.schedule.x0_from_flow(x, flow, self.timesteps[pass_index])

    def next_input(
        self, x: Tensor, flow: Tensor, x0: Tensor, pass_index: int, noise: Tensor | None
    ) -> Tensor:
        """Return what pass `pass_index + 1` is given; x0 itself after the last pass.

        `noise` is drawn for pass `pass_index + 1` and read only where `draws_noise` says so.
        """
        following = pass_index + 1
        if following == self.num_passes:
            return x0
        if self.kind == "euler":
            return x + (self.sigmas[following] - self.sigmas[pass_index]) * flow
        assert noise is not None, f"renoise before pass {following} needs noise"
        return self.schedule.add_noise(x0, noise, self.timesteps[following])


def chunk_noise(seed: int, chunk: int, pass_index: int, shape: Sequence[int]) -> Tensor:
    """Draw the float32 noise of one pass on the CPU, whatever device or company it runs in.

    `pass_index` 0 is the chunk's initial noise, k >= 1 what is mixed in before pass k. The key is
    mix(mix(mix(seed) + chunk) + pass_index) modulo 2^64, where mix is one step of splitmix64
    (Steele, Lea and Flood 2014). torch's CPU generator keeps 32 bits of its seed: it is given the
    upper half. Raises ValueError for a seed outside 0..2^32 - 1 or a negative counter.
    """
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed {seed} is outside 0..{MAX_SEED}")
    if chunk < 0 or pass_index < 0:
        raise ValueError(f"chunk {chunk} and pass {pass_index} must not be negative")
    key = _splitmix64(_splitmix64(_splitmix64(seed) + chunk) + pass_index)
    generator = torch.Generator().manual_seed(key >> 32)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32)


def _splitmix64(value: int) -> int:
    z = (value + _GOLDEN_GAMMA) & _MASK64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK64
    return z ^ (z >> 31)
