"""What transformer a checkpoint holds, read from the shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from streamgen.errors import CheckpointError, first_names
from streamgen.models.causal_dit import DiTConfig
from streamgen.models.checkpoint_files import open_checkpoint
from streamgen.models.checkpoint_keys import original_names, strip_wrappers

HEAD_DIM: Final = 128
"""Width of a head in every published Wan; shapes do not show it, q and k span all heads."""

Shape = tuple[int, ...]

_DIMS: Final = {
    "patch_embedding.weight": 5,
    "text_embedding.0.weight": 2,
    "time_embedding.0.weight": 2,
    "blocks.0.ffn.0.weight": 2,
    "head.head.weight": 2,
}


def dit_config_of(
    path: str | Path,
    *,
    container: str | None = None,
    head_dim: int = HEAD_DIM,
    text_len: int = 512,
) -> DiTConfig:
    """Return the size of the transformer in a checkpoint, in either layout and any wrappers.

    No weight is read. Raises CheckpointError when it holds no such transformer.
    """
    with open_checkpoint(path, container=container) as checkpoint:
        keys = strip_wrappers(checkpoint.entries, ())
        names = original_names(keys)
        shapes = {names[name]: checkpoint.entries[key].shape for name, key in keys.items()}
        try:
            return infer_dit_config(shapes, head_dim=head_dim, text_len=text_len)
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.source} is no DiT: {error}") from error


def infer_dit_config(
    shapes: Mapping[str, Shape], *, head_dim: int = HEAD_DIM, text_len: int = 512
) -> DiTConfig:
    """Return the size of the transformer whose tensors, by original names, have these shapes.

    What no shape shows is Wan's: `head_dim`, `text_len`, the norms' epsilon and the GELU. Raises
    ValueError when one is missing or has other dimensions than in any size.
    """
    missing = [name for name in _DIMS if name not in shapes]
    if missing:
        raise ValueError(f"it has no {first_names(missing)}")
    for name, dims in _DIMS.items():
        if len(shapes[name]) != dims or not all(shapes[name]):
            raise ValueError(f"{name} has shape {list(shapes[name])} and not {dims} dimensions")
    dim, in_dim, *patch = shapes["patch_embedding.weight"]
    values, patch_values = shapes["head.head.weight"][0], patch[0] * patch[1] * patch[2]
    if dim % head_dim or values % patch_values:
        raise ValueError(
            f"width {dim} with heads of {head_dim}, patches {patch} and {values} outputs contradict"
        )
    return DiTConfig(
        dim=dim,
        ffn_dim=shapes["blocks.0.ffn.0.weight"][0],
        num_layers=_num_layers(shapes),
        num_heads=dim // head_dim,
        text_dim=shapes["text_embedding.0.weight"][1],
        text_len=text_len,
        in_dim=in_dim,
        out_dim=values // patch_values,
        freq_dim=shapes["time_embedding.0.weight"][1],
        patch_size=(patch[0], patch[1], patch[2]),
        qk_norm="blocks.0.self_attn.norm_q.weight" in shapes,
        cross_attn_norm="blocks.0.norm3.weight" in shapes,
    )


def _num_layers(shapes: Mapping[str, Shape]) -> int:
    found = {int(m[1]) for name in shapes if (m := re.match(r"blocks\.(\d+)\.", name))}
    absent = sorted(set(range(max(found) + 1)) - found)
    if absent:
        raise ValueError(f"of {max(found) + 1} blocks {len(absent)} are missing, first {absent[0]}")
    return len(found)
