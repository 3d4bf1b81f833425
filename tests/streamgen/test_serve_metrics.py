"""`GET /metrics` and the log of `streamgen serve`, whose engine is a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from websockets.asyncio.client import connect

from streamgen.serve_options import LOG_LEVELS
from tests.streamgen.server_process import PATIENCE_S, ServerProcess, serving
from tests.transport.realtime_client import RealtimeClient
from tests.transport.scraped import Scraped

pytestmark = pytest.mark.slow


async def scrape(server: ServerProcess) -> Scraped:
    answer = await asyncio.to_thread(server.get, "metrics")
    assert answer.status_code == 200
    return Scraped(answer.text, model="pocket")


async def settled(server: ServerProcess, is_told: Callable[[Scraped], bool]) -> Scraped:
    """Return the metrics once no session runs and what is waited for was told."""
    deadline = time.monotonic() + PATIENCE_S
    while (scraped := await scrape(server))("sessions_running") or not is_told(scraped):
        assert time.monotonic() < deadline, scraped.text
        await asyncio.sleep(0.2)
    return scraped


async def test_a_short_session_is_in_every_metric() -> None:
    """Frames as the client counts them, passes as there must be, and the log says the same."""
    with serving("--log-format", "json", "--sample-quality", "1") as server:
        async with connect(server.socket_url, max_size=None, close_timeout=1) as connection:
            client = RealtimeClient(connection, patience_s=PATIENCE_S)
            start = await client.start("a red ball of Zanzibar", num_frames=45, format="raw")
            await client.until_frame(0)
            await client.prompt("a blue star", "p")
            running = await scrape(server)
            await client.until("session.interaction.applied", event_id="p")
            await client.until("session.done")
            await client.until_closed()
        num_chunks = len(client.of_type("video.chunk_metadata"))
        done = await settled(
            server,
            lambda s: (
                s("chunk_duration_seconds_count", stage="copy") == num_chunks
                and "sampled_quality_psnr_db{" in s.text
            ),
        )
        text = done.text
        server.signal(signal.SIGINT)
        await asyncio.to_thread(server.wait)
    assert running("sessions_running") == running("viewers", transport="websocket") == 1
    assert running("kv_cache_usage_ratio") == pytest.approx(1 / 8)
    assert done("frames_generated_total") == 45
    skipped = done("frames_dropped_total", reason="viewer")
    assert done("frames_sent_total", transport="websocket") == len(client.frames) == 45 - skipped
    for stage in ("denoise", "decode", "copy"):
        assert done("chunk_duration_seconds_count", stage=stage) == num_chunks, stage
    assert done("chunk_duration_seconds_count", stage="text") == 2
    assert done("prompt_cache_misses_total") == 2
    assert done("batch_size_count") >= 2 * num_chunks
    assert done("utilization_measured") <= 1
    # The first has no deadline, nor has the second if it was there before a frame was shown.
    assert done("deadline_slack_seconds_count") in (num_chunks - 2, num_chunks - 1)
    assert done("deadline_attainment_ratio") <= 1
    assert done("control_to_frame_seconds_count", kind="prompt") == 1
    assert done("kv_pages_unowned") == done("worker_restarts_total") == done("oom_total") == 0
    assert done("memory_bytes", kind="weights") > 10_000_000
    assert 20 < done("sampled_quality_psnr_db") <= 100
    assert start["session_id"] not in text
    assert "Zanzibar" not in text
    check_log(server, start["session_id"], num_chunks)
    check_with_promtool(text)


def check_log(server: ServerProcess, session_id: str, num_chunks: int) -> None:
    """Require one JSON object a line, and each chunk made and shown under one trace id."""
    lines = [json.loads(line) for line in server.err]
    assert {line["process"] for line in lines} == {"server", "engine"}
    assert all(line["time"].endswith("Z") and line["level"] in LOG_LEVELS for line in lines)
    traces = [f"{session_id}/{index}" for index in range(num_chunks)]
    for process, figure in (("engine", "generation_ms"), ("server", "encode_ms")):
        mine = [line for line in lines if line["process"] == process and "trace_id" in line]
        assert [line["trace_id"] for line in mine] == traces
        assert all(line[figure] > 0 for line in mine)


def check_with_promtool(text: str) -> None:
    """Require that Prometheus reads it, if its tool is here."""
    if shutil.which("promtool") is not None:
        said = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
        ).stderr.splitlines()
        assert said
        assert all(line.endswith("metric names should not contain ':'") for line in said), said


async def test_counters_go_on_when_the_engine_is_replaced() -> None:
    with serving() as server:
        async with connect(server.socket_url, max_size=None, close_timeout=1) as connection:
            client = RealtimeClient(connection, patience_s=PATIENCE_S)
            await client.start(seed=1)
            await client.until_frame(40)
            before = await scrape(server)
            os.kill(server.children()[-1], signal.SIGKILL)
            await client.until("session.worker_restarted")
            await client.until_frame(client.frames[-1].index + 40)
            after = await scrape(server)
            await client.send("session.stop")
            await client.until_closed()
        done = await settled(server, lambda s: s("sessions_total", outcome="stopped") == 1)
    assert (before("worker_restarts_total"), after("worker_restarts_total")) == (0, 1)
    counters = [name for name, family in after.families.items() if family.type == "counter"]
    assert len(counters) == 12
    for name in counters:
        was = {tuple(s.labels.items()): s.value for s in before.families[name].samples}
        now = {tuple(s.labels.items()): s.value for s in done.families[name].samples}
        assert all(now[labels] >= value for labels, value in was.items()), name
    assert done("frames_generated_total") >= before("frames_generated_total") + 40
    assert done("chunk_duration_seconds_count", stage="recache") >= 1  # K/V made again
    assert done("kv_pages_unowned") == 0
    assert done("sessions_total", outcome="stopped") == 1
