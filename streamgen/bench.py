"""`streamgen bench sessions`: how fast this machine makes video, and where the time goes.

Sessions make whole videos, text, DiT, VAE and JPEG of every frame: together as in the server, all
that are ready in one forward, and then the same ones one after another. The engine is warmed up and
one video is thrown away before anything counts.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import simplejpeg

from streamgen.bench_report import BenchReport, Row, facts_line, flat, percentiles, write
from streamgen.calibrate import resident_bytes
from streamgen.command_options import BenchConfig
from streamgen.config import EngineConfig
from streamgen.engine_facts import engine_facts, video_facts
from streamgen.errors import GenerationFailed
from streamgen.generate import count_frames
from streamgen.messages import Chunk, Event, Failed, StateChanged
from streamgen.models.presets import Preset, find_preset
from streamgen.session_config import SessionRequest, held_frames
from streamgen.startup import resolve, start_engine
from streamgen.stopwatch import Stopwatch, measure_peak_flops, watch_engine
from transport.options import TransportOptions

DEFAULT_SESSIONS: Final = (1, 2, 4, 8)
WARM_UP: Final = "the engine is warm and one video was thrown away; neither is counted"
INCLUDED: Final = "text, DiT, VAE and JPEG of every frame; no network"
JPEG_THREADS: Final = 2  # as many as the server has
COLUMNS: Final = {
    "sessions": "{:d}",
    "fps_total": "{:.1f}",
    "fps_serial": "{:.1f}",
    "fps_per_session": "{:.1f}",
    "rtf": "{:.2f}",
    "ttff_ms_p50": "{:.0f}",
    "chunk_ms_p50": "{:.0f}",
    "chunk_ms_p95": "{:.0f}",
    "chunk_ms_p99": "{:.0f}",
    "share_text": "{:.1%}",
    "share_dit": "{:.1%}",
    "share_vae": "{:.1%}",
    "share_encode": "{:.1%}",
    "dit_peak_share": "{:.1%}",
}


def run(engine: EngineConfig, options: BenchConfig, *, preset: Preset | None = None) -> int:
    """Measure, print the table, write the files and return 0.

    Raises StreamgenError when the engine cannot be started as asked.
    """
    counts = options.sessions or DEFAULT_SESSIONS
    config = dataclasses.replace(
        engine, max_sessions=max(counts), max_utilisation=None, max_queue=0
    )
    rows: list[Row] = []
    with Bench(config, options.seconds, preset or find_preset(engine.model)) as bench:
        print(facts_line("machine", bench.machine))
        print(facts_line("config", bench.config))
        print("\n" + " ".join(COLUMNS), flush=True)
        for count in counts:
            rows.append(bench.measure(count))
            print(table_line(rows[-1]), flush=True)
    write(BenchReport("sessions", bench.machine, bench.config, rows), options)
    return 0


def table_line(row: Mapping[str, Any]) -> str:
    """Return a row as text, each value below the name of its column."""
    values = flat(row)
    cells = {name: form.format(values[name]) for name, form in COLUMNS.items()}
    return " ".join(cell.rjust(len(name)) for name, cell in cells.items())


@dataclass(slots=True)
class Take:
    """One session's video while it is made. Times are of `time.monotonic`."""

    opened_at: float
    chunk_s: list[float] = field(default_factory=list)
    made_at: list[float] = field(default_factory=list)
    encoded_at: list[Future[float]] = field(default_factory=list)  # the first is of one frame alone
    ended: bool = False

    def first_frame_s(self) -> float:
        """Return the seconds from opening to the first JPEG."""
        return self.encoded_at[0].result() - self.opened_at

    def steady_chunk_s(self) -> list[float]:
        """Return the seconds of each chunk but the first, which is shorter."""
        return self.chunk_s[1:] or self.chunk_s

    def every_s(self, warm: int) -> list[float]:
        """Return the seconds from each chunk to the next, after `warm` chunks if there are more."""
        steady = self.made_at[warm:] if len(self.made_at) > warm + 1 else self.made_at
        return [after - before for before, after in pairwise(steady)]


class Bench:
    """An engine whose stages keep time. A context: at its end its threads end."""

    def __init__(self, config: EngineConfig, seconds: float, preset: Preset) -> None:
        effective = resolve(config, preset)
        assert effective.fps is not None
        self._fps = effective.fps
        self._num_frames = count_frames(seconds, self._fps)
        self._watch = Stopwatch()
        self.takes: dict[str, Take] = {}
        self._jpeg = ThreadPoolExecutor(JPEG_THREADS, "jpeg")
        self._warm_chunks = -(-held_frames(preset, effective) // preset.chunks.chunk_frames)
        self.engine = start_engine(config, self._deliver, preset=preset)
        runner = self.engine.runner
        watch_engine(self.engine, self._watch)
        self._make([0])
        self.resident_bytes = resident_bytes()  # before the peak, which needs room of its own
        self._peak_flops = measure_peak_flops(runner.dtype, runner.config.device)
        gflops = round(self._peak_flops / 1e9, 1)
        self.machine = {**engine_facts(self.engine), "matmul_gflops": gflops}
        self.config = {
            **video_facts(effective, preset),
            "seconds": seconds,
            "frames_per_session": self._num_frames,
            "warm_up": WARM_UP,
            "included": INCLUDED,
        }

    def measure(self, num_sessions: int, num_openings: int = 0) -> Row:
        """Return the row of `num_sessions`, which run together and then one after another.

        `num_openings` more are opened and ended at their first frame.
        """
        first_frames = [self._open_only(number) for number in range(1, num_openings + 1)]
        numbers = range(num_sessions)
        self._watch.reset()
        elapsed, takes = self._make(numbers)
        share, dit_s = self._watch.shares(), self._watch.seconds("dit")
        dit_flops = self._watch.dit_flops / dit_s
        serial = elapsed
        if num_sessions > 1:
            serial = sum(self._make([number])[0] for number in numbers)
        first_frames += [take.first_frame_s() for take in takes]
        chunks = [second for take in takes for second in take.steady_chunk_s()]
        fps_total = num_sessions * self._num_frames / elapsed
        return {
            "sessions": num_sessions,
            "fps_total": fps_total,
            "fps_serial": num_sessions * self._num_frames / serial,
            "fps_per_session": fps_total / num_sessions,
            "rtf": fps_total / num_sessions / self._fps,
            **percentiles("ttff_ms", first_frames),
            **percentiles("chunk_ms", chunks),
            **percentiles(
                "every_ms", [s for take in takes for s in take.every_s(self._warm_chunks)]
            ),
            "share": share,
            "dit_peak_share": dit_flops / self._peak_flops,
        }

    def __enter__(self) -> Bench:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the threads."""
        self.engine.decoder.close()
        self._jpeg.shutdown(cancel_futures=True)

    # Making videos.

    def _make(self, numbers: Sequence[int]) -> tuple[float, list[Take]]:
        """Make a video for each number, all together; return the seconds to the last JPEG."""
        began = time.monotonic()
        takes = [self._open(number, self._num_frames) for number in numbers]
        while not all(take.ended for take in takes):
            self._step()
        done = max(encoded.result() for take in takes for encoded in take.encoded_at)
        return done - began, takes

    def _open_only(self, number: int) -> float:
        """Return the seconds to the first frame of a session that shows nothing else."""
        take = self._open(number, 1)
        while not take.ended:
            self._step()
        return take.first_frame_s()

    def _open(self, number: int, num_frames: int) -> Take:
        take = Take(time.monotonic())
        # A text that was never seen, as a viewer's would be; the seed makes the runs alike.
        prompt = f"a red ball bounces on the grass, take {len(self.takes)}"
        session = self.engine.open(
            SessionRequest(prompt=prompt, seed=number, num_frames=num_frames)
        )
        self.takes[session.id] = take
        return take

    def _step(self) -> None:
        if not self.engine.step():
            self.engine.emit_decoded(wait_for=1)

    def _deliver(self, session_id: str, item: Chunk | Event) -> None:
        """Take what the engine sends: every chunk is played at once, so that none waits."""
        if isinstance(item, Failed):
            raise GenerationFailed(item.message)
        if isinstance(item, StateChanged) and item.state == "closed":
            self.takes[session_id].ended = True
        if not isinstance(item, Chunk):
            return
        take = self.takes[session_id]
        take.chunk_s.append(item.generation_s)
        take.made_at.append(time.monotonic())
        parts = [item.frames] if take.encoded_at else [item.frames[:1], item.frames[1:]]
        take.encoded_at += [self._jpeg.submit(self._encode, part) for part in parts]
        self.engine.played(session_id, item.first_frame_index + len(item.frames) - 1)

    def _encode(self, frames: npt.NDArray[np.uint8]) -> float:
        """Make a JPEG of each frame as the server does; return when they were there."""
        start = time.perf_counter()
        quality = TransportOptions().jpeg_quality
        for picture in frames:
            simplejpeg.encode_jpeg(picture, quality, colorspace="RGB", colorsubsampling="420")
        self._watch.add("encode", time.perf_counter() - start)
        return time.monotonic()
