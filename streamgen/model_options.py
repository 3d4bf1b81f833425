"""How the options that say which weights to load are written. Imports no torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILES: Final = {".safetensors", ".pt", ".pth", ".bin", ".ckpt"}


@dataclass(frozen=True, slots=True)
class LoraFile:
    """A LoRA to merge at the start, how strongly (0 is not at all), and which part of its file."""

    path: Path
    scale: float = 1.0
    container: str | None = None

    def __str__(self) -> str:
        part = "" if self.container is None else f"#{self.container}"
        return f"{self.path}{part}:{self.scale:g}"


def weights_path(value: object) -> Path:
    """Parse the path of a model's file, or of the folder with its files."""
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise ValueError("expected the path of a file or a folder")
    return Path(value)


def lora_files(value: object) -> tuple[LoraFile, ...]:
    """Parse one FILE[#PART][:SCALE] or a list of them, as flags given several times are."""
    entries = value if isinstance(value, (list, tuple)) else [value]
    return tuple(entry if isinstance(entry, LoraFile) else _lora_file(entry) for entry in entries)


def _lora_file(entry: object) -> LoraFile:
    rule = (
        "expected FILE or FILE:SCALE with a finite number, as in style.safetensors:0.8, or the "
        "file with its part, as in lora.pt#generator_lora:0.8"
    )
    if not isinstance(entry, (str, Path)) or not str(entry).strip():
        raise ValueError(rule)
    name, colon, scale = str(entry).rpartition(":")
    if not colon or not re.fullmatch(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|nan|[-+]?inf", scale):
        return _named(str(entry), 1.0)
    try:
        number = float(scale)
    except ValueError as error:
        raise ValueError(rule) from error
    if not name or not math.isfinite(number):
        raise ValueError(rule)
    return _named(name, number)


def _named(name: str, scale: float) -> LoraFile:
    """Take the part off a file's name: what follows its last #, unless that ends the name."""
    path, _, part = name.rpartition("#")
    is_part = re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", part) and Path(part).suffix not in FILES
    return LoraFile(Path(path), scale, part) if path and is_part else LoraFile(Path(name), scale)
