"""Oracle 10: whatever arrives becomes a message or a ProtocolError, and never anything else."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.test_wire import EXAMPLES
from transport import replies, wire
from transport.fields import ProtocolError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud83d"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def check_answerable(text: str | bytes) -> None:
    """Parse, and if that is refused make sure that the refusal can be sent."""
    try:
        wire.parse(text)
    except ProtocolError as error:
        replies.encode(replies.from_error(error)).encode()


@settings(deadline=None)
@given(st.text())
def test_oracle_10_any_text(text: str) -> None:
    """No text makes anything but a message or a ProtocolError."""
    check_answerable(text)


@settings(deadline=None)
@given(st.binary())
def test_oracle_10_any_bytes(data: bytes) -> None:
    """The same for the body of an HTTP request."""
    check_answerable(data)


@settings(deadline=None)
@given(st.sampled_from(EXAMPLES), st.data())
def test_oracle_10_any_member(message: dict[str, Any], data: st.DataObject) -> None:
    """The same when one member of a legal message, at any depth, is replaced, added or removed."""
    changed = json.loads(json.dumps(message))
    holder = changed
    while nested := [value for value in holder.values() if isinstance(value, dict)]:
        if data.draw(st.booleans()):
            break
        holder = data.draw(st.sampled_from(nested))
    name = data.draw(st.sampled_from(list(holder)) | st.text())
    if data.draw(st.booleans()):
        holder[name] = data.draw(json_values)
    else:
        holder.pop(name, None)
    check_answerable(json.dumps(changed))


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 2**32 - 1))
def test_numbers_survive(displayed_at_ms: float, frame_index: int) -> None:
    """What is legal arrives as it was."""
    fields = {"frame_index": frame_index, "displayed_at_ms": displayed_at_ms}
    parsed = wire.parse(json.dumps({"type": "session.ack", **fields}))
    assert parsed == wire.SessionAck(frame_index, displayed_at_ms)


@settings(deadline=None)
@given(json_values)
def test_oracle_10_any_json(value: Any) -> None:
    """The same for any JSON, NaN and Infinity among it."""
    check_answerable(json.dumps(value))
