"""The bundled model's files, and what is checked of them at a start."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from streamgen.models.loader import CheckpointError
from streamgen.models.presets import POCKET, Preset, build


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
