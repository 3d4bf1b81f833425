"""What a client and an engine's worker say to each other: small frozen values that can be pickled.

Commands with a `call` number are answered, once each, by the `Answer` of the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamgen.errors import StreamgenError
from streamgen.measures import Measures
from streamgen.messages import Chunk, Control, Event
from streamgen.record import SessionRecord
from streamgen.session_config import SessionRequest
from streamgen.warm_up import Measured


@dataclass(frozen=True, slots=True)
class Open:
    """Admit a session; answered with Opened."""

    call: int
    request: SessionRequest


@dataclass(frozen=True, slots=True)
class Restore:
    """Go on with a session from its record, under its old id or a new one; answered with Opened.

    `state` is the one that it had at an engine that is gone; one that is new has no place yet.
    """

    call: int
    record: SessionRecord
    session_id: str | None = None
    state: str = "queued"


@dataclass(frozen=True, slots=True)
class Fork:
    """Let a second session begin at the end of a chunk, by default the newest; with Opened."""

    call: int
    session_id: str
    at_chunk: int | None


@dataclass(frozen=True, slots=True)
class Apply:
    """Hand a control to a session; answered with its Receipt."""

    call: int
    session_id: str
    control: Control


@dataclass(frozen=True, slots=True)
class Change:
    """Suspend, resume or close a session; answered with None."""

    call: int
    session_id: str
    action: Literal["suspend", "resume", "close"]


@dataclass(frozen=True, slots=True)
class Played:
    """A frame was shown."""

    session_id: str
    frame_index: int


@dataclass(frozen=True, slots=True)
class Release:
    """A slot of the frame ring may be written again."""

    slot: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for a sign of life, which a worker gives between two passes."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Look again: a decode is done, or the worker is to stop."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the worker, whatever it is doing."""


Admitting = Open | Restore | Fork
Call = Admitting | Apply | Change
Command = Call | Played | Release | Ping | Wake | Shutdown


@dataclass(frozen=True, slots=True)
class Opened:
    """A session was admitted; `record` is what it begins with."""

    session_id: str
    record: SessionRecord
    state: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call, or the error it raised."""

    call: int
    result: object
    error: StreamgenError | None = None


@dataclass(frozen=True, slots=True)
class Pong:
    """A sign of life."""


@dataclass(frozen=True, slots=True)
class Stage:
    """How far the start-up is, 0 to 1; "ready" is the last stage."""

    stage: str
    progress: float
    measured: Measured | None = None  # when ready


@dataclass(frozen=True, slots=True)
class Load:
    """How much room there is, and how the device fares."""

    sessions_free: int
    pages_free: int
    queue_length: int = 0
    overload: int = 0  # level of the ladder
    utilisation: float = 0.0  # of the device's time, to a hundredth
    pages: int = 0  # of the cache


@dataclass(frozen=True, slots=True)
class Sent:
    """Something for a session. A chunk whose frames lie in the ring comes with slot and shape."""

    session_id: str
    item: Chunk | Event
    slot: int | None = None
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker has ended, by itself when there is an error. Nothing follows."""

    error: StreamgenError | None


Reply = Answer | Pong | Stage | Load | Measures | Sent | Stopped
