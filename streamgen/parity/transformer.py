"""Fixtures of kinds `sf_tiny` and `sf_local`: streams of the causal DiT, unlimited or windowed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kvcache import WindowConfig
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.loader import load_safetensors_strict
from streamgen.models.rope import axis_angles, lanes
from streamgen.parity.check import Check, compare, count_differences
from streamgen.parity.fixture import Fixture, FixtureError, blaming
from streamgen.parity.replay import Call, Recording, StreamInputs, StreamReplay
from streamgen.sampler import FlowSchedule, Sampler
from streamgen.step import COMMIT_TIMESTEP

INPUTS: Final = frozenset({"noise", "prompt_embeds", "renoise"})
_TIMESTEP_DIGITS: Final = 3  # fixture.json prints timesteps rounded


@dataclass(frozen=True, slots=True)
class _Run:
    """One stream of a fixture: its tensors' prefix, its window, where its calls are listed."""

    prefix: str
    window_frames: int | None
    sink_frames: int
    calls: tuple[str, ...]
    tolerance: float


def check(fixture: Fixture) -> Iterator[Check]:
    """Replay every run, pass by pass and with fused commits, and compare."""
    model = CausalDiT(_dit_config(fixture))
    load_safetensors_strict(model, fixture.weights_path())
    model.requires_grad_(False)
    with blaming("schedule"):
        schedule = FlowSchedule(
            fixture.number("schedule", "shift"), fixture.size("schedule", "train_steps")
        )
        timesteps = schedule.warp(fixture.integers("schedule", "requested_steps"))
        sampler = Sampler(schedule, timesteps)
    # The float32 tables of the reference: one unit in the last place of 1000 is 6e-5.
    expected = fixture.tensor("timesteps")
    yield compare("timesteps", torch.tensor(timesteps), expected, 1e-7 * schedule.train_steps)
    inputs = _inputs(fixture, model.config, sampler)
    yield from _check_embeddings(fixture, model, inputs, timesteps)
    for run in _runs(fixture):
        yield from _check_run(fixture, model, sampler, inputs, run)


def _dit_config(fixture: Fixture) -> DiTConfig:
    group = ("model", "hyperparameters")
    names = "dim ffn_dim num_layers num_heads text_dim text_len in_dim out_dim freq_dim"
    sizes = {name: fixture.size(*group, name) for name in names.split()}
    patch_size = fixture.sizes(*group, "patch_size")
    if len(patch_size) != 3 or sizes["in_dim"] != sizes["out_dim"]:
        raise FixtureError(f"no stream has patches of {list(patch_size)} and {sizes}")
    with blaming("model.hyperparameters"):
        return DiTConfig(
            **sizes,
            patch_size=(patch_size[0], patch_size[1], patch_size[2]),
            qk_norm=fixture.flag(*group, "qk_norm"),
            cross_attn_norm=fixture.flag(*group, "cross_attn_norm"),
            eps=fixture.number(*group, "eps"),
        )


def _inputs(fixture: Fixture, config: DiTConfig, sampler: Sampler) -> StreamInputs:
    key = "frames_per_chunk"
    chunk_frames = fixture.size(*((key,) if fixture.has(key) else ("model", key)))
    noise = fixture.tensor("noise", 1, None, config.in_dim, None, None)[0]
    prompt = fixture.tensor("prompt_embeds", 1, config.text_len, config.text_dim)[0]
    num_frames, _, height, width = noise.shape
    if num_frames % chunk_frames:
        raise FixtureError(f"{num_frames} frames of noise are no chunks of {chunk_frames}")
    if height % config.patch_size[1] or width % config.patch_size[2]:
        raise FixtureError(f"latents of {height}x{width} are no patches {config.patch_size}")
    num_chunks, num_mixes = num_frames // chunk_frames, sampler.num_passes - 1
    if num_mixes:
        shape = (num_chunks, num_mixes, chunk_frames, *noise.shape[1:])
        renoise = fixture.tensor("renoise", *shape)
    else:
        renoise = noise.new_empty(num_chunks, 0)
    return StreamInputs(noise, renoise, prompt, chunk_frames)


def _runs(fixture: Fixture) -> Iterator[_Run]:
    tolerance = fixture.number("tolerance", "max_abs_err")
    if not fixture.has("runs"):
        yield _Run("", None, 0, ("calls",), tolerance)
        return
    for name in fixture.group("runs"):
        where = ("runs", name)
        window = fixture.integer(*where, "local_attn_size")
        own = (*where, "tolerance_max_abs_err")
        yield _Run(
            prefix=f"{name}.",
            window_frames=window if window > 0 else None,  # the reference's -1: unlimited
            sink_frames=fixture.integer(*where, "sink_size"),
            calls=(*where, "calls"),
            tolerance=fixture.number(*own) if fixture.has(*own) else tolerance,
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


def _check_run(
    fixture: Fixture, model: CausalDiT, sampler: Sampler, inputs: StreamInputs, run: _Run
) -> Iterator[Check]:
    last_chunk = inputs.num_chunks - 1
    fixture.tensor(f"{run.prefix}output")  # without it the run would pass unseen
    names = sorted(n for n in fixture.tensors if n.startswith(run.prefix))
    kept = {
        last_chunk if found[1] == "last" else int(found[1])
        for name in names
        if (found := re.fullmatch(r"kv\.(?:chunk)?(last|\d+)\..*", name.removeprefix(run.prefix)))
    }
    window = WindowConfig(
        window_frames=run.window_frames,
        sink_frames=run.sink_frames,
        max_frames=len(inputs.noise) if run.window_frames is None else None,
    )
    for fused in (False, True):
        mark = ".fused" if fused else ""
        replay = StreamReplay(model, sampler, inputs, window, fused=fused, kept_chunks=kept)
        recording = replay.run()
        for name in names:
            got = _recorded(recording, name.removeprefix(run.prefix), sampler, last_chunk)
            if got is not None:
                yield compare(name + mark, got, fixture.tensor(name), run.tolerance)
        if not fused and fixture.has(*run.calls):
            yield _check_calls(f"{run.prefix}calls", recording.calls, fixture.items(*run.calls))


def _recorded(recording: Recording, name: str, sampler: Sampler, last_chunk: int) -> Tensor | None:
    """Return what the fixture calls `name`, in its shape; None for what is no output of a run."""
    commit = sampler.num_passes
    if name == "output":
        return recording.output[None]
    if name == "context_flow":
        return torch.cat([recording.flows[i, commit] for i in range(last_chunk + 1)])[None]
    if name == "first_call.flow":
        return recording.flows[0, 0][None]
    if found := re.fullmatch(r"(flow|x0)\.chunk(\d+)", name):
        held = recording.flows if found[1] == "flow" else recording.x0s
        passes = sorted(k for k in held if k[0] == int(found[2]))
        return torch.stack([held[k] for k in passes]) if passes else None
    if found := re.fullmatch(r"crossattn\.layer(\d+)\.([kv])", name):
        layers, layer = recording.text_kv["kv".index(found[2])], int(found[1])
        return layers[layer][None] if layer < len(layers) else None
    if found := re.fullmatch(r"kv\.(?:chunk)?(last|\d+)\.layer(\d+)\.([kv])", name):
        kept = recording.kv.get(last_chunk if found[1] == "last" else int(found[1]), [])
        layer = int(found[2])
        return kept[layer]["kv".index(found[3])][None] if layer < len(kept) else None
    return None


def _check_calls(name: str, calls: list[Call], expected: list[object]) -> Check:
    got = [
        [
            call.chunk,
            call.pass_name,
            round(call.timestep, _TIMESTEP_DIGITS),
            call.first_frame,
            call.last_frame,
            call.visible_frames,
            call.frame_counter,
            call.held_frames,
        ]
        for call in calls
    ]
    listed = [
        [round(x, _TIMESTEP_DIGITS) if isinstance(x, float) else x for x in row]
        for row in expected
        if isinstance(row, list)
    ]
    return count_differences(name, got, listed)
