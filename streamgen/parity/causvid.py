"""Fixtures of kind `causvid_tiny`: another schedule, plain step lists, a given first chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import Tensor

from streamgen.models.causal_dit import CausalDiT
from streamgen.parity.check import Check
from streamgen.parity.fixture import Fixture, FixtureError, blaming
from streamgen.parity.recording import StreamInputs
from streamgen.parity.stream_run import (
    StreamRun,
    check_run,
    load_dit,
    read_noise,
    read_renoise,
    tolerance_of,
    window_of,
)
from streamgen.sampler import FlowSchedule, Sampler

INPUTS: Final = r"noise|prompt_embeds|start_latents|.*\.renoise"
_TRAIN_STEPS: Final = 1000


def check(fixture: Fixture) -> Iterator[Check]:
    """Replay every run, pass by pass and with fused commits, and compare."""
    model = load_dit(fixture)
    for name in fixture.group("runs"):
        yield from check_run(fixture, model, _run(fixture, model, name))


def _run(fixture: Fixture, model: CausalDiT, name: str) -> StreamRun:
    where = ("runs", name)
    sampler = _sampler(fixture, *where)
    noise, chunk_frames = read_noise(fixture, model.config)
    renoise = read_renoise(fixture, _renoise_name(fixture, name), noise, chunk_frames, sampler)
    prompt = fixture.tensor("prompt_embeds", 1, model.config.text_len, model.config.text_dim)[0]
    start: Tensor | None = None
    if fixture.flag(*where, "given_first_chunk"):
        start = fixture.tensor("start_latents", 1, chunk_frames, *noise.shape[1:])[0]
    return StreamRun(
        f"{name}.",
        sampler,
        StreamInputs(noise, renoise, prompt, chunk_frames, given_start=start),
        window_of(-1, 0, len(noise)),
        tolerance_of(fixture, *where),
        calls=(*where, "calls"),
    )


def _sampler(fixture: Fixture, *where: str) -> Sampler:
    """Read a list of steps, whose last one, 0, is no pass."""
    steps = fixture.integers(*where, "requested_steps")
    with blaming(".".join(where)):
        schedule = FlowSchedule(fixture.number("schedule", "shift"), _TRAIN_STEPS)
        steps = steps[:-1] if steps and not steps[-1] else steps
        return Sampler(schedule, schedule.warp(steps) if fixture.flag(*where, "warp") else steps)


def _renoise_name(fixture: Fixture, name: str) -> str:
    """Return the run's own tensor, or that of the one run with the same steps that has any."""
    settings = [fixture.value("runs", name, key) for key in ("requested_steps", "warp")]
    alike = [
        f"{other}.renoise"
        for other in fixture.group("runs")
        if settings == [fixture.value("runs", other, key) for key in ("requested_steps", "warp")]
    ]
    stored = [tensor for tensor in alike if tensor in fixture.tensors]
    if f"{name}.renoise" not in stored and len(stored) > 1:
        raise FixtureError(f"{name} has no renoise and could use any of {', '.join(stored)}")
    return f"{name}.renoise" if f"{name}.renoise" in stored or not stored else stored[0]
