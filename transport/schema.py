"""The protocol as a JSON Schema, made from the same declarations that read and write messages."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from transport import replies, wire
from transport.fields import JSONSchema
from transport.objects import object_schema

_SCALARS: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}


def realtime_schema() -> JSONSchema:
    """Return the schema of every message of `WS /v1/realtime/video`, both ways."""
    client = {name: client_schema(cls) for name, cls in wire.CLIENT_MESSAGES.items()}
    server = {name: _server_schema(cls) for name, cls in replies.SERVER_MESSAGES.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "streamgen realtime protocol",
        "anyOf": [{"$ref": "#/$defs/client"}, {"$ref": "#/$defs/server"}],
        "$defs": {
            "client": {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in client]},
            "server": {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in server]},
            **client,
            **server,
        },
    }


def client_schema(cls: type[wire.ClientMessage]) -> JSONSchema:
    """Return the schema of one message that a client sends."""
    return _with_type(object_schema(cls), cls.type)


def _server_schema(cls: type[replies.ServerMessage]) -> JSONSchema:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(cls)
    schema: JSONSchema = {
        "type": "object",
        "description": cls.__doc__,
        "properties": {field.name: _schema_of(hints[field.name]) for field in fields},
        "required": [field.name for field in fields if field.default is dataclasses.MISSING],
    }
    return _with_type(schema, cls.type)


def _with_type(schema: JSONSchema, name: str) -> JSONSchema:
    return {
        **schema,
        "properties": {"type": {"const": name}, **schema["properties"]},
        "required": ["type", *schema.get("required", [])],
    }


def _schema_of(hint: Any) -> JSONSchema:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        # None is never sent: the field is left out.
        (hint,) = (option for option in typing.get_args(hint) if option is not types.NoneType)
    if typing.get_origin(hint) is Annotated:
        schema: JSONSchema = hint.__metadata__[0].schema()
        return schema
    if typing.get_origin(hint) is Sequence:
        return {"type": "array", "items": _schema_of(typing.get_args(hint)[0])}
    if typing.get_origin(hint) is Mapping:
        return {"type": "object"}
    return {"type": _SCALARS[hint]}
