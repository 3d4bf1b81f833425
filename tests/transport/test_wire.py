"""Reading messages: what is legal is read exactly, all else is a ProtocolError and never more."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from transport import replies, wire
from transport.fields import ProtocolError, WeightedPrompt

EXAMPLES: list[dict[str, Any]] = [
    {
        "type": "session.start",
        "prompt": "a ball",
        "model": "m",
        "format": "jpeg",
        "width": 832,
        "height": 480,
        "size": "832x480",
        "fps": 16,
        "seed": 4294967295,
        "num_frames": 81,
        "num_inference_steps": 4,
        "window": 21,
        "sink": 3,
        "acks": True,
        "score": [
            {"at_s": 2.5, "prompt": "a star"},
            {"at_s": 4, "prompt": "a box", "transition": {"mode": "blend", "chunks": 3}},
        ],
        "priority": "batch",
        "run_unwatched": True,
    },
    {"type": "session.start", "prompt": [{"text": "a", "weight": 1}, {"text": "b", "weight": 0.5}]},
    {"type": "session.view", "viewer_token": "t", "format": "none", "acks": False},
    {"type": "session.resume", "resume_token": "t"},
    {
        "type": "session.interaction",
        "interaction": {
            "event_id": "e",
            "event": {"prompt": "a star"},
            "transition": {"mode": "blend", "chunks": 3, "curve": "slerp"},
            "transition_chunks": 4,
        },
    },
    {
        "type": "session.update",
        "event_id": "e",
        "paused": True,
        "seed": 0,
        "steps": 2,
        "fps": 24,
        "reset": "all",
    },
    {"type": "session.rewind", "to_chunk": 12, "event_id": "r"},
    {"type": "session.fork", "at_chunk": 3, "event_id": "f"},
    {"type": "session.ack", "frame_index": 7, "displayed_at_ms": 1.5},
    {"type": "session.ping"},
    {"type": "session.stop"},
]


def refusal(message: dict[str, Any] | str) -> ProtocolError:
    """Return the error that a message is answered with."""
    with pytest.raises(ProtocolError) as caught:
        wire.parse(message if isinstance(message, str) else json.dumps(message))
    return caught.value


def start(**fields: Any) -> dict[str, Any]:
    """Return a `session.start`."""
    return {"type": "session.start", "prompt": "a ball", **fields}


def interaction(prompt: Any) -> dict[str, Any]:
    """Return a change of prompt."""
    return {"type": "session.interaction", "interaction": {"event": {"prompt": prompt}}}


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message["type"])
def test_examples_are_read(message: dict[str, Any]) -> None:
    """Each message, with all its fields, becomes its dataclass."""
    parsed = wire.parse(json.dumps(message))
    assert type(parsed) is wire.CLIENT_MESSAGES[message["type"]]


def test_every_client_message_has_an_example() -> None:
    """The examples above, which the fuzzing starts from, leave no type out."""
    assert {message["type"] for message in EXAMPLES} == wire.CLIENT_MESSAGES.keys()


def test_a_start_is_read_exactly() -> None:
    """Size may be given either way; weighted texts become objects."""
    assert wire.parse(json.dumps(start(size="64X48"))) == wire.SessionStart("a ball", size=(64, 48))
    assert wire.SessionStart("a", size=(64, 48)).dimensions == (64, 48)
    assert wire.SessionStart("a", width=64, height=48).dimensions == (64, 48)
    assert wire.SessionStart("a").dimensions == (None, None)
    mixed = wire.parse(json.dumps(EXAMPLES[1]))
    assert isinstance(mixed, wire.SessionStart)
    assert mixed.prompt == (WeightedPrompt("a", 1.0), WeightedPrompt("b", 0.5))


def test_transition_chunks_is_another_way_to_say_chunks() -> None:
    """`transition.chunks` wins over `transition_chunks`."""
    both = wire.parse(json.dumps(EXAMPLES[4]))
    assert isinstance(both, wire.SessionInteraction)
    assert both.transition == wire.Transition("blend", 3, "slerp")
    short = json.dumps(
        {
            "type": "session.interaction",
            "interaction": {"event": {"prompt": "a"}, "transition_chunks": 4},
        }
    )
    parsed = wire.parse(short)
    assert isinstance(parsed, wire.SessionInteraction)
    assert parsed.transition == wire.Transition(chunks=4)


def test_null_is_the_same_as_leaving_an_optional_field_out() -> None:
    """But not for a required one."""
    assert wire.parse(json.dumps(start(seed=None, num_frames=None))) == wire.SessionStart("a ball")
    assert refusal(start(prompt=None)).param == "prompt"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "a list"),
        ('"x"', '"x"'),
        ("null", "null"),
        ("1", "1"),
        ("[" * 100_000, "too deeply"),
        ('{"a":' * 100_000, "too deeply"),
        ("1" * 5_000, "too long"),
        ('{"type":"session.ping","type":"session.stop"}', "twice"),
        ('{"type":"session.start","prompt":"a","seed":NaN}', "NaN"),
        ('{"type":"session.start","prompt":"a","seed":-Infinity}', "-Infinity"),
        ("{}", "type"),
        ('{"type":"nope"}', '"nope"'),
        ('{"type":["prompt"]}', "type"),
        ('{"type":null}', "type"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_what_is_no_message(text: str, says: str) -> None:
    """The error says what is wrong."""
    error = refusal(text)
    assert error.code == "invalid_request"
    assert says in error.message


def test_bytes_that_are_no_utf8() -> None:
    """An HTTP body need not be text at all."""
    with pytest.raises(ProtocolError, match="UTF-8"):
        wire.parse(b'{"type":"\xc3\x28"}')


@pytest.mark.parametrize(
    "message",
    [
        start(image_reference={"image_url": "data:,"}),
        start(extra_params={}),
        start(streaming_buffer_seconds=1.0),
        start(colour="red"),
        start(score=[{"at_s": 1, "prompt": "a", "at_chunk": 1}]),
        {"type": "session.playback", "position_seconds": 1.0},
        {"type": "session.interaction", "interaction": {"event": {"prompt": "a", "x": 1}}},
    ],
)
def test_what_is_not_offered_is_unsupported(message: dict[str, Any]) -> None:
    """Nothing that a client asks for is ignored."""
    assert refusal(message).code == "unsupported"


def test_an_unknown_field_is_named() -> None:
    """With its path, and in a form that can be sent whatever it is."""
    assert refusal(start(colour="red")).param == "colour"
    nested = {"type": "session.interaction", "interaction": {"event": {"prompt": "a", "x": 1}}}
    assert refusal(nested).param == "interaction.event.x"
    odd = refusal(start(**{"\ud83d" * 1000: 1}))
    assert odd.param is not None
    assert odd.param.isascii()
    assert len(odd.param) < 100


ILLEGAL: dict[str, list[Any]] = {
    "seed": [-1, 2**32, 2**63, 1.5, 1.0, "42", True, []],
    "width": [0, -832, 16_385, 10**400, 832.0, "832", True],
    "size": ["480p", "832*480", "832", "0x480", "832x100000", "８x８", 832, " 1x1", "1x1\n", ""],
    "num_frames": [0, -1, 1.5, "81"],
    "fps": [0, -1, 241, 16.5, "16"],
    "num_inference_steps": [0, 1001, "4"],
    "window": [-2, 1.5],
    "sink": [-1, "1"],
    "acks": [1, "true"],
    "format": ["JPEG", "webp", 1, []],
    "model": ["", " ", 5, "m" * 201, "a\0"],
    "priority": ["", "high", 1],
    "run_unwatched": [1, "yes"],
    "score": ["a", {}, [], [{"at_s": 2, "prompt": "a"}, {"at_s": 1, "prompt": "b"}]],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in ILLEGAL.items() for value in values],
    ids=lambda value: repr(value)[:24],
)
def test_illegal_values_are_named(field: str, value: Any) -> None:
    """The error carries the field."""
    fields = {field: value, **({"height": 480} if field == "width" else {})}
    error = refusal(start(**fields))
    assert (error.code, error.param) == ("invalid_request", field)
    assert field in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"width": 832}, "height"),
        ({"height": 480}, "width"),
        ({"width": 64, "height": 48, "size": "48x64"}, "size"),
    ],
)
def test_sizes_that_contradict(fields: dict[str, Any], param: str) -> None:
    """Half a size, and two different sizes."""
    assert refusal(start(**fields)).param == param


def test_an_update_must_change_something() -> None:
    """And its error carries its name."""
    error = refusal({"type": "session.update", "event_id": "u"})
    assert error.event_id == "u"


def test_the_event_id_is_found_in_what_cannot_be_read() -> None:
    """So that a client can tell which of its messages was refused."""
    broken = {"type": "session.interaction", "interaction": {"event_id": "e", "event": {}}}
    assert refusal(broken).event_id == "e"
    broken["interaction"]["event_id"] = "\ud83d"  # type: ignore[index]
    assert refusal(broken).event_id is None


def test_replies_leave_out_what_is_not_known() -> None:
    """None is not written, and text stays readable."""
    text = replies.encode(replies.Error("internal", "雨", retryable=True))
    assert text == '{"type":"error","code":"internal","message":"雨","retryable":true}'


def test_replies_never_hold_nan() -> None:
    """A figure that is not finite is our own mistake."""
    with pytest.raises(ValueError):
        replies.encode(replies.InteractionApplied("e", 1, 2, 3, math.nan))
