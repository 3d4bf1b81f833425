"""`streamgen bench`: how fast this machine makes video, and where the time goes.

Sessions make whole videos, text, DiT, VAE and JPEG of every frame: together as in the server, all
that are ready in one forward, and then the same ones one after another. The engine is warmed up and
one video is thrown away before anything counts.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch

from streamgen import machine
from streamgen.command_options import BenchConfig
from streamgen.config import EngineConfig
from streamgen.errors import GenerationFailed
from streamgen.generate import count_frames
from streamgen.limits import UNLIMITED
from streamgen.messages import Chunk, Event, Failed, StateChanged
from streamgen.models.presets import Preset, find_preset
from streamgen.session_config import SessionRequest
from streamgen.startup import num_cores, resolve, start_engine
from streamgen.stopwatch import Stopwatch, measure_peak_flops, watch_engine
from transport.options import TransportOptions

DEFAULT_SESSIONS: Final = {"latency": (1,), "sessions": (1, 2, 4, 8)}
NUM_OPENINGS: Final = {"latency": 8, "sessions": 0}  # for the time to the first frame alone
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
    "share_text": "{:.1%}",
    "share_dit": "{:.1%}",
    "share_vae": "{:.1%}",
    "share_encode": "{:.1%}",
    "dit_peak_share": "{:.1%}",
}

Row = dict[str, Any]


def run(
    kind: str, engine: EngineConfig, options: BenchConfig, *, preset: Preset | None = None
) -> int:
    """Measure, print the table, write the files and return 0.

    Raises StreamgenError when the engine cannot be started as asked.
    """
    counts = options.sessions or DEFAULT_SESSIONS[kind]
    config = dataclasses.replace(
        engine, max_sessions=max(counts), max_utilisation=None, max_queue=0
    )
    rows: list[Row] = []
    with Bench(config, options.seconds, preset or find_preset(engine.model)) as bench:
        facts = {"machine": bench.machine, "config": bench.config}
        for name, values in facts.items():
            print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in values.items()))
        print("\n" + " ".join(COLUMNS), flush=True)
        for count in counts:
            rows.append(bench.measure(count, NUM_OPENINGS[kind]))
            print(table_line(rows[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n")
    if options.csv is not None:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(COLUMNS))
            writer.writeheader()
            writer.writerows(map(flat, rows))
    return 0


def flat(row: Row) -> Row:
    """Return a row with a column for each share."""
    shares = {f"share_{stage}": share for stage, share in row["share"].items()}
    return {key: value for key, value in (row | shares).items() if key in COLUMNS}


def table_line(row: Row) -> str:
    """Return a row as text, each value below the name of its column."""
    values = flat(row)
    cells = {name: form.format(values[name]) for name, form in COLUMNS.items()}
    return " ".join(cell.rjust(len(name)) for name, cell in cells.items())


@dataclass(slots=True)
class Take:
    """One session's video while it is made. Times are of `time.monotonic`."""

    opened_at: float
    chunk_s: list[float] = field(default_factory=list)
    encoded_at: list[Future[float]] = field(default_factory=list)  # the first is of one frame alone
    ended: bool = False

    def first_frame_s(self) -> float:
        """Return the seconds from opening to the first JPEG."""
        return self.encoded_at[0].result() - self.opened_at

    def steady_chunk_s(self) -> list[float]:
        """Return the seconds of each chunk but the first, which is shorter."""
        return self.chunk_s[1:] or self.chunk_s


class Bench:
    """An engine whose stages keep time. A context: at its end its threads end."""

    def __init__(self, config: EngineConfig, seconds: float, preset: Preset) -> None:
        effective = resolve(config, preset)
        assert effective.fps is not None
        self._fps = effective.fps
        self._num_frames = count_frames(seconds, self._fps)
        self._watch = Stopwatch()
        self._takes: dict[str, Take] = {}
        self._jpeg = ThreadPoolExecutor(JPEG_THREADS, "jpeg")
        self._engine = start_engine(config, self._deliver, preset=preset)
        runner = self._engine.runner
        self._peak_flops = measure_peak_flops(runner.dtype, runner.config.device)
        watch_engine(self._engine, self._watch)
        self._make([0])
        self.config = self._facts(effective, preset, seconds)

    @property
    def machine(self) -> dict[str, Any]:
        """Return what was measured on."""
        return {
            "cpu": machine.cpu_name(),
            "cores": num_cores(),
            "device": str(self._engine.runner.config.device),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "dtype": str(self._engine.runner.dtype).removeprefix("torch."),
            "matmul_gflops": round(self._peak_flops / 1e9, 1),
            "commit": machine.commit(),
        }

    def measure(self, num_sessions: int, num_openings: int) -> Row:
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
            "ttff_ms_p50": 1000 * statistics.median(first_frames),
            "chunk_ms_p50": 1000 * statistics.median(chunks),
            "chunk_ms_p95": 1000 * float(np.percentile(chunks, 95)),
            "share": share,
            "dit_peak_share": dit_flops / self._peak_flops,
        }

    def __enter__(self) -> Bench:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the threads."""
        self._engine.decoder.close()
        self._jpeg.shutdown(cancel_futures=True)

    def _facts(self, config: EngineConfig, preset: Preset, seconds: float) -> dict[str, Any]:
        assert config.size is not None
        return {
            "model": preset.name,
            "size": "{}x{}".format(*config.size),
            "fps": self._fps,
            "steps": config.steps,
            "window": "none" if config.window == UNLIMITED else config.window,
            "sink": config.sink,
            "seconds": seconds,
            "frames_per_session": self._num_frames,
            "warm_up": WARM_UP,
            "included": INCLUDED,
        }

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
        prompt = f"a red ball bounces on the grass, take {len(self._takes)}"
        session = self._engine.open(
            SessionRequest(prompt=prompt, seed=number, num_frames=num_frames)
        )
        self._takes[session.id] = take
        return take

    def _step(self) -> None:
        if not self._engine.step():
            self._engine.emit_decoded(wait_for=1)

    def _deliver(self, session_id: str, item: Chunk | Event) -> None:
        """Take what the engine sends: every chunk is played at once, so that none waits."""
        if isinstance(item, Failed):
            raise GenerationFailed(item.message)
        if isinstance(item, StateChanged) and item.state == "closed":
            self._takes[session_id].ended = True
        if not isinstance(item, Chunk):
            return
        take = self._takes[session_id]
        take.chunk_s.append(item.generation_s)
        parts = [item.frames] if take.encoded_at else [item.frames[:1], item.frames[1:]]
        take.encoded_at += [self._jpeg.submit(self._encode, part) for part in parts]
        self._engine.played(session_id, item.first_frame_index + len(item.frames) - 1)

    def _encode(self, frames: npt.NDArray[np.uint8]) -> float:
        """Make a JPEG of each frame as the server does; return when they were there."""
        start = time.perf_counter()
        quality = TransportOptions().jpeg_quality
        for picture in frames:
            simplejpeg.encode_jpeg(picture, quality, colorspace="RGB", colorsubsampling="420")
        self._watch.add("encode", time.perf_counter() - start)
        return time.monotonic()
