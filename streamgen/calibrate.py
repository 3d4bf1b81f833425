"""Measure what this machine's own account needs, with the bundled model, and keep it in a file."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch

from streamgen import account_causal, account_memory, machine, strict_json
from streamgen.account_cards import CARDS, Card, card_from
from streamgen.account_causal import Load
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError, GenerationFailed
from streamgen.messages import Chunk, Event, Failed
from streamgen.model_runner import ModelRunner
from streamgen.models.presets import PRESETS
from streamgen.plan_models import planned_model
from streamgen.session_config import SessionRequest
from streamgen.startup import engine_window, num_cores, resolve, start_engine
from streamgen.stopwatch import Stopwatch, measure_peak_flops, watch_engine
from streamgen.video_file import check_output

MODEL: Final = "pocket"
ROWS: Final = (1, 2, 4)
ROUNDS: Final = 5  # of timed passes; the best of each size counts
WARM_CHUNKS: Final = 5  # whose windows are not full yet
CHUNKS: Final = 20  # that count
COPY_BYTES: Final = 256 * 2**20  # beyond any cache
COPIES: Final = 5
STATUS: Final = Path("/proc/self/status")


def calibration_file() -> Path:
    """Return where the measurements are kept unless another file is named."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "streamgen" / "calibration.json"


def calibrate(config: EngineConfig, path: Path) -> dict[str, Any]:
    """Measure, write the file and return what it says, beside the video that was made.

    Raises ConfigError when the file cannot be written, before anything is measured.
    Peaks are of matrix products in the format of the passes, and of copies. How passes cost by
    rows is measured alone; how much they and decodes slow each other down, in a video.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    check_output(path, (".json",), "calibration")
    config = dataclasses.replace(
        EngineConfig(), model=MODEL, max_sessions=max(ROWS), max_utilisation=None, max_queue=0,
        dtype=config.dtype, device=config.device, threads=config.threads,
    )  # fmt: skip
    take = Take()
    engine = start_engine(config, take.deliver)
    try:
        runner = engine.runner
        window = engine_window(resolve(config, PRESETS[MODEL]), PRESETS[MODEL])
        rounds = [runner.measure_s(window, ROWS) for _ in range(ROUNDS)]
        alone_s = plausible({n: min(each[n] for each in rounds) for n in ROWS})
        watch_engine(engine, take.watch)
        request = SessionRequest(
            prompt="a red ball bounces on the grass",
            seed=0,
            num_frames=12 * (WARM_CHUNKS + CHUNKS),
        )
        session = engine.open(request)
        while len(take.made_at) < WARM_CHUNKS + CHUNKS:
            if not engine.step():
                engine.emit_decoded(wait_for=1)
            engine.played(session.id, take.last_frame)
    finally:
        engine.decoder.close()
    sizes = tuple(dtype.itemsize for dtype in engine.measured.dtypes)
    load = _load(config, (sizes[0], sizes[1]))
    facts = _facts(load, runner, take, alone_s)
    path.write_text(json.dumps(facts, indent=2) + "\n")
    return facts


def read_card(path: Path) -> Card:
    """Return the card a file describes. Raises ConfigError when there is none or it is wrong."""
    if path.exists() and not path.is_file():  # a device would be read for ever
        raise ConfigError(f"{path} is no file", param="gpu")
    try:
        facts = strict_json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", param="gpu") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}", param="gpu") from error
    return card_from(facts, str(path))


def calibration_doubts(path: Path) -> list[str]:
    """Return how this process differs from the one that measured a file: cores, torch."""
    facts = strict_json.loads(path.read_text("utf-8")).get("machine")
    if not isinstance(facts, dict):  # a card of somebody's own
        return []
    now = {"cores": num_cores(), "torch": torch.__version__}
    return [
        f"{path} was measured with {key} {facts[key]}, and here they are {value}: calibrate again"
        for key, value in now.items()
        if facts.get(key, value) != value
    ]


@dataclass(slots=True)
class Take:
    """The video that is made: when each chunk was there, and the stages' seconds by then."""

    watch: Stopwatch = field(default_factory=Stopwatch)
    made_at: list[float] = field(default_factory=list)
    dit_s: list[float] = field(default_factory=list)
    vae_s: list[float] = field(default_factory=list)
    last_frame: int = 0

    def deliver(self, session_id: str, item: Chunk | Event) -> None:
        """Take what the engine sends."""
        if isinstance(item, Failed):
            raise GenerationFailed(item.message)
        if isinstance(item, Chunk):
            self.last_frame = item.first_frame_index + len(item.frames) - 1
            self.made_at.append(time.perf_counter())
            self.dit_s.append(self.watch.seconds("dit"))
            self.vae_s.append(self.watch.seconds("vae"))


def plausible(seconds: dict[int, float]) -> dict[int, float]:
    """Return seconds by rows without what only noise explains, which adds and never takes away.

    No pass is slower than a larger one, nor than its rows one after another.
    """
    rising = {n: min(s for m, s in seconds.items() if m >= n) for n in seconds}
    return {n: min(s, n * rising[1]) for n, s in rising.items()}


def usual_s(take: Take) -> tuple[float, float, float]:
    """Return the seconds of a usual chunk: of passes, of its decode, and from one to the next.

    The mean of the half of chunks that are neither the fastest nor the slowest, windows filled.
    """
    rows = sorted(
        (made_s, dit_s, vae_s)
        for made_s, dit_s, vae_s in zip(
            *(_differences(totals) for totals in (take.made_at, take.dit_s, take.vae_s)),
            strict=True,
        )
    )
    quarter = len(rows) // 4
    usual = rows[quarter : len(rows) - quarter]
    made_s, dit_s, vae_s = (statistics.fmean(column) for column in zip(*usual, strict=True))
    return dit_s, vae_s, made_s


def _differences(totals: Sequence[float]) -> list[float]:
    steady = totals[WARM_CHUNKS - 1 :]
    return [after - before for before, after in pairwise(steady)]


def measure_bandwidth(device: torch.device) -> float:
    """Return the bytes a second that a large copy reads and writes: the best of some."""
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best_s = min(_timed(lambda: target.copy_(source), device) for _ in range(COPIES))
    return 2 * COPY_BYTES / best_s


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory; 0 where the system does not say."""
    if not STATUS.exists():
        return 0
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS:"))
    return 1024 * int(line.split()[1])


def _facts(
    load: Load, runner: ModelRunner, take: Take, alone_s: dict[int, float]
) -> dict[str, Any]:
    resident = resident_bytes()  # before the peaks, which need room of their own
    device = runner.config.device
    dit_s, vae_s, chunk_s = usual_s(take)
    row, decode = account_causal.row_flops(load).total, account_causal.decode_cost(load).flops
    bare_s = (load.model.steps - 1) * alone_s[1] + alone_s[2]
    shares_device = device.type == "cuda"
    work_s = dit_s + vae_s if shares_device else max(dit_s, vae_s)
    held = account_memory.memory(load, max(ROWS))
    return {
        "name": torch.cuda.get_device_name(device)
        if shares_device
        else f"cpu ({machine.cpu_name()})",
        "peak_flops": measure_peak_flops(runner.dtype, device),
        "bandwidth": measure_bandwidth(device),
        "memory_bytes": _memory_bytes(device),
        "machine": {
            "cores": num_cores(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "commit": machine.commit(),
            "model": MODEL,
            "chunk_s": chunk_s,
            "resident_bytes": resident,
        },
        "measured": {
            "pass_points": [[n * row, s * dit_s / bare_s] for n, s in alone_s.items()],
            "decode_point": [decode, vae_s],
            "decode_shares_device": shares_device,
            "host_s": max(0.0, chunk_s - work_s),
            "runtime_bytes": max(0, round(resident - held.kept)),
            "element_bytes": [load.model.element_bytes, load.model.vae_element_bytes],
        },
    }


def _load(config: EngineConfig, element_bytes: tuple[int, int]) -> Load:
    # Of the card only the shapes' account is asked here, never a peak.
    return Load(planned_model(config, element_bytes), CARDS["h100"])


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _timed(work: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
