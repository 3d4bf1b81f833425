"""Fixture directories for the parity tests: the golden ones, altered copies, and new shapes.

New ones are computed by the dense reference, so that they prove what they store.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.sampler import FlowSchedule
from tests.oracle import DenseDiT, DenseStream, random_weights
from tests.switch_oracle import DenseSwitches

REPOSITORY = Path(__file__).parents[1]
GOLDEN = (REPOSITORY.parent / "shared" / "golden", REPOSITORY / "tests" / "golden")


def golden(kind: str) -> Path:
    """Return a fixture directory: beside the repository, or the copy kept in it."""
    for folder in GOLDEN:
        if (folder / kind).is_dir():
            return folder / kind
    pytest.skip(f"fixture {kind} is not in this checkout")


def reported(capsys: pytest.CaptureFixture[str]) -> tuple[list[list[str]], str, str]:
    """Return the report's lines as words, its last line and the error output."""
    out, err = capsys.readouterr()
    *lines, last = out.splitlines()
    return [line.split() for line in lines], last, err


def write_fixture(
    directory: Path,
    description: dict[str, Any],
    tensors: dict[str, Tensor],
    weights: dict[str, Tensor] | None = None,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "fixture.json").write_text(json.dumps(description))
    save_file({n: t.contiguous() for n, t in tensors.items()}, directory / "tensors.safetensors")
    if weights is not None:
        held = {name: t.clone().contiguous() for name, t in weights.items()}
        save_file(held, directory / "weights.safetensors")
    return directory


def altered(source: Path, target: Path, **changes: Any) -> Path:
    """Copy a fixture directory; `tensors` changes tensors, the rest top-level keys."""
    description = json.loads((source / "fixture.json").read_text())
    tensors = load_file(source / "tensors.safetensors")
    change_tensors = changes.pop("tensors", None)
    if change_tensors:
        change_tensors(tensors)
    if "weights" in description:
        weights = description["weights"].partition(".safetensors")[0]
        description["weights"] = f"{(source / weights).resolve()}.safetensors"
    return write_fixture(target, description | changes, tensors)


TEXT_LEN, TEXT_DIM, FREQ_DIM, CHANNELS = 7, 9, 64, 4


@dataclass(frozen=True, kw_only=True)
class StreamShape:
    """Sizes of a stream fixture.

    With `runs`, (window, sink) by name, it is of kind sf_local, or longlive_local if `relative`.
    With `scenarios`, (switch frames, keep the sink, relative) by name, it is of kind
    longlive_switch, all of window and sink `window`.
    """

    chunk: int = 3
    chunks: int = 4
    size: tuple[int, int] = (4, 6)
    heads: int = 2
    head_dim: int = 12
    layers: int = 2
    shift: float = 5.0
    steps: tuple[int, ...] = (1000, 500)
    runs: dict[str, tuple[int, int]] | None = None
    relative: bool = False
    scenarios: dict[str, tuple[tuple[int, ...], bool, bool]] | None = None
    window: tuple[int, int] = (9, 3)

    @property
    def kind(self) -> str:
        """Return the kind of fixture."""
        if self.scenarios is not None:
            return "longlive_switch"
        if self.runs is None:
            return "sf_tiny"
        return "longlive_local" if self.relative else "sf_local"

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Return the model's description in the format of the golden fixtures."""
        return {
            "patch_size": [1, 2, 2],
            "text_len": TEXT_LEN,
            "in_dim": CHANNELS,
            "out_dim": CHANNELS,
            "dim": self.heads * self.head_dim,
            "ffn_dim": 50,
            "freq_dim": FREQ_DIM,
            "text_dim": TEXT_DIM,
            "num_heads": self.heads,
            "num_layers": self.layers,
            "qk_norm": True,
            "cross_attn_norm": True,
            "eps": 1e-6,
        }


def stream_fixture(directory: Path, shape: StreamShape) -> Path:
    """Write a stream fixture, computed by the dense references."""
    sizes = {k: v for k, v in shape.hyperparameters.items() if k != "patch_size"}
    state = CausalDiT(DiTConfig(**sizes)).state_dict()
    weights = random_weights({n: tuple(t.shape) for n, t in state.items()}, seed=3)
    description: dict[str, Any] = {
        "fixture": shape.kind,
        "model": {"hyperparameters": shape.hyperparameters},
        "frames_per_chunk": shape.chunk,
        "schedule": {
            "shift": shape.shift,
            "train_steps": 1000,
            "requested_steps": list(shape.steps),
        },
        "weights": "weights.safetensors (this folder)",
        "tolerance": {"max_abs_err": 5e-5},
    }
    if shape.runs is not None:
        description["runs"] = {
            name: {"local_attn_size": window, "sink_size": sink}
            for name, (window, sink) in shape.runs.items()
        }
    if shape.scenarios is not None:
        description |= {"local_attn_size": shape.window[0], "sink_size": shape.window[1]}
        description["scenarios"] = {
            name: {
                "switch_frame_indices": frames,
                "keep_sink_on_switch": keep,
                "relative_rotary": relative,
            }
            for name, (frames, keep, relative) in shape.scenarios.items()
        }
    return write_fixture(directory, description, stream_tensors(shape, weights), weights)


def stream_tensors(shape: StreamShape, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Draw a stream's inputs and compute its outputs."""
    generator = torch.Generator().manual_seed(4)
    frame = (CHANNELS, *shape.size)
    noise = torch.randn(shape.chunks * shape.chunk, *frame, generator=generator)
    mixes = (shape.chunks, len(shape.steps) - 1, shape.chunk)
    renoise = torch.randn(*mixes, *frame, generator=generator)
    prompt = torch.randn(TEXT_LEN, TEXT_DIM, generator=generator)
    schedule = FlowSchedule(shape.shift)
    timesteps = schedule.warp(shape.steps)
    sigmas = [schedule.sigma(t) for t in timesteps]
    tensors = {
        "noise": noise[None],
        "prompt_embeds": prompt[None],
        "renoise": renoise,
        "timesteps": torch.tensor(timesteps),
    }
    model = DenseDiT(weights, shape.heads, FREQ_DIM)
    inputs = (model, prompt, noise, renoise, shape.chunk, timesteps, sigmas)
    given = (noise, renoise, shape.chunk, timesteps, sigmas)
    if shape.scenarios is not None:
        prompts = [prompt, *torch.randn(2, *prompt.shape, generator=generator)]
        del tensors["prompt_embeds"]
        tensors |= {f"prompt{i}": embeds[None] for i, embeds in enumerate(prompts)}
        for name, (frames, keep, relative) in shape.scenarios.items():
            policy = {"relative": relative, "rebuild_sink": not keep}
            stream = DenseSwitches(model, prompts, frames, *given, *shape.window, **policy)
            tensors[f"{name}.output"] = stream.run()[None]
        return tensors
    if shape.relative and shape.runs is not None:
        for name, window in shape.runs.items():
            stream = DenseSwitches(model, [prompt], (), *given, *window, relative=True)
            tensors[f"relative.{name}.output"] = stream.run()[None]
        return tensors
    if shape.runs is None:
        latents, flows = DenseStream(*inputs).run()
        commits = flows[:, -1].flatten(0, 1)[None]
        tensors |= {"output": latents[None], "context_flow": commits.float()}
        return tensors | {"flow.chunk2": flows[2].float()}
    for name, (window, sink) in shape.runs.items():
        latents, _ = DenseStream(*inputs, window if window > 0 else None, sink).run()
        tensors[f"{name}.output"] = latents[None]
    return tensors
