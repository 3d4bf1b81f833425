"""What this package plays: the protocols an engine fits, and the values that cross."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from transport.fields import Prompt
from transport.wire import Control

ErrorCode: TypeAlias = Literal[
    "invalid_request",
    "unsupported",
    "unauthorized",
    "not_found",
    "conflict",
    "capacity",
    "model_not_ready",
    "out_of_memory",
    "worker_restarted",
    "timeout_idle",
    "timeout_max_duration",
    "input_too_slow",
    "encoder_failed",
    "internal",
]
State: TypeAlias = Literal[
    "queued", "starting", "running", "paused", "suspended", "closed", "failed"
]


class StreamError(Exception):
    """A request that a host or stream refuses, in the protocol's terms."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        retryable: bool = False,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message = message
        self.retryable = retryable
        self.param = param
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What a new session asks for; None leaves a value to the model."""

    prompt: Prompt
    model: str | None = None
    width: int | None = None
    height: int | None = None
    fps: int | None = None
    seed: int | None = None
    num_frames: int | None = None
    num_inference_steps: int | None = None
    window: int | None = None
    sink: int | None = None


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The values in effect. `window` is in latent frames, None when unlimited."""

    prompt: Prompt
    model: str
    width: int
    height: int
    fps: float
    seed: int
    num_inference_steps: int
    chunk_frames: int
    window: int | None = None
    sink: int = 0
    num_frames: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Frames generated together, uint8 RGB [n, H, W, 3], readable until `release` is called.

    `pts_s` is the first frame's media time and `generation_s` the wall time from the moment the
    chunk could start to the moment it was there, waiting for back-pressure excluded. The event ids
    are those of the controls that start, go on and complete their effect with this chunk.
    """

    index: int
    first_frame_index: int
    pts_s: float
    fps: float
    prompt_revision: int
    seed: int
    frames: NDArray[np.uint8]
    generation_s: float
    release: Callable[[], None]
    started_event_ids: Sequence[str] = ()
    active_event_ids: Sequence[str] = ()
    completed_event_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """A control was accepted and takes effect with this prompt revision."""

    event_id: str
    prompt_revision: int


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The stream's state changed."""

    state: State
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer control took an accepted one's place before it had any effect."""

    event_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """An accepted control failed; the earlier one stays in effect."""

    event_id: str
    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream ended with an error."""

    code: ErrorCode
    message: str
    retryable: bool = False


Event: TypeAlias = StateChanged | Superseded | Rejected | Failed


class Stream(Protocol):
    """One session of an engine, played by one Broadcast."""

    @property
    def id(self) -> str: ...
    @property
    def config(self) -> StreamConfig: ...
    @property
    def state(self) -> State: ...

    def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the chunks, numbered without gaps across suspensions, until the stream ends.

        A new chunk is started only while the frames generated but not played are at most one chunk
        and two. With `num_frames` the last chunk is cut so that exactly so many are delivered.
        """

    def events(self) -> AsyncIterator[Event]:
        """Yield what happens to the stream, until it ends."""

    async def control(self, message: Control) -> Receipt:
        """Accept a control (its `event_id` is set); raise StreamError when it is refused.

        A pause or its end shows as a StateChanged event at once.
        """

    def played(self, frame_index: int) -> None:
        """Learn that this frame was played."""

    async def suspend(self) -> None:
        """Free the stream's memory on the device, keep what rebuilding it needs. Idempotent."""

    async def resume(self) -> None:
        """Go on after `suspend`; raise StreamError when there is no room. Idempotent."""

    async def close(self) -> None:
        """End the stream; `chunks` and `events` end too. Idempotent."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model as `/v1/models` lists it; `details` is JSON beyond the fields named here."""

    id: str
    width: int
    height: int
    fps: float
    chunk_frames: int
    suggestions: Sequence[str] = ()
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class HostStats:
    """How the engine fares. `stage` and `progress` (0 to 1) describe the warm-up."""

    alive: bool
    ready: bool
    stage: str
    progress: float
    sessions_free: int
    pages_free: int
    models: Sequence[ModelInfo]


class StreamHost(Protocol):
    """An engine."""

    async def open(self, config: SessionConfig) -> Stream:
        """Admit a session; raise StreamError when it is refused. Cancelled, it leaves nothing."""

    def stats(self) -> HostStats:
        """Return the latest figures without waiting."""
