"""`streamgen bench transport`: what viewers cost the server, and how old frames are that arrive.

Server and viewers are processes of their own on this machine; the viewers decode nothing. In the
same run aiortc serves the same picture with its own encoders, one for each viewer, as it does when
it is left to itself. At the end the real engine is given more sessions than it can keep up with,
to see what that does to the server's event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from streamgen.bench_browser import chromium, measure_screen
from streamgen.bench_figures import Figure, Growth, Load, ages_ms, doubts, percentile, ratios
from streamgen.bench_process import ServerProcess, Usage, ice_on_loopback
from streamgen.bench_report import BenchReport, facts_line, write
from streamgen.bench_server import serve_aiortc, serve_engine, serve_reel
from streamgen.bench_source import Picture
from streamgen.bench_viewers import (
    Counts,
    RtcViewer,
    SocketViewer,
    audience,
    new_session,
    watch,
)
from streamgen.command_options import BenchConfig
from streamgen.config import EngineConfig
from streamgen.device import find_device
from streamgen.machine import commit, cpu_name, installed_version
from streamgen.models.presets import Preset, find_preset
from streamgen.startup import num_cores
from streamgen.warm_up import DECODER_THREADS
from transport.video import default_bitrate

SECONDS: Final = 6.0  # of a phase, unless --seconds says otherwise
SETTLE_S: Final = 8.0  # at most: bitrates have climbed by then
WARM_S: Final = 1.0
MOST_GROWTH: Final = 2.0  # of the server CPU, from one viewer to many
LONGEST_OFFER_MS: Final = 1000.0
MOST_LAG_MS: Final = 20.0
OFFER_GAP_S: Final = 1.0  # keyframes asked for in quick succession are put off on purpose
AIORTC: Final = {"vp8": "aiortc VP8", "h264": "aiortc H.264"}
FORMATS: Final = {"jpeg": "WebSocket JPEG", "h264": "WebSocket H.264"}
NOTES: Final = (
    "server CPU: of its process, in % of a core; viewers and engine are other processes",
    "ratios: of the server CPU of a frame, as a machine with other work to do may miss frames",
    "aiortc: its own encoder for each viewer, at the most it gives (VP8 1.5, H.264 3 Mbit/s)",
    "offer: from the POST to the last packet of the first frame, session running",
    "age: from when the pacer has a frame due to when its last byte is with the viewer's code; "
    "late wake-ups, fan-out, encryption and sockets are in it, encoding and decoding are not; when "
    "Chromium's page has it: to requestVideoFrameCallback, or the canvas's animation frame; on "
    "Chromium's screen: to the animation frame that finds it there, which is never sooner",
    "lag: how late the server's event loop runs what is due, looked at every 5 ms",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything is measured."""

    picture: Picture = field(default_factory=Picture)
    viewers: int = 20
    aiortc_viewers: int = 2
    offers: int = 8
    engine_sessions: int = 12
    engine_jpeg_viewers: int = 3
    browser: bool = False  # measure what Chromium shows, too


def run(
    engine: EngineConfig,
    options: BenchConfig,
    *,
    preset: Preset | None = None,
    plan: Plan | None = None,
) -> int:
    """Measure, print the table, write the files and return 0.

    Raises ConfigError for options that mean nothing here, StreamgenError when a server fails.
    """
    plan = plan or Plan()
    if count := options.one_count("transport"):
        plan = dataclasses.replace(plan, engine_sessions=count)
    if options.browser:
        with chromium():  # or it is told before anything was measured
            plan = dataclasses.replace(plan, browser=True)
    preset = preset or find_preset(engine.model)
    machine, config = _machine(engine), _config(plan, preset, options.seconds)
    print(facts_line("machine", machine))
    print("\n".join([facts_line("config", config), *NOTES]), flush=True)
    with ice_on_loopback():
        figures, doubtful = asyncio.run(measure(engine, preset, plan, options.seconds))
    print("\n" + "\n".join(figure.line() for figure in figures))
    if doubtful:
        print(
            "\nthese figures are not to be trusted, for want of a quiet machine or of bits:\n"
            + "\n".join(doubtful)
        )
    rows = [figure.row() for figure in figures]
    write(BenchReport("transport", machine, config, rows, NOTES, tuple(doubtful)), options)
    return 0


async def measure(
    engine: EngineConfig, preset: Preset, plan: Plan, seconds: float
) -> tuple[list[Figure], list[str]]:
    """Run every phase; return the figures, ratios first, and what speaks against them."""
    print("\nmeasuring the server", flush=True)
    async with ServerProcess(serve_reel, plan.picture) as server:
        ours, figures = await _measure_server(server, plan, seconds)
        if plan.browser:
            figures += await measure_screen(server, plan.picture, seconds)
    others = {}
    for codec, name in AIORTC.items():
        print(f"measuring {name}", flush=True)
        async with ServerProcess(serve_aiortc, plan.picture) as server:
            others[name] = await _measure_aiortc(server, codec, plan.aiortc_viewers, seconds)
    config = dataclasses.replace(
        engine, max_sessions=plan.engine_sessions, max_utilisation=None, max_queue=0
    )
    print(f"measuring with {preset.name} and {plan.engine_sessions} sessions", flush=True)
    async with ServerProcess(serve_engine, config, preset) as server:
        figures += await _measure_engine(server, plan, seconds)
    loads = [
        figure
        for name, growth in {"streamgen": ours, **others}.items()
        for load in (growth.one, growth.many)
        for figure in load.figures(name)
    ]
    picture = plan.picture
    mbps = {"streamgen": default_bitrate(picture.width, picture.height) / 1e6}
    doubtful = doubts({"streamgen": ours, **others}, picture.fps, mbps)
    return ratios(ours, others, MOST_GROWTH) + loads + figures, doubtful


# The phases.


async def _measure_server(
    server: ServerProcess, plan: Plan, seconds: float
) -> tuple[Growth, list[Figure]]:
    session = await new_session(server.port, prompt="a moving picture")
    await server.ask("witness", session["id"])
    async with audience() as everybody:
        first, _ = await watch(server.port, session)
        everybody.append(first)
        one = await _measure_load(server, everybody, seconds)
        async with audience() as others:
            while len(others) < plan.viewers - 1:
                others.append((await watch(server.port, session))[0])
            many = await _measure_load(server, [first, *others], seconds)
        figures = await _measure_offers(server, session, plan.offers)
        figures += await _measure_age(server, first.counts, "WebRTC", "h264", seconds)
    for format, name in FORMATS.items():
        async with audience() as everybody:
            everybody.append(SocketViewer(server.port, session, format))
            figures += await _measure_age(server, everybody[0].counts, name, format, seconds)
    return Growth(one, many), figures


async def _measure_aiortc(
    server: ServerProcess, codec: str, num_viewers: int, seconds: float
) -> Growth:
    loads = []
    async with audience() as viewers:
        for count in (1, num_viewers):
            while len(viewers) < count:
                viewer = RtcViewer(codec)
                viewers.append(viewer)
                await viewer.accept(await server.ask("offer", await viewer.offer()))
                await viewer.counts.until_first()
            loads.append(await _measure_load(server, viewers, seconds))
    return Growth(*loads)


async def _measure_engine(server: ServerProcess, plan: Plan, seconds: float) -> list[Figure]:
    sessions = [
        await new_session(
            server.port, prompt=f"a red ball bounces, take {i}", seed=i, run_unwatched=True
        )
        for i in range(plan.engine_sessions)
    ]
    async with audience() as viewers:
        viewers.append((await watch(server.port, sessions[0]))[0])
        for i in range(plan.engine_jpeg_viewers):
            viewers.append(SocketViewer(server.port, sessions[i % len(sessions)], "jpeg"))
            await viewers[-1].counts.until_first()
        load = await _measure_load(server, viewers[:1], seconds)
    name = f"engine with {plan.engine_sessions} sessions"
    return [
        Figure(f"{name}: lag, p50", percentile(load.lag_ms, 50), "ms"),
        Figure(f"{name}: lag, p99", percentile(load.lag_ms, 99), "ms", MOST_LAG_MS),
        Figure(f"{name}: lag, most", percentile(load.lag_ms, 100), "ms"),
        Figure(f"{name}: engine's CPU", load.engine_cpu, "%"),
        Figure(f"{name}: server CPU", load.cpu, "%"),
        Figure(f"{name}: frames of a session", load.fps, "/s"),
    ]


async def _measure_load(
    server: ServerProcess, viewers: Sequence[RtcViewer | SocketViewer], seconds: float
) -> Load:
    await asyncio.sleep(min(seconds, SETTLE_S))
    await server.ask("lag")
    before, own = await server.ask("usage"), time.process_time()
    bytes_before = sum(viewer.counts.num_bytes for viewer in viewers)
    frames_before = sum(len(viewer.counts.arrivals) for viewer in viewers)
    await asyncio.sleep(seconds)
    after: Usage = await server.ask("usage")
    elapsed = after.at_s - before.at_s
    num_bytes = sum(viewer.counts.num_bytes for viewer in viewers) - bytes_before
    num_frames = sum(len(viewer.counts.arrivals) for viewer in viewers) - frames_before
    engine_cpu = None
    if after.children_s and before.children_s is not None:
        engine_cpu = 100 * (after.children_s - before.children_s) / elapsed
    return Load(
        viewers=len(viewers),
        cpu=100 * (after.server_s - before.server_s) / elapsed,
        fps=num_frames / elapsed / len(viewers),
        mbps=8e-6 * num_bytes / elapsed / len(viewers),
        engine_cpu=engine_cpu,
        viewers_cpu=100 * (time.process_time() - own) / elapsed,
        lag_ms=[1000 * lag for lag in await server.ask("lag")],
    )


async def _measure_offers(
    server: ServerProcess, session: dict[str, Any], count: int
) -> list[Figure]:
    times = []
    for _ in range(count):
        await asyncio.sleep(OFFER_GAP_S)
        viewer, first_frame_s = await watch(server.port, session)
        times.append(1000 * first_frame_s)
        await viewer.close()
    return [
        Figure(
            f"WHEP offer to first frame, p50 of {count}",
            percentile(times, 50),
            "ms",
            LONGEST_OFFER_MS,
        ),
        Figure(f"WHEP offer to first frame, most of {count}", max(times), "ms"),
    ]


async def _measure_age(
    server: ServerProcess, counts: Counts, name: str, encoding: str, seconds: float
) -> list[Figure]:
    await counts.until_first()
    await asyncio.sleep(min(seconds, WARM_S))
    await server.ask("due")
    counts.arrivals.clear()
    await asyncio.sleep(seconds)
    arrivals = list(counts.arrivals)
    ages = ages_ms(arrivals, await server.ask("due"), encoding)
    return [
        Figure(f"age of a frame, {name}, p50", percentile(ages, 50), "ms"),
        Figure(f"age of a frame, {name}, p95", percentile(ages, 95), "ms"),
    ]


def _machine(engine: EngineConfig) -> dict[str, Any]:
    packages = ("torch", "aiortc", "av", "uvicorn")
    return {
        "cpu": cpu_name(),
        "cores": num_cores(),
        "device": str(find_device(engine.device)),
        "threads": engine.threads or max(1, num_cores() - DECODER_THREADS),
        **{name: installed_version(name) for name in packages},
        "commit": commit(),
    }


def _config(plan: Plan, preset: Preset, seconds: float) -> dict[str, Any]:
    picture = plan.picture
    return {
        "picture": f"{picture.width}x{picture.height} at {picture.fps} fps",
        "seconds": seconds,
        "engine": f"{preset.name}, {plan.engine_sessions} sessions",
    }
