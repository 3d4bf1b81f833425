"""The options of prompt expansion, for every command that shows prompts. Imports no torch."""

from __future__ import annotations

import shlex
import urllib.parse
from dataclasses import dataclass

from streamgen.config import name, option, seconds
from streamgen.errors import ConfigError


def command_line(value: object) -> str:
    """Parse a program and its arguments, quoted as for a shell, which it is not given to."""
    rule = "expected a program and its arguments"
    if not isinstance(value, str):
        raise ValueError(rule)
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise ValueError(f"{rule}: {error}") from error
    if not words or "\0" in value:
        raise ValueError(rule)
    return value


def endpoint(value: object) -> str:
    """Parse the address of an HTTP service, without a name or password in it."""
    rule = "expected an address as in http://localhost:8080/v1"
    text = value if isinstance(value, str) else ""
    try:
        parts = urllib.parse.urlsplit(text)
        has_port = parts.port != 0  # it raises for what is no number, or too high
    except ValueError as error:
        raise ValueError(f"{rule}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError(rule)
    if not has_port or not text.isascii() or any(c <= " " or c == "\x7f" for c in text):
        raise ValueError(f"{rule}, of ASCII characters without spaces")
    return text


def length_s(value: object) -> float:
    """Parse a length in seconds: a positive number."""
    try:
        number = seconds(value)
    except ValueError:
        number = None
    if number is None:
        raise ValueError("expected a positive number of seconds")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandConfig:
    """Who makes longer prompts, if anyone does."""

    expand_prompt: str | None = option(
        None,
        command_line,
        "program that reads a prompt and writes a longer one, to be shown",
        secret=True,  # keys are often given to programs
    )
    expand_endpoint: str | None = option(
        None,
        endpoint,
        "OpenAI-compatible service that does so, as in http://localhost:8080/v1",
        secret=True,  # with a password in it, as is refused, or a key in its query
    )
    expand_model: str | None = option(None, name, "model that expand-endpoint is asked for")
    expand_timeout: float = option(20.0, length_s, "seconds after which an expansion has failed")

    def check_expansion(self) -> None:
        """Raise ConfigError for options that contradict each other."""
        if self.expand_prompt is not None and self.expand_endpoint is not None:
            raise ConfigError(
                "--expand-prompt and --expand-endpoint: give one of them", param="expand_prompt"
            )
        if self.expand_model is not None and self.expand_endpoint is None:
            raise ConfigError("--expand-model needs --expand-endpoint", param="expand_model")
