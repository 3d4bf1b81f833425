"""How a LoRA is named on the command line: its file, a part of it, and how strongly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from streamgen.config import EngineConfig
from streamgen.model_options import LoraFile, lora_files
from streamgen.models.lora_file import LoraSource
from streamgen.models.weights import WeightOptions


@pytest.mark.parametrize(
    ("text", "path", "part", "scale"),
    [
        ("style.safetensors", "style.safetensors", None, 1.0),
        ("style.safetensors:0.8", "style.safetensors", None, 0.8),
        ("lora.pt#generator_lora", "lora.pt", "generator_lora", 1.0),
        ("a/lora.pt#state_dict.lora:-2e-1", "a/lora.pt", "state_dict.lora", -0.2),
        ("style#2.safetensors", "style#2.safetensors", None, 1.0),
        ("style#new.pt:0.5", "style#new.pt", None, 0.5),
        ("c#/lora.pt", "c#/lora.pt", None, 1.0),
        ("#lora", "#lora", None, 1.0),
        ("c:/lora.pt", "c:/lora.pt", None, 1.0),
    ],
)
def test_a_file_may_have_a_part_and_a_scale(
    text: str, path: str, part: str | None, scale: float
) -> None:
    (found,) = lora_files(text)
    assert found == LoraFile(Path(path), scale, part)
    assert lora_files(str(found)) == (found,)


@pytest.mark.parametrize("text", ["", ":0.5", "a.pt:nan", "a.pt:inf", "a.pt:1.2.3", 7, None])
def test_what_names_no_file_is_refused_with_the_rule(text: object) -> None:
    with pytest.raises(ValueError, match=r"as in lora\.pt#generator_lora:0\.8"):
        lora_files(text)


def test_the_part_reaches_the_loader() -> None:
    config = EngineConfig(lora=lora_files(["lora.pt#generator_lora:0.5"]))
    options = WeightOptions.of(config, torch.device("cpu"))
    assert options.loras == (LoraSource(Path("lora.pt"), 0.5, "generator_lora"),)
