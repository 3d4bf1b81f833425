"""What goes into the engine and comes out: small frozen values that cross threads and processes.

In: controls. Out: chunks, and events about them. Every prompt and every update is answered twice:
by a `Receipt` when it is accepted, and by `Applied` with the chunk it shows in, or by `Superseded`
when a newer one took its place before any chunk began with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SetPrompt:
    """Show something else from the next chunk on.

    `transition` is "cut", "reset", or None for the preset's. `event_id` names it in all answers;
    one is made up when it is None.
    """

    prompt: object
    transition: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Change settings of a session; None leaves one as it is.

    `paused` acts at once: the chunk in work is finished, no other is begun. `seed`, `steps` and
    `reset` ("cache") act from the next chunk on.
    """

    paused: bool | None = None
    seed: int | None = None
    steps: int | None = None
    fps: int | None = None
    reset: str | None = None
    event_id: str | None = None


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

    `frames` is uint8 `[n, height, width, 3]` RGB, read-only; `latents` float32 `[n, C, h, w]`.
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
    latents: npt.NDArray[np.float32]
    generation_s: float
    started_event_ids: tuple[str, ...] = ()
    active_event_ids: tuple[str, ...] = ()
    completed_event_ids: tuple[str, ...] = ()
    release: Callable[[], None] = keep


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


Event = Applied | Superseded | StateChanged | Failed
