"""Checks of single values in messages: what a JSON value must be, and how a schema says so.

A check is attached to a field of a message by `typing.Annotated`; `parse` returns the value that
the dataclass holds, or raises ProtocolError naming the field.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

JSONSchema: TypeAlias = dict[str, Any]

MAX_PROMPT_CHARACTERS: Final = 2_000
MAX_PROMPTS: Final = 16
MAX_SHOWN_CHARACTERS: Final = 80


class ProtocolError(Exception):
    """A message that breaks the protocol.

    `param` is the path of the field at fault and `event_id` that of the message, when known.
    """

    def __init__(
        self,
        message: str,
        *,
        code: Literal["invalid_request", "unsupported"] = "invalid_request",
        param: str | None = None,
        event_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code: Final = code
        self.param = param
        self.event_id = event_id


class Check(Protocol):
    """What a field's value must be."""

    def parse(self, value: object, path: str) -> Any:
        """Return what the message holds, or raise ProtocolError."""

    def schema(self) -> JSONSchema:
        """Return the JSON Schema of the value."""


def show(value: object) -> str:
    """Render a JSON value for a message to people: short, printable ASCII, whatever it holds."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."


def _must(path: str, what: str, value: object) -> ProtocolError:
    return ProtocolError(f"{path} must be {what}, not {show(value)}", param=path)


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number; true and 1.0 are none."""

    minimum: int
    maximum: int

    def parse(self, value: object, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _must(path, "a whole number", value)
        if not self.minimum <= value <= self.maximum:
            raise _must(path, f"from {self.minimum} to {self.maximum}", value)
        return value

    def schema(self) -> JSONSchema:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number; `above` is exclusive."""

    above: float | None = None

    def parse(self, value: object, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _must(path, "a number", value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise _must(path, "a finite number", value)
        if self.above is not None and number <= self.above:
            raise _must(path, f"above {self.above:g}", value)
        return number

    def schema(self) -> JSONSchema:
        limit = {} if self.above is None else {"exclusiveMinimum": self.above}
        return {"type": "number", **limit}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def parse(self, value: object, path: str) -> bool:
        if not isinstance(value, bool):
            raise _must(path, "true or false", value)
        return value

    def schema(self) -> JSONSchema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    values: tuple[str, ...]

    def parse(self, value: object, path: str) -> str:
        if not isinstance(value, str) or value not in self.values:
            raise _must(path, f"one of {', '.join(self.values)}", value)
        return value

    def schema(self) -> JSONSchema:
        return {"enum": list(self.values)}


@dataclass(frozen=True, slots=True)
class Text:
    """A string that can be echoed: not blank, no NUL, no half of a surrogate pair."""

    max_characters: int

    def parse(self, value: object, path: str) -> str:
        if not isinstance(value, str):
            raise _must(path, "a string", value)
        if not value.strip():
            raise ProtocolError(f"{path} must not be blank", param=path)
        if len(value) > self.max_characters:
            raise ProtocolError(
                f"{path} has {len(value):,} characters; the limit is {self.max_characters:,}",
                param=path,
            )
        if "\0" in value:
            raise ProtocolError(f"{path} must not contain the NUL character", param=path)
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ProtocolError(f"{path} contains half of a surrogate pair", param=path)
        return value

    def schema(self) -> JSONSchema:
        return {"type": "string", "minLength": 1, "maxLength": self.max_characters}


@dataclass(frozen=True, slots=True)
class Size:
    """A string "WxH" in pixels."""

    maximum: int

    def parse(self, value: object, path: str) -> tuple[int, int]:
        match = (
            re.fullmatch(r"([0-9]{1,5})[xX]([0-9]{1,5})", value, re.ASCII)
            if isinstance(value, str)
            else None
        )
        if match is None:
            raise _must(path, 'a string like "832x480"', value)
        side = Integer(1, self.maximum)
        return side.parse(int(match[1]), path), side.parse(int(match[2]), path)

    def schema(self) -> JSONSchema:
        return {"type": "string", "pattern": "^[0-9]{1,5}[xX][0-9]{1,5}$"}


@dataclass(frozen=True, slots=True)
class Later:
    """A field that the protocol has and this server does not serve yet."""

    def parse(self, value: object, path: str) -> None:
        raise ProtocolError(
            f"{path} is not supported by this server", code="unsupported", param=path
        )

    def schema(self) -> JSONSchema:
        return {"not": {}, "description": "not supported by this server yet"}


@dataclass(frozen=True, slots=True)
class WeightedPrompt:
    """One text of a mixed prompt."""

    text: str
    weight: float


Prompt: TypeAlias = str | tuple[WeightedPrompt, ...]


@dataclass(frozen=True, slots=True)
class PromptText:
    """The one rule for prompts, wherever they come from.

    A prompt is a string, or a list of 1 to 16 objects with `text` and `weight` (finite, above 0);
    a list of one is that string. Texts are passed on character for character: nothing is trimmed,
    normalised or cut. Refused are blank texts, texts above 2,000 characters (a model's own limit
    may be lower), the NUL character, and lone surrogates, which no UTF-8 message can carry back.
    """

    def parse(self, value: object, path: str) -> Prompt:
        text = Text(MAX_PROMPT_CHARACTERS)
        if isinstance(value, str):
            return text.parse(value, path)
        if not isinstance(value, list):
            raise _must(path, "a string or a list of weighted texts", value)
        if not 1 <= len(value) <= MAX_PROMPTS:
            raise ProtocolError(
                f"{path} has {len(value)} texts; 1 to {MAX_PROMPTS} are allowed", param=path
            )
        items = tuple(self._item(item, f"{path}[{index}]") for index, item in enumerate(value))
        return items[0].text if len(items) == 1 else items

    def _item(self, item: object, path: str) -> WeightedPrompt:
        if not isinstance(item, dict) or item.keys() != {"text", "weight"}:
            raise ProtocolError(f"{path} must be an object with text and weight", param=path)
        return WeightedPrompt(
            Text(MAX_PROMPT_CHARACTERS).parse(item["text"], f"{path}.text"),
            Number(above=0.0).parse(item["weight"], f"{path}.weight"),
        )

    def schema(self) -> JSONSchema:
        text = Text(MAX_PROMPT_CHARACTERS).schema()
        item = {
            "type": "object",
            "properties": {"text": text, "weight": Number(above=0.0).schema()},
            "required": ["text", "weight"],
            "additionalProperties": False,
        }
        return {"oneOf": [text, {"type": "array", "items": item, "minItems": 1, "maxItems": 16}]}
