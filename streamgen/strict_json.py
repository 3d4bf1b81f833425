"""Dataclasses as JSON and back, strictly: what is read has exactly the fields and types declared.

Written is one object a dataclass, with every field in it. Where a field may hold one of several
dataclasses, "type" names which. Fields of type `object` hold plain JSON and are judged by whoever
reads them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable
from typing import Any, Final, TypeVar

MAX_INTEGER: Final = 2**53  # beyond it JSON readers differ
_SHOWN: Final = 60

T = TypeVar("T")


def encode(value: object, *, leave_out: tuple[str, ...] = ()) -> Any:
    """Return the JSON value of a dataclass; its own fields in `leave_out` are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.name not in leave_out]
        return {"type": type(value).__name__} | {f: encode(getattr(value, f)) for f in fields}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    assert value is None or isinstance(value, (bool, int, float, str)), value
    return value


def loads(text: str | bytes) -> Any:
    """Read JSON; ValueError for what is not, for NaN, infinity, and keys that come twice."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def decode(kind: type[T], value: object, path: str, **given: object) -> T:
    """Return the dataclass `kind` that an object says; ValueError names the path that is wrong.

    `given` are the values of fields that are not in the JSON.
    """
    fields = _dict(value, path)
    said = fields.pop("type", None)
    if said != kind.__name__:
        raise ValueError(f"{path}.type is {_show(said)}, not {kind.__name__!r}")
    wanted = [f.name for f in dataclasses.fields(kind) if f.name not in given]  # type: ignore[arg-type]
    if unknown := sorted(fields.keys() - set(wanted)):
        raise ValueError(
            f"{path} has a field {_show(unknown[0])}, which this version does not know"
        )
    if missing := [name for name in wanted if name not in fields]:
        raise ValueError(f"{path} has no field {missing[0]!r}")
    hints = typing.get_type_hints(kind)
    values = {name: _decode(hints[name], fields[name], f"{path}.{name}") for name in wanted}
    return kind(**values, **given)


def _decode(kind: Any, value: object, path: str) -> Any:
    if kind in _SCALARS:
        return _SCALARS[kind](value, path)
    if dataclasses.is_dataclass(kind):
        return decode(kind, value, path)  # type: ignore[arg-type]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, value, path)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(
                f"{path} is {_show(value)}, not one of {', '.join(map(str, arguments))}"
            )
        return value
    assert origin is tuple, f"{path}: no field of type {kind} can be read"
    items = _list(value, path)
    if arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(items)
    if len(items) != len(arguments):
        raise ValueError(f"{path} has {len(items)} entries, not {len(arguments)}")
    return tuple(
        _decode(argument, item, f"{path}[{i}]")
        for i, (argument, item) in enumerate(zip(arguments, items, strict=True))
    )


def _one_of(kinds: tuple[Any, ...], value: object, path: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) > 1:
        said = _dict(value, path).get("type")
        kinds = tuple(kind for kind in kinds if kind.__name__ == said) or (None,)
        if kinds == (None,):
            raise ValueError(f"{path}.type is {_show(said)}, which is not expected there")
    return _decode(kinds[0], value, path)


def _whole(value: object, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INTEGER:
        raise ValueError(f"{path} is {_show(value)}, not a whole number up to 2^53")
    return value


def _number(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{path} is {_show(value)}, not a number")
    if abs(value) > MAX_INTEGER or not math.isfinite(value):
        raise ValueError(f"{path} is {_show(value)}, not a number up to 2^53")
    return float(value)


def _flag(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{path} is {_show(value)}, not true or false")
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{path} is {_show(value)}, not text")
    return value


_SCALARS: Final[dict[Any, Callable[[object, str], Any]]] = {
    int: _whole,
    float: _number,
    bool: _flag,
    str: _text,
    object: lambda value, path: value,
}


def _dict(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{path} is {_show(value)}, not an object")
    return dict(value)


def _list(value: object, path: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{path} is {_show(value)}, not a list")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key comes twice in one object")
    return fields


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _show(value: object) -> str:
    text = ascii(value)  # it goes into a message, which must be text whatever came
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
