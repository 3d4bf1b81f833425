"""A session of an engine, as seen from here: what is asked of it and the values that cross."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from transport.fields import Prompt
from transport.wire import Control, ScoreEntry

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
    """What a new session asks for; None leaves a value to the model.

    `score` is in the order of its times. `priority` is "live" or "batch", which runs in what live
    sessions leave. That `run_unwatched` sessions go on with no viewer is the server's work: it does
    not suspend them; the engine need only keep the flag.
    """

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
    score: Sequence[ScoreEntry] = ()
    priority: str | None = None
    run_unwatched: bool = False


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The values in effect. `window` is in latent frames, None when unlimited.

    A fork has those of the session it came from, at the chunk where it left it.
    """

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
    priority: str = "live"
    run_unwatched: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """Frames generated together, readable until `release` is called.

    They are uint8 RGB [n, H, W, 3] or I420 [n, H * 3/2, W], see transport/pixels.py.

    `pts_s` is the first frame's media time and `generation_s` the wall time from the moment the
    chunk could start to the moment it was there, waiting for back-pressure excluded. The event ids
    are those of the controls that start, go on and complete their effect with this chunk. `prompt`
    is the one in effect: after a blend has begun the new one, after a rewind the old one again.
    Index, frames and time never go back.
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
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """A control was accepted and takes effect with this prompt revision.

    `prompt` is what the host shows for the prompt that was sent, None when that is the same.
    """

    event_id: str
    prompt_revision: int
    prompt: Prompt | None = None


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


@dataclass(frozen=True, slots=True)
class Queued:
    """The stream waits for a place; position 0 is the next to get one.

    The StateChanged to "starting" ends the wait.
    """

    position: int
    estimated_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Overloaded:
    """The engine cannot keep up; `action` is a sentence for viewers. Level 0: it can again."""

    level: int
    action: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The engine's process was replaced, and the stream goes on from its record."""


Event: TypeAlias = StateChanged | Superseded | Rejected | Queued | Overloaded | Restarted | Failed


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

        A pause or its end shows as a StateChanged event at once. Every accepted control is named
        in the `started_event_ids` of one chunk, or in a Superseded or Rejected event. After a
        rewind the chunks made before it are still yielded, and thrown away by whoever plays them.
        """

    def played(self, frame_index: int) -> None:
        """Learn that this frame was played, or thrown away; each frame in order."""

    async def fork(self, at_chunk: int | None) -> Stream:
        """Begin a second stream from here, or from the end of an earlier chunk.

        The new stream has an id of its own; its chunk and frame numbers go on from where it left
        this one. Raises StreamError when it is refused; cancelled, it leaves nothing.
        """

    async def snapshot(self) -> bytes:
        """Return all that `StreamHost.restore` needs to go on from here."""

    async def replay(self) -> bytes:
        """Return the JSON lines from which the whole video can be made again."""

    async def suspend(self) -> None:
        """Free the stream's memory on the device, keep what rebuilding it needs. Idempotent."""

    async def resume(self) -> None:
        """Go on after `suspend`; raise StreamError when there is no room. Idempotent."""

    async def close(self) -> None:
        """End the stream; `chunks` and `events` end too. Idempotent."""
