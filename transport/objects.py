"""From JSON text to a frozen dataclass, strictly. Knows no message."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from transport.fields import Check, JSONSchema, ProtocolError, show

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a JSON object: what its value must be, and whether it must be there."""

    check: Check
    required: bool


@dataclass(frozen=True, slots=True)
class Nested:
    """An object inside an object."""

    type: type[Any]

    def parse(self, value: object, path: str) -> Any:
        if not isinstance(value, dict):
            raise ProtocolError(f"{path} must be an object, not {show(value)}", param=path)
        return build(self.type, value, f"{path}.")

    def schema(self) -> JSONSchema:
        return object_schema(self.type)


@dataclass(frozen=True, slots=True)
class Items:
    """A list of objects of one kind."""

    type: type[Any]
    minimum: int
    maximum: int

    def parse(self, value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ProtocolError(f"{path} must be a list, not {show(value)}", param=path)
        if not self.minimum <= len(value) <= self.maximum:
            raise ProtocolError(
                f"{path} has {len(value)} entries; {self.minimum} to {self.maximum} are allowed",
                param=path,
            )
        nested = Nested(self.type)
        return tuple(nested.parse(item, f"{path}[{index}]") for index, item in enumerate(value))

    def schema(self) -> JSONSchema:
        return {
            "type": "array",
            "items": object_schema(self.type),
            "minItems": self.minimum,
            "maxItems": self.maximum,
        }


def read_object(text: str | bytes) -> dict[str, Any]:
    """Read one JSON object; raise ProtocolError for anything else."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ProtocolError("the message is nested too deeply") from None
    except UnicodeDecodeError:
        raise ProtocolError("the message is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ProtocolError(f"the message is not JSON: {error}") from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise ProtocolError("the message holds a number that is too long") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"a message must be a JSON object, not {show(value)}")
    return value


def build(cls: type[T], data: Mapping[str, Any], prefix: str = "") -> T:
    """Make the dataclass that `data` describes; `prefix` is where the object sits in its message.

    Raises ProtocolError for an unknown, missing or illegal member.
    """
    members = members_of(cls)  # type: ignore[arg-type]  # classes are hashable
    for name in data:
        if name not in members:
            where = prefix + show(name)[1:-1]
            raise ProtocolError(
                f"the field {where} is not supported", code="unsupported", param=where
            )
    values = {}
    for name, member in members.items():
        if (value := data.get(name)) is not None:
            values[name] = member.check.parse(value, prefix + name)
        elif member.required:
            raise ProtocolError(f"{prefix}{name} is required", param=prefix + name)
    return cls(**values)


@functools.cache
def members_of(cls: type[Any]) -> Mapping[str, Member]:
    """Return the members of a message class, read from its annotations."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        field.name: Member(_check(hints[field.name]), field.default is dataclasses.MISSING)
        for field in dataclasses.fields(cls)
    }


def object_schema(cls: type[Any]) -> JSONSchema:
    """Return the JSON Schema of a message class without its type."""
    members = members_of(cls)  # type: ignore[arg-type]  # classes are hashable
    required = [name for name, member in members.items() if member.required]
    return {
        "type": "object",
        "description": cls.__doc__,
        "properties": {name: member.check.schema() for name, member in members.items()},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _check(hint: Any) -> Check:
    """Find the check in `Annotated[..., check]`, in `Annotated[..., check] | None`, or nested."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (option for option in typing.get_args(hint) if option is not types.NoneType)
    if typing.get_origin(hint) is Annotated:
        (check,) = hint.__metadata__
        return typing.cast(Check, check)
    assert dataclasses.is_dataclass(hint), hint
    return Nested(typing.cast("type[Any]", hint))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ProtocolError(f"the field {show(twice)} is given twice")
    return members


def _refuse_constant(name: str) -> None:
    raise ProtocolError(f"{name} is not a JSON number")
