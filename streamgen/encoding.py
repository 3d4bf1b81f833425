"""Texts on their way to embeddings, in a thread beside the passes.

A large text encoder takes seconds on a CPU. Meanwhile sessions make what they have the text for: a
new session waits, and one that goes on keeps its prompt until the new one is encoded.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from streamgen import limits
from streamgen.decode_lane import decode_lane
from streamgen.errors import GenerationFailed, OutOfMemory, StreamgenError
from streamgen.messages import Rejected, SetPrompt
from streamgen.model_runner import ModelRunner
from streamgen.session import Session, SessionState
from streamgen.text import Text

logger: Final = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 2


class Encoding:
    """Encode what sessions need, one text at a time; who has waited longest comes first.

    What that is, is asked of them anew before each pass: a text that was superseded or whose
    session has ended is not begun, and nothing has to be called off. An encoder that raises is
    tried once more. `on_encoded` is called in the encoder's thread.
    """

    def __init__(self, runner: ModelRunner, on_encoded: Callable[[], None]) -> None:
        self._runner = runner
        self._on_encoded = on_encoded
        self._lane = decode_lane(runner.config.device)
        self._pool = ThreadPoolExecutor(1, "encoder")
        self._wanted: dict[str, None] = {}  # the oldest first
        self._under_way: tuple[str, Future[tuple[Tensor, float]]] | None = None
        self._errors: dict[str, list[Exception]] = {}

    def step(self, sessions: Iterable[Session]) -> None:
        """Take what is encoded, ask what is needed now, and begin the next.

        Raises torch.AcceleratorError when the encoder's device is lost.
        """
        self._take()
        needed = dict.fromkeys(
            text for session in sessions for ahead in texts_ahead(session) for text in ahead.texts
        )
        self._wanted = {text: None for text in self._wanted if text in needed} | needed
        self._errors = {text: self._errors[text] for text in self._errors if text in needed}
        self._runner.embeds.needed = needed.keys()
        following = next((text for text in self._wanted if not self.is_settled(text)), None)
        if self._under_way is None and following is not None:
            future = self._pool.submit(self._encode, following)
            self._under_way = following, future
            future.add_done_callback(lambda _: self._on_encoded())

    def hold(self, session: Session, now: float) -> Rejected | None:
        """Let chunks begin without a session's newest prompt until it is encoded.

        One that cannot be encoded is dropped, and what to tell is returned. Nothing is held that is
        for one chunk: a script's prompt, and one given together with a rewind.
        """
        pending = session.pending
        if pending.prompt is None or pending.is_exact or pending.rewind is not None:
            pending.is_held = False
            return None
        wait = self.wait_for([pending.prompt.text])
        was_held, pending.is_held = pending.is_held, wait.is_open
        if was_held and not pending.is_held:
            pending.prompt = dataclasses.replace(pending.prompt, due_from=now)
        if wait.error is None:
            return None
        event_id, pending.prompt = pending.prompt.control.event_id, None
        assert event_id is not None
        if isinstance(wait.error, torch.OutOfMemoryError):
            self._runner.meter.oom()
        reason = f"the prompt could not be encoded: {wait.error}"
        return Rejected(event_id, _code(wait.error), reason)

    def is_settled(self, text: str) -> bool:
        """Return whether a text is encoded, or cannot be."""
        return text in self._runner.embeds or self._gave_up(text)

    def wait_for(self, texts: Iterable[Text]) -> TextWait:
        """Return what a session waits for until it can have these texts."""
        return TextWait(self, tuple(part for text in texts for part in text.texts))

    def error_of(self, texts: Sequence[str]) -> Exception | None:
        """Return why one of some texts cannot be encoded, None when nothing is known against it."""
        return next((self._errors[text][-1] for text in texts if self._gave_up(text)), None)

    def close(self) -> None:
        """Drop what waits; the thread ends after the text in work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _gave_up(self, text: str) -> bool:
        return len(self._errors.get(text, ())) >= MAX_ATTEMPTS

    def _encode(self, text: str) -> tuple[Tensor, float]:
        began = time.perf_counter()
        with self._lane.after(self._lane.now()):  # on a card, beside the passes there too
            embeds = self._runner.encode(text)
        return embeds, time.perf_counter() - began

    def _take(self) -> None:
        if self._under_way is None or not self._under_way[1].done():
            return
        (text, future), self._under_way = self._under_way, None
        error = future.exception()
        if error is None:
            embeds, seconds = future.result()
            self._runner.embeds.put(text, embeds)
            self._runner.meter.stage("text", seconds)
        elif isinstance(error, torch.AcceleratorError) or not isinstance(error, Exception):
            raise error
        else:
            logger.warning("a text could not be encoded: %s", error)
            self._errors.setdefault(text, []).append(error)


@dataclass(frozen=True, slots=True)
class TextWait:
    """Texts that a session waits for. It is over when each is encoded, or given up."""

    encoding: Encoding
    texts: tuple[str, ...]

    @property
    def is_open(self) -> bool:
        """Return whether one of them is still to come."""
        return not all(map(self.encoding.is_settled, self.texts))

    @property
    def error(self) -> Exception | None:
        """Return why one of them will not come."""
        return self.encoding.error_of(self.texts)


def _code(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory.code
    return error.code if isinstance(error, StreamgenError) else GenerationFailed.code


def texts_ahead(session: Session) -> Iterator[Text]:
    """Yield the texts that a session's next chunks and K/V are made under, or may be.

    A script's next prompt is one of them, so that it need not be waited for when it is due.
    """
    if session.phase is SessionState.SUSPENDED:
        return
    if session.needs_rebuild:
        yield from (text for _, text in session.history.texts_in_window())
    if session.commit is not None:
        yield session.commit.text
    yield session.text if session.spec is None else session.spec.text
    if session.blend is not None:
        yield session.blend.text
    if session.pending.prompt is not None:
        yield session.pending.prompt.text
    if session.script and isinstance(control := session.script[0].control, SetPrompt):
        yield limits.check_prompt(control.prompt)
