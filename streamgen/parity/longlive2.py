"""Fixtures of kind `longlive2_window`: LongLive 2.0's cache, driven with fixed inputs.

Every chunk has one noisy pass, whose flow is stored, and a context pass on a fixed share of its
input. New shots are cuts: another prompt, positions that jump, a pinned first chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from torch import Tensor

from streamgen.models.causal_dit import CausalDiT
from streamgen.parity.check import Check
from streamgen.parity.fixture import Fixture, FixtureError, blaming
from streamgen.parity.recording import StreamInputs, Switch
from streamgen.parity.stream_run import (
    StreamRun,
    check_run,
    load_dit,
    read_noise,
    tolerance_of,
    window_of,
)
from streamgen.sampler import FlowSchedule, Sampler

INPUTS: Final = r"noise|prompt_embeds|prompt\d+"
_OFFSET_COLUMN: Final = 8


class ShareSampler(Sampler):
    """One pass at a timestep; a fixed share of the input takes the place of its x0."""

    def __init__(self, timestep: float, share: float) -> None:
        super().__init__(FlowSchedule(1.0), (timestep,))
        self.share = share

    def x0_from_flow(self, x: Tensor, flow: Tensor, pass_index: int) -> Tensor:
        """Return the share of `x`, whatever the flow."""
        return self.share * x


def check(fixture: Fixture) -> Iterator[Check]:
    """Replay every run, pass by pass and with fused commits, and compare."""
    model = load_dit(fixture)
    for name in fixture.group("runs"):
        yield from check_run(fixture, model, _run(fixture, model, name))


def _run(fixture: Fixture, model: CausalDiT, name: str) -> StreamRun:
    where = ("runs", name)
    calls = _calls(fixture, name)
    with blaming(f"runs.{name}.calls"):
        sampler = ShareSampler(float(calls[0][2]), _context_share(fixture))
    noise, chunk_frames = read_noise(fixture, model.config)
    sink = fixture.integer(*where, "sink")
    prompt = fixture.tensor("prompt_embeds", 1, model.config.text_len, model.config.text_dim)[0]
    switches: tuple[Switch, ...] = ()
    if fixture.flag(*where, "multishot"):
        switches = tuple(_shots(fixture, name, calls, min(sink, chunk_frames), prompt))
    relative = fixture.flag(*where, "relative")
    if relative and switches:
        raise FixtureError(f"runs.{name}: shots with relative positions are not defined")
    return StreamRun(
        f"{name}.",
        sampler,
        StreamInputs(noise, noise.new_empty(0), prompt, chunk_frames, switches),
        window_of(fixture.integer(*where, "local"), sink, len(noise), relative=relative),
        tolerance_of(fixture, *where),
        calls=(*where, "calls"),
        output="flow",
        first_pass="noisy",
    )


def _calls(fixture: Fixture, name: str) -> list[list[Any]]:
    calls = fixture.items("runs", name, "calls")
    is_usual = [isinstance(call, list) and len(call) > _OFFSET_COLUMN for call in calls]
    if not calls or not all(is_usual):
        raise FixtureError(f"runs.{name}.calls must list calls of {_OFFSET_COLUMN + 1} values")
    return calls


def _context_share(fixture: Fixture) -> float:
    text = " ".join(map(str, fixture.items("procedure")))
    found = re.search(r"context pass on ([\d.]+)\*x_i", text)
    if found is None:
        raise FixtureError("'procedure' does not say what the context pass is given")
    return float(found[1])


def _shots(
    fixture: Fixture, name: str, calls: list[list[Any]], pinned_frames: int, prompt: Tensor
) -> Iterator[Switch]:
    """Find the shots: a new one begins where the position offset grows."""
    number = 0
    for before, call in pairwise(calls):
        jump = call[_OFFSET_COLUMN] - before[_OFFSET_COLUMN]
        if not jump:
            continue
        number += 1
        if jump < 0 or jump != int(jump):
            raise FixtureError(f"runs.{name}: positions cannot jump by {jump}")
        embeds = fixture.tensor(f"prompt{number}", 1, *prompt.shape)[0]
        yield Switch(int(call[3]), embeds, False, int(jump), pinned_frames)
