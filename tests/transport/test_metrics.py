"""`GET /metrics` of a server: all names, what the counts are of, and who may read what."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.transport.conftest import Serve, eventually
from tests.transport.fake_host import FakeHost
from tests.transport.scraped import scrape
from transport.loop_lag import watch_loop
from transport.metrics import PREFIX, Metrics
from transport.stream import Failed

HISTOGRAMS = """batch_size chunk_duration_seconds time_to_first_frame_seconds inter_chunk_seconds
    control_to_frame_seconds deadline_slack_seconds admission_wait_seconds event_loop_lag_seconds"""
COUNTERS = """frames_generated frames_sent frames_dropped playback_underruns playback_stall_seconds
    sessions webrtc_ice_failures worker_restarts oom recompiles prompt_cache_hits
    prompt_cache_misses"""
GAUGES = """sessions_running sessions_waiting viewers kv_cache_usage_ratio kv_pages_free
    deadline_attainment_ratio realtime_factor utilization_predicted utilization_measured
    cost_scatter memory_bytes sampled_quality_psnr_db kv_pages_unowned"""
TYPES = {
    **dict.fromkeys(HISTOGRAMS.split(), "histogram"),
    **dict.fromkeys(COUNTERS.split(), "counter"),
    **dict.fromkeys(GAUGES.split(), "gauge"),
}
LABELS = {
    "viewers": "transport", "frames_sent": "transport", "frames_dropped": "reason",
    "chunk_duration_seconds": "stage", "control_to_frame_seconds": "kind",
    "sessions": "outcome", "memory_bytes": "kind",
}  # fmt: skip


async def test_every_name_has_its_type_and_its_labels_and_no_other(serve: Serve) -> None:
    """A client played: nothing of a session, a viewer or a prompt is in a label."""
    server = await serve()
    client = await server.start("a red ball of Zanzibar")
    await client.until_frame(8)
    scraped = await scrape(server)
    assert {name: f.type for name, f in scraped.families.items()} == {
        PREFIX + name: kind for name, kind in TYPES.items()
    }
    for name, family in scraped.families.items():
        allowed = {"model_name", "le", LABELS.get(name.removeprefix(PREFIX))}
        assert all(sample.labels.keys() <= allowed for sample in family.samples), name
        assert all(sample.labels["model_name"] == "fake" for sample in family.samples), name
        assert family.documentation.endswith("."), name
    start = client.messages[0]
    for name in ("session_id", "viewer_token", "resume_token", "request_id"):
        assert f'"{start[name]}"' not in scraped.text
    assert "Zanzibar" not in scraped.text


async def test_it_counts_what_a_client_counts(serve: Serve) -> None:
    """Frames made and sent, the session while it runs and when it is done."""
    server = await serve()
    began = time.monotonic()
    client = await server.start(num_frames=30)
    await client.until_frame(4)
    running = await scrape(server)
    assert running("sessions_running") == 1
    assert running("viewers", transport="websocket") == 1
    assert running("viewers", transport="webrtc") == 0
    assert running("kv_pages_free") == 20
    assert running("kv_cache_usage_ratio") == pytest.approx(1 / 3)
    await client.until("session.done")
    await client.until_closed()
    await eventually(lambda: not server.host.streams)
    done = await scrape(server)
    took_s = time.monotonic() - began
    assert done("frames_generated_total") == 30
    skipped = done("frames_dropped_total", reason="viewer")
    assert done("frames_sent_total", transport="websocket") == len(client.frames) == 30 - skipped
    assert done("sessions_running") == done("viewers", transport="websocket") == 0
    assert done("sessions_total", outcome="done") == 1
    assert done("kv_cache_usage_ratio") == 0
    assert done("time_to_first_frame_seconds_count") == done("admission_wait_seconds_count") == 1
    assert 0.04 < done("time_to_first_frame_seconds_sum") < took_s
    chunks = done("inter_chunk_seconds_count") + 1
    assert chunks == len(client.of_type("video.chunk_metadata")) == 8
    assert 0.3 < done("inter_chunk_seconds_sum") < took_s
    assert done("chunk_duration_seconds_count", stage="encode") == chunks
    assert 0 < done("chunk_duration_seconds_sum", stage="encode") < took_s
    assert done("realtime_factor") > 0.5
    assert done("event_loop_lag_seconds_count") > 0


async def test_controls_are_timed_by_kind(serve: Serve) -> None:
    """From their coming to the first frame that obeys; a rewind's frames are dropped."""
    server = await serve()
    client = await server.start()
    await client.until_frame(8)
    began = time.monotonic()
    await client.prompt("a blue star", "p")
    await client.until("session.interaction.applied", event_id="p")
    await client.send("session.update", event_id="u", seed=9)
    await client.until("session.interaction.applied", event_id="u")
    await client.send("session.rewind", event_id="r", to_chunk=1)
    await client.until("session.interaction.applied", event_id="r")
    scraped = await scrape(server)
    took_s = time.monotonic() - began
    for kind in ("prompt", "update", "rewind"):
        assert scraped("control_to_frame_seconds_count", kind=kind) == 1
        assert 0 < scraped("control_to_frame_seconds_sum", kind=kind) < took_s
    assert scraped("frames_dropped_total", reason="rewind") > 0


async def test_how_sessions_end_and_who_is_refused(serve: Serve) -> None:
    """Stopped, failed, timed out, refused; one that waits is counted and timed."""
    server = await serve(FakeHost(max_sessions=1, max_queue=1), idle_timeout_s=0.1)
    began = time.monotonic()
    first, second = await server.start(), await server.connect()
    await second.send("session.start", prompt="b")
    await second.until("session.queued")
    assert (await scrape(server))("sessions_waiting") == 1
    third = await server.connect()
    await third.send("session.start", prompt="c")
    await third.until("error", code="capacity")
    await asyncio.sleep(0.2)
    await first.send("session.stop")
    await first.until_closed()
    await second.until_frame(2)
    server.host.streams["s2"].fail(Failed("out_of_memory", "full"))
    await second.until_closed()
    fourth = await server.start()
    await fourth.until_frame(1)
    await fourth.socket.close()
    await eventually(lambda: not server.host.streams)
    scraped = await scrape(server)
    outcomes = {o: scraped("sessions_total", outcome=o) for o in ("stopped", "failed", "refused")}
    assert outcomes == dict.fromkeys(outcomes, 1)
    assert scraped("sessions_total", outcome="timeout_idle") == 1
    assert scraped("admission_wait_seconds_count") == 3
    assert scraped("admission_wait_seconds_sum") > 0.2
    assert scraped("time_to_first_frame_seconds_sum") < time.monotonic() - began


async def test_underruns(serve: Serve) -> None:
    """An engine that is slower than the clock."""
    server = await serve(FakeHost(chunk_s=0.3, fps=60))
    client = await server.start()
    await client.until_frame(30)
    scraped = await scrape(server)
    assert scraped("playback_underruns_total") > 0
    assert scraped("playback_stall_seconds_total") > 0
    assert scraped("realtime_factor") < 0.5


async def test_the_engines_restarts(serve: Serve) -> None:
    """Counted up, whatever the engine that came says."""
    server = await serve()
    assert (await scrape(server))("worker_restarts_total") == 0
    server.host.restarts = 2
    assert (await scrape(server))("worker_restarts_total") == 2
    assert (await scrape(server))("worker_restarts_total") == 2


async def test_the_names_are_the_same_whatever_is_accepted(serve: Serve) -> None:
    """Prometheus 2.42 and 3 ask for OpenMetrics first, and take the text format."""
    server = await serve()
    kind = "application/openmetrics-text"
    asked = (
        f"{kind};version=1.0.0,{kind};version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.4",
    )
    async with server.http() as http:
        for accept in asked:
            answer = await http.get("/metrics", headers={"accept": accept})
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            names = {f.name for f in text_string_to_metric_families(answer.text)}
            assert names == {PREFIX + name for name in TYPES}
        assert (await http.head("/metrics")).status_code == 200
        assert (await http.post("/metrics")).status_code == 405


async def test_below_a_prefix_and_while_warming(serve: Serve) -> None:
    """Stripped by the proxy or not; without an engine, too."""
    server = await serve(FakeHost(ready=False), root_path="/gpu1/live")
    for path in ("/metrics", "/gpu1/live/metrics"):
        assert (await scrape(server, path))("sessions_running") == 0


async def test_a_loop_that_is_held_up_is_seen() -> None:
    """A call that blocks for a moment."""
    lags: list[float] = []
    watching = asyncio.create_task(watch_loop(lags.append))
    await asyncio.sleep(0.05)
    time.sleep(0.3)  # blocks the loop
    await eventually(lambda: max(lags, default=0.0) > 0.15)
    watching.cancel()


@pytest.mark.parametrize("name", ['a "quoted" {name}\\', "two\nlines", "模型 🎬", ""])
def test_a_models_name_may_be_anything(name: str) -> None:
    """What it does to the format is undone by whoever reads it."""
    metrics = Metrics(name)
    metrics.engine.memory_bytes.set(1, "weights")
    families = list(text_string_to_metric_families(metrics.render().decode()))
    assert {f.name for f in families} == {PREFIX + each for each in TYPES}
    assert {s.labels["model_name"] for f in families for s in f.samples} == {name}


def test_a_gauge_that_is_not_known_has_no_sample() -> None:
    """Present by name, so that a dashboard finds it, and without a value that means nothing."""
    text = Metrics("m").render().decode()
    families = {f.name: f for f in text_string_to_metric_families(text)}
    for name in ("deadline_attainment_ratio", "realtime_factor", "sampled_quality_psnr_db"):
        assert f"# TYPE {PREFIX}{name} gauge" in text
        assert families[PREFIX + name].samples == []
