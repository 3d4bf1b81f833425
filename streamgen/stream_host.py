"""The engine as what `transport` plays: its protocols over `EngineClient`, term by term.

Only the server imports this; the engine itself knows no transport and no wire message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import cast

from streamgen import messages
from streamgen.engine_client import EngineClient
from streamgen.engine_stream import EngineStream
from streamgen.errors import StreamgenError, Unsupported
from streamgen.limits import check_prompt
from streamgen.session_config import SessionRequest
from transport import stream as played
from transport.wire import Control, SessionInteraction


class EngineHost:
    """A `StreamHost` over an engine's client."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def open(self, config: played.SessionConfig) -> played.Stream:
        """Admit a session; raise StreamError when it is refused."""
        preset = self._client.preset
        with _in_wire_terms():
            if config.model not in (None, preset.name):
                raise Unsupported(
                    f"model {config.model!r}: this server serves {preset.name}", param="model"
                )
            request = SessionRequest(
                prompt=config.prompt,
                seed=config.seed,
                width=config.width,
                height=config.height,
                fps=config.fps,
                steps=config.num_inference_steps,
                window=config.window,
                sink=config.sink,
                num_frames=config.num_frames,
            )
            return HostedStream(await self._client.open(request), self._client)

    def stats(self) -> played.HostStats:
        """Return the latest figures without waiting."""
        stats, preset, config = self._client.stats(), self._client.preset, self._client.config
        assert config.size is not None
        assert config.fps is not None
        model = played.ModelInfo(
            id=preset.name,
            width=config.size[0],
            height=config.size[1],
            fps=config.fps,
            chunk_frames=preset.chunks.chunk_frames * preset.chunks.temporal_factor,
            suggestions=preset.suggestions,
        )
        return played.HostStats(
            alive=stats.alive,
            ready=stats.ready,
            stage=stats.stage,
            progress=stats.progress,
            sessions_free=stats.sessions_free,
            pages_free=stats.pages_free,
            models=(model,),
        )


class HostedStream:
    """A `Stream` over an engine's stream."""

    def __init__(self, stream: EngineStream, client: EngineClient) -> None:
        self._stream = stream
        config, preset = stream.config, client.preset
        self.id = stream.id
        self.config = played.StreamConfig(
            prompt=config.prompt,
            model=preset.name,
            width=config.width,
            height=config.height,
            fps=config.fps,
            seed=config.seed,
            num_inference_steps=config.steps,
            chunk_frames=preset.chunks.chunk_frames * preset.chunks.temporal_factor,
            window=config.window.window_frames,
            sink=config.window.sink_frames,
            num_frames=config.num_frames,
        )

    @property
    def state(self) -> played.State:
        """Return the session's state."""
        return cast(played.State, self._stream.state)

    async def chunks(self) -> AsyncIterator[played.Chunk]:
        """Yield the chunks until the session ends."""
        async for chunk in self._stream.chunks():
            yield played.Chunk(
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
            )

    async def events(self) -> AsyncIterator[played.Event]:
        """Yield what happens to the session; that a control applies is told by its chunk."""
        async for event in self._stream.events():
            match event:
                case messages.StateChanged(state, reason):
                    yield played.StateChanged(cast(played.State, state), reason)
                case messages.Superseded(event_id):
                    yield played.Superseded(event_id)
                case messages.Failed(code, message, retryable):
                    yield played.Failed(cast(played.ErrorCode, code), message, retryable)

    async def control(self, message: Control) -> played.Receipt:
        """Hand in a control; raise StreamError when it is refused."""
        with _in_wire_terms():
            receipt = await self._stream.control(_engine_control(message))
        self.config = _updated(self.config, message)
        return played.Receipt(receipt.event_id, receipt.prompt_revision)

    def played(self, frame_index: int) -> None:
        """Report that a frame was shown."""
        self._stream.played(frame_index)

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


def _updated(config: played.StreamConfig, message: Control) -> played.StreamConfig:
    """Return the settings in effect once an accepted control applies."""
    if isinstance(message, SessionInteraction):
        return dataclasses.replace(config, prompt=message.prompt)
    seed = config.seed if message.seed is None else message.seed
    steps = config.num_inference_steps if message.steps is None else message.steps
    return dataclasses.replace(config, seed=seed, num_inference_steps=steps)


def _engine_control(message: Control) -> messages.SetPrompt | messages.Update:
    if not isinstance(message, SessionInteraction):
        return messages.Update(
            paused=message.paused,
            seed=message.seed,
            steps=message.steps,
            fps=message.fps,
            reset=message.reset,
            event_id=message.event_id,
        )
    transition = message.transition
    if transition.curve is not None or transition.chunks not in (None, 1):
        check_prompt(message.prompt)  # what is wrong in itself is said first
        raise Unsupported(
            "a transition over several chunks or along a curve is not offered; use cut or reset",
            param="transition",
        )
    return messages.SetPrompt(message.prompt, transition.mode, message.event_id)


@contextmanager
def _in_wire_terms() -> Iterator[None]:
    """Turn the engine's errors into the transport's; the codes are the same."""
    try:
        yield
    except StreamgenError as error:
        raise played.StreamError(
            cast(played.ErrorCode, error.code),
            error.message,
            retryable=error.retryable,
            param=error.param,
            retry_after_s=error.retry_after_s,
        ) from error
