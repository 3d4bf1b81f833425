"""Make long captions of short prompts, by the user's own program or language model.

Published models were trained on captions of several sentences. An expansion is awaited by whoever
sent the prompt and by nobody else; one that fails is an error to them: the prompt does not act, and
nothing is shown that they did not see.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from dataclasses import dataclass
from typing import Any, Final, Protocol

import httpx

from streamgen.errors import ConfigError, InvalidPrompt, StreamgenError
from streamgen.expand_options import ExpandConfig
from streamgen.limits import MAX_PROMPT_CHARACTERS, check_prompt
from streamgen.program_run import ProgramRun

KEY_VARIABLE: Final = "OPENAI_API_KEY"
MAX_ANSWER_BYTES: Final = 1 << 20
MOST_AT_ONCE: Final = 4
INSTRUCTION: Final = (
    "Rewrite the user's idea as the caption of one continuous video shot: three to five English"
    " sentences on the subject, what it does, the place, the light and the camera. Keep all that"
    " the idea names, in its sense. Answer with the caption alone."
)


class ExpansionFailed(StreamgenError):
    """A prompt could not be expanded; the same one may work later."""

    retryable = True


class Writer(Protocol):
    """Whoever writes captions."""

    async def write(self, text: str) -> str:
        """Return a caption of a text. Raises ExpansionFailed."""


class PromptExpander:
    """Expand texts, a few at the same time, each within a time limit."""

    def __init__(self, writer: Writer, time_limit_s: float) -> None:
        self._writer = writer
        self._time_limit_s = time_limit_s
        self._places = asyncio.Semaphore(MOST_AT_ONCE)

    async def expand(self, text: str) -> str:
        """Return the caption of a text. Raises ExpansionFailed."""
        try:
            async with self._places:
                written = await asyncio.wait_for(self._writer.write(text), self._time_limit_s)
        except asyncio.TimeoutError as error:
            raise ExpansionFailed(
                f"the prompt was not expanded within {self._time_limit_s:g} s; send it again",
                param="prompt",
            ) from error
        caption = written.strip()
        if not caption or len(caption) > MAX_PROMPT_CHARACTERS:
            raise ExpansionFailed(
                f"the prompt was expanded to {len(caption):,} characters; 1 to"
                f" {MAX_PROMPT_CHARACTERS:,} can be shown",
                param="prompt",
            )
        try:
            check_prompt(caption)
        except InvalidPrompt as error:
            raise _failed(f"of what was written, {error.message}") from error
        return caption


@dataclass(frozen=True, slots=True)
class CommandWriter:
    """A program that reads a text from its input and writes a caption."""

    argv: tuple[str, ...]

    async def write(self, text: str) -> str:
        """Run the program, without a shell; one that is given up is ended, with all it started."""
        name = self.argv[0]
        try:
            run = await ProgramRun.start(self.argv, text.encode(), MAX_ANSWER_BYTES)
        except OSError as error:
            raise _failed(f"{name}: {error.strerror}") from error
        async with run:
            await run.ended
        if run.is_too_long:
            raise _failed(f"{name} wrote more than {MAX_ANSWER_BYTES:,} bytes")
        if status := run.status:
            lines = run.said.decode(errors="replace").strip().splitlines()
            why = f": {lines[-1]:.200}" if lines else ""
            raise _failed(f"{name} ended with status {status}{why}")
        try:
            return run.output.decode()
        except UnicodeDecodeError as error:
            raise _failed(f"{name} wrote what is not UTF-8") from error


@dataclass(frozen=True, slots=True)
class EndpointWriter:
    """A language model behind an OpenAI-compatible endpoint."""

    url: httpx.URL  # of its chat completions
    model: str | None
    client: httpx.AsyncClient

    async def write(self, text: str) -> str:
        """Ask the model; the key is the value of OPENAI_API_KEY, if it is set."""
        messages = [
            {"role": "system", "content": INSTRUCTION},
            {"role": "user", "content": text},
        ]
        body: dict[str, Any] = {"messages": messages}
        if self.model is not None:
            body["model"] = self.model
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        written = await self._post(body, headers)
        try:
            content = json.loads(written)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _failed("the endpoint's answer is no chat completion") from error
        if not isinstance(content, str):
            raise _failed("the endpoint's answer has no text")
        return content

    async def _post(self, body: dict[str, Any], headers: dict[str, str]) -> bytes:
        answer = bytearray()
        try:
            async with self.client.stream("POST", self.url, json=body, headers=headers) as response:
                if not response.is_success:
                    reason = " ".join(response.reason_phrase.split())
                    raise _failed(f"the endpoint answered {response.status_code} {reason:.200}")
                async for piece in response.aiter_bytes():
                    answer += piece
                    if len(answer) > MAX_ANSWER_BYTES:
                        size = f"{MAX_ANSWER_BYTES:,} bytes"
                        raise _failed(f"the endpoint's answer has more than {size}")
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise _failed(f"the endpoint cannot be asked: {why:.200}") from error
        return bytes(answer)


def _client() -> httpx.AsyncClient:
    """Return a client that keeps no connection, so that it may outlive an event loop.

    It follows no redirects: the key is for the service that was named. Raises ConfigError for a
    proxy of the environment that is none.
    """
    try:
        return httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_keepalive_connections=0))
    except (ValueError, httpx.InvalidURL) as error:
        raise ConfigError(
            f"the proxy that the environment names cannot be used: {error}; see HTTPS_PROXY,"
            " HTTP_PROXY, ALL_PROXY and NO_PROXY",
            param="expand_endpoint",
        ) from error


def expander_of(options: ExpandConfig) -> PromptExpander | None:
    """Return what options ask for, None for prompts that are shown as they are.

    Raises ConfigError when the environment names a proxy that is none.
    """
    limit_s = options.expand_timeout
    if options.expand_prompt is not None:
        return PromptExpander(CommandWriter(tuple(shlex.split(options.expand_prompt))), limit_s)
    if options.expand_endpoint is not None:
        address = httpx.URL(options.expand_endpoint)
        url = address.copy_with(path=f"{address.path.rstrip('/')}/chat/completions")
        return PromptExpander(EndpointWriter(url, options.expand_model, _client()), limit_s)
    return None


def _failed(why: str) -> ExpansionFailed:
    return ExpansionFailed(f"the prompt could not be expanded: {why}", param="prompt")
