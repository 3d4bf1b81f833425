"""What an engine measured, told to the server's metrics."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import fmean
from typing import Final

from streamgen.measures import Measures
from transport.metrics import Metrics

BUSY_WINDOW_S: Final = 10.0
NUM_CHUNKS: Final = 256  # that deadline attainment is of
NUM_SAMPLES: Final = 16  # that sampled quality is the mean of


class EngineTeller:
    """Takes an engine's steps, of one engine after another, into the metrics of one server."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = metrics.engine
        self._clock = clock
        self._began_at = clock()
        self._busy: deque[tuple[float, float]] = deque()  # when, and the seconds since the last
        self._in_time: deque[bool] = deque(maxlen=NUM_CHUNKS)
        self._quality_db: deque[float] = deque(maxlen=NUM_SAMPLES)
        metrics.engine.utilization_measured.set_function(self.busy_share)

    def take(self, measures: Measures) -> None:
        """Count a step."""
        engine = self._engine
        for stage, seconds in measures.stage_s:
            engine.chunk_duration_seconds[stage].observe(seconds)
        for rows in measures.batch_rows:
            engine.batch_size.observe(rows)
        self._take_slack(measures.slack_s)
        self._take_quality(measures.quality_db)
        self._busy.append((self._clock(), measures.busy_s))
        engine.oom_total.inc(measures.num_oom)
        engine.recompiles_total.inc(measures.num_new_shapes)
        engine.prompt_cache_hits_total.inc(measures.prompt_hits)
        engine.prompt_cache_misses_total.inc(measures.prompt_misses)
        engine.utilization_predicted.set(measures.device.busy_share)
        engine.cost_scatter.set(measures.device.scatter)
        engine.kv_pages_unowned.set(measures.device.pages_unowned)
        for kind, num_bytes in measures.device.memory:
            engine.memory_bytes.set(num_bytes, kind)

    def busy_share(self) -> float:
        """Return the share of the last seconds that passes took."""
        now = self._clock()
        while self._busy and now - self._busy[0][0] > BUSY_WINDOW_S:
            self._busy.popleft()
        span_s = min(BUSY_WINDOW_S, now - self._began_at)
        return min(1.0, sum(busy_s for _, busy_s in self._busy) / span_s) if span_s > 0 else 0.0

    def _take_slack(self, slack_s: tuple[float, ...]) -> None:
        for seconds in slack_s:
            self._engine.deadline_slack_seconds.observe(seconds)
            self._in_time.append(seconds >= 0)
        if self._in_time:
            self._engine.deadline_attainment_ratio.set(fmean(self._in_time))

    def _take_quality(self, quality_db: tuple[float, ...]) -> None:
        self._quality_db.extend(quality_db)
        if self._quality_db:
            self._engine.sampled_quality_psnr_db.set(fmean(self._quality_db))
