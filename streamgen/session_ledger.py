"""A session's record as its client keeps it, so that the engine's process can be replaced.

It is kept true by what passes by: chunks with their records, receipts, and events about controls.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass

from streamgen import limits
from streamgen.history import History
from streamgen.messages import (
    Chunk,
    Control,
    Event,
    Receipt,
    Rejected,
    Rewind,
    SetPrompt,
    StateChanged,
    Superseded,
    Update,
)
from streamgen.record import ChunkRecord, LogEntry, SessionRecord
from streamgen.text import TextBlend, TextMix, as_mix


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the next chunk, beside its past."""

    text: TextMix
    seed: int
    steps: int
    fps: int


class SessionLedger:
    """Keep the record of one session, from the one that it was opened with on.

    `history_seconds` are those of video to keep beyond the window, as the engine does.
    """

    def __init__(self, record: SessionRecord, history_seconds: float) -> None:
        self._history = History(record.config.window, history_seconds, record.chunks)
        self._pending: list[Control] = list(record.pending)
        self._log: list[LogEntry] = list(record.log)
        self._script = deque(record.script)
        self._blend: SetPrompt | None = None  # under way
        self._is_suspended = False
        self._rest = dataclasses.replace(record, chunks=(), pending=(), log=(), script=())

    def record(self) -> SessionRecord:
        """Return the session as it is after the newest chunk that came.

        A blend that is under way is pending, with the chunks that it has left.
        """
        blend = () if self._blend is None else (self._blend,)
        return dataclasses.replace(
            self._rest,
            chunks=tuple(self._history),
            pending=(*blend, *self._pending),
            log=tuple(self._log),
            script=tuple(self._script),
        )

    def settings(self) -> Settings:
        """Return what is in effect once all that was accepted has begun to act."""
        rest, text = self._rest, self._rest.text
        if self._blend is not None:
            text = limits.check_prompt(self._blend.prompt)
        settings = Settings(text, rest.seed, rest.steps, rest.fps)
        for control in self._pending:
            settings = self._with(settings, control)
        return settings

    def _with(self, settings: Settings, control: Control) -> Settings:
        if isinstance(control, SetPrompt):
            return dataclasses.replace(settings, text=limits.check_prompt(control.prompt))
        if isinstance(control, Rewind):
            kept = (chunk for chunk in self._history if chunk.index == control.to_chunk)
            chunk = next(kept, None)
            if chunk is None:
                return settings
            return Settings(as_mix(chunk.text), chunk.seed, chunk.steps, chunk.fps)
        asked = {name: getattr(control, name) for name in ("seed", "steps", "fps")}
        given = {name: value for name, value in asked.items() if value is not None}
        return dataclasses.replace(settings, **given)

    @property
    def blend_event_id(self) -> str | None:
        """Return the event of the blend that is under way."""
        return None if self._blend is None else self._blend.event_id

    def accepted(self, control: Control, receipt: Receipt) -> None:
        """Note a control that the engine took."""
        self._pending.append(dataclasses.replace(control, event_id=receipt.event_id))
        revision = max(self._rest.revision, receipt.prompt_revision)
        self._rest = dataclasses.replace(self._rest, revision=revision)
        if isinstance(control, Update) and control.paused is not None:
            self._rest = dataclasses.replace(self._rest, paused=control.paused)

    def take(self, item: Chunk | Event) -> None:
        """Note what the engine sends."""
        if isinstance(item, Chunk):
            self._take_chunk(item.record, end_s=item.pts_s + item.record.num_frames / item.fps)
        elif isinstance(item, Superseded | Rejected):
            self._pending = [c for c in self._pending if c.event_id != item.event_id]
        elif isinstance(item, StateChanged):
            if self._is_suspended and len(self._history) > 0:
                self._log.append(LogEntry(self._rest.num_chunks, None))
            self._is_suspended = item.state == "suspended"

    def replaced(self) -> None:
        """Note that the session goes on in another process, where its K/V are made again."""
        if len(self._history) > 0 and not self._is_suspended:
            self._log.append(LogEntry(self._rest.num_chunks, None))

    def _take_chunk(self, chunk: ChunkRecord, end_s: float) -> None:
        """Note a chunk that ends at a time: its record has the frame rate that was asked for."""
        steps, fps = self._rest.steps, self._rest.fps
        for control in chunk.controls:
            if isinstance(control, Rewind):
                last = self._history.go_back(control.to_chunk)
                steps, fps = last.steps, last.fps
            elif isinstance(control, Update):
                steps = steps if control.steps is None else control.steps
                fps = fps if control.fps is None else control.fps
        self._history.add(chunk)
        self._log.extend(LogEntry(chunk.index, control) for control in chunk.controls)
        begun = {control.event_id for control in chunk.controls}
        self._pending = [c for c in self._pending if c.event_id not in begun]
        self._follow_script(chunk)
        self._blend = self._blend_after(chunk)
        self._rest = dataclasses.replace(
            self._rest,
            text=as_mix(chunk.text),
            revision=max(self._rest.revision, chunk.revision),
            seed=chunk.seed,
            steps=steps,
            fps=fps,
            epoch=chunk.epoch,
            num_chunks=chunk.index + 1,
            num_model_chunks=chunk.draw + 1,
            num_generated=chunk.first_frame_index + chunk.num_frames,
            pts_s=end_s,
        )

    def _follow_script(self, chunk: ChunkRecord) -> None:
        """Drop the entries that were due with this chunk."""
        while self._script:
            if not self._script[0].is_due(chunk.index, chunk.pts_s):
                return
            self._script.popleft()

    def _blend_after(self, chunk: ChunkRecord) -> SetPrompt | None:
        """Return what is left of a blend after this chunk, as a control; None when it is done."""
        if not isinstance(chunk.text, TextBlend):
            return None
        begun = [c for c in chunk.controls if isinstance(c, SetPrompt)]
        blend = begun[-1] if begun else self._blend
        assert blend is not None, chunk.index
        _, left, curve = limits.check_transition("blend", blend.blend_chunks, blend.blend_curve)
        return SetPrompt(chunk.text.end, "blend", left - 1, curve, blend.event_id)
