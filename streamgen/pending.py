"""Controls that were accepted and that no chunk has begun with; the newest of a kind wins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from streamgen import limits
from streamgen.errors import Conflict, InvalidRequest
from streamgen.messages import Control, Rewind, SetPrompt, Update
from streamgen.models.presets import Preset
from streamgen.record import ChunkRecord
from streamgen.text import TextBlend, TextMix


@dataclass(frozen=True, slots=True)
class NewPrompt:
    """A change of prompt, checked: what it says, and how and over how many chunks it takes over."""

    control: SetPrompt  # with its event's name
    text: TextMix
    transition: str
    num_chunks: int
    curve: str
    due_from: float  # accepted, and its text is encoded


@dataclass(slots=True)
class Pending:
    """One place for each kind of control. An update is here as often as it has a say.

    A prompt that `is_held` is not encoded yet, and chunks begin without it; one that `is_exact` is
    a script's, and its chunk waits for it.
    """

    rewind: Rewind | None = None
    is_rewound: bool = False  # done; the next chunk answers it
    prompt: NewPrompt | None = None
    is_held: bool = False
    is_exact: bool = False
    seed: Update | None = None
    steps: Update | None = None
    fps: Update | None = None
    reset: Update | None = None
    paused: Update | None = None  # it acted at once, and is answered with the next chunk

    def put(self, update: Update) -> None:
        """Let an update take the place of earlier ones, field by field."""
        for name in ("seed", "steps", "fps", "reset", "paused"):
            if getattr(update, name) is not None:
                setattr(self, name, update)

    def require_new(self, event_id: str | None) -> None:
        """Raise Conflict for an id that would not tell a control from one that waits already."""
        if event_id in self.event_ids():
            raise Conflict(
                f"event_id {event_id!r} names a control that has not begun yet; give each its own",
                param="event_id",
            )

    def event_ids(self) -> set[str]:
        """Return the events that still have a say."""
        return {c.event_id for c in self.controls() if c.event_id is not None}

    def controls(self) -> Iterator[Control]:
        """Yield what each control still has a say in; given again in this order, all is the same.

        A rewind comes first: what was pending before it, it has replaced.
        """
        if self.rewind is not None:
            yield self.rewind
        if self.prompt is not None:
            yield self.prompt.control
        left: dict[int, Update] = {}
        for name in ("seed", "steps", "fps", "reset", "paused"):
            update = getattr(self, name)
            if update is not None:
                part = left.get(id(update), Update(event_id=update.event_id))
                left[id(update)] = dataclasses.replace(part, **{name: getattr(update, name)})
        yield from left.values()

    @property
    def due_prompt(self) -> NewPrompt | None:
        """Return the prompt that the next chunk begins with."""
        return None if self.is_held else self.prompt

    def pace_after(self, steps: int, fps: int, chunks: Iterable[ChunkRecord]) -> tuple[int, int]:
        """Return the steps and frames a second that are in effect once all this acts.

        `chunks` are those that can be gone back to.
        """
        if self.rewind is not None and not self.is_rewound:
            for chunk in chunks:
                if chunk.index == self.rewind.to_chunk:
                    steps, fps = chunk.steps, chunk.fps
        if self.steps is not None:
            steps = self.steps.steps or steps
        if self.fps is not None:
            fps = self.fps.fps or fps
        return steps, fps

    def split(self) -> tuple[Pending, Pending]:
        """Return what the next chunk takes, and what it leaves."""
        if not self.is_held:
            return self, Pending()
        return dataclasses.replace(self, prompt=None), Pending(prompt=self.prompt, is_held=True)

    @property
    def is_reset(self) -> bool:
        """Return whether the next chunk begins with an empty cache."""
        by_prompt = self.prompt is not None and self.prompt.transition == "reset"
        return self.reset is not None or by_prompt


@dataclass(frozen=True, slots=True)
class Blend:
    """A change of prompt that takes several chunks."""

    start: TextMix
    change: NewPrompt
    num_done: int = 0

    @property
    def event_id(self) -> str:
        """Return the event that asked for it."""
        assert self.change.control.event_id is not None
        return self.change.control.event_id

    @property
    def is_done(self) -> bool:
        """Return whether the new prompt stands alone."""
        return self.num_done >= self.change.num_chunks

    @property
    def text(self) -> TextMix | TextBlend:
        """Return what the chunk in work shows."""
        if self.is_done:
            return self.change.text
        at = self.num_done / self.change.num_chunks
        return TextBlend(self.start, self.change.text, at, self.change.curve)


def check_update(control: Update, preset: Preset) -> None:
    """Raise InvalidRequest unless an update names something, and only what can be."""
    if control == Update(event_id=control.event_id):
        raise InvalidRequest("the update names nothing to change")
    if control.seed is not None:
        limits.check_seed(control.seed)
    if control.steps is not None:
        limits.check_steps(control.steps, preset.step_range, "steps")
    if control.fps is not None:
        limits.check_fps(control.fps)
    if control.reset not in (None, "cache", "all"):
        raise InvalidRequest(f"reset {control.reset!r} is not cache or all", param="reset")
