"""The server's Prometheus metrics: every name, label, value of a label and bucket edge there is.

They are an interface: docs/monitoring.md describes them, the rules and the dashboard under deploy/
query them. Nothing of a session, a viewer or a prompt is ever a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
PREFIX: Final = "streamgen:"
MODEL: Final = "model_name"
TRANSPORTS: Final = ("websocket", "webrtc", "mjpeg", "mp4")
STAGES: Final = ("text", "denoise", "commit", "recache", "decode", "copy", "encode")
CONTROLS: Final = ("prompt", "update", "rewind")
DROPS: Final = ("viewer", "rewind")
OUTCOMES: Final = ("done", "stopped", "timeout_idle", "timeout_max_duration", "failed", "refused")

# Upper edges of buckets, in seconds; of batches, in rows.
STAGE_EDGES: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
WAIT_EDGES: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
CHUNK_EDGES: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10)
QUEUE_EDGES: Final = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
SLACK_EDGES: Final = (-10, -5, -2, -1, -0.5, -0.2, -0.1, 0, 0.1, 0.2, 0.5, 1, 2, 5)  # below 0: late
LAG_EDGES: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
ROW_EDGES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class LateGauge:
    """A gauge that has no value before the first one is known."""

    def __init__(self, parent: Gauge, model_name: str) -> None:
        self._parent = parent
        self._model_name = model_name

    def set(self, value: float, *label_values: str) -> None:
        """Set the value, of the labels beside the model's name if there are any."""
        self._parent.labels(self._model_name, *label_values).set(value)


class Maker:
    """Makes metrics in a registry, all with the name of the model as a label.

    Series that can be are there from the start, at 0: a rate over a series that appears with its
    first count misses that count.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name

    def gauge(self, name: str, text: str) -> Gauge:
        """Make a gauge."""
        return self._gauge(name, text).labels(self._model_name)

    def late_gauge(self, name: str, text: str, *labels: str) -> LateGauge:
        """Make a gauge that is left out until it is set."""
        return LateGauge(self._gauge(name, text, *labels), self._model_name)

    def gauges(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Gauge]:
        """Make a gauge for each value of a label."""
        parent = self._gauge(name, text, label)
        return {value: parent.labels(self._model_name, value) for value in values}

    def counter(self, name: str, text: str) -> Counter:
        """Make a counter."""
        return self._counter(name, text).labels(self._model_name)

    def counters(
        self, name: str, text: str, label: str, values: Sequence[str]
    ) -> dict[str, Counter]:
        """Make a counter for each value of a label."""
        parent = self._counter(name, text, label)
        return {value: parent.labels(self._model_name, value) for value in values}

    def histogram(self, name: str, text: str, edges: Sequence[float]) -> Histogram:
        """Make a histogram."""
        return self._histogram(name, text, edges).labels(self._model_name)

    def histograms(
        self, name: str, text: str, edges: Sequence[float], label: str, values: Sequence[str]
    ) -> dict[str, Histogram]:
        """Make a histogram for each value of a label."""
        parent = self._histogram(name, text, edges, label)
        return {value: parent.labels(self._model_name, value) for value in values}

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, text, (MODEL, *labels), registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, (MODEL, *labels), registry=self._registry)

    def _histogram(
        self, name: str, text: str, edges: Sequence[float], *labels: str
    ) -> Histogram:  # fmt: skip
        labels = (MODEL, *labels)
        return Histogram(PREFIX + name, text, labels, buckets=edges, registry=self._registry)


class EngineMetrics:
    """What the engine says of itself."""

    def __init__(self, make: Maker) -> None:
        self.kv_cache_usage_ratio = make.gauge(
            "kv_cache_usage_ratio", "Share of the cache's pages that sessions have reserved."
        )
        self.kv_pages_free = make.gauge("kv_pages_free", "Cache pages that nobody has reserved.")
        self.kv_pages_unowned = make.gauge(
            "kv_pages_unowned", "Cache pages that are taken and belong to no session: a leak."
        )
        self.batch_size = make.histogram("batch_size", "Rows of a pass.", ROW_EDGES)
        self.chunk_duration_seconds = make.histograms(
            "chunk_duration_seconds", "Seconds of a chunk in a stage.", STAGE_EDGES,
            "stage", STAGES,
        )  # fmt: skip
        self.deadline_slack_seconds = make.histogram(
            "deadline_slack_seconds",
            "Seconds by which a live session's chunk was there before its playout ran dry.",
            SLACK_EDGES,
        )
        self.deadline_attainment_ratio = make.late_gauge(
            "deadline_attainment_ratio", "Share of the latest chunks that were there in time."
        )
        self.utilization_predicted = make.gauge(
            "utilization_predicted", "Share of time that passes are expected to take."
        )
        self.cost_scatter = make.gauge(
            "cost_scatter", "Mean absolute deviation of what passes and decodes cost, as a share."
        )
        self.utilization_measured = make.gauge(
            "utilization_measured", "Share of time that passes took of late."
        )
        self.worker_restarts_total = make.counter(
            "worker_restarts_total", "Engine processes that were replaced."
        )
        self.oom_total = make.counter(
            "oom_total", "Times that the device's memory was full in a pass or a decode."
        )
        self.recompiles_total = make.counter(
            "recompiles_total", "Shapes of a pass that were met for the first time after warm-up."
        )
        self.memory_bytes = make.late_gauge("memory_bytes", "Bytes in use, by kind.", "kind")
        self.sampled_quality_psnr_db = make.late_gauge(
            "sampled_quality_psnr_db",
            "Mean PSNR of the latest sampled chunks against the reference path.",
        )
        self.prompt_cache_hits_total = make.counter(
            "prompt_cache_hits_total", "Times that a prompt's K/V were there already."
        )
        self.prompt_cache_misses_total = make.counter(
            "prompt_cache_misses_total", "Times that a prompt had to be encoded."
        )


class SessionMetrics:
    """Sessions, and what their viewers get of them."""

    def __init__(self, make: Maker) -> None:
        self.sessions_running = make.gauge("sessions_running", "Sessions that hold cache pages.")
        self.sessions_waiting = make.gauge("sessions_waiting", "Sessions that wait for a place.")
        self.sessions_total = make.counters(
            "sessions_total", "Sessions that ended or were refused.", "outcome", OUTCOMES
        )
        self.admission_wait_seconds = make.histogram(
            "admission_wait_seconds", "Seconds that a session waited for its place.", QUEUE_EDGES
        )
        self.time_to_first_frame_seconds = make.histogram(
            "time_to_first_frame_seconds",
            "Seconds from a session that has a place and a viewer to its first frame.",
            WAIT_EDGES,
        )
        self.inter_chunk_seconds = make.histogram(
            "inter_chunk_seconds", "Seconds between two chunks of a session that plays.",
            CHUNK_EDGES,
        )  # fmt: skip
        self.control_to_frame_seconds = make.histograms(
            "control_to_frame_seconds", "Seconds from a control to the first frame that obeys it.",
            WAIT_EDGES, "kind", CONTROLS,
        )  # fmt: skip
        self.frames_generated_total = make.counter(
            "frames_generated_total", "Frames that the engine delivered."
        )
        self.realtime_factor = make.late_gauge(
            "realtime_factor", "Seconds of video made in a second, of the latest chunks."
        )
        self.playback_underruns_total = make.counter(
            "playback_underruns_total", "Times that a session's playout ran dry."
        )
        self.playback_stall_seconds_total = make.counter(
            "playback_stall_seconds_total", "Seconds for which playouts stood still, run dry."
        )


class ViewerMetrics:
    """Connections, and the server's own loop."""

    def __init__(self, make: Maker) -> None:
        self.viewers = make.gauges(
            "viewers", "Connections that are shown pictures.", "transport", TRANSPORTS
        )
        self.frames_sent_total = make.counters(
            "frames_sent_total", "Frames sent, one for each viewer.", "transport", TRANSPORTS
        )
        self.frames_dropped_total = make.counters(
            "frames_dropped_total", "Frames that were made and not shown or sent.", "reason", DROPS
        )
        self.webrtc_ice_failures_total = make.counter(
            "webrtc_ice_failures_total", "WebRTC viewers that got an answer and never connected."
        )
        self.event_loop_lag_seconds = make.histogram(
            "event_loop_lag_seconds", "Seconds by which the event loop woke too late.", LAG_EDGES
        )


class Metrics:
    """All metrics of one server, in a registry of their own."""

    def __init__(self, model_name: str) -> None:
        # Each counter would have a second series, of its birthday.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        make = Maker(self.registry, model_name)
        self.engine = EngineMetrics(make)
        self.sessions = SessionMetrics(make)
        self.viewers = ViewerMetrics(make)

    def render(self) -> bytes:
        """Return all metrics in the text format.

        Not in OpenMetrics, whoever asks: as prometheus_client 0.26 writes that, the colon in a
        sample's name becomes an underscore, and a histogram below 0 is not valid.
        """
        return generate_latest(self.registry)
