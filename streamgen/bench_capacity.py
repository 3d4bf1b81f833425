"""`streamgen bench capacity`: how many people who come and go this machine can serve.

Arrivals are a Poisson process that waits for nobody (an open loop): who finds the machine busy is
served late or turned away, and the next one comes all the same. Each watches for a while and
leaves, so that arrivals a second times that while is the number of sessions offered. It rises until
chunks are late or people are turned away.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field
from typing import Final

from streamgen.bench_playout import Audience, played_figures
from streamgen.bench_report import BenchReport, Row, facts_line, percentiles, write
from streamgen.command_options import BenchConfig
from streamgen.config import EngineConfig
from streamgen.engine_facts import engine_facts, video_facts
from streamgen.errors import Capacity
from streamgen.models.presets import Preset, find_preset
from streamgen.session_config import SessionRequest

SECONDS: Final = 20.0  # of a level, unless --seconds says otherwise
LEVELS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # sessions offered
LIFE_S: Final = 5.0  # of a session
QUEUE: Final = 4  # that may wait for a place
SEED: Final = 0
LEAST_ATTAINMENT: Final = 0.99
LEAST_PLACED: Final = 0.9  # of those who came
FEWEST: Final = 10  # arrivals; of fewer, one who is turned away decides the level
NOTES: Final = (
    "offered: arrivals a second times the length of a session; sessions_mean: playing at a time",
    "ttff_ms: from arrival, waiting included, to the first frame; no network, no encoding",
    f"a level counts as carried when {LEAST_ATTAINMENT:.0%} of chunks came before playout ran dry "
    f"and {LEAST_PLACED:.0%} of those who came got a place; the first that is not ends the ramp",
    "warm-up: the engine is warm, and each level runs for the length of a session before it counts",
)
COLUMNS: Final = {
    "offered": "{:.0f}",
    "arrivals": "{:d}",
    "refused": "{:d}",
    "sessions_mean": "{:.1f}",
    "sessions_most": "{:d}",
    "deadline_attainment": "{:.1%}",
    "continuous_play": "{:.1%}",
    "underruns": "{:d}",
    "wait_ms_p95": "{:.0f}",
    "ttff_ms_p50": "{:.0f}",
    "ttff_ms_p95": "{:.0f}",
    "chunk_ms_p95": "{:.0f}",
    "busy_measured": "{:.1%}",
}


@dataclass(slots=True)
class Arrivals:
    """A Poisson process: when the next one comes, at a rate that may change."""

    rate: float = 1.0  # a second
    source: random.Random = field(default_factory=lambda: random.Random(SEED))
    next_at: float | None = None

    def until(self, now: float) -> list[float]:
        """Return when those came that have come since the last call."""
        came = []
        if self.next_at is None:
            self.next_at = now + self.source.expovariate(self.rate)
        while self.next_at <= now:
            came.append(self.next_at)
            self.next_at += self.source.expovariate(self.rate)
        return came


class CapacityBench(Audience):
    """An engine whose viewers come and go."""

    def __init__(self, config: EngineConfig, preset: Preset) -> None:
        super().__init__(config, preset)
        assert self.engine.config.fps is not None
        self.num_frames = max(1, round(LIFE_S * self.engine.config.fps))
        self.arrivals = Arrivals()
        self.num_arrived = 0
        self.num_refused = 0
        self._num_opened = 0

    def measure(self, offered: float, seconds: float) -> Row:
        """Return the figures of a level, after it has run for the length of a session."""
        self.arrivals.rate, self.arrivals.next_at = offered / LIFE_S, None
        self.run(LIFE_S, self._let_in)
        self.forget()
        self.num_arrived = self.num_refused = 0
        began, busy = self.now(), self.engine.passes.busy_s
        self.run(seconds, self._let_in)
        now = self.now()
        elapsed, watched = now - began, self.watched()
        placed_at = [(p.placed_at, p.came_at) for p in watched if p.placed_at is not None]
        waits = [placed - came for placed, came in placed_at if placed >= began]
        played = played_figures(watched, began, now)
        placed = 1 - self.num_refused / self.num_arrived if self.num_arrived else None
        return {
            "offered": offered,
            "arrivals_per_s": self.arrivals.rate,
            "seconds": elapsed,
            "arrivals": self.num_arrived,
            "refused": self.num_refused,
            "placed_share": placed,
            "waiting": self.engine.num_queued,
            "sessions_mean": self.playing_s / elapsed,
            "sessions_most": self.most_playing,
            "fps_total": played["frames_shown"] / elapsed,
            **percentiles("wait_ms", waits),
            **{k: v for k, v in played.items() if not k.startswith("control_to_frame")},
            "busy_measured": (self.engine.passes.busy_s - busy) / elapsed,
            "overload_levels": list(self.overloads),
        }

    def _let_in(self, now: float) -> None:
        for came_at in self.arrivals.until(now):
            self.num_arrived += 1
            self._num_opened += 1
            request = SessionRequest(
                prompt=f"a red ball bounces on the grass, take {self._num_opened}",
                seed=self._num_opened,
                num_frames=self.num_frames,
            )
            try:
                self.open(request, came_at)
            except Capacity:
                self.num_refused += 1


def run(engine: EngineConfig, options: BenchConfig, *, preset: Preset | None = None) -> int:
    """Measure, print the table, write the files and return 0.

    `sessions` are the levels. Raises StreamgenError when the engine cannot be started as asked.
    """
    preset = preset or find_preset(engine.model)
    levels = sorted(options.sessions or LEVELS)
    config = dataclasses.replace(engine, max_sessions=2 * max(levels), max_queue=QUEUE)
    bench = CapacityBench(config, preset)
    rows: list[Row] = []
    try:
        facts = engine_facts(bench.engine)
        asked = {
            **video_facts(bench.engine.config, preset),
            "seconds": options.seconds,
            "session_s": bench.num_frames / (bench.engine.config.fps or 1),
            "queue": QUEUE,
            "max_utilisation": engine.max_utilisation,
            "seed": SEED,
        }
        print("\n".join([facts_line("machine", facts), facts_line("config", asked), *NOTES]))
        print("\n" + " ".join(COLUMNS), flush=True)
        for offered in levels:
            rows.append(bench.measure(offered, options.seconds))
            print(table_line(rows[-1]), flush=True)
            if not is_carried(rows[-1]):
                break
    finally:
        bench.close()
    more, doubtful = {"capacity": capacity(rows)}, doubts(rows)
    print("\n" + "\n".join([verdict_line(rows), *doubtful]))
    write(BenchReport("capacity", facts, asked, rows, NOTES, doubtful, more), options)
    return 0


def is_carried(row: Row) -> bool:
    """Return whether chunks came in time and people got places; without chunks there is no no."""
    attainment, placed = row["deadline_attainment"], row["placed_share"]
    in_time = attainment is None or attainment >= LEAST_ATTAINMENT
    return in_time and (placed is None or placed >= LEAST_PLACED)


def doubts(rows: list[Row]) -> tuple[str, ...]:
    """Return which levels tell little: so few came that one more or less changes the verdict."""
    return tuple(
        f"at {row['offered']:g} sessions offered {row['arrivals']} came: give it more --seconds"
        for row in rows
        if row["arrivals"] < FEWEST
    )


def capacity(rows: list[Row]) -> Row:
    """Return the largest level that was carried, and whether the ramp found its end.

    A level at which nobody came carried nobody.
    """
    carried = [row for row in rows if is_carried(row)]
    best = max(
        (row for row in carried if row["arrivals"] or row["chunks"]),
        key=lambda row: float(row["offered"]),
        default=None,
    )
    return {
        "offered": best["offered"] if best else 0,
        "sessions_mean": best["sessions_mean"] if best else 0.0,
        "sessions_most": best["sessions_most"] if best else 0,
        "is_bounded": len(carried) < len(rows),
    }


def verdict_line(rows: list[Row]) -> str:
    """Return what was found, in a sentence."""
    found = capacity(rows)
    said = (
        f"carried: {found['offered']:g} sessions offered, {found['sessions_mean']:.1f} playing at "
        f"a time, {found['sessions_most']} at most"
    )
    if not found["is_bounded"]:
        return f"{said}; no level was too much, so ask for more with --sessions"
    last, why = rows[-1], "people were turned away"
    attainment = last["deadline_attainment"]
    if attainment is not None and attainment < LEAST_ATTAINMENT:
        why = f"{attainment:.1%} of chunks came in time"
    return f"{said}; at {last['offered']:g} {why}"


def table_line(row: Row) -> str:
    """Return a row as text, each value below the name of its column."""
    cells = {n: "-" if row[n] is None else f.format(row[n]) for n, f in COLUMNS.items()}
    return " ".join(cell.rjust(len(name)) for name, cell in cells.items())
