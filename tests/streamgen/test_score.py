"""Prompts at times: what a score may say, and when it is followed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from streamgen.errors import InvalidPrompt, InvalidRequest
from streamgen.messages import Applied, SetPrompt, Superseded, Update
from streamgen.score import MAX_ENTRIES, ScriptEntry, check_score
from tests.streamgen.studio import Studio, alone, assert_same
from tests.streamgen.tiny import TINY


def test_a_score_becomes_the_controls_it_stands_for() -> None:
    entries = check_score(
        [
            {"at_s": 2, "prompt": "a star"},
            {"at_s": 3.5, "prompt": [{"text": "a cube", "weight": 2}, "a star"]},
            {"at_s": 8, "prompt": "a cube", "transition": "blend", "chunks": 3, "curve": "slerp"},
        ],
        "cut",
    )
    assert [entry.at_s for entry in entries] == [2.0, 3.5, 8.0]
    assert entries[0] == ScriptEntry(SetPrompt("a star", "cut"), None, 2.0)
    assert entries[2].control == SetPrompt("a cube", "blend", 3, "slerp")
    by_number = check_score([{"at_chunk": 4, "prompt": "a", "transition": "reset"}], "cut")
    assert by_number == (ScriptEntry(SetPrompt("a", "reset"), 4),)
    assert check_score(None, "cut") == check_score([], "cut") == ()


@pytest.mark.parametrize(
    ("score", "said"),
    [
        ("a star", "must be a list"),
        ({"at_s": 1, "prompt": "x"}, "must be a list"),
        (["a star"], r"score\[0\] must be an object"),
        ([{"prompt": "x"}], r"score\[0\] needs at_s or at_chunk"),
        ([{"at_s": 1, "at_chunk": 1, "prompt": "x"}], "one of them"),
        ([{"at_s": 1, "prompt": "x", "when": 3}], "'when'"),
        ([{"at_s": 0, "prompt": "x"}], "at_s 0 must be seconds above 0"),
        ([{"at_s": float("nan"), "prompt": "x"}], "at_s nan"),
        ([{"at_s": float("inf"), "prompt": "x"}], "at_s inf"),
        ([{"at_s": True, "prompt": "x"}], "at_s True"),
        ([{"at_s": "1", "prompt": "x"}], "at_s '1'"),
        ([{"at_chunk": 0, "prompt": "x"}], "at_chunk 0 must be 1 or more"),
        ([{"at_chunk": 1.5, "prompt": "x"}], "at_chunk 1.5"),
        ([{"at_chunk": True, "prompt": "x"}], "at_chunk True"),
        ([{"at_s": 1}], r"score\[0\]: the prompt"),
        ([{"at_s": 1, "prompt": " "}], r"score\[0\]: the prompt is empty"),
        ([{"at_s": 1, "prompt": "x", "transition": "wipe"}], r"score\[0\]: transition 'wipe'"),
        ([{"at_s": 1, "prompt": "x", "chunks": 2}], r"score\[0\]: a cut .* no chunks"),
        (
            [{"at_s": 2, "prompt": "x"}, {"at_s": 2, "prompt": "y"}],
            r"score\[1\] is at 2, not after",
        ),
        ([{"at_s": 2, "prompt": "x"}, {"at_chunk": 9, "prompt": "y"}], "not in both"),
        ([{"at_s": n + 1, "prompt": "x"} for n in range(MAX_ENTRIES + 1)], "at most 1,000"),
    ],
)
def test_a_score_that_cannot_be_followed_is_refused_and_the_entry_named(
    score: Any, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        check_score(score, "cut")
    assert caught.value.param == "score"
    with Studio() as studio:
        with pytest.raises(InvalidRequest, match=said):
            studio.open(score=score)
        assert studio.audit() == studio.pool.num_pages


def test_a_bad_prompt_of_a_score_is_an_invalid_prompt() -> None:
    with pytest.raises(InvalidPrompt, match=r"score\[0\]"):
        check_score([{"at_s": 1, "prompt": "a\0b"}], "cut")


def test_at_chunks_a_score_is_what_controls_between_chunks_would_be() -> None:
    score = [
        {"at_chunk": 2, "prompt": "a star"},
        {"at_chunk": 3, "prompt": "a cube", "transition": "recache"},
        {"at_chunk": 5, "prompt": "the sea", "transition": "reset"},
    ]
    with Studio(deterministic=True) as studio:
        chunks = studio.make(studio.open(score=score), 7)
        assert [c.prompt_revision for c in chunks] == [0, 0, 1, 2, 2, 3, 3]
    with Studio(deterministic=True) as studio:
        session = studio.open()
        for entry in score:
            studio.rest(session, int(str(entry["at_chunk"])))
            transition = str(entry.get("transition", "cut"))
            studio.engine.control(session.id, SetPrompt(entry["prompt"], transition))
        assert_same(studio.make(session, 7), chunks)


def test_at_seconds_it_is_the_first_chunk_that_begins_then_or_later() -> None:
    """The first chunk has 9 frames at 16 a second, the others 12."""
    with Studio() as studio:
        score = [{"at_s": 9 / 16, "prompt": "a"}, {"at_s": 1.5, "prompt": "b"}]
        session = studio.open(score=score)
        chunks = studio.make(session, 5)
        assert [c.pts_s for c in chunks] == [0, 0.5625, 1.3125, 2.0625, 2.8125]
        assert [c.prompt_revision for c in chunks] == [0, 1, 1, 2, 2]
        applied = [e for e in studio.events[session.id] if isinstance(e, Applied)]
        assert [(e.prompt_revision, e.chunk_index, e.pts_s) for e in applied] == [
            (1, 1, 0.5625),
            (2, 3, 2.0625),
        ]


def test_at_another_frame_rate_seconds_fall_on_other_chunks() -> None:
    with Studio() as studio:
        session = studio.open(score=[{"at_s": 2, "prompt": "a"}])
        studio.engine.control(session.id, Update(fps=8))
        chunks = studio.make(session, 4)
        assert [c.pts_s for c in chunks] == [0, 1.125, 2.625, 4.125]
        assert [c.prompt_revision for c in chunks] == [0, 0, 1, 1]


def test_of_entries_within_one_chunk_the_last_one_wins_and_the_others_are_told() -> None:
    score = [{"at_s": 0.1 * n, "prompt": f"scene {n}"} for n in range(1, 6)]
    with Studio(deterministic=True) as studio:
        session = studio.open(score=score)
        chunks = studio.make(session, 3)
        assert [c.prompt_revision for c in chunks] == [0, 5, 5]
        assert len([e for e in studio.events[session.id] if isinstance(e, Superseded)]) == 4
        texts = [str(c.record.text) for c in chunks]
        assert texts == ["a red ball", "scene 5", "scene 5"]


def test_who_watches_may_say_something_in_between() -> None:
    """A prompt shows until the score's next one; both are counted."""
    with Studio() as studio:
        session = studio.open(score=[{"at_chunk": 4, "prompt": "from the score"}])
        studio.rest(session, 2)
        receipt = studio.engine.control(session.id, SetPrompt("from a viewer"))
        chunks = studio.make(session, 6)
        texts = [str(c.record.text) for c in chunks]
        assert texts == ["a red ball"] * 2 + ["from a viewer"] * 2 + ["from the score"] * 2
        assert (receipt.prompt_revision, chunks[-1].prompt_revision) == (1, 2)


def test_a_score_is_followed_across_a_suspension_and_by_who_restores_the_session() -> None:
    with Studio() as studio:
        session = studio.open(score=[{"at_chunk": n, "prompt": f"scene {n}"} for n in (1, 4, 6)])
        studio.rest(session, 2)
        studio.engine.suspend(session.id)
        record = studio.engine.record(session.id)
        assert [entry.at_chunk for entry in record.script] == [4, 6]
        studio.engine.resume(session.id)
        restored = studio.engine.restore(record)
        for one, num_chunks in ((session, 7), (restored, 5)):
            texts = {c.index: str(c.record.text) for c in studio.make(one, num_chunks)}
            assert [texts[n] for n in range(2, 7)] == ["scene 1"] * 2 + ["scene 4"] * 2 + [
                "scene 6"
            ]


def test_the_presets_own_transition_is_the_default_of_an_entry() -> None:
    preset = dataclasses.replace(TINY, transition="reset")
    fresh = alone(2, "a star")
    with Studio(preset, deterministic=True) as studio:
        session = studio.open(score=[{"at_chunk": 2, "prompt": "a star"}])
        chunks = studio.make(session, 4)
    assert [c.record.epoch for c in chunks] == [0, 0, 1, 1]
    for chunk, reference in zip(chunks[2:], fresh, strict=True):
        assert (chunk.latents == reference.latents).all()
