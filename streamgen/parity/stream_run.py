"""Replay one stream of a fixture and compare all that is stored of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kvcache import WindowConfig
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.loader import load_safetensors_strict
from streamgen.models.rope import rotate, rotation
from streamgen.parity.check import Check, compare, count_differences
from streamgen.parity.fixture import Fixture, FixtureError, blaming
from streamgen.parity.recording import Call, KeptKV, Recording, StreamInputs
from streamgen.parity.replay import StreamReplay
from streamgen.sampler import Sampler

_TIMESTEP_DIGITS: Final = 3  # fixture.json prints timesteps rounded


@dataclass(frozen=True, slots=True)
class StreamRun:
    """One stream of a fixture: its tensors' prefix and most important tensor, what it is made from.

    `calls` and `recaches` are where the description lists them, if it does.
    """

    prefix: str
    sampler: Sampler
    inputs: StreamInputs
    window: WindowConfig
    tolerance: float
    calls: tuple[str, ...]
    recaches: tuple[str, ...] = ()
    rebuild_sink: bool = False
    output: str = "output"
    first_pass: str = "denoise0"  # what the description calls it


def load_dit(fixture: Fixture) -> CausalDiT:
    """Return the model that the fixture describes, with its weights."""
    model = CausalDiT(_dit_config(fixture))
    load_safetensors_strict(model, fixture.weights_path())
    return model.requires_grad_(False)


def _dit_config(fixture: Fixture) -> DiTConfig:
    group = ("model", "hyperparameters")
    names = "dim ffn_dim num_layers num_heads text_dim text_len in_dim out_dim freq_dim"
    sizes: dict[str, Any] = {name: fixture.size(*group, name) for name in names.split()}
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


def read_noise(fixture: Fixture, config: DiTConfig) -> tuple[Tensor, int]:
    """Return the stream's initial noise `[frames, C, h, w]` and the frames of a chunk."""
    key = "frames_per_chunk"
    chunk_frames = fixture.size(*((key,) if fixture.has(key) else ("model", key)))
    noise = fixture.tensor("noise", 1, None, config.in_dim, None, None)[0]
    num_frames, _, height, width = noise.shape
    if num_frames % chunk_frames:
        raise FixtureError(f"{num_frames} frames of noise are no chunks of {chunk_frames}")
    if height % config.patch_size[1] or width % config.patch_size[2]:
        raise FixtureError(f"latents of {height}x{width} are no patches {config.patch_size}")
    return noise, chunk_frames


def read_renoise(
    fixture: Fixture, name: str, noise: Tensor, chunk_frames: int, sampler: Sampler
) -> Tensor:
    """Return the noises mixed in between passes, `[chunk, pass, frame, C, h, w]`."""
    num_chunks, num_mixes = len(noise) // chunk_frames, sampler.num_passes - 1
    if not num_mixes:
        return noise.new_empty(num_chunks, 0)
    return fixture.tensor(name, num_chunks, num_mixes, chunk_frames, *noise.shape[1:])


def window_of(frames: int, sink: int, num_frames: int, *, relative: bool = False) -> WindowConfig:
    """Return the window of `frames`; the reference's -1 never evicts any of `num_frames`."""
    return WindowConfig(
        window_frames=frames if frames > 0 else None,
        sink_frames=sink,
        max_frames=None if frames > 0 else num_frames,
        rotary="relative" if relative else "absolute",
    )


def tolerance_of(fixture: Fixture, *where: str) -> float:
    """Return the tolerance of a run, its own if it has one."""
    own = (*where, "tolerance_max_abs_err")
    return fixture.number(*(own if fixture.has(*own) else ("tolerance", "max_abs_err")))


def check_run(fixture: Fixture, model: CausalDiT, run: StreamRun) -> Iterator[Check]:
    """Replay a run as the reference does it and as the engine does it, and compare."""
    fixture.tensor(run.prefix + run.output)  # without it the run would pass unseen
    names = sorted(n for n in fixture.tensors if n.startswith(run.prefix))
    pattern = re.escape(run.prefix) + r"kv\.(?:chunk)?(last|\d+)\..*"
    found = [match[1] for name in names if (match := re.fullmatch(pattern, name))]
    last_chunk = run.inputs.num_chunks - 1
    kept = {last_chunk if number == "last" else int(number) for number in found}
    for fused in (False, True):
        mark = ".fused" if fused else ""
        replay = StreamReplay(
            model, run.sampler, run.inputs, run.window,
            fused=fused, rebuild_sink=run.rebuild_sink, kept_chunks=kept,
        )  # fmt: skip
        recording = replay.run()
        outputs = _Outputs(recording, run, model)
        for name in names:
            got = outputs.get(name.removeprefix(run.prefix))
            expected = fixture.tensor(name)
            if got is None:
                continue
            if fused and name.endswith("recache.flow"):
                expected = expected[:, -got.shape[1] :]  # nobody reads the first frames' K/V
            yield compare(name + mark, got, expected, run.tolerance)
        if not fused and fixture.has(*run.calls):
            yield _check_calls(fixture, run, recording.calls)
        if run.recaches and fixture.has(*run.recaches):
            yield _check_recaches(fixture, run, recording, mark)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What a fixture may have stored of a run, under the fixture's names and in its shapes."""

    recording: Recording
    run: StreamRun
    model: CausalDiT

    def get(self, name: str) -> Tensor | None:
        """Return the output called `name`; None for what is no output of this run."""
        recording, flows = self.recording, self.recording.flows
        if name == "output":
            return recording.output[None]
        if name == "context_flow":
            return self._of_every_chunk(self.run.sampler.num_passes)
        if name == "flow":
            return self._of_every_chunk(0)
        if name == "first_call.flow":
            return flows[min(key for key in flows if key[1] == 0)][None]
        if name == "timesteps":
            return torch.tensor(self.run.sampler.timesteps)
        if found := re.fullmatch(r"(flow|x0)\.chunk(\d+)", name):
            held = flows if found[1] == "flow" else recording.x0s
            passes = sorted(k for k in held if k[0] == int(found[2]))
            return torch.stack([held[k] for k in passes]) if passes else None
        if found := re.fullmatch(r"crossattn\.layer(\d+)\.([kv])", name):
            layers, layer = recording.text_kv["kv".index(found[2])], int(found[1])
            return layers[layer][None] if layer < len(layers) else None
        if found := re.fullmatch(r"kv\.(?:chunk)?(last|\d+)\.layer(\d+)\.([kv])", name):
            chunk = max(recording.kv, default=-1) if found[1] == "last" else int(found[1])
            return self._cached(recording.kv.get(chunk), int(found[2]), found[3])
        return self._of_recache(name)

    def _of_every_chunk(self, pass_index: int) -> Tensor | None:
        keys = [(chunk, pass_index) for chunk in range(self.run.inputs.num_chunks)]
        flows = [self.recording.flows[key] for key in keys if key in self.recording.flows]
        return torch.cat(flows)[None] if len(flows) == len(keys) else None

    def _of_recache(self, name: str) -> Tensor | None:
        """Return what the first recache gave or left."""
        if not self.recording.recaches:
            return None
        recache = self.recording.recaches[0]
        if name == "recache.flow":
            return recache.flow[None]
        if found := re.fullmatch(r"recache\.kv\.last_layer\.([kv])", name):
            return self._cached(recache.kv, len(self.model.blocks) - 1, found[1])
        return None

    def _cached(self, kv: KeptKV | None, layer: int, which: str) -> Tensor | None:
        if kv is None or layer >= len(kv.layers):
            return None
        kept = kv.layers[layer]["kv".index(which)][None]
        if which == "v" or self.run.window.rotary == "absolute":
            return kept
        # The reference keeps keys without rotation where it rotates them anew for every call.
        _, _, height, width = self.run.inputs.noise.shape
        _, ph, pw = self.model.config.patch_size
        grid = height // ph, width // pw
        turn = rotation(torch.tensor([kv.frames]), *grid, self.model.config.head_dim)
        return rotate(kept, turn * torch.tensor([1, -1]))  # back


def _check_recaches(fixture: Fixture, run: StreamRun, recording: Recording, mark: str) -> Check:
    """Compare which frame each slot holds after every recache, and the prompt that made it."""
    got = [
        [list(pair) for pair in zip(recache.kv.frames, recache.made_by, strict=True)]
        for recache in recording.recaches
    ]
    key = "slots_after [frame, prompt index that produced the entry]"
    expected = [entry.get(key) for entry in fixture.items(*run.recaches) if isinstance(entry, dict)]
    return count_differences(f"{run.prefix}{run.recaches[-1]}{mark}", got, expected)


def _check_calls(fixture: Fixture, run: StreamRun, calls: list[Call]) -> Check:
    """Compare the calls, as many columns as the fixture lists."""
    expected = [row for row in fixture.items(*run.calls) if isinstance(row, list)]
    num_columns = len(expected[0]) if expected else 0
    got = [
        [
            call.chunk,
            run.first_pass if call.pass_name == "denoise0" else call.pass_name,
            round(call.timestep, _TIMESTEP_DIGITS),
            call.first_frame,
            call.last_frame,
            call.visible_frames,
            call.frame_counter,
            call.held_frames,
            call.position_offset,
            call.pinned_slot,
        ][:num_columns]
        for call in calls
    ]
    listed = [
        [round(x, _TIMESTEP_DIGITS) if isinstance(x, float) else x for x in row] for row in expected
    ]
    return count_differences(f"{run.prefix}calls", got, listed)
