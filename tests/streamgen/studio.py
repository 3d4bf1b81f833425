"""An engine to watch at work: with viewers, faults and eyes on its passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from kvcache import Staging, WindowConfig
from streamgen.messages import Chunk, Event
from streamgen.model_runner import ModelRunner, StepBatch
from streamgen.models.presets import Preset
from streamgen.refill import Refill
from streamgen.session import Session, SessionState
from streamgen.session_config import SessionRequest
from streamgen.startup import start_engine
from streamgen.text import TextMix
from streamgen.work import ChunkWork, LoneCommit
from tests.streamgen.tiny import TINY, tiny_config

PASSES = TINY.steps  # of a chunk; its commit rides with the first pass of the next
FRAMES = 12  # of one session's share of the cache: the window and the chunk in work


class FakeClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def flat_costs(
    runner: ModelRunner, window: WindowConfig, sizes: Sequence[int]
) -> dict[int, list[float]]:
    """Stand in for the measurement at the start: sessions share each pass that they can."""
    return {size: [0.01] for size in sizes}


class Studio:
    """An engine over random weights, and viewers that play every chunk as soon as it is there."""

    def __init__(
        self,
        preset: Preset = TINY,
        *,
        encode_beside: bool = False,
        pixel_format: str = "rgb",
        **options: object,
    ) -> None:
        self.clock = FakeClock()
        self.chunks: dict[str, list[Chunk]] = {}
        self.events: dict[str, list[Event]] = {}
        with patch.object(ModelRunner, "sample_s", flat_costs):
            self.engine = start_engine(
                tiny_config(**options), self._deliver, preset=preset, clock=self.clock,
                encode_beside=encode_beside, pixel_format=pixel_format,
            )  # fmt: skip
        self.engine.scheduler.costs = copy.deepcopy(self.engine.costs)  # not followed up
        self.pool = self.engine.runner.pool

    def __enter__(self) -> Studio:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.decoder.close()
        if self.engine.passes.encoding is not None:
            self.engine.passes.encoding.close()

    def open(self, prompt: str = "a red ball", seed: int = 42, **fields: object) -> Session:
        return self.engine.open(SessionRequest(prompt=prompt, seed=seed, **fields))

    def step(self) -> bool:
        """Run one pass, and all decodes that were begun before it."""
        self.clock.now += 0.01
        waiting = self.engine.num_decoding
        ran = self.engine.step()
        self.engine.emit_decoded(wait_for=waiting)
        return ran or waiting > 0

    def make(self, session: Session, num_chunks: int) -> list[Chunk]:
        """Step until the session has so many chunks, and return them."""
        while len(self.chunks.get(session.id, [])) < num_chunks:
            assert self.step(), f"{session.state}: nothing more comes of {session.id}"
            assert session.phase is not SessionState.FAILED, self.events[session.id]
        return self.chunks[session.id][:num_chunks]

    def made(self, session: Session) -> list[Chunk]:
        """Return the chunks that came of a session so far."""
        return self.chunks.get(session.id, [])

    def more(self, session: Session, num_chunks: int) -> list[Chunk]:
        """Return the next so many chunks of a session."""
        num_made = len(self.made(session))
        return self.make(session, num_made + num_chunks)[num_made:]

    def rest(self, session: Session, num_chunks: int = 0) -> None:
        """Step to the moment between two chunks of a session, the first after so many."""
        while session.work or session.spec or session.num_chunks < num_chunks:
            assert self.step(), f"{session.state}: nothing more comes of {session.id}"

    def audit(self) -> int:
        """Check the books of the pool and return how many pages nobody has."""
        self.pool.allocator.audit()
        return self.pool.allocator.num_free

    def _deliver(self, session_id: str, item: Chunk | Event) -> None:
        if not isinstance(item, Chunk):
            self.events.setdefault(session_id, []).append(item)
            return
        self.chunks.setdefault(session_id, []).append(item)
        self.engine.played(session_id, item.first_frame_index + len(item.frames) - 1)


def assert_same(some: list[Chunk], others: list[Chunk]) -> None:
    """Require the same chunks to the last bit."""
    assert [c.index for c in some] == [c.index for c in others]
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one.latents, other.latents, f"latents of {one.index}")
        np.testing.assert_array_equal(one.frames, other.frames, f"frames of {one.index}")


def psnr_db(one: Chunk, other: Chunk) -> float:
    error = (one.frames.astype(float) - other.frames.astype(float)) / 255
    return float(-10 * np.log10(np.square(error).mean() + 1e-12))


def assert_numbered(chunks: list[Chunk], first: int = 0, first_frame: int = 0) -> None:
    """Require chunks, frames and seconds without gap or step back."""
    assert [c.index for c in chunks] == list(range(first, first + len(chunks)))
    firsts = np.cumsum([first_frame, *(len(c.frames) for c in chunks)])[:-1]
    assert [c.first_frame_index for c in chunks] == firsts.tolist()
    seconds = np.cumsum([chunks[0].pts_s, *(len(c.frames) / c.fps for c in chunks)])[:-1]
    np.testing.assert_allclose([c.pts_s for c in chunks], seconds)


def alone(
    num_chunks: int, prompt: str = "a red ball", seed: int = 42, **fields: Any
) -> list[Chunk]:
    """Return the chunks of a session that has an engine to itself."""
    with Studio(deterministic=True) as studio:
        return studio.make(studio.open(prompt, seed, **fields), num_chunks)


class failing:
    """While it lasts, batches that `when` picks raise."""

    def __init__(self, studio: Studio, when: Callable[[StepBatch], bool]) -> None:
        self.runner, self.when = studio.engine.runner, when

    def __enter__(self) -> None:
        run = self.runner.run

        def raising(batch: StepBatch) -> list[Tensor]:
            if self.when(batch):
                raise RuntimeError("out of luck")
            return run(batch)

        self.runner.run = raising  # type: ignore[method-assign]

    def __exit__(self, *error: object) -> None:
        del self.runner.run


def watch(studio: Studio, see: Callable[[StepBatch], None]) -> None:
    """Call `see` with every batch before it runs."""
    run = studio.engine.runner.run

    def watched(batch: StepBatch) -> list[Tensor]:
        see(batch)
        return run(batch)

    studio.engine.runner.run = watched  # type: ignore[method-assign]


def watch_prompts(studio: Studio) -> dict[str, dict[int, set[str]]]:
    """Record, by session and chunk in order of work, the texts that its rows read."""
    used: dict[str, dict[int, set[str]]] = {}

    def see(batch: StepBatch) -> None:
        texts = {slot: str(text) for text, slot in studio.engine.runner.text._slots.items()}
        rows = {id(row.staging): row for row in batch.rows}
        for session in studio.engine.sessions.values():
            for index, staging in stagings(session):
                if id(staging) in rows:
                    text = texts[rows[id(staging)].text_slot]
                    used.setdefault(session.id, {}).setdefault(index, set()).add(text)

    watch(studio, see)
    return used


def stagings(session: Session) -> Iterator[tuple[int, Staging]]:
    """Yield what a session has under way: a chunk's number, and what its row writes and reads."""
    chunks = {
        chunk.first_latent + i: chunk.index
        for chunk in session.history
        for i in range(len(chunk.latents))
    }
    work = session.work
    if isinstance(work, Refill):
        for row in work.waiting:
            staging = next(part for part in row if isinstance(part, Staging))
            yield chunks[staging.frame_index], staging
    if isinstance(work, ChunkWork):
        yield work.spec.index, work.staging
    if isinstance(work, (ChunkWork, LoneCommit)) and work.commit is not None:
        yield chunks[work.commit.staging.frame_index], work.commit.staging


def slot_of(studio: Studio, text: str) -> int | None:
    slot: int | None = studio.engine.runner.text._slots.get(TextMix.of(text))
    return slot
