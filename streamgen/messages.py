"""What goes into the engine and comes out: small frozen values that cross threads and processes.

In: controls. Out: chunks, and events about them. Every prompt and every update is answered twice:
by a `Receipt` when it is accepted, and by `Applied` with the chunk it shows in, or by `Superseded`
when a newer one took its place before any chunk began with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from streamgen.record import ChunkRecord


@dataclass(frozen=True, slots=True)
class SetPrompt:
    """Show something else from the next chunk on.

    `prompt` is a text, or a list of texts with weights. `transition` is "cut", "blend", "recache",
    "reset", or None for the preset's; a blend takes `blend_chunks` along `blend_curve` ("lerp" or
    "slerp"). `event_id` names it in all answers; one is made up when it is None.
    """

    prompt: object
    transition: str | None = None
    blend_chunks: int | None = None
    blend_curve: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Change settings of a session; None leaves one as it is.

    `paused` acts at once: the chunk in work is finished, no other is begun. `seed`, `steps`, `fps`
    and `reset` ("cache") act from the next chunk on.
    """

    paused: bool | None = None
    seed: int | None = None
    steps: int | None = None
    fps: int | None = None
    reset: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Rewind:
    """Go on from the end of an earlier chunk, as if nothing had come after it.

    Prompt, seed and steps are those of that chunk again; numbers on the wire go on.
    """

    to_chunk: int
    event_id: str | None = None


Control = SetPrompt | Update | Rewind


@dataclass(frozen=True, slots=True)
class Receipt:
    """Acknowledge a control. `prompt_revision` is the newest accepted revision; the first is 0."""

    event_id: str
    prompt_revision: int


def keep() -> None:
    """Do nothing: frames in memory of their own need no release."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The frames made together, all under one prompt revision and seed.

    `frames` is uint8 and read-only: RGB `[n, height, width, 3]`, or I420 `[n, height * 3/2, width]`
    where the engine was told so; `record` is what makes the chunk again.
    Chunk and frame numbers and `pts_s` never go back, whatever is reset. `generation_s` counts from
    when the chunk could begin to when its frames were there. The three lists name the controls that
    begin with this chunk, are under way in it and are complete after it. `frames` may lie in memory
    that another process will write again: they are valid until `release` is called.
    """

    index: int
    first_frame_index: int
    pts_s: float  # media time of the first frame
    fps: int
    prompt_revision: int
    seed: int
    frames: npt.NDArray[np.uint8]
    record: ChunkRecord
    generation_s: float
    started_event_ids: tuple[str, ...] = ()
    active_event_ids: tuple[str, ...] = ()
    completed_event_ids: tuple[str, ...] = ()
    overload: int = 0  # level of the ladder it was made under
    release: Callable[[], None] = keep

    @property
    def latents(self) -> npt.NDArray[np.float32]:
        """Return the clean latents, float32 `[n, C, h, w]`."""
        return self.record.latents


@dataclass(frozen=True, slots=True)
class Applied:
    """A control shows from this chunk and frame on."""

    event_id: str
    prompt_revision: int
    chunk_index: int
    frame_index: int
    pts_s: float


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer control took this one's place before it could show."""

    event_id: str


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The session's state is another one now; `reason` says why where that is not plain."""

    state: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The session ended with an error: `code` of the wire protocol and a sentence."""

    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Queued:
    """The session waits for a place; `position` 0 is the next to get one."""

    position: int
    estimated_wait_s: float | None


@dataclass(frozen=True, slots=True)
class Overloaded:
    """The device cannot keep up, and this is what is traded for it; level 0 says it is over."""

    level: int
    action: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The engine's process was replaced; the session goes on from its record."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A control that was accepted could not be done; what was before stays in effect."""

    event_id: str
    code: str
    message: str


Event = Applied | Superseded | Rejected | StateChanged | Queued | Overloaded | Restarted | Failed
