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
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final, Protocol

from streamgen.errors import StreamgenError
from streamgen.expand_options import ExpandConfig
from streamgen.limits import MAX_PROMPT_CHARACTERS

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
        return caption


@dataclass(frozen=True, slots=True)
class CommandWriter:
    """A program that reads a text from its input and writes a caption."""

    argv: tuple[str, ...]

    async def write(self, text: str) -> str:
        """Run the program, without a shell; one that is given up is ended."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self.argv, stdin=pipe, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            raise _failed(f"{self.argv[0]}: {error.strerror}") from error
        try:
            output, said = await process.communicate(text.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            lines = said.decode(errors="replace").strip().splitlines()
            why = f": {lines[-1]:.200}" if lines else ""
            raise _failed(f"{self.argv[0]} ended with status {process.returncode}{why}")
        try:
            return output.decode()
        except UnicodeDecodeError as error:
            raise _failed(f"{self.argv[0]} wrote what is not UTF-8") from error


@dataclass(frozen=True, slots=True)
class EndpointWriter:
    """A language model behind an OpenAI-compatible endpoint."""

    url: str
    model: str | None
    time_limit_s: float

    async def write(self, text: str) -> str:
        """Ask the model; the key is the value of OPENAI_API_KEY, if it is set."""
        return await asyncio.to_thread(self._ask, text)

    def _ask(self, text: str) -> str:
        messages = [
            {"role": "system", "content": INSTRUCTION},
            {"role": "user", "content": text},
        ]
        body: dict[str, Any] = {"messages": messages}
        if self.model is not None:
            body["model"] = self.model
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            f"{self.url}/chat/completions", json.dumps(body).encode(), headers
        )
        try:
            with urllib.request.urlopen(request, timeout=self.time_limit_s) as response:
                answer = json.loads(response.read(MAX_ANSWER_BYTES))
            content = answer["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            error.close()
            raise _failed(f"the endpoint answered {error.code} {error.reason}") from error
        except OSError as error:
            raise _failed(f"the endpoint cannot be asked: {error}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise _failed("the endpoint's answer is no chat completion") from error
        if not isinstance(content, str):
            raise _failed("the endpoint's answer has no text")
        return content


def expander_of(options: ExpandConfig) -> PromptExpander | None:
    """Return what options ask for, None for prompts that are shown as they are."""
    limit_s = options.expand_timeout
    if options.expand_prompt is not None:
        return PromptExpander(CommandWriter(tuple(shlex.split(options.expand_prompt))), limit_s)
    if options.expand_endpoint is not None:
        url = options.expand_endpoint.rstrip("/")
        return PromptExpander(EndpointWriter(url, options.expand_model, limit_s), limit_s)
    return None


def _failed(why: str) -> ExpansionFailed:
    return ExpansionFailed(f"the prompt could not be expanded: {why}", param="prompt")
