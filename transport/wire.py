"""The messages a client sends, and how they are read. Does no I/O.

Each dataclass mirrors one JSON object. Reading is strict: unknown fields, duplicate keys, NaN,
wrong types and absurd values are errors, and never anything but ProtocolError. In an optional field
null is the same as leaving it out.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from transport.fields import (
    Choice,
    Flag,
    Integer,
    Later,
    Number,
    Prompt,
    PromptText,
    ProtocolError,
    Size,
    Text,
    show,
)
from transport.objects import Items, build, read_object

MAX_FIRST_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MAX_MESSAGE_BYTES: Final = 64 * 1024
MAX_SIDE: Final = 16_384  # pixels; a model's own limit is far lower
MAX_COUNT: Final = 2**31 - 1
UNLIMITED: Final = -1  # a window that keeps every frame

MAX_EVENT_ID_CHARACTERS: Final = 128
MAX_SCORE_ENTRIES: Final = 256

EventId = Annotated[str, Text(MAX_EVENT_ID_CHARACTERS)]
Token = Annotated[str, Text(256)]
PromptField = Annotated[Prompt, PromptText()]
Side = Annotated[int, Integer(1, MAX_SIDE)]
FrameRate = Annotated[int, Integer(1, 60)]
Seed = Annotated[int, Integer(0, 2**32 - 1)]
Steps = Annotated[int, Integer(1, 1000)]
Count = Annotated[int, Integer(1, MAX_COUNT)]
ChunkIndex = Annotated[int, Integer(0, MAX_COUNT)]
Format = Annotated[str, Choice(("jpeg", "raw", "h264", "m4s", "none"))]
Switch = Annotated[bool, Flag()]
NotYet = Annotated[None, Later()]


@dataclass(frozen=True, slots=True)
class Transition:
    """How a new prompt takes over; None leaves it to the model."""

    mode: Annotated[str, Choice(("cut", "blend", "recache", "reset"))] | None = None
    chunks: Annotated[int, Integer(1, 1000)] | None = None
    curve: Annotated[str, Choice(("lerp", "slerp"))] | None = None


@dataclass(frozen=True, slots=True)
class ScoreEntry:
    """A prompt that takes over at a time of the video, counted from its start."""

    at_s: Annotated[float, Number(above=0.0)]
    prompt: PromptField
    transition: Transition | None = None


@dataclass(frozen=True, slots=True)
class SessionStart:
    """Create a session and watch it. The engine judges what its model can do."""

    type: ClassVar[str] = "session.start"

    prompt: PromptField
    model: Annotated[str, Text(200)] | None = None
    format: Format | None = None
    width: Side | None = None
    height: Side | None = None
    size: Annotated[tuple[int, int], Size(MAX_SIDE)] | None = None
    fps: FrameRate | None = None
    seed: Seed | None = None
    num_frames: Count | None = None
    num_inference_steps: Steps | None = None
    window: Annotated[int, Integer(UNLIMITED, MAX_COUNT)] | None = None
    sink: Annotated[int, Integer(0, MAX_COUNT)] | None = None
    acks: Switch | None = None
    score: Annotated[tuple[ScoreEntry, ...], Items(ScoreEntry, 1, MAX_SCORE_ENTRIES)] | None = None
    priority: Annotated[str, Choice(("live", "batch"))] | None = None
    run_unwatched: Switch | None = None
    streaming_buffer_seconds: NotYet = None
    image_reference: NotYet = None
    extra_params: NotYet = None

    def __post_init__(self) -> None:
        if (self.width is None) != (self.height is None):
            missing = "width" if self.width is None else "height"
            raise ProtocolError("width and height go together", param=missing)
        if self.size and self.width is not None and self.size != (self.width, self.height):
            raise ProtocolError("size contradicts width and height", param="size")
        for i, (entry, after) in enumerate(pairwise(self.score or ()), start=1):
            if after.at_s <= entry.at_s:
                where = (
                    f"score[{i}] at {after.at_s:g} s is not after the {entry.at_s:g} s before it"
                )
                message = f"{where}; write the score in the order of its times"
                raise ProtocolError(message, param="score")

    @property
    def dimensions(self) -> tuple[int, int] | tuple[None, None]:
        """Width and height in pixels, however they were given."""
        if self.width is not None and self.height is not None:
            return self.width, self.height
        return self.size or (None, None)


@dataclass(frozen=True, slots=True)
class SessionView:
    """Watch a session; the first message on a view socket."""

    type: ClassVar[str] = "session.view"

    viewer_token: Token
    format: Format | None = None
    acks: Switch | None = None


@dataclass(frozen=True, slots=True)
class SessionResume:
    """Watch and control a session again; what is left out is as `session.start` had it."""

    type: ClassVar[str] = "session.resume"

    resume_token: Token
    format: Format | None = None
    acks: Switch | None = None


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """The new prompt."""

    prompt: PromptField


@dataclass(frozen=True, slots=True)
class Interaction:
    """A change of prompt."""

    event: PromptEvent
    event_id: EventId | None = None
    transition: Transition | None = None
    transition_chunks: Annotated[int, Integer(1, 1000)] | None = None


@dataclass(frozen=True, slots=True)
class SessionInteraction:
    """Change the prompt."""

    type: ClassVar[str] = "session.interaction"

    interaction: Interaction

    @property
    def event_id(self) -> str | None:
        """The client's name for this change."""
        return self.interaction.event_id

    @property
    def prompt(self) -> Prompt:
        """The new prompt."""
        return self.interaction.event.prompt

    @property
    def transition(self) -> Transition:
        """How the prompt takes over; `transition_chunks` is another way to say `chunks`."""
        transition = self.interaction.transition or Transition()
        if transition.chunks is None:
            return dataclasses.replace(transition, chunks=self.interaction.transition_chunks)
        return transition


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """Change how the session runs."""

    type: ClassVar[str] = "session.update"

    event_id: EventId | None = None
    paused: Switch | None = None
    seed: Seed | None = None
    steps: Steps | None = None
    fps: FrameRate | None = None
    reset: Annotated[str, Choice(("cache", "all"))] | None = None

    def __post_init__(self) -> None:
        if all(v is None for v in (self.paused, self.seed, self.steps, self.fps, self.reset)):
            raise ProtocolError("session.update names nothing to change")


@dataclass(frozen=True, slots=True)
class SessionRewind:
    """Go on from the end of an earlier chunk, as if nothing had come after it."""

    type: ClassVar[str] = "session.rewind"

    to_chunk: ChunkIndex
    event_id: EventId | None = None


@dataclass(frozen=True, slots=True)
class SessionFork:
    """Let a second session begin where this one is, or was at the end of `at_chunk`."""

    type: ClassVar[str] = "session.fork"

    at_chunk: ChunkIndex | None = None
    event_id: EventId | None = None


@dataclass(frozen=True, slots=True)
class SessionAck:
    """Acknowledge this frame and all before it."""

    type: ClassVar[str] = "session.ack"

    frame_index: Annotated[int, Integer(0, 2**32 - 1)]
    displayed_at_ms: Annotated[float, Number()] | None = None


@dataclass(frozen=True, slots=True)
class SessionPing:
    """Ask for a `session.pong`."""

    type: ClassVar[str] = "session.ping"


@dataclass(frozen=True, slots=True)
class SessionStop:
    """End the session."""

    type: ClassVar[str] = "session.stop"


Control: TypeAlias = SessionInteraction | SessionUpdate | SessionRewind
ClientMessage: TypeAlias = (
    SessionStart
    | SessionView
    | SessionResume
    | SessionInteraction
    | SessionUpdate
    | SessionRewind
    | SessionFork
    | SessionAck
    | SessionPing
    | SessionStop
)
CLIENT_MESSAGES: Final[Mapping[str, type[ClientMessage]]] = {
    message.type: message for message in typing.get_args(ClientMessage)
}
LATER_MESSAGES: Final = ("session.playback",)


def parse(text: str | bytes, *, default_type: str | None = None) -> ClientMessage:
    """Read one client message; raise ProtocolError, and nothing else, when it is not legal."""
    data = read_object(text)
    kind = data.pop("type", default_type)
    if not isinstance(kind, str):
        raise ProtocolError("a message must have a string field type", param="type")
    if kind in LATER_MESSAGES:
        raise ProtocolError(f"{kind} is not supported by this server", code="unsupported")
    if kind not in CLIENT_MESSAGES:
        raise ProtocolError(f"no message has the type {show(kind)}", param="type")
    try:
        return build(CLIENT_MESSAGES[kind], data)
    except ProtocolError as error:
        error.event_id = _event_id(data)
        raise


def with_event_id(message: Control, event_id: str) -> Control:
    """Return the message under a name, which the client may have left out."""
    if not isinstance(message, SessionInteraction):
        return dataclasses.replace(message, event_id=event_id)
    named = dataclasses.replace(message.interaction, event_id=event_id)
    return SessionInteraction(named)


def _event_id(data: Mapping[str, Any]) -> str | None:
    """Find the name of a message that could not be read, so that its error can say it."""
    interaction = data.get("interaction")
    holder = interaction if isinstance(interaction, dict) else data
    try:
        return Text(MAX_EVENT_ID_CHARACTERS).parse(holder.get("event_id"), "event_id")
    except ProtocolError:
        return None
