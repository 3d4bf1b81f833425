"""The messages a server sends, and how they are written. Does no I/O.

Each dataclass mirrors one JSON object; fields that are None are left out.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from transport.fields import ProtocolError
from transport.stream import ErrorCode, StreamError
from transport.wire import PromptField


@dataclass(frozen=True, slots=True)
class VideoStart:
    """The session runs; `config` holds the values in effect. A watcher gets no tokens."""

    type: ClassVar[str] = "video.start"

    request_id: str
    session_id: str
    format: str
    config: Mapping[str, Any]
    resume_token: str | None = None
    viewer_token: str | None = None


@dataclass(frozen=True, slots=True)
class SessionState:
    """The session's state changed."""

    type: ClassVar[str] = "session.state"

    state: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SessionQueued:
    """The session waits for a place; position 0 is the next to get one."""

    type: ClassVar[str] = "session.queued"

    position: int
    estimated_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class SessionOverload:
    """The server cannot keep up, and `action` says what is traded; level 0 says it is over."""

    type: ClassVar[str] = "session.overload"

    level: int
    action: str


@dataclass(frozen=True, slots=True)
class WorkerRestarted:
    """The engine was replaced; the session goes on."""

    type: ClassVar[str] = "session.worker_restarted"


@dataclass(frozen=True, slots=True)
class SessionForked:
    """A second session began; its tokens are for who asked for it."""

    type: ClassVar[str] = "session.forked"

    session_id: str
    viewer_token: str
    resume_token: str
    urls: Mapping[str, str]
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkMetadata:
    """A chunk, or of a video format a frame, begins to be played.

    `prompt` is there when it is another than before, `byte_length` when one message of so many
    bytes follows.
    """

    type: ClassVar[str] = "video.chunk_metadata"

    request_id: str
    kind: str
    generation_chunk_index: int
    transport_chunk_index: int
    num_frames: int
    first_frame_index: int
    pts_ms: float
    prompt_revision: int
    seed: int
    started_event_ids: Sequence[str]
    active_event_ids: Sequence[str]
    completed_event_ids: Sequence[str]
    prompt: PromptField | None = None
    byte_length: int | None = None


@dataclass(frozen=True, slots=True)
class InteractionQueued:
    """A control was accepted."""

    type: ClassVar[str] = "session.interaction.queued"

    event_id: str
    prompt_revision: int


@dataclass(frozen=True, slots=True)
class InteractionApplied:
    """The first frame that obeys a control was sent."""

    type: ClassVar[str] = "session.interaction.applied"

    event_id: str
    prompt_revision: int
    chunk_index: int
    frame_index: int
    pts_ms: float


@dataclass(frozen=True, slots=True)
class InteractionSuperseded:
    """A newer control took an accepted one's place before it was applied."""

    type: ClassVar[str] = "session.interaction.superseded"

    event_id: str


@dataclass(frozen=True, slots=True)
class InteractionRejected:
    """An accepted control failed."""

    type: ClassVar[str] = "session.interaction.rejected"

    event_id: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SessionStats:
    """How the session fares; once a second. `dropped` counts this viewer's skipped frames.

    95 of 100 frames left at most `jitter_ms` late; video may take `bitrate` bits a second.
    """

    type: ClassVar[str] = "session.stats"

    fps: float
    lead_ms: float
    bitrate: int
    underruns: int
    dropped: int
    level: Mapping[str, Any]
    chunk_ms_p50: float | None = None
    chunk_ms_p95: float | None = None
    control_to_frame_ms: float | None = None
    jitter_ms: float | None = None


@dataclass(frozen=True, slots=True)
class SessionPong:
    """Answer to a ping."""

    type: ClassVar[str] = "session.pong"


@dataclass(frozen=True, slots=True)
class SessionDone:
    """The session ended: `stopped` early, or after the frames that were asked for."""

    type: ClassVar[str] = "session.done"

    chunks: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class Error:
    """Something went wrong; unless a close follows, the stream goes on."""

    type: ClassVar[str] = "error"

    code: str
    message: str
    retryable: bool
    param: str | None = None
    event_id: str | None = None
    retry_after_s: float | None = None


ServerMessage: TypeAlias = (
    VideoStart
    | SessionState
    | SessionQueued
    | SessionOverload
    | WorkerRestarted
    | SessionForked
    | ChunkMetadata
    | InteractionQueued
    | InteractionApplied
    | InteractionSuperseded
    | InteractionRejected
    | SessionStats
    | SessionPong
    | SessionDone
    | Error
)
SERVER_MESSAGES: Final[Mapping[str, type[ServerMessage]]] = {
    message.type: message for message in typing.get_args(ServerMessage)
}


class CloseCode(enum.IntEnum):
    """How a realtime socket is closed. 1007 is sent by the WebSocket layer itself."""

    DONE = 1000
    WRONG_FRAME_TYPE = 1003
    NOT_ALLOWED = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    RESTARTING = 1012
    FULL = 1013
    IDLE = 4000
    TOO_LONG = 4001
    TOO_SLOW = 4002


_CLOSE_CODES: Final[Mapping[ErrorCode, CloseCode]] = {
    "unauthorized": CloseCode.NOT_ALLOWED,
    "not_found": CloseCode.NOT_ALLOWED,
    "worker_restarted": CloseCode.RESTARTING,
    "capacity": CloseCode.FULL,
    "model_not_ready": CloseCode.FULL,
    "timeout_idle": CloseCode.IDLE,
    "timeout_max_duration": CloseCode.TOO_LONG,
    "input_too_slow": CloseCode.TOO_SLOW,
}


def close_code(error: StreamError) -> CloseCode:
    """Return the code with which a connection is closed that ends with this error."""
    return _CLOSE_CODES.get(error.code, CloseCode.INTERNAL)


def from_error(error: ProtocolError | StreamError, event_id: str | None = None) -> Error:
    """Return the message that tells a client of an error."""
    if isinstance(error, ProtocolError):
        return Error(error.code, error.message, False, error.param, event_id or error.event_id)
    return Error(
        error.code, error.message, error.retryable, error.param, event_id, error.retry_after_s
    )


def to_object(message: ServerMessage) -> dict[str, Any]:
    """Return the JSON object of a message."""
    values = dataclasses.asdict(message)
    return {"type": message.type, **{name: v for name, v in values.items() if v is not None}}


def encode(message: ServerMessage) -> str:
    """Write a message as compact JSON."""
    return json.dumps(
        to_object(message), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
