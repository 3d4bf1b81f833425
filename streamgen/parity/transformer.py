"""Fixtures of streams of the causal DiT.

`sf_tiny` is unlimited and `sf_local` has windows; `longlive_local` has the sink right before the
window, `longlive_switch` changes the prompt and makes the cache again under it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from streamgen.models.causal_dit import CausalDiT
from streamgen.models.rope import axis_angles, lanes
from streamgen.parity.check import Check, compare
from streamgen.parity.fixture import Fixture, blaming
from streamgen.parity.recording import StreamInputs, Switch
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
from streamgen.step import COMMIT_TIMESTEP

INPUTS: Final = r"noise|prompt_embeds|prompt\d+|renoise"


def check(fixture: Fixture) -> Iterator[Check]:
    """Replay every run, pass by pass and with fused commits, and compare."""
    model = load_dit(fixture)
    with blaming("schedule"):
        schedule = FlowSchedule(
            fixture.number("schedule", "shift"), fixture.size("schedule", "train_steps")
        )
        timesteps = schedule.warp(fixture.integers("schedule", "requested_steps"))
        sampler = Sampler(schedule, timesteps)
    # The float32 tables of the reference: one unit in the last place of 1000 is 6e-5.
    expected = fixture.tensor("timesteps")
    yield compare("timesteps", torch.tensor(timesteps), expected, 1e-7 * schedule.train_steps)
    noise, chunk_frames = read_noise(fixture, model.config)
    renoise = read_renoise(fixture, "renoise", noise, chunk_frames, sampler)
    name = "prompt0" if "prompt0" in fixture.tensors else "prompt_embeds"
    prompt = fixture.tensor(name, 1, model.config.text_len, model.config.text_dim)[0]
    inputs = StreamInputs(noise, renoise, prompt, chunk_frames)
    yield from _check_embeddings(fixture, model, inputs, timesteps)
    for run in _runs(fixture, sampler, inputs):
        yield from check_run(fixture, model, run)


def _runs(fixture: Fixture, sampler: Sampler, inputs: StreamInputs) -> Iterator[StreamRun]:
    num_frames = len(inputs.noise)
    if fixture.has("scenarios"):
        yield from _scenarios(fixture, sampler, inputs)
        return
    if not fixture.has("runs"):
        window = window_of(-1, 0, num_frames)
        yield StreamRun("", sampler, inputs, window, tolerance_of(fixture), ("calls",))
        return
    is_relative = fixture.kind == "longlive_local"
    for name in fixture.group("runs"):
        where = ("runs", name)
        frames = fixture.integer(*where, "local_attn_size")
        sink = fixture.integer(*where, "sink_size")
        yield StreamRun(
            f"relative.{name}." if is_relative else f"{name}.",
            sampler,
            inputs,
            window_of(frames, sink, num_frames, relative=is_relative),
            tolerance_of(fixture, *where),
            calls=(*where, "calls"),
        )


def _scenarios(fixture: Fixture, sampler: Sampler, inputs: StreamInputs) -> Iterator[StreamRun]:
    """Read the runs of a fixture in which prompts take over; the k-th one is tensor `prompt<k>`."""
    window, sink = fixture.integer("local_attn_size"), fixture.integer("sink_size")
    for name in fixture.group("scenarios"):
        where = ("scenarios", name)
        frames = fixture.integers(*where, "switch_frame_indices")
        shape = (1, *inputs.prompt_embeds.shape)
        prompts = [fixture.tensor(f"prompt{i + 1}", *shape)[0] for i in range(len(frames))]
        relative = fixture.flag(*where, "relative_rotary")
        yield StreamRun(
            f"{name}.",
            sampler,
            dataclasses.replace(inputs, switches=tuple(map(Switch, frames, prompts))),
            window_of(window, sink, len(inputs.noise), relative=relative),
            tolerance_of(fixture, *where),
            calls=(*where, "calls"),
            recaches=(*where, "recache_passes"),
            rebuild_sink=not fixture.flag(*where, "keep_sink_on_switch"),
        )


def _check_embeddings(
    fixture: Fixture, model: CausalDiT, inputs: StreamInputs, timesteps: tuple[float, ...]
) -> Iterator[Check]:
    """Compare the rotary tables and the embeddings of timesteps and text, where stored."""
    tolerance = fixture.number("tolerance", "max_abs_err")
    expected = {n: t for n, t in fixture.tensors.items() if n.startswith("debug.")}
    got: dict[str, Tensor] = {}
    if "debug.rope_cos" in expected:
        positions = torch.arange(len(expected["debug.rope_cos"]))
        axes = lanes(model.config.head_dim)
        angles = torch.cat([axis_angles(positions, width) for width in axes], dim=-1)
        got |= {"debug.rope_cos": angles.cos().float(), "debug.rope_sin": angles.sin().float()}
    waves: list[Tensor] = []
    hook = model.time_embedding.register_forward_pre_hook(lambda _, inputs: waves.append(inputs[0]))
    embedding, projection = model.embed_time(torch.tensor([[*timesteps, COMMIT_TIMESTEP]]))
    hook.remove()
    got |= {
        "debug.time_sinusoid": waves[0][0],
        "debug.time_embedding": embedding[0],
        "debug.time_projection": projection[0],
        "debug.text_embedding": model.text_embedding(inputs.prompt_embeds[None]),
    }
    for name in sorted(got.keys() & expected.keys()):
        yield compare(name, got[name], expected[name], tolerance)
