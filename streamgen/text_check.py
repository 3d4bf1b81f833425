"""Refuse texts that a model would cut off, before a session is made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from streamgen import limits
from streamgen.messages import Control, SetPrompt
from streamgen.models.preset import TextEncoder
from streamgen.session_config import SessionConfig
from streamgen.text import TextMix


@runtime_checkable
class BoundedTextEncoder(Protocol):
    """A text encoder that reads so many tokens of a prompt and no more."""

    def check_text(self, prompt: str) -> None:
        """Raise InvalidPrompt, with the numbers, for a prompt that is too long."""


def check_session(encoder: TextEncoder, config: SessionConfig) -> None:
    """Raise InvalidPrompt when a text of a session is longer than the model reads."""
    scripted = (entry.control for entry in config.script)
    mixes = [config.prompt, *(mix for control in scripted for mix in _mixes(control))]
    _check(encoder, mixes)


def check_control(encoder: TextEncoder, control: Control) -> None:
    """Raise InvalidPrompt when a control's text is longer than the model reads."""
    _check(encoder, list(_mixes(control)))


def _mixes(control: Control | None) -> Iterator[TextMix]:
    if isinstance(control, SetPrompt):
        yield limits.check_prompt(control.prompt)


def _check(encoder: TextEncoder, mixes: list[TextMix]) -> None:
    if isinstance(encoder, BoundedTextEncoder):
        for mix in mixes:
            for text, _ in mix.parts:
                encoder.check_text(text)
