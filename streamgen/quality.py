"""How good what is shown is: now and then a chunk is made again on the reference path and compared.

That is an engine of its own beside the real one: the same weights in float32, no fused commits, no
batches, the deterministic order of sums, one session. It is fed what the chunk was made from: the
clean latents of the chunks before it, text, seed and steps. What differs is what the faster ways
of the real one cost.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from streamgen.decoder import StreamingDecoder
from streamgen.decoding import Denoised, Frames
from streamgen.device_state import weight_bytes
from streamgen.engine import StreamEngine
from streamgen.errors import StreamgenError
from streamgen.measures import Meter
from streamgen.messages import Chunk, Event, Failed
from streamgen.model_runner import ModelRunner, RunnerConfig
from streamgen.models.presets import Model
from streamgen.record import SessionRecord
from streamgen.text import TextMix

logger: Final = logging.getLogger(__name__)

MOST_DB: Final = 100.0  # of frames that differ in nothing, or next to nothing
REFERENCE_THREADS: Final = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """A chunk that was shown, and the session as it was before it."""

    record: SessionRecord
    frames: Frames


class QualitySampler:
    """Takes one chunk every `interval_s` and makes it again, a pass at a time, in idle time.

    Only chunks that see all of their past are taken. Of later ones the past cannot be made again
    exactly: deep K/V remember frames that are not kept.
    """

    def __init__(self, meter: Meter, interval_s: float) -> None:
        self.reference: StreamEngine | None = None
        self._meter = meter
        self._interval_s = interval_s
        self._sampled_at = -math.inf
        self._sample: Sample | None = None
        self._is_begun = False

    def offer(self, denoised: Denoised, frames: Frames, now: float) -> None:
        """Take a chunk, if it is time and its past is whole."""
        if self._sample is not None or now - self._sampled_at < self._interval_s:
            return
        record = record_before(denoised)
        if record is not None:
            self._sampled_at, self._is_begun = now, False
            self._sample = Sample(record, frames)

    def step(self) -> bool:
        """Run a pass of the reference; return False when there is none to run now."""
        if self._sample is None or self.reference is None:
            return False
        if not self._is_begun:
            self._is_begun = True
            try:
                self.reference.restore(self._sample.record)
            except StreamgenError as error:
                self._give_up(error.message)
                return False
        return self.reference.step()

    def deliver(self, session_id: str, item: Chunk | Event) -> None:
        """Take what the reference makes."""
        if self._sample is None:
            return
        if isinstance(item, Chunk):
            psnr = psnr_db(item.frames, self._sample.frames)
            logger.debug("a sampled chunk has %.1f dB", psnr)
            self._meter.quality(psnr)
            self._sample = None
        elif isinstance(item, Failed):
            self._give_up(item.message)

    @property
    def nbytes(self) -> int:
        """Return the bytes that the reference holds."""
        if self.reference is None:
            return 0
        runner = self.reference.runner
        return self.reference.weight_bytes + runner.pool.nbytes + runner.text.nbytes

    def close(self) -> None:
        """End the reference's decoder."""
        if self.reference is not None:
            self.reference.decoder.close()

    def _give_up(self, reason: str) -> None:
        logger.warning("a chunk could not be made again on the reference path: %s", reason)
        self._sample = None


def record_before(denoised: Denoised) -> SessionRecord | None:
    """Return the session as it was before a chunk, to be made next; None when that is not known.

    It ends with that chunk.
    """
    chunk, session = denoised.record, denoised.session
    if not isinstance(chunk.text, TextMix):
        return None
    past = [c for c in session.history if c.epoch == chunk.epoch and c.draw < chunk.draw]
    window = session.config.window.window_frames
    sees_all = window is None or chunk.first_latent + len(chunk.latents) <= window
    is_whole = [c.draw for c in past] == list(range(chunk.draw))
    if not (sees_all and is_whole) or any(c.is_recached for c in (*past, chunk)):
        return None
    last_frame = chunk.first_frame_index + chunk.num_frames
    return SessionRecord(
        config=dataclasses.replace(session.config, num_frames=last_frame, script=()),
        chunks=tuple(past),
        text=chunk.text,
        revision=0,
        seed=chunk.seed,
        steps=chunk.steps,
        fps=chunk.fps,
        epoch=chunk.epoch,
        num_chunks=chunk.index,
        num_model_chunks=chunk.draw,
        num_generated=chunk.first_frame_index,
        pts_s=chunk.pts_s,
    )


def psnr_db(some: Frames, others: Frames) -> float:
    """Return the peak signal-to-noise ratio of uint8 frames in dB, at most `MOST_DB`."""
    error = float(np.square(some.astype(np.float32) - others).mean())
    return min(MOST_DB, 10 * math.log10(255**2 / error)) if error else MOST_DB


def reference_model(model: Model) -> Model:
    """Return a copy of a model in float32, before it is made faster; the text encoder is shared."""
    return dataclasses.replace(model, dit=copy.deepcopy(model.dit), vae=copy.deepcopy(model.vae))


def add_sampler(
    engine: StreamEngine, model: Model, room_for_one: RunnerConfig, on_decoded: Callable[[], None]
) -> None:
    """Let an engine sample its quality against a reference that is made of `model`."""
    interval_s = engine.config.sample_quality
    assert interval_s is not None
    sampler = QualitySampler(engine.runner.meter, interval_s)
    sizes = dataclasses.replace(room_for_one, max_rows=1, deterministic=True, poison_freed=False)
    config = dataclasses.replace(
        engine.config,
        max_sessions=1,
        max_queue=0,
        max_utilisation=None,
        fused=False,
        deterministic=True,
        sample_quality=None,
        faults=None,
    )
    runner = ModelRunner(model.dit, model.text_encoder, torch.float32, sizes)
    decoder = StreamingDecoder(
        model.vae.to(sizes.device), sizes.device, torch.float32,
        num_threads=REFERENCE_THREADS, state_bytes=engine.measured.state_bytes,
    )  # fmt: skip
    sampler.reference = reference = StreamEngine(
        config, engine.preset, runner, decoder, engine.measured, sampler.deliver,
        clock=engine.clock, on_decoded=on_decoded,
    )  # fmt: skip
    reference.weight_bytes = weight_bytes(model.dit, model.vae)
    reference.watch.is_traced = False
    engine.watch.sampler = sampler
    logger.info(
        "each %g s a chunk is made again in float32 in idle time, which takes %.0f MiB more",
        interval_s, sampler.nbytes / 2**20,
    )  # fmt: skip
