"""The names of a checkpoint's tensors: what training wraps around them, and the two layouts.

A layout maps the module's tensor names to those of a file. Wan's transformer is published under its
original names, which are ours, and under those of diffusers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from streamgen.errors import CheckpointError, first_names

Layout = Mapping[str, str]

WRAPPERS: Final = frozenset(
    {"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module", "model"}
)
"""Name parts that FSDP, checkpointing, compilation, DDP and wrapper classes put in anywhere."""

_OUTER: Final = {
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
    "head.modulation": "scale_shift_table",
}
_ATTENTION: Final = {
    "q": "to_q",
    "k": "to_k",
    "v": "to_v",
    "o": "to_out.0",
    "norm_q": "norm_q",
    "norm_k": "norm_k",
}
_BLOCK: Final = {
    **{f"self_attn.{ours}": f"attn1.{theirs}" for ours, theirs in _ATTENTION.items()},
    **{f"cross_attn.{ours}": f"attn2.{theirs}" for ours, theirs in _ATTENTION.items()},
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    "modulation": "scale_shift_table",
    # The original counts the norms as they were added, diffusers in the order of their use.
    "norm2": "norm3",
    "norm3": "norm2",
}
_BLOCK_NAME: Final = re.compile(r"(blocks\.\d+\.)(.+)")


def diffusers_name(name: str) -> str:
    """Return diffusers' name of a tensor or layer of the transformer."""
    return _renamed(name, _OUTER, _BLOCK)


def original_name(name: str) -> str:
    """Return the original name of what diffusers calls `name`."""
    outer, block = ({theirs: ours for ours, theirs in m.items()} for m in (_OUTER, _BLOCK))
    return _renamed(name, outer, block)


def original_names(names: Iterable[str]) -> dict[str, str]:
    """Return the original names of all tensors of a transformer, in whichever layout they are."""
    names = list(names)
    # One by one they do not tell: both layouts have a norm3.
    is_diffusers = any(name.startswith("condition_embedder.") for name in names)
    return {name: original_name(name) if is_diffusers else name for name in names}


def dit_layouts(names: Iterable[str]) -> dict[str, Layout]:
    """Return the layouts in which a transformer with these tensors is published."""
    names = list(names)
    return {
        "original": {name: name for name in names},
        "diffusers": {name: diffusers_name(name) for name in names},
    }


def find_layout(layouts: Mapping[str, Layout], held: Collection[str]) -> str:
    """Return which layout most of the names in a file belong to; the first one in doubt."""
    there = set(held)
    return max(layouts, key=lambda name: len(there & set(layouts[name].values())))


def strip_wrappers(keys: Iterable[str], own: Iterable[str]) -> dict[str, str]:
    """Return the keys of a file by their names without wrappers, at any depth.

    A part that `own`, the names looked for, have themselves stays. Raises CheckpointError where
    two keys become one.
    """
    wrappers = WRAPPERS - {part for name in own for part in name.split(".")}
    keys_by_name: dict[str, str] = {}
    clashes = []
    for key in keys:
        name = ".".join(part for part in key.split(".") if part not in wrappers) or key
        if name in keys_by_name:
            clashes.append(f"{keys_by_name[name]} and {key}")
        keys_by_name[name] = key
    if clashes:
        raise CheckpointError(
            f"{len(clashes)} names stand for two tensors each once wrappers are taken off, first"
            f" {first_names(clashes)}"
        )
    return keys_by_name


def wrappers_in(keys_by_name: Mapping[str, str]) -> list[str]:
    """Return the wrappers that `strip_wrappers` took off, in the order of their names."""
    removed = {
        part
        for name, key in keys_by_name.items()
        if name != key
        for part in set(key.split(".")) - set(name.split("."))
    }
    return sorted(removed)


def _renamed(name: str, outer: Mapping[str, str], block: Mapping[str, str]) -> str:
    start, rest, table = "", name, outer
    if found := _BLOCK_NAME.fullmatch(name):
        start, rest, table = found[1], found[2], block
    for old, new in table.items():
        if rest == old or rest.startswith(f"{old}."):
            return f"{start}{new}{rest.removeprefix(old)}"
    return name
