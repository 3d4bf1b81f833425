"""The one rule for prompts, at the start and in mid-stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.transport.test_wire import interaction, refusal, start
from transport import wire
from transport.fields import MAX_PROMPT_CHARACTERS


@pytest.mark.parametrize("make", [lambda prompt: start(prompt=prompt), interaction])
@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "   ",
        "\n\t",
        "\u3000",
        None,
        5,
        {},
        [],
        [""],
        ["a"],
        [{"text": "", "weight": 1}],
        [{"text": "a"}],
        [{"text": "a", "weight": 1, "x": 1}],
        [{"text": "a", "weight": 0}],
        [{"text": "a", "weight": -1}],
        [{"text": "a", "weight": True}],
        [{"text": "a", "weight": 10**400}],
        [{"text": "a", "weight": "1"}],
        [{"text": "a", "weight": 1}] * 17,
        [{"text": "a", "weight": 1}] * 1000,
        "a\0b",
        "\ud83d",
        "a" * (MAX_PROMPT_CHARACTERS + 1),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_prompts_that_are_refused(make: Any, prompt: Any) -> None:
    """One rule at the start and in mid-stream."""
    error = refusal(make(prompt))
    assert error.code == "invalid_request"
    assert error.param is not None
    assert "prompt" in error.param


def test_infinite_weights_are_refused() -> None:
    """JSON can write infinity as 1e999."""
    text = json.dumps(start(prompt=[{"text": "a", "weight": 7777}])).replace("7777", "1e999")
    assert "finite" in refusal(text).message


def test_the_limit_of_a_prompt_is_named() -> None:
    """A person learns how much to cut."""
    message = refusal(start(prompt="a" * 100_000)).message
    assert "100,000" in message
    assert "2,000" in message


@pytest.mark.parametrize(
    "prompt",
    [
        "👨‍👩‍👧‍👦 in the rain",
        "你好，雨中的猫",
        "قطة \u202e في المطر",
        "e" + "\u0301" * 200,
        "\ufffe",
        "cafe\u0301",
        "café",
        "  spaces around  ",
        "line\nbreak\x1b[31m",
        "a" * MAX_PROMPT_CHARACTERS,
    ],
    ids=lambda value: repr(value)[:24],
)
def test_prompts_are_kept_character_for_character(prompt: str) -> None:
    """Nothing is trimmed, normalised or cut, escaped or not."""
    for ensure_ascii in (True, False):
        parsed = wire.parse(json.dumps(start(prompt=prompt), ensure_ascii=ensure_ascii))
        assert isinstance(parsed, wire.SessionStart)
        assert parsed.prompt == prompt
    alone = wire.parse(json.dumps(interaction([{"text": prompt, "weight": 2}])))
    assert isinstance(alone, wire.SessionInteraction)
    assert alone.prompt == prompt
