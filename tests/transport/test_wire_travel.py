"""Reading scores, rewinds and forks, and writing what answers them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.transport.test_wire import EXAMPLES, refusal, start
from transport import replies, wire
from transport.fields import WeightedPrompt


@pytest.mark.parametrize(
    ("entry", "param"),
    [
        ({"prompt": "b"}, "score[1].at_s"),
        ({"at_s": 0, "prompt": "b"}, "score[1].at_s"),
        ({"at_s": "2", "prompt": "b"}, "score[1].at_s"),
        ({"at_s": 2, "prompt": " "}, "score[1].prompt"),
        ({"at_s": 2, "prompt": [{"text": "a"}]}, "score[1].prompt[0]"),
        ({"at_s": 2, "prompt": "b", "transition": {"mode": "fade"}}, "score[1].transition.mode"),
        ("b", "score[1]"),
    ],
)
def test_q18_a_bad_entry_of_a_score_is_named(entry: Any, param: str) -> None:
    """With its number, so that a long score can be corrected."""
    assert refusal(start(score=[{"at_s": 1, "prompt": "a"}, entry])).param == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"type": "session.rewind"}, "to_chunk"),
        ({"type": "session.rewind", "to_chunk": -1}, "to_chunk"),
        ({"type": "session.rewind", "to_chunk": 1.5}, "to_chunk"),
        ({"type": "session.rewind", "to_chunk": 10**12}, "to_chunk"),
        ({"type": "session.fork", "at_chunk": "now"}, "at_chunk"),
        ({"type": "session.fork", "at_chunk": True}, "at_chunk"),
    ],
)
def test_moments_that_cannot_be(message: dict[str, Any], param: str) -> None:
    """Chunks are counted from 0; only a fork can do without, for now."""
    error = refusal({**message, "event_id": "e"})
    assert (error.code, error.param, error.event_id) == ("invalid_request", param, "e")
    assert wire.parse('{"type":"session.fork","at_chunk":null}') == wire.SessionFork()


def test_every_control_can_be_named() -> None:
    """A client that gives no name is given one."""
    for message in EXAMPLES:
        parsed = wire.parse(json.dumps(message))
        if isinstance(parsed, (wire.SessionInteraction, wire.SessionUpdate, wire.SessionRewind)):
            assert wire.with_event_id(parsed, "new").event_id == "new"


def test_weighted_texts_are_written_as_they_are_read() -> None:
    """In chunk metadata too."""
    mixed = (WeightedPrompt("a", 1.0), WeightedPrompt("b", 0.5))
    ids: tuple[str, ...] = ()
    told = replies.ChunkMetadata("r", "media", 0, 0, 4, 0, 0.0, 0, 0, ids, ids, ids, mixed)
    written = json.loads(replies.encode(told))["prompt"]
    assert written == [{"text": "a", "weight": 1.0}, {"text": "b", "weight": 0.5}]
