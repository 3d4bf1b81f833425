"""One fixture directory: its description, its tensors and where its weights are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

from torch import Tensor

from streamgen.models.checkpoint_files import open_safetensors


class FixtureError(Exception):
    """The directory cannot be replayed; the message names what is missing or wrong."""


@contextmanager
def blaming(part: str) -> Iterator[None]:
    """Turn a ValueError about values of the fixture into a FixtureError that names the part."""
    try:
        yield
    except ValueError as error:
        raise FixtureError(f"{part}: {error}") from error


class Fixture:
    """Read `fixture.json` and, when first asked for, `tensors.safetensors` of a directory.

    Raises FixtureError, or CheckpointError for an unusable tensor file.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._description = _read_description(directory)
        self.kind = self.text("fixture")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Return the inputs and the reference's outputs by name."""
        return _read_tensors(self.directory / "tensors.safetensors")

    @cached_property
    def _borrowed(self) -> dict[str, Tensor]:
        """Return the inputs that the description takes from another fixture, if it does."""
        if not self.has("inputs"):
            return {}
        named = re.search(r"[^\s:,]+\.safetensors", self.text("inputs"))
        if named is None:
            raise FixtureError(f"'inputs' names no file: {self.text('inputs')!r:.80}")
        return _read_tensors(self.directory / named[0])

    def has(self, *keys: str) -> bool:
        """Return whether the description has a value at a path of keys."""
        return _MISSING is not self._find(keys)

    def value(self, *keys: str) -> Any:
        """Return the description's value at a path of keys. Raises FixtureError without one."""
        found = self._find(keys)
        if found is _MISSING:
            raise FixtureError(f"fixture.json has no {'.'.join(keys)}")
        return found

    def integer(self, *keys: str) -> int:
        """Return a whole number of the description."""
        return cast(int, self._typed(keys, int, "a whole number"))

    def size(self, *keys: str) -> int:
        """Return a whole number of the description that is at least 1."""
        value = self.integer(*keys)
        if value < 1:
            raise FixtureError(f"{'.'.join(keys)} must be at least 1, not {value}")
        return value

    def number(self, *keys: str) -> float:
        """Return a number of the description."""
        return float(cast(float, self._typed(keys, (int, float), "a number")))

    def flag(self, *keys: str) -> bool:
        """Return a truth value of the description."""
        return cast(bool, self._typed(keys, bool, "true or false"))

    def text(self, *keys: str) -> str:
        """Return a string of the description."""
        return cast(str, self._typed(keys, str, "a string"))

    def group(self, *keys: str) -> dict[str, Any]:
        """Return an object of the description."""
        return cast(dict[str, Any], self._typed(keys, dict, "an object"))

    def items(self, *keys: str) -> list[Any]:
        """Return a list of the description."""
        return cast(list[Any], self._typed(keys, list, "a list"))

    def integers(self, *keys: str) -> tuple[int, ...]:
        """Return a list of whole numbers of the description."""
        return tuple(self._list_of(keys, int, "whole numbers"))

    def sizes(self, *keys: str) -> tuple[int, ...]:
        """Return a list of whole numbers of the description, each at least 1."""
        values = self.integers(*keys)
        if not values or min(values) < 1:
            raise FixtureError(f"{'.'.join(keys)} must all be at least 1, not {list(values)}")
        return values

    def numbers(self, *keys: str) -> tuple[float, ...]:
        """Return a list of numbers of the description."""
        return tuple(float(x) for x in self._list_of(keys, (int, float), "numbers"))

    def flags(self, *keys: str) -> tuple[bool, ...]:
        """Return a list of truth values of the description."""
        return tuple(self._list_of(keys, bool, "truth values"))

    def tensor(self, name: str, *shape: int | None) -> Tensor:
        """Return a tensor by name, None in `shape` standing for any size.

        One that is not stored here may be where `inputs` says. Raises FixtureError when there is
        none, or it has another shape.
        """
        stored = self.tensors if name in self.tensors else self._borrowed
        if name not in stored:
            raise FixtureError(f"tensors.safetensors has no {name!r}")
        tensor = stored[name]
        if shape:
            sizes = zip(tensor.shape, shape, strict=False)
            if tensor.ndim != len(shape) or any(w is not None and g != w for g, w in sizes):
                wanted = ", ".join("any" if size is None else str(size) for size in shape)
                raise FixtureError(f"{name} has shape {list(tensor.shape)} instead of [{wanted}]")
        return tensor

    def weights_path(self) -> Path:
        """Return the weights file that the description names, relative to the directory."""
        named = re.match(r"[^\s:,]+\.safetensors", self.text("weights"))
        if named is None:
            raise FixtureError(f"'weights' names no file: {self.text('weights')!r}")
        return self.directory / named[0]

    def _typed(self, keys: tuple[str, ...], kind: Any, description: str) -> object:
        value = self.value(*keys)
        if not _is_a(value, kind):
            raise FixtureError(f"{'.'.join(keys)} is not {description}: {value!r:.80}")
        return cast(object, value)

    def _list_of(self, keys: tuple[str, ...], kind: Any, description: str) -> list[Any]:
        items = self.items(*keys)
        if not all(_is_a(item, kind) for item in items):
            raise FixtureError(f"{'.'.join(keys)} is not a list of {description}: {items!r:.80}")
        return items

    def _find(self, keys: tuple[str, ...]) -> Any:
        found: Any = self._description
        for key in keys:
            if not isinstance(found, dict) or key not in found:
                return _MISSING
            found = found[key]
        return found


_MISSING: Final = object()


def _is_a(value: object, kind: Any) -> bool:
    # In Python truth values are whole numbers; in a fixture they are not.
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _read_tensors(path: Path) -> dict[str, Tensor]:
    with open_safetensors(path) as file:
        names: list[str] = file.keys()
        return {name: file.get_tensor(name) for name in names}


def _read_description(directory: Path) -> dict[str, Any]:
    path = directory / "fixture.json"
    if not directory.is_dir():
        raise FixtureError("no such directory")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FixtureError(f"fixture.json cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FixtureError(f"fixture.json is not JSON: {error}") from error
    if not isinstance(description, dict):
        raise FixtureError("fixture.json is not a JSON object")
    return description
