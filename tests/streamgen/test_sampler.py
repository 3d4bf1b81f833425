"""Noise levels, conversions, the two samplers, and noise that depends on its counters only."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamgen.sampler import MAX_SEED, FlowSchedule, Sampler, chunk_noise


def test_table_starts_at_pure_noise_and_never_reaches_zero() -> None:
    """The first sigma is exactly 1, the last small but positive, all descending."""
    schedule = FlowSchedule(5.0)
    assert schedule.sigmas[0] == 1.0
    assert 0 < schedule.sigmas[-1] < 0.006
    assert bool((schedule.sigmas.diff() < 0).all())
    assert torch.equal(schedule.timesteps, schedule.sigmas * 1000)


def test_warp_maps_the_unshifted_scale() -> None:
    """Whole steps map to table entries; 0 stays 0, which no table entry is."""
    assert FlowSchedule(5.0).warp([1000, 750, 250, 0]) == (1000.0, 937.5, 625.0, 0.0)
    assert FlowSchedule(1.0).warp([1000, 750, 500]) == (1000.0, 750.0, 500.0)


@pytest.mark.parametrize("step", [-1, 1001])
def test_warp_refuses_steps_off_the_scale(step: int) -> None:
    """The message names the step and the scale."""
    with pytest.raises(ValueError, match=rf"step {step} .* 0\.\.1000"):
        FlowSchedule(5.0).warp([step])


@given(st.floats(0, 1000), st.sampled_from([1.0, 3.0, 5.0, 8.0]))
def test_sigma_is_that_of_the_nearest_timestep(t: float, shift: float) -> None:
    """The look-up agrees with a search of the whole table, the first entry on ties."""
    schedule = FlowSchedule(shift)
    distances = (schedule.timesteps.double() - t).abs()
    index = next(i for i, d in enumerate(distances.tolist()) if d == float(distances.min()))
    assert schedule.index(t) == index
    assert schedule.sigma(t) == float(schedule.sigmas[index])


def test_x0_from_flow_is_computed_in_float64() -> None:
    """x0 keeps what float32 products would round away, and the type of x."""
    schedule = FlowSchedule(5.0)
    x0, noise = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    t = 833.3333129882812
    x = schedule.add_noise(x0, noise, t)
    recovered = schedule.x0_from_flow(x, noise - x0, t)
    assert recovered.dtype == torch.float32
    exact = x.double() - schedule.sigma(t) * (noise - x0).double()
    assert torch.equal(recovered, exact.float())
    torch.testing.assert_close(recovered, x0, rtol=0, atol=1e-6)


def test_renoise_mixes_x0_with_fresh_noise() -> None:
    """The next input lies at the next sigma; after the last pass it is x0."""
    schedule = FlowSchedule(5.0)
    sampler = Sampler(schedule, schedule.warp([1000, 500]))
    x, flow, noise = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(1))
    x0 = sampler.x0_from_flow(x, flow, 0)
    sigma = sampler.sigmas[1]
    expected = (1 - sigma) * x0 + sigma * noise
    torch.testing.assert_close(sampler.next_input(x, flow, x0, 0, noise), expected)
    assert sampler.next_input(x, flow, x0, 1, None) is x0


def test_euler_follows_a_straight_flow_to_its_end() -> None:
    """With the true flow of one sample, any number of steps ends at its x0."""
    schedule = FlowSchedule(5.0)
    x0, noise = torch.randn(2, 8, generator=torch.Generator().manual_seed(2))
    sampler = Sampler(schedule, schedule.warp([1000, 750, 500, 250]), "euler")
    x, flow = noise, noise - x0
    for i in range(sampler.num_passes):
        x = sampler.next_input(x, flow, sampler.x0_from_flow(x, flow, i), i, None)
    torch.testing.assert_close(x, x0, rtol=0, atol=1e-6)
    assert [sampler.draws_noise(i) for i in range(4)] == [True, False, False, False]


@pytest.mark.parametrize("timesteps", [[], [500.0, 500.0], [250.0, 500.0], [1000.5], [10.0, -1.0]])
def test_timesteps_must_descend_on_the_scale(timesteps: list[float]) -> None:
    """An impossible list is refused when the sampler is made, not at its pass."""
    with pytest.raises(ValueError, match="must descend"):
        Sampler(FlowSchedule(5.0), timesteps)


def test_unknown_sampler_kind_is_refused() -> None:
    """The message lists the kinds there are."""
    with pytest.raises(ValueError, match="renoise, euler"):
        Sampler(FlowSchedule(5.0), [1000.0], "ddim")  # type: ignore[arg-type]


def test_noise_depends_on_its_key_only() -> None:
    """Repeated draws are the same bits, whatever torch's own generator did in between."""
    shape = (3, 16, 4, 6)
    first = chunk_noise(7, 5, 2, shape)
    torch.rand(10)
    assert torch.equal(chunk_noise(7, 5, 2, shape), first)
    assert first.dtype == torch.float32
    assert first.shape == shape


def test_noise_differs_between_seeds_chunks_and_passes() -> None:
    """No two keys of a small block share noise; swapping counters is another key."""
    keys = list(product(range(6), repeat=3))
    draws = {tuple(chunk_noise(*key, (4,)).tolist()) for key in keys}
    assert len(draws) == len(keys)


def test_noise_is_standard_normal() -> None:
    """Mean and spread over many keys are those of a standard normal."""
    draws = torch.stack([chunk_noise(s, c, 0, (512,)) for s in range(8) for c in range(8)])
    assert abs(float(draws.mean())) < 0.02
    assert abs(float(draws.std()) - 1) < 0.02


def test_noise_key_is_the_documented_one() -> None:
    """The first output of splitmix64 from state 0 is 0xE220A8397B1DCDAF, as published."""
    mask = 2**64 - 1

    def mix(value: int) -> int:
        z = (value + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    assert mix(0) == 0xE220A8397B1DCDAF
    key = mix(mix(mix(7) + 5) + 2)
    expected = torch.randn(9, generator=torch.Generator().manual_seed(key >> 32))
    assert torch.equal(chunk_noise(7, 5, 2, (9,)), expected)


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_seed_out_of_range_is_refused(seed: int) -> None:
    """Seeds are 0 to 2^32 - 1."""
    with pytest.raises(ValueError, match=str(MAX_SEED)):
        chunk_noise(seed, 0, 0, (1,))
    chunk_noise(MAX_SEED, 0, 0, (1,))


def test_negative_counters_are_refused() -> None:
    """A negative chunk would meet another key modulo 2^64."""
    with pytest.raises(ValueError, match="must not be negative"):
        chunk_noise(0, -1, 0, (1,))
