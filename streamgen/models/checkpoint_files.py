"""Read checkpoint files: safetensors, whole or in shards, and torch's files in its safe mode only.

A file says what it holds before a weight is read. Unpickling without limits runs whatever a file
asks for, so it is never done, no option allows it and a refusal is not followed by a second try.
The safe mode itself had a hole before torch 2.10 (GHSA-63cw-57p8-fm3p), which is why that is the
oldest torch this project takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from streamgen.errors import CheckpointError, first_names

INDEX_SUFFIX: Final = ".json"
TORCH_SUFFIXES: Final = frozenset({".pt", ".pth"})

_KINDS: Final = ("*.safetensors.index.json", "*.safetensors", "*.pt", "*.pth")
_LFS_POINTER: Final = b"version https://git-lfs"
_ZIP: Final = b"PK\x03\x04"
_PICKLE_MAGICS: Final = (_ZIP, b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLE_SUFFIXES: Final = TORCH_SUFFIXES | {".bin", ".ckpt", ".pickle", ".pkl"}
_TYPES: Final = {
    "BF16": "bfloat16",
    "BOOL": "bool",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "I8": "int8",
    "U8": "uint8",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file, not read yet: its shape and its type as torch calls it."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of an open file, or of one container in it, by the names they have there."""

    path: Path
    container: str | None
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str] = field(default_factory=dict)  # what a safetensors file says

    @property
    def source(self) -> str:
        """Return the file's path and which part of it was chosen."""
        return f"{self.path} ({self.container})" if self.container else str(self.path)


@contextmanager
def open_checkpoint(path: str | Path, *, container: str | None = None) -> Iterator[Checkpoint]:
    """Open a checkpoint; its entries can be read until the context ends.

    `path` is a safetensors file, an index of shards (JSON), a `.pt` or `.pth` file, or a folder
    with one of them, taken in this order. `container` is the part wanted of a file that holds
    several, such as `generator_ema`; parts of parts are joined by dots. Raises CheckpointError.
    """
    path = _find_file(Path(path))
    with ExitStack() as stack:
        metadata: Mapping[str, str] = {}
        if path.suffix in TORCH_SUFFIXES:
            entries = _tensors_of(path, _choose(path, _unpickle_safely(path), container), container)
        else:
            if path.suffix == INDEX_SUFFIX:
                entries = _open_shards(stack, path)
            else:
                file = stack.enter_context(open_safetensors(path))
                entries, metadata = safetensors_entries(file), file.metadata() or {}
            if container is not None:
                entries = _part(path, entries, container)
        if not entries:
            raise CheckpointError(f"{path} holds no tensors")
        yield Checkpoint(path, container, entries, metadata)


def container_of(path: str | Path, name: str) -> str | None:
    """Return `name` if the file has a part that is called so; None to take the file as it is.

    Raises CheckpointError as `open_checkpoint` does.
    """
    path = _find_file(Path(path))
    if path.suffix in TORCH_SUFFIXES:
        held = _unpickle_safely(path)
        has_part = isinstance(held, Mapping) and (
            isinstance(held.get(name), Mapping) or bool(_below(held, name))
        )
        return name if has_part else None
    with open_checkpoint(path) as checkpoint:
        return name if any(key.startswith(f"{name}.") for key in checkpoint.entries) else None


def open_safetensors(path: str | Path) -> AbstractContextManager[Any]:
    """Open a safetensors file, or raise CheckpointError saying what the file really is."""
    path = Path(path)
    start = read_start(path)
    pickled = f"{path} is a pickle, and reading a pickle can run code: convert it to safetensors"
    if path.suffix in _PICKLE_SUFFIXES:
        raise CheckpointError(pickled)
    try:
        opened: AbstractContextManager[Any] = safe_open(str(path), framework="pt", device="cpu")
    except SafetensorError as error:
        # Only now: a safetensors file may begin with the same bytes, as the length of its header.
        if start.startswith(_PICKLE_MAGICS):
            raise CheckpointError(pickled) from error
        raise CheckpointError(
            f"{path} is truncated or no safetensors file ({path.stat().st_size} bytes): {error}"
        ) from error
    return opened


def safetensors_entries(file: Any) -> dict[str, Entry]:
    """Return what an open safetensors file holds."""
    entries = {}
    for key in file.keys():  # noqa: SIM118  (no mapping: it has no iterator)
        held = file.get_slice(key)
        dtype = held.get_dtype()
        read = partial(file.get_tensor, key)
        entries[key] = Entry(tuple(held.get_shape()), _TYPES.get(dtype, dtype), read)
    return entries


def read_start(path: Path) -> bytes:
    """Return a file's first bytes. Raises CheckpointError for none, and for a pointer to a file."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL, or half of a surrogate pair, in a name out of a file
        raise CheckpointError(f"{str(path)!r} cannot be the name of a file: {error}") from error
    if not start:
        raise CheckpointError(f"{path} is empty (0 bytes)")
    if start == _LFS_POINTER:
        raise CheckpointError(f"{path} is a Git LFS pointer, not the weights: run `git lfs pull`")
    return start


def _find_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for found in (sorted(path.glob(kind)) for kind in _KINDS):
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise CheckpointError(f"{path} holds {names}: name the one to load")
        if found:
            return found[0]
    raise CheckpointError(f"{path} is a directory without a checkpoint ({', '.join(_KINDS)})")


def _open_shards(stack: ExitStack, index: Path) -> dict[str, Entry]:
    """Open every shard that an index names; each must hold what the index says, no more."""
    shards: dict[str, set[str]] = {}
    for key, name in _read_index(index).items():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index}: {key} is in {name!r}, which is no file beside it")
        shards.setdefault(name, set()).add(key)
    entries: dict[str, Entry] = {}
    for name, keys in sorted(shards.items()):
        held = safetensors_entries(stack.enter_context(open_safetensors(index.parent / name)))
        if wrong := sorted(keys ^ held.keys()):
            raise CheckpointError(
                f"{index} and its shard {name} disagree on {len(wrong)} tensors, first"
                f" {first_names(wrong)}"
            )
        entries |= held
    return entries


def _read_index(path: Path) -> dict[str, object]:
    read_start(path)
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is no index of shards: {error}") from error
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict):
        raise CheckpointError(f"{path} is no index of shards: it has no weight_map")
    return shards


def _unpickle_safely(path: Path) -> object:
    start = read_start(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=start.startswith(_ZIP))
    except Exception as error:  # the bytes may be anything, and so may what torch raises over them
        # Its message is not passed on: it explains how to read the file unsafely.
        if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise CheckpointError(
                f"{path} holds {found[1]} beside tensors, and reading that could run code:"
                " convert it to safetensors"
            ) from error
        raise CheckpointError(
            f"{path} is no torch file that can be read safely ({path.stat().st_size} bytes):"
            " it is damaged, or holds more than tensors"
        ) from error


def _choose(path: Path, held: object, container: str | None) -> Mapping[object, object]:
    """Return the container, which must be named if there is a choice, from an unpickled file."""
    names = container.split(".") if container else []
    for depth, name in enumerate(names):
        if isinstance(held, Mapping) and (part := _below(held, ".".join(names[depth:]))):
            return part
        if not isinstance(held, Mapping) or name not in held:
            there = _describe(held) if isinstance(held, Mapping) else type(held).__name__
            within = ".".join(names[:depth]) or "it"
            raise CheckpointError(f"{path} has no container {container!r}: {within} holds {there}")
        held = held[name]
    if not isinstance(held, Mapping):
        what = f"{container} is" if container else "it is"
        raise CheckpointError(f"{path} holds no tensors by name: {what} a {type(held).__name__}")
    if any(isinstance(value, Mapping) for value in held.values()):
        where = f"{path} ({container})" if container else str(path)
        raise CheckpointError(f"{where} holds {_describe(held)}: name the container to load")
    return held


def _below(held: Mapping[Any, object], name: str) -> dict[object, object]:
    """Return what a flat mapping has below a name, as one saved from a module of modules does."""
    start = f"{name}."
    return {
        key.removeprefix(start): value
        for key, value in held.items()
        if isinstance(key, str) and key.startswith(start)
    }


def _describe(held: Mapping[Any, object]) -> str:
    """Return what a mapping holds, containers first, in one line."""
    parts = {name: value for name, value in held.items() if isinstance(value, Mapping)}
    listed = [f"{name} ({len(part)} entries)" for name, part in parts.items()]
    if others := [str(name) for name in held if name not in parts]:
        listed.append(first_names(others))
    return ", ".join(listed) or "nothing"


def _tensors_of(
    path: Path, held: Mapping[object, object], container: str | None
) -> dict[str, Entry]:
    odd = [str(key) for key, value in held.items() if not _is_plain(key, value)]
    if odd:
        where = f"{path} ({container})" if container else str(path)
        raise CheckpointError(
            f"{where} holds {len(odd)} values that are no plain tensors, first {first_names(odd)}"
        )
    entries = {}
    for key, value in held.items():
        assert isinstance(value, Tensor), key
        dtype = str(value.dtype).removeprefix("torch.")
        entries[str(key)] = Entry(tuple(value.shape), dtype, partial(_same, value))
    return entries


def _is_plain(key: object, value: object) -> bool:
    return (
        isinstance(key, str)
        and type(value) in (Tensor, nn.Parameter)
        and isinstance(value, Tensor)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_quantized)
    )


def _same(tensor: Tensor) -> Tensor:
    return tensor.detach()


def _part(path: Path, entries: Mapping[str, Entry], container: str) -> dict[str, Entry]:
    """Return the entries below a name: safetensors has no containers but in its names."""
    prefix = f"{container}."
    chosen = {k.removeprefix(prefix): entry for k, entry in entries.items() if k.startswith(prefix)}
    if not chosen:
        there = list(dict.fromkeys(key.partition(".")[0] for key in entries))
        raise CheckpointError(
            f"{path} has no container {container!r}: its names begin with {first_names(there)}"
        )
    return chosen
