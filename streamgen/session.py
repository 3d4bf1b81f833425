"""One endless video: its prompt timeline, its numbers, its clock and what is pending.

A session does no I/O and computes nothing. The engine asks it what comes next, and tells it what
was done. All of it lives on the engine's thread.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from kvcache import PageTable
from streamgen import limits
from streamgen.chunk_spec import ChunkSpec
from streamgen.decoder import DecoderStream
from streamgen.errors import InvalidRequest
from streamgen.history import History
from streamgen.messages import Control, Receipt, Rewind, SetPrompt, Superseded, Update
from streamgen.models.presets import Preset
from streamgen.pending import Blend, NewPrompt, Pending, check_update
from streamgen.planner import RecacheBudget
from streamgen.record import ChunkRecord, LogEntry
from streamgen.score import ScriptEntry
from streamgen.session_config import SessionConfig
from streamgen.text import TextMix

if TYPE_CHECKING:
    from streamgen.encoding import TextWait
    from streamgen.work import Commit, Work

LEAD_SLACK_FRAMES: Final = 2
FIRST_CHUNK_TARGET_S: Final = 1.0
SWITCH_TARGET_S: Final = 1.0  # from a prompt that makes K/V again to its first frame


class SessionState(enum.Enum):
    """Where a session is in its life."""

    QUEUED = "queued"  # waits for a place
    STARTING = "starting"  # has its pages, no frame is out yet
    RUNNING = "running"
    PAUSED = "paused"  # keeps its pages, begins no chunk
    SUSPENDED = "suspended"  # no pages; latents kept
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Session:
    """The state of one video. `table` is None while it has no pages."""

    id: str
    config: SessionConfig
    preset: Preset
    opened_at: float
    history: History
    max_rows: int = 16  # of one forward
    max_lead_frames: int | None = None  # at which a chunk may begin; None: a chunk and two
    table: PageTable | None = None
    stream: DecoderStream = field(default_factory=DecoderStream)
    phase: SessionState = SessionState.QUEUED
    paused: bool = False
    pending: Pending = field(default_factory=Pending)
    script: deque[ScriptEntry] = field(default_factory=deque)
    log: list[LogEntry] = field(default_factory=list)
    spec: ChunkSpec | None = None  # begun, not denoised; after a rollback it is begun again
    work: Work | None = None  # what is under way on the device
    commit: Commit | None = None  # of the newest chunk, when its clean K/V are not in the cache yet
    needs_rebuild: bool = False  # the pages hold nothing of the history
    recached_for: int | None = None  # the chunk before which the window was made again
    num_failures: int = 0  # of the chunk in work
    ready_at: float | None = None  # since when the next chunk could be begun
    text: TextMix = field(init=False)
    blend: Blend | None = None
    seed: int = field(init=False)
    steps: int = field(init=False)
    fps: int = field(init=False)
    shown_revision: int = 0  # of the newest chunk's prompt
    revision: int = 0  # newest accepted
    epoch: int = 0
    num_chunks: int = 0  # begun, over the whole stream
    num_model_chunks: int = 0  # begun since the last reset
    num_generated: int = 0  # pixel frames denoised
    pts_s: float = 0.0  # of the next frame
    num_played: int = 0
    started_at: float = field(init=False)  # given its pages
    played_at: float | None = None
    lineage: bytes = b""  # of its K/V, see `sharing`
    made: dict[bytes, ChunkRecord] = field(default_factory=dict)  # chunks in the window, by lineage
    waits_for: TextWait | Work | None = None  # work that makes what it would make
    recaches: RecacheBudget = field(default_factory=RecacheBudget)

    def __post_init__(self) -> None:
        """Begin with what the configuration says."""
        self.text, self.seed = self.config.prompt, self.config.seed
        self.steps, self.fps = self.config.steps, self.config.fps
        self.script = deque(self.config.script)
        self.started_at = self.opened_at

    @property
    def pace(self) -> tuple[int, int]:
        """Return the steps and frames a second that it has once all that is pending acts."""
        return self.pending.pace_after(self.steps, self.fps, self.history)

    @property
    def state(self) -> SessionState:
        """Return the state as a viewer should see it."""
        active = self.phase in (SessionState.STARTING, SessionState.RUNNING)
        return SessionState.PAUSED if active and self.paused else self.phase

    @property
    def is_batch(self) -> bool:
        """Return whether it only fills idle time."""
        return self.config.priority == "batch"

    # The clock.

    @property
    def lead_frames(self) -> int:
        """Return the frames generated but not yet played."""
        return self.num_generated - self.num_played

    @property
    def chunk_pixels(self) -> int:
        """Return the pixel frames of a steady chunk."""
        return self.preset.chunks.chunk_frames * self.preset.chunks.temporal_factor

    @property
    def is_mid_chunk(self) -> bool:
        """Return whether a pass of something begun is due, be it a commit alone."""
        return self.work is not None or self.may_commit

    @property
    def may_begin(self) -> bool:
        """Return whether a chunk may start: work is left and the lead allows it, or K/V are due."""
        if self.table is None or self.work is not None or self._waits:
            return False
        return self.needs_rebuild or self._wants_chunk

    @property
    def _waits(self) -> bool:
        goes_back = self.pending.rewind is not None and not self.pending.is_rewound
        return self.waits_for is not None and self.waits_for.is_open and not goes_back

    @property
    def is_complete(self) -> bool:
        """Return whether all the frames that were asked for are made."""
        wanted = self.config.num_frames
        return wanted is not None and self.num_generated >= wanted

    @property
    def _wants_chunk(self) -> bool:
        most = self.max_lead_frames
        leads = self.lead_frames > (self.chunk_pixels + LEAD_SLACK_FRAMES if most is None else most)
        return not (self.paused or self.is_complete or leads)

    @property
    def may_commit(self) -> bool:
        """Return whether a commit waits that no chunk rides with: it fills idle time."""
        idle = self.table is not None and self.work is None and not self.may_begin
        return idle and self.commit is not None and not self.commit.is_settled

    @property
    def is_prepared(self) -> bool:
        """Return whether the pages were recached or emptied for a chunk that is not done yet."""
        spec = self.spec
        return spec is not None and (spec.is_reset or self.recached_for == spec.index)

    @property
    def _recaches(self) -> bool:
        """Return whether the window is made again before the next chunk."""
        if self.spec is not None:
            return self.spec.is_recached and self.recached_for != self.spec.index
        prompt = self.pending.due_prompt
        return prompt is not None and prompt.transition == "recache"

    @property
    def sees_full_window(self) -> bool:
        """Return whether the next chunk pushes old frames out of view, as a steady one does."""
        window, table = self.config.window.window_frames, self.table
        if window is None or table is None:
            return False
        return table.next_frame >= window

    @property
    def num_rows(self) -> int:
        """Return the rows of its next forward."""
        if self.work is not None:
            return self.work.num_rows
        if self.needs_rebuild or self._recaches:
            return min(max(1, len(self.history.in_window())), self.max_rows)
        rides = self.commit is not None and not self.commit.is_settled and not self.may_commit
        return 2 if rides else 1

    @property
    def passes_left(self) -> int:
        """Return the forwards until the frames of its chunk are denoised."""
        if self.work is not None:
            return self.work.passes_left
        return 1 if self.may_commit else self.steps + self._recaches

    def deadline_s(self, now: float) -> float:
        """Return when playout runs dry; before anything was played, arrival plus the target.

        A player that has frames but shows none stands still, and its buffer with it. A commit alone
        has no deadline; a prompt that makes K/V again should show soon after it came.
        """
        if self.may_commit:
            return math.inf
        if self.is_batch:  # all of them at the same pace
            return self.started_at + self.num_generated / self.fps
        due, prompt = math.inf, self.pending.due_prompt
        if prompt is not None and prompt.transition == "recache":
            due = prompt.due_from + SWITCH_TARGET_S
        if self.played_at is None:
            return min(due, self.started_at + FIRST_CHUNK_TARGET_S)
        frame_s = 1 / self.fps
        clock = max(self.played_at, now - frame_s) if self.lead_frames else self.played_at
        return min(due, clock + self.lead_frames * frame_s)

    def mark_played(self, frame_index: int, now: float) -> None:
        """Note that the frame was shown. Late and repeated reports change nothing."""
        if self.num_played <= frame_index < self.num_generated:
            self.num_played = frame_index + 1
            self.played_at = now

    # Controls.

    def accept(
        self, control: Control, now: float, *, again: bool = False
    ) -> tuple[Receipt, list[Superseded]]:
        """Accept a control for the next chunk whose first pass has not started.

        A blend cut short has begun and is not superseded. Raises InvalidRequest or NotFound, and
        leaves all as it was; `again`, a rewind whose chunk was let go is rejected when it is due.
        """
        before = self.pending.event_ids()
        event_id = control.event_id or f"event-{secrets.token_hex(6)}"
        control = dataclasses.replace(control, event_id=event_id)
        if isinstance(control, SetPrompt):
            self._accept_prompt(control, now)
        elif isinstance(control, Rewind):
            if not again:
                self._check_rewind(control)
            self.revision += 1
            self.pending = Pending(rewind=control, paused=self.pending.paused)  # it acts already
        else:
            self._accept_update(control)
        gone = sorted(before - self.pending.event_ids())
        return Receipt(event_id, self.revision), [Superseded(event) for event in gone]

    def _accept_prompt(self, control: SetPrompt, now: float) -> None:
        text = limits.check_prompt(control.prompt)
        transition, num_chunks, curve = limits.check_transition(
            control.transition or self.preset.transition, control.blend_chunks, control.blend_curve
        )
        self.revision += 1
        self.pending.prompt = NewPrompt(control, text, transition, num_chunks, curve, now)
        self.pending.is_held = self.pending.is_exact = False

    def _check_rewind(self, rewind: Rewind) -> None:
        limits.check_chunk(rewind.to_chunk, "to_chunk")
        if self.config.num_frames is not None:
            message = "a video of num_frames has an end and cannot be rewound; fork it instead"
            raise InvalidRequest(message, param="to_chunk")
        self.history.find(rewind.to_chunk)

    def _accept_update(self, control: Update) -> None:
        check_update(control, self.preset)
        if control.paused is not None:
            self.paused = control.paused
        self.pending.put(control)

    def keep(
        self, spec: ChunkSpec, latents: npt.NDArray[np.float32], lineage: bytes
    ) -> ChunkRecord:
        """Count a denoised chunk's frames and keep what makes it again."""
        assert self.spec is spec, (self.spec, spec)
        # What was asked for, not what the overload ladder made of it, is what goes on later.
        record = dataclasses.replace(spec.record(latents), steps=self.steps, fps=self.fps)
        self.log.extend(LogEntry(spec.index, control) for control in spec.controls)
        self.lineage, self.waits_for = lineage, None
        self.made[lineage] = record
        in_view = {id(chunk) for chunk in (*self.history.in_window(), record)}
        self.made = {k: chunk for k, chunk in self.made.items() if id(chunk) in in_view}
        self.spec = None
        if self.blend is not None and self.blend.is_done:
            self.blend = None
        self.num_generated += spec.num_frames
        self.pts_s += spec.num_frames / spec.fps
        self.history.add(record)
        return record
