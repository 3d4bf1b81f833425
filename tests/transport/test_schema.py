"""The published schema says what the code does."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.transport.test_wire import EXAMPLES
from transport import replies, wire
from transport.schema import realtime_schema

SCHEMA = realtime_schema()
DEFINITIONS: dict[str, Any] = SCHEMA["$defs"]


def test_it_is_json_and_every_reference_leads_somewhere() -> None:
    """Every message is listed once, on its side."""
    json.dumps(SCHEMA, allow_nan=False)
    for side, messages in (
        ("client", wire.CLIENT_MESSAGES),
        ("server", replies.SERVER_MESSAGES),
    ):
        listed = [entry["$ref"] for entry in DEFINITIONS[side]["oneOf"]]
        assert listed == [f"#/$defs/{name}" for name in messages]
        assert all(DEFINITIONS[name]["properties"]["type"] == {"const": name} for name in messages)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message["type"])
def test_client_messages_fit(message: dict[str, Any]) -> None:
    """What the parser reads has no member that the schema lacks."""
    definition = DEFINITIONS[message["type"]]
    assert set(definition["required"]) <= message.keys() <= definition["properties"].keys()
    assert definition["additionalProperties"] is False


def test_limits_are_published() -> None:
    """The numbers that the parser enforces are the ones in the schema."""
    properties = DEFINITIONS["session.start"]["properties"]
    assert properties["seed"] == {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
    assert properties["prompt"]["oneOf"][0]["maxLength"] == 2_000
    assert properties["format"] == {"enum": ["jpeg", "raw", "h264", "m4s", "none"]}
    assert properties["image_reference"]["not"] == {}
    interaction = DEFINITIONS["session.interaction"]["properties"]["interaction"]
    assert interaction["required"] == ["event"]
    assert interaction["properties"]["transition"]["properties"]["curve"] == {
        "enum": ["lerp", "slerp"]
    }


@pytest.mark.parametrize("name", replies.SERVER_MESSAGES)
def test_server_messages_fit(name: str) -> None:
    """Each field of a reply is described, and required if it is always there."""
    fields = dataclasses.fields(replies.SERVER_MESSAGES[name])
    definition = DEFINITIONS[name]
    assert definition["properties"].keys() == {"type", *(field.name for field in fields)}
    always = {field.name for field in fields if field.default is dataclasses.MISSING}
    assert set(definition["required"]) == {"type", *always}
