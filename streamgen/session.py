"""One endless video: its prompt timeline, its numbers, its clock and what is pending.

A session does no I/O and computes nothing. The engine asks it what comes next, and tells it what
was done. All of it lives on the engine's thread.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from torch import Tensor

from kvcache import PageTable
from streamgen import limits
from streamgen.chunk_spec import ChunkSpec, KeptChunk, Prompt
from streamgen.decoder import PRIME_LATENTS, DecoderStream
from streamgen.errors import Unsupported
from streamgen.messages import Receipt, SetPrompt, Superseded, Update
from streamgen.models.presets import Preset
from streamgen.session_config import SessionConfig

if TYPE_CHECKING:
    from streamgen.chunk_run import ChunkRun

LEAD_SLACK_FRAMES: Final = 2
FIRST_CHUNK_TARGET_S: Final = 1.0
TIMELINE_LENGTH: Final = 256


class SessionState(enum.Enum):
    """Where a session is in its life."""

    QUEUED = "queued"  # waits for a place
    STARTING = "starting"  # has its pages, no frame is out yet
    RUNNING = "running"
    PAUSED = "paused"  # keeps its pages, begins no chunk
    SUSPENDED = "suspended"  # no pages; latents kept
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(slots=True)
class Pending:
    """Accepted controls that no chunk has begun with; newest wins, field by field."""

    prompt: Prompt | None = None
    seed: tuple[int, str] | None = None
    steps: tuple[int, str] | None = None
    reset: str | None = None  # the event that asked for it
    paused: str | None = None  # it acted at once, and is answered with the next chunk

    def event_ids(self) -> Iterator[str]:
        """Yield the events that still have a say, each once."""
        ids = (
            self.prompt and self.prompt.event_id,
            self.seed and self.seed[1],
            self.steps and self.steps[1],
            self.reset,
            self.paused,
        )
        yield from dict.fromkeys(i for i in ids if i)


@dataclass(slots=True, eq=False)
class Session:
    """The state of one video. `table` is None while it is suspended."""

    id: str
    config: SessionConfig
    preset: Preset
    opened_at: float
    table: PageTable | None
    stream: DecoderStream
    phase: SessionState = SessionState.STARTING
    paused: bool = False
    pending: Pending = field(default_factory=Pending)
    kept: deque[KeptChunk] = field(default_factory=deque)
    uncommitted: deque[KeptChunk] = field(default_factory=deque)  # kept, but not in the cache
    spec: ChunkSpec | None = None  # begun, not denoised; after a rollback it is begun again
    run: ChunkRun | None = None  # the chunk in work
    num_failures: int = 0  # of the chunk in work
    ready_at: float | None = None  # since when the next chunk could be begun
    timeline: deque[tuple[int, Prompt]] = field(
        default_factory=lambda: deque(maxlen=TIMELINE_LENGTH)
    )
    prompt: Prompt = field(init=False)
    seed: int = field(init=False)
    steps: int = field(init=False)
    revision: int = 0  # newest accepted
    num_events: int = 0
    num_chunks: int = 0  # begun, over the whole stream
    num_model_chunks: int = 0  # begun since the last reset
    num_generated: int = 0  # pixel frames denoised
    num_played: int = 0
    started_at: float = field(init=False)  # opened, or resumed
    played_at: float | None = None

    def __post_init__(self) -> None:
        """Begin with what the configuration says."""
        self.prompt = Prompt(self.config.prompt, 0)
        self.seed = self.config.seed
        self.steps = self.config.steps
        self.started_at = self.opened_at

    @property
    def state(self) -> SessionState:
        """Return the state as a viewer should see it."""
        active = self.phase in (SessionState.STARTING, SessionState.RUNNING)
        return SessionState.PAUSED if active and self.paused else self.phase

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
        """Return whether a pass of a begun chunk is due."""
        return self.run is not None

    @property
    def may_begin(self) -> bool:
        """Return whether the next chunk may start: work is left and the lead allows it.

        Cache contents that are missing are made whatever the lead: no frame comes of it.
        """
        if self.table is None or self.run is not None:
            return False
        if self.uncommitted:
            return True
        ended = self.config.num_frames is not None and self.num_generated >= self.config.num_frames
        leads = self.lead_frames > self.chunk_pixels + LEAD_SLACK_FRAMES
        return not (self.paused or ended or leads)

    def deadline_s(self, now: float) -> float:
        """Return when playout runs dry; before anything was played, arrival plus the target.

        A player that has frames but shows none stands still, and its buffer with it.
        """
        if self.played_at is None:
            return self.started_at + FIRST_CHUNK_TARGET_S
        frame_s = 1 / self.config.fps
        clock = max(self.played_at, now - frame_s) if self.lead_frames else self.played_at
        return clock + self.lead_frames * frame_s

    def mark_played(self, frame_index: int, now: float) -> None:
        """Note that the frame was shown. Late and repeated reports change nothing."""
        if self.num_played <= frame_index < self.num_generated:
            self.num_played = frame_index + 1
            self.played_at = now

    # Controls.

    def set_prompt(self, control: SetPrompt) -> tuple[Receipt, list[Superseded]]:
        """Accept a new prompt for the next chunk whose first pass has not started.

        Raises InvalidPrompt or Unsupported and leaves everything as it was.
        """
        transition = control.transition or self.preset.transition
        text = limits.check_prompt(control.prompt)
        if transition not in ("cut", "reset"):
            raise Unsupported(
                f"transition {transition!r} is not offered; use cut or reset", param="transition"
            )
        before = list(self.pending.event_ids())
        event_id = self._event_id(control.event_id)
        self.revision += 1
        if self.pending.prompt and self.pending.reset == self.pending.prompt.event_id:
            self.pending.reset = None  # it belonged to the prompt that is replaced
        self.pending.prompt = Prompt(text, self.revision, event_id)
        if transition == "reset":
            self.pending.reset = event_id
        return Receipt(event_id, self.revision), self._superseded(before)

    def update(self, control: Update) -> tuple[Receipt, list[Superseded]]:
        """Accept new settings; the same errors as `set_prompt`, all checked before any is taken."""
        seed = None if control.seed is None else limits.check_seed(control.seed)
        steps = control.steps
        if steps is not None:
            steps = limits.check_steps(steps, self.preset.step_range, "steps")
        if control.fps is not None:
            raise Unsupported("fps cannot be changed while the session runs", param="fps")
        if control.reset not in (None, "cache", "all"):
            raise Unsupported(f"reset {control.reset!r} is not cache or all", param="reset")
        before = list(self.pending.event_ids())
        event_id = self._event_id(control.event_id)
        if control.paused is not None:
            self.paused, self.pending.paused = control.paused, event_id
        if seed is not None:
            self.pending.seed = (seed, event_id)
        if steps is not None:
            self.pending.steps = (steps, event_id)
        if control.reset:
            self.pending.reset = event_id
        return Receipt(event_id, self.revision), self._superseded(before)

    def _event_id(self, given: str | None) -> str:
        self.num_events += 1
        return given or f"{self.id}-{self.num_events}"

    def _superseded(self, before: list[str]) -> list[Superseded]:
        left = set(self.pending.event_ids())
        return [Superseded(event_id) for event_id in before if event_id not in left]

    # Chunks.

    def next_spec(self) -> ChunkSpec:
        """Return the next chunk, with all pending controls taken into it.

        Until that chunk is denoised it stays the next one, and controls wait for the one after.
        """
        if self.spec is not None:
            return self.spec
        taken, self.pending = self.pending, Pending()
        self.prompt = taken.prompt or self.prompt
        self.seed = taken.seed[0] if taken.seed else self.seed
        self.steps = taken.steps[0] if taken.steps else self.steps
        is_reset = taken.reset is not None and self.num_model_chunks > 0
        if is_reset:
            self.num_model_chunks = 0
        self.spec = self._lay_out(is_reset, tuple(taken.event_ids()))
        if self.spec.index == 0 or taken.prompt:
            self.timeline.append((self.spec.index, self.prompt))
        self.num_chunks += 1
        self.num_model_chunks += 1
        return self.spec

    def _lay_out(self, is_reset: bool, event_ids: tuple[str, ...]) -> ChunkSpec:
        layout, draw = self.preset.chunks, self.num_model_chunks
        num_frames = layout.first_pixel_frame(draw + 1) - layout.first_pixel_frame(draw)
        wanted = self.config.num_frames
        left = num_frames if wanted is None else wanted - self.num_generated
        return ChunkSpec(
            index=self.num_chunks,
            first_frame_index=self.num_generated,
            num_frames=min(num_frames, left),
            draw=draw,
            first_latent=layout.first_frame(draw),
            num_latents=layout.num_frames(draw),
            prompt=self.prompt,
            seed=self.seed,
            steps=self.steps,
            is_reset=is_reset,
            is_last=wanted is not None and left <= num_frames,
            event_ids=event_ids,
        )

    def keep(self, spec: ChunkSpec, latents: Tensor) -> None:
        """Count a denoised chunk's frames and keep its latents while the window can need them."""
        assert self.spec is spec, (self.spec, spec)
        self.spec = None
        self.num_generated += spec.num_frames
        chunk = KeptChunk(spec.first_latent, latents, spec.prompt)
        self.uncommitted.append(chunk)
        self.kept.append(chunk)
        window = self.config.window
        if window.window_frames is None:
            return
        oldest = spec.first_latent + spec.num_latents - max(window.window_frames, PRIME_LATENTS)
        self.kept = deque(
            chunk
            for chunk in self.kept
            if chunk.first_latent < window.sink_frames
            or chunk.first_latent + len(chunk.latents) > oldest
        )
