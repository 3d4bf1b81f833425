"""Latents to pixels, as a stream a session, beside the next pass."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamgen.decode_lane import DecodeLane, Moment, decode_lane
from streamgen.faults import NO_FAULTS, Faults
from streamgen.pixels import to_pixels

# Latents after which a decoder's memory is what it would be had it seen the whole stream. Blocks of
# the tiny one remember a frame each: three and three at the latents' rate and three at twice it
# reach back 7.5 latents. The full one's memory has no such end, but has faded.
PRIME_LATENTS: Final = 8
MEASURED_DECODES: Final = 3


class VideoVAE(Protocol):
    """A causal VAE whose history is a value of its caller; `TAEHV` and `WanVAE` fit."""

    def decoder_state(self) -> Any:
        """Return the state before the first latent."""

    def decode_step(self, latents: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Map latents `[1, n, C, h, w]` to frames `[1, m, 3, H, W]` in [0, 1] and a new state."""


@dataclass(slots=True, eq=False)
class DecoderStream:
    """The decoder's memory of one session. Only the decoder's thread touches `state`."""

    state: Any = field(default=None, repr=False)
    error: Exception | None = None  # that its memory could not be remade for

    @property
    def nbytes(self) -> int:
        """Return the bytes held on the device."""
        return 0 if self.state is None else int(self.state.nbytes)


class StreamingDecoder:
    """Decode the chunks of all sessions in order of submission, in a thread of its own.

    Torch releases the interpreter while it computes, so a decode runs beside the next pass. A step
    that raises leaves the stream's state as it was, so it is tried once more before it is given up.
    """

    def __init__(
        self,
        vae: VideoVAE,
        device: torch.device,
        dtype: torch.dtype,
        *,
        num_threads: int | None,
        pixel_format: str = "rgb",
        state_bytes: int = 0,
        faults: Faults = NO_FAULTS,
        lane: DecodeLane | None = None,
    ) -> None:
        self._lane = lane or decode_lane(device)
        self.device = device
        self.dtype = dtype
        self.pixel_format = pixel_format
        self.state_bytes = state_bytes  # of one stream, on the device
        self.num_oom = 0  # times that the device's memory was full; of the decoder's thread
        self._num_threads = num_threads
        self._faults = faults
        self._vae = vae
        self._seconds: deque[float] = deque(maxlen=256)
        # Seconds at work until the last decode ended, and when the one in work began: one value, as
        # another thread reads it.
        self._work: tuple[float, float | None] = (0.0, None)
        self._pool = ThreadPoolExecutor(
            1, "decoder", initializer=_set_threads, initargs=(num_threads,)
        )

    @property
    def busy_s(self) -> float:
        """Return the seconds spent at work so far, the decode in work included."""
        done_s, began = self._work
        return done_s if began is None else done_s + time.perf_counter() - began

    def beside(self) -> StreamingDecoder:
        """Return another decoder over the same weights, with a thread of its own."""
        return StreamingDecoder(
            self._vae, self.device, self.dtype,
            num_threads=self._num_threads, pixel_format=self.pixel_format,
            state_bytes=self.state_bytes,
        )  # fmt: skip

    def open(self) -> DecoderStream:
        """Return a stream that has decoded nothing: its first latent gives one frame, not four."""
        with self._lane.after(self._lane.now()):
            return DecoderStream(self._vae.decoder_state())

    def submit(
        self, stream: DecoderStream, latents: Tensor, num_frames: int
    ) -> Future[npt.NDArray[np.uint8]]:
        """Decode latents `[n, C, h, w]` next; the result is the first `num_frames`, uint8.

        The array is read-only: `[num_frames, H, W, 3]` in RGB, `[num_frames, H * 3/2, W]` in I420.
        """
        moment = self._lane.now()
        return self._pool.submit(self._twice, self._decode, stream, latents, moment, num_frames)

    def prime(self, stream: DecoderStream, latents: Tensor) -> None:
        """Remake a stream's memory from its last latents; their pixels are thrown away."""
        self._pool.submit(self._prime, stream, latents[-PRIME_LATENTS:], self._lane.now())

    def take_seconds(self) -> Iterator[float]:
        """Yield what decodes took since the last call, each in seconds."""
        while self._seconds:
            yield self._seconds.popleft()

    def close(self) -> None:
        """Drop what waits and end the thread after the decode in work."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _prime(self, stream: DecoderStream, latents: Tensor, moment: Moment) -> None:
        try:
            self._twice(self._decode, stream, latents, moment, 0)
        except Exception as error:  # told by the chunk that comes next
            stream.error = error

    def _twice(
        self, decode: Callable[..., npt.NDArray[np.uint8]], *arguments: object
    ) -> npt.NDArray[np.uint8]:
        self._work = (self._work[0], time.perf_counter())
        try:
            return self._once(decode, *arguments)
        except RuntimeError:
            return self._once(decode, *arguments)
        finally:
            self._work = (self.busy_s, None)

    def _once(
        self, decode: Callable[..., npt.NDArray[np.uint8]], *arguments: object
    ) -> npt.NDArray[np.uint8]:
        try:
            return decode(*arguments)
        except torch.OutOfMemoryError:
            self.num_oom += 1
            raise

    @torch.inference_mode()
    def _decode(
        self, stream: DecoderStream, latents: Tensor, moment: Moment, num_frames: int
    ) -> npt.NDArray[np.uint8]:
        if stream.error is not None:
            raise stream.error
        self._faults.hit("vae.decode")
        start = time.perf_counter()
        with self._lane.after(moment, latents):
            batch = latents[None].to(self.device, self.dtype)
            frames, state = self._vae.decode_step(batch, stream.state)
            pixels = self._lane.fetch(to_pixels(frames[0, :num_frames], self.pixel_format))
        stream.state = state
        pixels.flags.writeable = False
        if num_frames:
            self._seconds.append(time.perf_counter() - start)
        return pixels


@torch.inference_mode()
def measure_decode(vae: VideoVAE, latents: Tensor) -> tuple[float, int]:
    """Return the seconds of a chunk in the middle of a stream, and the bytes of the memory it has.

    The seconds are the best of a few.
    """
    state = vae.decoder_state()
    times = []
    for _ in range(1 + MEASURED_DECODES):
        start = time.perf_counter()
        frames, state = vae.decode_step(latents[None], state)
        float(frames.flatten()[-1])  # waits for the device
        times.append(time.perf_counter() - start)
    return min(times[1:]), int(state.nbytes)


@contextmanager
def decode_meanwhile(vae: VideoVAE, latents: Tensor, num_threads: int) -> Iterator[list[float]]:
    """Decode one chunk after another in a thread; when that ended, the list has each one's seconds.

    `latents` are those of a chunk, `[n, C, h, w]`. What is inside begins beside a decode, and there
    is at least one.
    """
    seconds: list[float] = []
    began, ended = Event(), Event()

    @torch.inference_mode()
    def run() -> None:
        try:
            _set_threads(num_threads)
            state = vae.decoder_state()
        finally:
            began.set()
        while not (seconds and ended.is_set()):
            start = time.perf_counter()
            _, state = vae.decode_step(latents[None], state)
            seconds.append(time.perf_counter() - start)

    with ThreadPoolExecutor(1, "decodes") as pool:
        running = pool.submit(run)
        try:
            began.wait()
            yield seconds
        finally:
            ended.set()
            running.result()


def _set_threads(num_threads: int | None) -> None:
    # torch keeps this number a thread: the passes' own is not changed.
    if num_threads is not None:
        torch.set_num_threads(num_threads)
