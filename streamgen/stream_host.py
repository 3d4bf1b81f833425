"""The engine as what `transport` plays: its protocols over `EngineClient`, term by term.

Only the server imports this; the engine itself knows no transport and no wire message.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, cast

from streamgen import messages
from streamgen.engine_client import EngineClient
from streamgen.engine_stream import EngineStream
from streamgen.errors import StreamgenError, Unsupported
from streamgen.expand import PromptExpander
from streamgen.expanded_prompt import expanded
from streamgen.replay_file import to_lines
from streamgen.session_config import SessionRequest
from streamgen.snapshot import from_bytes, to_bytes
from streamgen.text import Text, TextBlend
from transport import stream as shown
from transport.fields import Prompt, WeightedPrompt
from transport.host import HostStats, ModelInfo
from transport.wire import Control, ScoreEntry, SessionInteraction, SessionRewind, SessionUpdate


class EngineHost:
    """A `StreamHost` over an engine's client; with an expander, prompts are expanded first."""

    def __init__(self, client: EngineClient, expander: PromptExpander | None = None) -> None:
        self._client = client
        self._expander = expander

    async def open(self, config: shown.SessionConfig) -> shown.Stream:
        """Admit a session; raise StreamError when it is refused."""
        preset = self._client.preset
        with _in_wire_terms():
            if config.model not in (None, preset.name):
                raise Unsupported(
                    f"model {config.model!r}: this server serves {preset.name}", param="model"
                )
            prompt = await expanded(self._expander, config.prompt)
            score = [
                _engine_entry(entry, await expanded(self._expander, entry.prompt))
                for entry in config.score
            ]
            request = SessionRequest(
                prompt=_engine_prompt(prompt),
                seed=config.seed,
                width=config.width,
                height=config.height,
                fps=config.fps,
                steps=config.num_inference_steps,
                window=config.window,
                sink=config.sink,
                num_frames=config.num_frames,
                priority=config.priority,
                score=score or None,
            )
            stream = await self._client.open(request)
        return self._hosted(stream, run_unwatched=config.run_unwatched)

    async def restore(self, blob: bytes) -> shown.Stream:
        """Go on from a snapshot; raise StreamError when it is refused."""
        client = self._client
        with _in_wire_terms():
            # It may be large, and whoever watches another session should not wait for it.
            record = await asyncio.to_thread(from_bytes, blob, client.preset, client.config)
            stream = await client.restore(record)
        return self._hosted(stream, run_unwatched=False)

    def _hosted(self, stream: EngineStream, *, run_unwatched: bool) -> HostedStream:
        return HostedStream(stream, self._client, self._expander, run_unwatched=run_unwatched)

    def stats(self) -> HostStats:
        """Return the latest figures without waiting."""
        stats, preset, config = self._client.stats(), self._client.preset, self._client.config
        assert config.size is not None
        assert config.fps is not None
        model = ModelInfo(
            id=preset.name,
            width=config.size[0],
            height=config.size[1],
            fps=config.fps,
            chunk_frames=preset.chunks.chunk_frames * preset.chunks.temporal_factor,
            suggestions=preset.suggestions,
        )
        return HostStats(
            alive=stats.alive,
            ready=stats.ready,
            stage=stats.stage,
            progress=stats.progress,
            sessions_free=stats.sessions_free,
            pages_free=stats.pages_free,
            models=(model,),
            busy_s=stats.busy_s,
            queue_length=stats.queue_length,
            overload=stats.overload,
            restarts=stats.restarts,
            pages=stats.pages,
            sessions_running=stats.sessions_running,
        )


class HostedStream:
    """A `Stream` over an engine's stream."""

    def __init__(
        self,
        stream: EngineStream,
        client: EngineClient,
        expander: PromptExpander | None,
        *,
        run_unwatched: bool,
    ) -> None:
        self.id = stream.id
        self._stream = stream
        self._client = client
        self._expander = expander
        self._in_turn = asyncio.Lock()  # a prompt that takes longer must not overtake the next
        self._run_unwatched = run_unwatched

    @property
    def config(self) -> shown.StreamConfig:
        """Return what is in effect once all that was accepted has begun to act."""
        config, preset = self._stream.config, self._client.preset
        settings = self._stream.ledger.settings()
        return shown.StreamConfig(
            prompt=_wire_prompt(settings.text),
            model=preset.name,
            width=config.width,
            height=config.height,
            fps=settings.fps,
            seed=settings.seed,
            num_inference_steps=settings.steps,
            chunk_frames=preset.chunks.chunk_frames * preset.chunks.temporal_factor,
            window=config.window.window_frames,
            sink=config.window.sink_frames,
            num_frames=config.num_frames,
            priority=config.priority,
            run_unwatched=self._run_unwatched,
        )

    @property
    def state(self) -> shown.State:
        """Return the session's state."""
        return cast(shown.State, self._stream.state)

    async def chunks(self) -> AsyncIterator[shown.Chunk]:
        """Yield the chunks until the session ends."""
        async for chunk in self._stream.chunks():
            yield shown.Chunk(
                index=chunk.index,
                first_frame_index=chunk.first_frame_index,
                pts_s=chunk.pts_s,
                fps=chunk.fps,
                prompt_revision=chunk.prompt_revision,
                seed=chunk.seed,
                frames=chunk.frames,
                generation_s=chunk.generation_s,
                release=chunk.release,
                started_event_ids=chunk.started_event_ids,
                active_event_ids=chunk.active_event_ids,
                completed_event_ids=chunk.completed_event_ids,
                prompt=_wire_prompt(chunk.record.text),
            )

    async def events(self) -> AsyncIterator[shown.Event]:
        """Yield what happens to the session; that a control applies is told by its chunk."""
        async for event in self._stream.events():
            match event:
                case messages.StateChanged(state, reason):
                    yield shown.StateChanged(cast(shown.State, state), reason)
                case messages.Superseded(event_id):
                    yield shown.Superseded(event_id)
                case messages.Rejected(event_id, code, message):
                    yield shown.Rejected(event_id, cast(shown.ErrorCode, code), message)
                case messages.Queued(position, estimated_wait_s):
                    yield shown.Queued(position, estimated_wait_s)
                case messages.Overloaded(level, action):
                    yield shown.Overloaded(level, action)
                case messages.Restarted():
                    yield shown.Restarted()
                case messages.Failed(code, message, retryable):
                    yield shown.Failed(cast(shown.ErrorCode, code), message, retryable)

    async def control(self, message: Control) -> shown.Receipt:
        """Hand in a control; raise StreamError when it is refused."""
        with _in_wire_terms():
            if not isinstance(message, SessionInteraction):
                receipt = await self._stream.control(_engine_control(message))
                return shown.Receipt(receipt.event_id, receipt.prompt_revision)
            async with self._in_turn:
                prompt = await expanded(self._expander, message.prompt)
                receipt = await self._stream.control(_new_prompt(message, prompt))
        shown_prompt = None if self._expander is None else prompt
        return shown.Receipt(receipt.event_id, receipt.prompt_revision, shown_prompt)

    def played(self, frame_index: int) -> None:
        """Report that a frame was shown."""
        self._stream.played(frame_index)

    async def fork(self, at_chunk: int | None) -> shown.Stream:
        """Begin a second stream here or at an earlier chunk; raise StreamError when refused."""
        with _in_wire_terms(to_chunk="at_chunk"):
            stream = await self._stream.fork(at_chunk)
        return HostedStream(stream, self._client, self._expander, run_unwatched=self._run_unwatched)

    async def snapshot(self) -> bytes:
        """Return the stream as a file."""
        return await asyncio.to_thread(to_bytes, self._stream.record(), self._client.preset.name)

    async def replay(self) -> bytes:
        """Return what was done to the stream, as lines of JSON."""
        return await asyncio.to_thread(to_lines, self._stream.record(), self._client.preset.name)

    async def suspend(self) -> None:
        """Free the session's pages."""
        with _in_wire_terms():
            await self._stream.suspend()

    async def resume(self) -> None:
        """Go on; raise StreamError when there is no room."""
        with _in_wire_terms():
            await self._stream.resume()

    async def close(self) -> None:
        """End the session."""
        with _in_wire_terms():
            await self._stream.close()


def _new_prompt(message: SessionInteraction, prompt: Prompt) -> messages.Control:
    transition = message.transition
    return messages.SetPrompt(
        _engine_prompt(prompt),
        transition.mode,
        transition.chunks,
        transition.curve,
        message.event_id,
    )


def _engine_control(message: SessionUpdate | SessionRewind) -> messages.Control:
    if isinstance(message, SessionRewind):
        return messages.Rewind(message.to_chunk, message.event_id)
    return messages.Update(
        paused=message.paused,
        seed=message.seed,
        steps=message.steps,
        fps=message.fps,
        reset=message.reset,
        event_id=message.event_id,
    )


def _engine_prompt(prompt: Prompt) -> object:
    return prompt if isinstance(prompt, str) else [dataclasses.asdict(part) for part in prompt]


def _engine_entry(entry: ScoreEntry, prompt: Prompt) -> dict[str, Any]:
    fields: dict[str, Any] = {"at_s": entry.at_s, "prompt": _engine_prompt(prompt)}
    if entry.transition is not None:
        transition = entry.transition
        fields["transition"] = transition.mode
        fields |= {"chunks": transition.chunks, "curve": transition.curve}
    return fields


def _wire_prompt(text: Text) -> Prompt:
    mix = text.end if isinstance(text, TextBlend) else text
    if len(mix.parts) == 1:
        return mix.parts[0][0]
    return tuple(WeightedPrompt(part, weight) for part, weight in mix.parts)


@contextmanager
def _in_wire_terms(**params: str) -> Iterator[None]:
    """Turn the engine's errors into the transport's, some fields under other names."""
    try:
        yield
    except StreamgenError as error:
        raise shown.StreamError(
            cast(shown.ErrorCode, error.code),
            error.message,
            retryable=error.retryable,
            param=params.get(error.param or "", error.param),
            retry_after_s=error.retry_after_s,
        ) from error
