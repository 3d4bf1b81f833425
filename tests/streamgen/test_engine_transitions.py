"""What a change of prompt does, in each of its ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen.embeds import blended
from streamgen.messages import Applied, Chunk, SetPrompt, Superseded, Update
from streamgen.text import TextBlend, TextMix
from tests.streamgen.studio import Studio, alone, assert_same, watch_prompts
from tests.streamgen.tiny import HashEncoder

RED = TextMix.of("a red ball")
STAR = TextMix.of("a star")


def embeds(text: str) -> Tensor:
    return HashEncoder().encode([text])[0]


def switched(studio: Studio, *controls: SetPrompt, at: int = 3, until: int = 10) -> list[Chunk]:
    """Return a session's chunks, controls given between two of them."""
    session = studio.open()
    studio.rest(session, at)
    for control in controls:
        studio.engine.control(session.id, control)
    return studio.make(session, until)


def texts_of(chunks: list[Chunk]) -> list[object]:
    return [chunk.record.text for chunk in chunks]


def test_a_cut_shows_the_new_text_at_once_and_keeps_the_history() -> None:
    with Studio() as studio:
        chunks = switched(studio, SetPrompt("a star", "cut", event_id="e"), until=5)
    assert texts_of(chunks) == [RED] * 3 + [STAR] * 2
    assert [c.record.kv_text for c in chunks] == texts_of(chunks)
    assert [c.active_event_ids for c in chunks] == [(), (), (), ("e",), ()]
    assert [c.completed_event_ids for c in chunks] == [(), (), (), ("e",), ()]


@pytest.mark.parametrize("curve", ["lerp", "slerp"])
def test_a_blend_goes_over_in_even_steps_and_ends_with_the_new_text_alone(curve: str) -> None:
    with Studio() as studio:
        seen = embeds_by_text(studio)
        chunks = switched(studio, SetPrompt("a star", "blend", 4, curve, event_id="e"))
    between = [TextBlend(RED, STAR, n / 4, curve) for n in (1, 2, 3)]
    assert texts_of(chunks) == [RED] * 3 + between + [STAR] * 4
    assert [c.prompt_revision for c in chunks] == [0] * 3 + [1] * 7
    assert [c.started_event_ids for c in chunks[2:5]] == [(), ("e",), ()]
    assert [c.active_event_ids for c in chunks[3:8]] == [("e",)] * 4 + [()]
    assert [c.completed_event_ids for c in chunks[3:8]] == [()] * 3 + [("e",), ()]
    for step in between:
        expected = blended(embeds("a red ball"), embeds("a star"), step.at, curve)
        torch.testing.assert_close(seen[step], expected)


def embeds_by_text(studio: Studio) -> dict[object, Tensor]:
    """Record what the model is conditioned on, by text."""
    seen: dict[object, Tensor] = {}
    runner: Any = studio.engine.runner
    embed = runner._embed

    def recorded(text: object) -> Tensor:
        seen[text] = embed(text)
        return seen[text]

    runner._embed = recorded
    return seen


def test_a_blend_of_one_chunk_is_a_cut() -> None:
    with Studio(deterministic=True) as studio:
        expected = switched(studio, SetPrompt("a star", "cut"))
    with Studio(deterministic=True) as studio:
        assert_same(switched(studio, SetPrompt("a star", "blend", 1)), expected)


def test_without_a_number_a_blend_takes_four_chunks() -> None:
    with Studio() as studio:
        chunks = switched(studio, SetPrompt("a star", "blend"))
    assert [isinstance(text, TextBlend) for text in texts_of(chunks)] == (
        [False] * 3 + [True] * 3 + [False] * 4
    )


def test_a_new_prompt_inside_a_blend_sets_out_from_what_was_shown() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, SetPrompt("a star", "blend", 4, event_id="old"))
        studio.rest(session, 5)  # half way
        studio.engine.control(session.id, SetPrompt("a cube", "blend", 2, event_id="new"))
        chunks = studio.make(session, 8)
        events = studio.events[session.id]
    half = TextMix((("a red ball", 0.5), ("a star", 0.5)))
    assert chunks[5].record.text == TextBlend(half, TextMix.of("a cube"), 0.5, "lerp")
    assert texts_of(chunks[6:]) == [TextMix.of("a cube")] * 2
    assert [c.active_event_ids for c in chunks[3:8]] == [("old",)] * 2 + [("new",)] * 2 + [()]
    assert not any(isinstance(e, Superseded) for e in events)  # each is answered once
    assert [e.event_id for e in events if isinstance(e, Applied)] == ["old", "new"]


def test_a_cut_inside_a_blend_ends_it() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, SetPrompt("a star", "blend", 9))
        studio.rest(session, 5)
        studio.engine.control(session.id, SetPrompt("a cube", "cut"))
        assert texts_of(studio.make(session, 7)[5:]) == [TextMix.of("a cube")] * 2


def test_other_settings_leave_a_blend_under_way() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, SetPrompt("a star", "blend", 4))
        studio.rest(session, 4)
        studio.engine.control(session.id, Update(seed=7))
        chunks = studio.make(session, 7)
    shares = [c.record.text.at for c in chunks if isinstance(c.record.text, TextBlend)]
    assert shares == [0.25, 0.5, 0.75]


def test_the_weights_of_a_prompt_are_shares_of_what_the_model_is_told() -> None:
    prompt = [{"text": "a star", "weight": 3}, {"text": "a cube", "weight": 1}]
    with Studio() as studio:
        seen = embeds_by_text(studio)
        chunks = switched(studio, SetPrompt(prompt), until=5)
        mix = TextMix((("a star", 0.75), ("a cube", 0.25)))
        assert texts_of(chunks) == [RED] * 3 + [mix] * 2
        torch.testing.assert_close(seen[mix], 0.75 * embeds("a star") + 0.25 * embeds("a cube"))


def test_a_reset_begins_a_new_scene_as_a_new_session_would() -> None:
    fresh = alone(3, "a star")
    with Studio(deterministic=True) as studio:
        chunks = switched(studio, SetPrompt("a star", "reset"), until=6)
    assert [c.record.epoch for c in chunks] == [0] * 3 + [1] * 3
    assert [c.index for c in chunks] == list(range(6))
    for chunk, reference in zip(chunks[3:], fresh, strict=True):
        np.testing.assert_array_equal(chunk.latents, reference.latents)
        np.testing.assert_array_equal(chunk.frames, reference.frames)


@pytest.mark.parametrize("transition", ["recache", "blend", "reset"])
def test_before_the_first_chunk_every_transition_is_a_cut(transition: str) -> None:
    expected = alone(3, "a star")
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.engine.control(session.id, SetPrompt("a star", transition))
        assert_same(studio.make(session, 3), expected)


@pytest.mark.parametrize("transition", ["cut", "blend", "recache", "reset"])
@pytest.mark.parametrize("num_steps", range(5))
def test_q23_whatever_the_moment_and_the_way_a_chunk_has_one_text(
    transition: str, num_steps: int
) -> None:
    """Between passes, in a recache, twice in a chunk: its rows all read the same."""
    with Studio(deterministic=True) as studio:
        session, other = studio.open(), studio.open("other", seed=9)
        studio.rest(session, 4)
        used = watch_prompts(studio)
        studio.engine.control(session.id, SetPrompt("a cube", "recache"))
        for _ in range(num_steps):
            studio.step()
        studio.engine.control(session.id, SetPrompt("ignored", "recache"))
        studio.engine.control(session.id, SetPrompt("a star", transition))
        chunks = studio.more(session, 6)
        assert_same(studio.make(other, 6), alone(6, "other", seed=9))
    assert chunks[-1].record.text == STAR
    assert "ignored" not in set.union(*used[session.id].values())
    for chunk in chunks:
        # Its commit may have been replaced by a recache, which reads the next chunk's text.
        own = used[session.id].get(chunk.index, set())
        assert str(chunk.record.text) in own or chunk.index < 4
        assert own <= {str(chunk.record.text), "a cube", "a star"}
