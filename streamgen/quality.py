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

import torch

from streamgen.decoder import StreamingDecoder
from streamgen.decoding import Denoised, Frames
from streamgen.device_state import weight_bytes
from streamgen.distances import mean_square, mean_square_i420, psnr_db
from streamgen.engine import StreamEngine
from streamgen.errors import GenerationFailed, StreamgenError
from streamgen.lives import Output
from streamgen.measures import Meter
from streamgen.messages import Chunk, Event, Failed
from streamgen.model_runner import ModelRunner, RunnerConfig
from streamgen.models.presets import Model
from streamgen.record import ChunkRecord, SessionRecord
from streamgen.session import Session
from streamgen.text import TextMix

logger: Final = logging.getLogger(__name__)

DECODER_THREADS: Final = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """A chunk, as the session was before it; `frames` are what the real path made of it.

    None: they are to be made again too.
    """

    record: SessionRecord
    frames: Frames | None


class Remaker:
    """Makes one chunk again, a pass at a time, in an engine for one session."""

    def __init__(self, make_engine: Callable[[Output], StreamEngine]) -> None:
        self.engine = make_engine(self._deliver)
        self._is_begun = False
        self._result: Frames | StreamgenError | None = None

    def step(self, record: SessionRecord) -> bool:
        """Run a pass of the chunk that follows a record; return False when none can run now."""
        if not self._is_begun:
            self._is_begun = True
            try:
                self.engine.restore(record)
            except StreamgenError as error:
                self._result = error
                return False
        return self.engine.step()

    def take(self) -> Frames | StreamgenError | None:
        """Return what came of it, once, and be ready for the next; None while it is under way."""
        result, self._result = self._result, None
        if result is not None:
            self._is_begun = False
        return result

    def _deliver(self, session_id: str, item: Chunk | Event) -> None:
        if isinstance(item, Chunk):
            self._result = item.frames
        elif isinstance(item, Failed):
            self._result = GenerationFailed(item.message)


class QualitySampler:
    """Takes one chunk every `interval_s` and makes it again in idle time.

    A chunk that sees all of its past is compared as it was shown. Of a later one the past cannot be
    made again exactly, as deep K/V remember frames that are not kept: there the real path, `again`,
    and the reference both begin with K/V that are made from the latents in view.
    """

    def __init__(
        self, meter: Meter, interval_s: float, reference: Remaker, again: Remaker
    ) -> None:  # fmt: skip
        self.reference = reference
        self.again = again
        self._meter = meter
        self._interval_s = interval_s
        self._sampled_at = -math.inf
        self._sample: Sample | None = None

    def offer(self, denoised: Denoised, frames: Frames, now: float) -> None:
        """Take a chunk, if it is time and it can be made again."""
        if self._sample is None and now - self._sampled_at >= self._interval_s:
            self._sample = sample_of(denoised, frames)
            if self._sample is not None:
                self._sampled_at = now

    def step(self) -> bool:
        """Run a pass; return False when there is none to run now."""
        sample = self._sample
        if sample is None:
            return False
        maker = self.again if sample.frames is None else self.reference
        ran = maker.step(sample.record)
        result = maker.take()
        if isinstance(result, StreamgenError):
            logger.warning("a chunk could not be made again to be compared: %s", result.message)
            self._sample = None
        elif result is not None and sample.frames is None:
            self._sample = dataclasses.replace(sample, frames=result)
            return True
        elif result is not None and sample.frames is not None:
            distance = mean_square if result.ndim == 4 else mean_square_i420
            psnr = psnr_db(distance(result, sample.frames))
            logger.debug("a sampled chunk has %.1f dB", psnr)
            self._meter.quality(psnr)
            self._sample = None
        return ran

    @property
    def nbytes(self) -> int:
        """Return the bytes that are held for it, beside the real engine's weights."""
        pools = 0
        for maker in (self.reference, self.again):
            runner = maker.engine.runner
            pools += runner.pool.nbytes + runner.pool.scratch_nbytes + runner.text.nbytes
        return self.reference.engine.weight_bytes + pools

    def close(self) -> None:
        """End the decoders."""
        for maker in (self.reference, self.again):
            maker.engine.decoder.close()


def sample_of(denoised: Denoised, frames: Frames) -> Sample | None:
    """Return a chunk and the session as it was before; None for one that is part of a blend."""
    chunk, session = denoised.record, denoised.session
    if not isinstance(chunk.text, TextMix):
        return None
    past = [c for c in session.history if c.epoch == chunk.epoch and c.draw < chunk.draw]
    record = SessionRecord(
        # It ends with the chunk.
        config=dataclasses.replace(
            session.config, num_frames=chunk.first_frame_index + chunk.num_frames, script=()
        ),
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
    return Sample(record, frames if _sees_all(session, past, chunk) else None)


def _sees_all(session: Session, past: list[ChunkRecord], chunk: ChunkRecord) -> bool:
    """Return whether K/V made from the latents of the past are those that a chunk was made with."""
    window = session.config.window.window_frames
    is_whole = [c.draw for c in past] == list(range(chunk.draw))
    fits = window is None or chunk.first_latent + len(chunk.latents) <= window
    return is_whole and fits and not any(c.is_recached for c in (*past, chunk))


def reference_model(model: Model) -> Model:
    """Return a copy of a model in float32, before it is made faster; the text encoder is shared."""
    return dataclasses.replace(model, dit=copy.deepcopy(model.dit), vae=copy.deepcopy(model.vae))


def add_sampler(
    engine: StreamEngine, model: Model, room_for_one: RunnerConfig, on_decoded: Callable[[], None]
) -> None:
    """Let an engine sample its quality against a reference made of `model`, its copy in float32."""
    assert engine.config.sample_quality is not None
    real = engine.runner
    reference = Remaker(
        lambda output: _engine_for_one(
            engine,
            ModelRunner(
                model.dit, model.text_encoder, torch.float32,
                dataclasses.replace(
                    room_for_one, max_rows=1, deterministic=True, quantized_kv=False
                ),
            ),
            StreamingDecoder(
                model.vae.to(real.config.device), real.config.device, torch.float32,
                num_threads=DECODER_THREADS, pixel_format=engine.decoder.pixel_format,
                state_bytes=engine.measured.state_bytes,
            ),
            output, on_decoded,
        )
    )  # fmt: skip
    again = Remaker(
        lambda output: _engine_for_one(
            engine,
            ModelRunner(
                real.dit, real.text_encoder, real.dtype,
                dataclasses.replace(room_for_one, max_rows=1),
            ),
            engine.decoder.beside(), output, on_decoded,
        )
    )  # fmt: skip
    for maker in (reference, again):  # what the session has had encoded is not encoded again
        maker.engine.runner.embeds = real.embeds
    reference.engine.weight_bytes = weight_bytes(model.dit, model.vae)
    sampler = QualitySampler(real.meter, engine.config.sample_quality, reference, again)
    engine.watch.sampler = sampler
    logger.info(
        "each %g s a chunk is made again in float32 in idle time, which takes %.0f MiB more",
        engine.config.sample_quality, sampler.nbytes / 2**20,
    )  # fmt: skip


def _engine_for_one(
    engine: StreamEngine,
    runner: ModelRunner,
    decoder: StreamingDecoder,
    output: Output,
    on_decoded: Callable[[], None],
) -> StreamEngine:
    """Return an engine for one session that nobody plays."""
    config = dataclasses.replace(
        engine.config,
        max_sessions=1,
        max_queue=0,
        max_utilisation=None,
        fused=False,
        sample_quality=None,
        faults=None,
    )
    made = StreamEngine(
        config, engine.preset, runner, decoder, engine.measured, output,
        clock=engine.clock, on_decoded=on_decoded,
    )  # fmt: skip
    made.watch.is_traced = False
    return made
