"""The models there are, and what is checked of the bundled one's files at a start."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from streamgen import Engine
from streamgen.config import EngineConfig
from streamgen.errors import Unsupported
from streamgen.messages import Update
from streamgen.model_runner import StepBatch
from streamgen.models.loader import CheckpointError
from streamgen.models.presets import (
    NOT_SUPPORTED,
    POCKET,
    PRESETS,
    Preset,
    build,
    find_preset,
)
from streamgen.models.random_weights import random_dit
from streamgen.sampler import FlowSchedule
from streamgen.startup import engine_window, resolve
from tests.streamgen.checkpoints import same, weights_of
from tests.streamgen.published import PRESET as PUBLISHED_TINY
from tests.streamgen.studio import Studio


@pytest.fixture
def copied(tmp_path: Path) -> Preset:
    """Pocket with weights of its own, to be damaged."""
    assert POCKET.weights is not None
    shutil.copytree(POCKET.weights, tmp_path / "weights")
    return dataclasses.replace(POCKET, weights=tmp_path / "weights")


def test_the_shipped_weights_pass_the_self_check(copied: Preset) -> None:
    assert build(copied).preset is copied


@pytest.mark.parametrize("name", ["dit", "vae"])
@pytest.mark.parametrize(("factor", "complaint"), [(float("nan"), "not finite"), (0.0, "every")])
def test_q42_weights_that_fit_but_do_nothing_are_refused(
    copied: Preset, name: str, factor: float, complaint: str
) -> None:
    """Right names and shapes are not enough: the loaded model is run once."""
    assert copied.weights is not None
    path = copied.weights / f"{name}.safetensors"
    save_file(
        {k: v * torch.tensor(factor, dtype=v.dtype) for k, v in load_file(path).items()}, path
    )
    with pytest.raises(CheckpointError, match=complaint):
        build(copied)


REQUESTED = {4: [1000, 750, 500, 250], 2: [1000, 500], 1: [1000]}


@pytest.mark.parametrize(
    "name",
    [
        "self-forcing", "causal-forcing", "causal-forcing-frame", "causal-forcing-frame-2",
        "causal-forcing-frame-1", "longlive",
    ],
)  # fmt: skip
def test_published_steps_are_those_of_the_authors_lists(name: str) -> None:
    """Their configurations list steps before the shift of 5."""
    preset = PRESETS[name]
    warped = FlowSchedule(5.0).warp(REQUESTED[preset.steps])
    assert preset.timesteps == warped == preset.make_sampler(preset.steps).timesteps
    assert preset.step_range == (preset.steps, preset.steps)
    first = preset.make_sampler(preset.steps, first_chunk=True)
    assert first.timesteps == FlowSchedule(5.0).warp(REQUESTED[4])


def test_causvid_lists_timesteps_as_they_are() -> None:
    sampler = PRESETS["causvid"].make_sampler(3)
    assert sampler.timesteps == (1000.0, 757.0, 522.0)
    assert sampler.schedule.shift == 8.0


def test_longlives_window_counts_its_sink_and_the_chunk() -> None:
    preset = PRESETS["longlive"]
    config = resolve(dataclasses.replace(EngineConfig(), model="longlive"), preset)
    window = engine_window(config, preset)
    assert (window.window_frames, window.sink_frames) == (12, 3)
    assert preset.transition == "recache"
    assert not preset.rebuilds_sink


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_preset_is_complete(preset: Preset) -> None:
    """Its settings pass the checks of an engine's start, and it says where it is from."""
    config = resolve(dataclasses.replace(EngineConfig(), model=preset.name), preset)
    assert find_preset(preset.name) is preset
    if preset.published is None:
        return
    assert config.dtype == "bf16"
    assert config.sources["dtype"] == "preset"
    for fact in (preset.published.licence, preset.published.source):
        assert fact
    assert preset.vae.latent_mean  # the full decoder
    assert preset.decoder("tiny") is preset.tiny_vae
    assert preset.dit.in_dim == preset.vae.z_dim == preset.tiny_vae.latent_channels


@pytest.mark.parametrize("name", NOT_SUPPORTED)
def test_what_is_not_supported_is_said_with_the_reason(name: str) -> None:
    with pytest.raises(Unsupported) as caught:
        find_preset(name)
    assert NOT_SUPPORTED[name].reason in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 3}, "are not steps 3"),
        ({"step_range": (1, 2)}, r"of the range \(1, 2\)"),
        ({"timesteps": None}, "first_timesteps without timesteps"),
        ({"context_noise": 100.0}, "chunks are committed at t = 0"),
    ],
)
def test_a_preset_that_contradicts_itself_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(PUBLISHED_TINY, **changes)


def test_the_first_chunk_has_steps_of_its_own() -> None:
    """Causal-Forcing's two steps begin with four, and so does a video after a reset."""
    with Studio(PUBLISHED_TINY, load_format="dummy") as studio:
        seen: list[float] = []
        run = studio.engine.runner.run

        def spy(batch: StepBatch) -> list[Tensor]:
            seen.extend(row.timestep for row in batch.rows if row.timestep)
            return run(batch)

        studio.engine.runner.run = spy  # type: ignore[method-assign]
        session = studio.open()
        studio.make(session, 3)
        few, first = PUBLISHED_TINY.timesteps, PUBLISHED_TINY.first_timesteps
        assert few is not None
        assert first is not None
        assert seen[: len(first) + 2 * len(few)] == [*first, *few, *few]
        seen.clear()
        studio.engine.control(session.id, Update(reset="all"))
        studio.make(session, 6)
        assert first[1] in seen


def test_random_weights_of_a_published_model_make_pictures() -> None:
    with Engine("tiny-published", preset=PUBLISHED_TINY, load_format="dummy", threads=1) as engine:
        chunk = next(iter(engine.open("a red fox", seed=1, num_frames=1)))
    assert chunk.frames.shape == (1, 32, 48, 3)
    assert engine.stream_engine.config.dtype == "bf16"


def test_random_weights_of_a_large_model_are_seeded_and_of_a_trained_ones_size() -> None:
    """Written, not drawn: no row of a matrix is another one's, and no activation dies or grows."""
    left, right = random_dit(PUBLISHED_TINY.dit), random_dit(PUBLISHED_TINY.dit)
    assert same(weights_of(left), weights_of(right))
    for name, tensor in left.state_dict().items():
        if tensor.dim() > 1:
            assert tensor.std() * tensor[0].numel() ** 0.5 == pytest.approx(1, abs=0.3), name
    rows = left.blocks[0].ffn[0].weight
    assert len(rows.unique(dim=0)) == len(rows)
