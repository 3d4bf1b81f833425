"""A session as lines of JSON: what comes back, what is made of it again, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from kvcache import WindowConfig
from streamgen.errors import InvalidRequest
from streamgen.messages import Control, Rewind, SetPrompt, Update
from streamgen.record import LogEntry, SessionRecord
from streamgen.replay_file import Replay, from_lines, to_lines
from streamgen.score import ScriptEntry
from streamgen.session_config import SessionConfig
from streamgen.text import TextMix
from tests.streamgen.studio import Studio, assert_same
from tests.streamgen.tiny import TINY, tiny_config

ENGINE = tiny_config(size="48x32", fps=16, steps=2, window=9, sink=0)
BALL = TextMix.of("a red ball 👨‍👩‍👧")
CONFIG = SessionConfig(
    prompt=BALL,
    seed=7,
    width=48,
    height=32,
    fps=16,
    steps=2,
    window=WindowConfig(9),
    num_frames=None,
    script=(ScriptEntry(SetPrompt("what is in the log already"), at_s=1.0),),
)
LOG = (
    LogEntry(1, SetPrompt(TextMix((("a star", 0.5), ("a box", 0.5))), "blend", 3, "slerp", "a")),
    LogEntry(2, None),
    LogEntry(2, Rewind(0, "b")),
    LogEntry(4, Update(seed=9, paused=True, event_id="c")),
)


def lines(**changes: Any) -> list[bytes]:
    record = SessionRecord(
        config=CONFIG,
        chunks=(),
        text=BALL,
        revision=1,
        seed=7,
        steps=2,
        fps=16,
        epoch=0,
        num_chunks=6,
        num_model_chunks=6,
        num_generated=69,
        pts_s=69 / 16,
        log=LOG,
    )
    return to_lines(dataclasses.replace(record, **changes), "tiny").splitlines()


def read(*parts: bytes) -> Replay:
    return from_lines(b"\n".join(parts), TINY, ENGINE)


def test_a_session_comes_back_with_all_that_was_done_as_its_script() -> None:
    replay = read(*lines())
    mixed = SetPrompt([["a star", 0.5], ["a box", 0.5]], "blend", 3, "slerp", "a")
    script = [ScriptEntry(e.control, at_chunk=e.chunk_index) for e in LOG]
    script[0] = ScriptEntry(mixed, at_chunk=1)
    assert replay == Replay(dataclasses.replace(CONFIG, script=tuple(script)), 69)


def test_each_line_is_an_object_of_its_own() -> None:
    first, *others = [json.loads(line) for line in lines()]
    assert first["num_frames"] == 69
    assert [line["chunk_index"] for line in others] == [1, 2, 2, 4]


FIRST, *OTHERS = lines()


def first(**changes: object) -> bytes:
    return json.dumps(json.loads(FIRST) | changes).encode()


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ((b"",), "it has 0 lines"),
        ((b"\xff",), "line 1 is not JSON"),
        ((b"[]",), "line 1 is not an object"),
        ((first(format=1),), "format being 2"),
        ((first(more=2),), "line 1 must hold"),
        ((first(model="pocket"),), "of the model 'pocket', this one is tiny"),
        ((first(num_frames=0),), "num_frames is 0"),
        ((first(num_frames=True),), "num_frames is True"),
        ((first(config=[]),), "line 1: config is .*, not an object"),
        ((FIRST, b"{"), "line 2 is not JSON"),
        ((FIRST, b'{"type":"LogEntry","chunk_index":1}'), "line 2 has no field 'control'"),
        ((FIRST, OTHERS[1].replace(b"2", b"-2")), "at_chunk is -2"),
        ((FIRST, OTHERS[0].replace(b"slerp", b"wave")), "curve 'wave'"),
        ((FIRST, OTHERS[0].replace(b"SetPrompt", b"Stop")), "line 2.control.type is 'Stop'"),
        ((FIRST, OTHERS[3], OTHERS[0]), "not in the order of their chunks"),
        ((FIRST, *OTHERS[:-1]), "3 lines follow the first one, not 4: it was cut off"),
        ((FIRST,), "0 lines follow the first one, not 4"),
        ((first(num_events="4"), *OTHERS), "not '4'"),
        ((FIRST, *([OTHERS[1]] * 100_000)), "it has 100001 lines"),
        ((first(config=json.loads(FIRST)["config"] | {"seed": -1}),), "seed -1"),
        ((first(config=json.loads(FIRST)["config"] | {"width": 64}),), "its size is 64x32"),
    ],
)
def test_anything_else_is_refused_by_line(parts: tuple[bytes, ...], complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint) as caught:
        read(*parts)
    assert caught.value.param == "replay"
    caught.value.message.encode()


def test_a_replay_is_the_first_run_to_the_last_bit() -> None:
    controls: list[Control] = [
        SetPrompt("a star", "blend", 2),
        Update(seed=9, steps=3),
        SetPrompt("a box", "recache"),
        Rewind(2),
        SetPrompt("a heart", "reset"),
    ]
    with Studio(deterministic=True, history_seconds=30.0) as studio:
        session = studio.open()
        for control in controls:
            studio.make(session, len(studio.chunks.get(session.id, [])) + 2)
            studio.engine.control(session.id, control)
        studio.engine.suspend(session.id)
        studio.engine.resume(session.id)
        expected = studio.make(session, 14)
        blob = to_lines(studio.engine.record(session.id), "tiny")
        config = from_lines(blob, TINY, studio.engine.config).config
        again = studio.engine.open_config(config)
        assert_same(studio.make(again, 14), expected)
