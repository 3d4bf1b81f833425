"""Places for sessions: who gets pages now, who waits, and what is traded under overload."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kvcache import PageTable, PoolExhausted
from streamgen.chunk_spec import ChunkSpec
from streamgen.config import EngineConfig
from streamgen.cost_table import CostTable
from streamgen.decoder import DecoderStream, StreamingDecoder
from streamgen.errors import Capacity, InvalidRequest
from streamgen.limits import UNLIMITED
from streamgen.messages import Queued, Update
from streamgen.model_runner import ModelRunner
from streamgen.models.presets import Preset
from streamgen.overload import RE_ANCHOR, OverloadLadder, Settings, levels_of, traded
from streamgen.planner import BOUND, Admission, Planner, Refusal, SessionLoad, Space
from streamgen.record import ChunkRecord
from streamgen.session import Session
from streamgen.slack import slack_s
from streamgen.wait_queue import WaitQueue

WATCH_INTERVAL_S: Final = 0.25


class Admissions:
    """Weigh sessions against the device, keep the queue and climb the overload ladder.

    Without `max_utilisation` nothing is played in real time: only memory counts, nothing is late.
    """

    def __init__(
        self,
        config: EngineConfig,
        preset: Preset,
        runner: ModelRunner,
        decoder: StreamingDecoder,
        costs: CostTable,
    ) -> None:
        self.config = config
        self.runner = runner
        self.decoder = decoder
        self.is_live = config.max_utilisation is not None
        pool, text = runner.pool, runner.text
        self._text_bytes = text.nbytes // text.num_slots
        capacity = Space(
            pool.num_pages * pool.geometry.page_bytes,
            config.max_sessions * decoder.state_bytes,
            config.max_sessions * self._text_bytes,
        )
        bound = BOUND if config.max_utilisation is None else config.max_utilisation
        self.planner = Planner(costs.usual, runner.config.max_rows, capacity, bound)
        self._at_present = Planner(costs, runner.config.max_rows, capacity, bound)
        self.queue = WaitQueue(config.max_queue)
        can_be_fewer = config.steps is None or config.steps > preset.step_range[0]
        levels = levels_of(fewer_steps=can_be_fewer, shorter_window=config.window != UNLIMITED)
        self.ladder = OverloadLadder(levels)
        self._watched_at = 0.0
        steps, fps = config.steps or preset.steps, config.fps or preset.fps
        chunk_pixels = preset.chunks.chunk_frames * preset.chunks.temporal_factor
        self._usual = SessionLoad(steps, chunk_pixels, fps, Space(0, 0, 0))

    # Weighing.

    def num_free(self, sessions: Iterable[Session]) -> int:
        """Return how many more sessions of the usual kind would have a place now."""
        placed = _placed(sessions)
        most = self.config.max_sessions - len(placed)
        if not self.is_live or not most:
            return most
        loads = [load for load in self._loads(placed) if not load.is_batch]
        if (self.ladder.level and loads) or len(self.queue):
            return 0
        usual = self._usual
        for num_more in range(1, most + 1):
            used = self.planner.utilisation_in_bad_moments([*loads, *[usual] * num_more])
            if used > self.planner.bound and len(loads) + num_more > 1:
                return num_more - 1
        return most

    def utilisation(self, sessions: Iterable[Session]) -> float:
        """Return the share of the device's time that the live sessions need."""
        return self.planner.utilisation(self._loads(_placed(sessions)))

    def busy_share(self, sessions: Iterable[Session]) -> float:
        """Return the share of time that passes are expected to take for the live sessions."""
        return self.planner.busy_share(self._loads(_placed(sessions)))

    def check(self, session: Session, sessions: Iterable[Session]) -> None:
        """Raise Capacity unless the session may have a place at once and nobody waits for one."""
        placed = _placed(sessions)
        answer = self._weigh(session, placed)
        if isinstance(answer, Refusal) or len(self.queue):
            ages = self._ages(placed, session.opened_at)
            reason = answer.reason if isinstance(answer, Refusal) else "others wait for a place"
            raise Capacity(reason, retry_after_s=self.queue.retry_after_s(ages))

    def place(
        self,
        session: Session,
        sessions: Iterable[Session],
        *,
        queue: bool,
        for_memory: bool = False,
    ) -> bool:
        """Return whether a session may have a place now; else, with `queue`, let it wait.

        `for_memory`: it had its place before, so only memory can be lacking.
        Raises Capacity when it may not and the queue is full, InvalidRequest when it never may.
        """
        placed = _placed(sessions)
        answer = self._weigh(session, placed, for_memory=for_memory)
        if isinstance(answer, Admission) and (len(self.queue) == 0 or for_memory):
            return True
        if isinstance(answer, Refusal) and not answer.fits_later:
            raise InvalidRequest(answer.reason, param="window")
        if queue and self.queue.join(session.id, is_batch=session.is_batch):
            return False
        reason = answer.reason if isinstance(answer, Refusal) else "others wait"
        ages = self._ages(placed, session.opened_at)
        waiting = f"; {len(self.queue)} wait already" if queue else ""
        raise Capacity(
            f"no room for another session: {reason}{waiting}",
            retry_after_s=self.queue.retry_after_s(ages),
        )

    def next_in_line(self, sessions: Mapping[str, Session]) -> Session | None:
        """Return the session that waits longest, out of the queue, if it may have a place now."""
        first = self.queue.first
        if first is None:
            return None
        session = sessions[first]
        if isinstance(self._weigh(session, _placed(sessions.values())), Refusal):
            return None
        self.queue.leave(first)
        return session

    def positions(self, sessions: Iterable[Session], now: float) -> Iterator[tuple[str, Queued]]:
        """Yield what to tell each session that waits."""
        ages = self._ages(_placed(sessions), now)
        for position, session_id in enumerate(self.queue):
            yield session_id, Queued(position, self.queue.estimated_wait_s(position, ages))

    def _weigh(
        self, session: Session, placed: list[Session], *, for_memory: bool = False
    ) -> Admission | Refusal:
        pool = self.runner.pool
        num_free = self.config.max_sessions - len(placed)
        free = Space(
            pool.num_unreserved * pool.geometry.page_bytes,
            num_free * self.decoder.state_bytes,
            num_free * self._text_bytes,
        )
        load = self._load(session)
        if for_memory:
            load = dataclasses.replace(load, is_batch=True)
        return self.planner.admit(load, self._loads(placed), free, overload_level=self.ladder.level)

    def _loads(self, sessions: Iterable[Session]) -> list[SessionLoad]:
        return [self._load(session) for session in sessions]

    def _load(self, session: Session) -> SessionLoad:
        frames = session.config.window.reserved_frames(self.runner.config.chunk_frames, fused=True)
        space = Space(
            self.runner.pool.geometry.bytes_for(frames), self.decoder.state_bytes, self._text_bytes
        )
        is_batch = session.is_batch or not self.is_live
        steps, fps = session.pace
        return SessionLoad(steps, session.chunk_pixels, fps, space, is_batch)

    @staticmethod
    def _ages(placed: list[Session], now: float) -> list[float]:
        return [now - session.opened_at for session in placed]

    # Pages.

    def may_recache(self, session: Session, sessions: Iterable[Session], now: float) -> bool:
        """Take the making of a window's K/V from a session's budget, if it holds one."""
        loads = self._loads(_placed(sessions))
        return not self.is_live or self.planner.may_recache(session.recaches, loads, now)

    def check_rewind(
        self, session: Session, chunk: ChunkRecord, sessions: Iterable[Session], now: float
    ) -> None:
        """Take a rewind to a chunk from the session's budget, or raise Capacity with the wait.

        Raises it too when the pace that the chunk was made at is more than the device has.
        """
        self._check_pace(session, chunk.steps, chunk.fps, sessions)
        if not self.may_recache(session, sessions, now):
            wait_s = self.planner.recache_wait_s(
                session.recaches, self._loads(_placed(sessions)), now
            )
            raise Capacity(
                f"the session was rewound often just now; try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )

    def check_update(self, session: Session, control: Update, sessions: Iterable[Session]) -> None:
        """Raise Capacity when more steps or frames would need more than the device has."""
        steps, fps = session.pace
        self._check_pace(session, control.steps or steps, control.fps or fps, sessions)

    def _check_pace(
        self, session: Session, steps: int, fps: int, sessions: Iterable[Session]
    ) -> None:
        placed = _placed(sessions)
        others = self._loads(s for s in placed if s is not session)
        now = self._load(session)
        asked = dataclasses.replace(now, steps=steps, fps=fps)
        if session.table is None or now.is_batch or not any(not o.is_batch for o in others):
            return
        before = self.planner.utilisation_in_bad_moments([*others, now])
        after = self.planner.utilisation_in_bad_moments([*others, asked])
        if after > max(before, self.planner.bound):
            raise Capacity(
                f"with {asked.steps} steps at {asked.fps} frames a second the sessions would use "
                f"{after:.0%} of the device in bad moments, more than the "
                f"{self.planner.bound:.0%} at which none is late",
                retry_after_s=self.queue.retry_after_s(self._ages(placed, session.opened_at)),
            )

    def take_pages(self, session: Session) -> PageTable:
        """Return a table with the session's whole reservation; it was weighed before."""
        chunk_frames = self.runner.config.chunk_frames
        try:
            return PageTable(self.runner.pool, session.config.window, chunk_frames, fused=True)
        except PoolExhausted as error:
            raise Capacity(f"no room for another session: {error}", retry_after_s=5.0) from error

    def give_back(self, session: Session, now: float) -> None:
        """Take back all that a session holds on the device, and its place in the queue."""
        self.queue.leave(session.id)
        if session.commit is not None:
            session.commit.let_go()
            session.commit = None
        if session.table is not None:
            self.queue.ended(now - session.started_at)
            session.table.release()
        session.table, session.stream = None, DecoderStream()

    # Overload.

    def watch(self, sessions: Iterable[Session], now: float) -> bool:
        """Follow the ladder; return whether its level changed."""
        if not self.is_live or now - self._watched_at < WATCH_INTERVAL_S:
            return False
        self._watched_at = now
        placed = _placed(sessions)
        asked = self._at_present.utilisation(self._loads(placed))
        running = self._at_present.utilisation([self._as_run(session) for session in placed])
        return self.ladder.update(now, utilisation=running, asked=asked)

    def note_chunk(self, session: Session, first_frame_index: int, now: float) -> float | None:
        """Learn that a chunk was sent out; return its slack, None if nobody plays it live."""
        seconds = slack_s(session, first_frame_index, now) if self.is_live else None
        if seconds is not None:
            self.ladder.note_chunk(now, late=seconds < 0)
            if seconds < 0 and self.ladder.level >= RE_ANCHOR:
                session.played_at = now  # it does not catch up
        return seconds

    def trade(self, session: Session, spec: ChunkSpec) -> ChunkSpec:
        """Return the chunk as the ladder's level has it, its window shortened on the way."""
        settings = self._traded(session)
        if settings is None:
            return spec
        assert session.table is not None
        window = dataclasses.replace(session.config.window, window_frames=settings.window_frames)
        session.table.config = window
        return dataclasses.replace(spec, steps=settings.steps, fps=settings.fps)

    def _traded(self, session: Session) -> Settings | None:
        """Return what a session runs with at the ladder's level, None when that is not traded."""
        window = session.config.window
        if not self.is_live or session.is_batch or window.window_frames is None:
            return None
        chunk = session.preset.chunks.chunk_frames
        asked = Settings(session.steps, window.window_frames, session.fps)
        least = Settings(
            min(session.preset.step_range[0], session.steps),
            min(window.sink_frames + 2 * chunk, window.window_frames),
            max(1, session.fps // 2),
        )
        return traded(self.ladder.level, asked, least)

    def _as_run(self, session: Session) -> SessionLoad:
        load, settings = self._load(session), self._traded(session)
        if settings is None:
            return load
        return dataclasses.replace(load, steps=settings.steps, fps=settings.fps)


def _placed(sessions: Iterable[Session]) -> list[Session]:
    """Return the sessions that hold pages."""
    return [session for session in sessions if session.table is not None]
