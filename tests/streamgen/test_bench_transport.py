"""`streamgen bench transport`: all of it in a small form, and its arithmetic. No time is judged."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamgen.bench_figures import (
    Figure,
    Growth,
    Load,
    ages_ms,
    doubts,
    percentile,
    ratio,
    ratios,
)
from streamgen.bench_process import ServerProcess
from streamgen.bench_server import serve_reel
from streamgen.bench_source import CELL, Picture, ReelHost, paint_reel
from streamgen.bench_transport import Plan, run
from streamgen.bench_viewers import new_session
from streamgen.command_options import BenchConfig
from streamgen.errors import ConfigError, StreamgenError
from tests.streamgen.tiny import TINY, tiny_config
from transport.stream import SessionConfig, StreamError

SMALL = Picture(width=96, height=64, fps=20, chunk_frames=4)


def load(viewers: int, cpu: float) -> Load:
    return Load(viewers, cpu, 30.0, 3.0, None, 5.0, [1.0, 2.0, 9.0])


@pytest.mark.slow
def test_a_small_run_measures_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our server, aiortc's encoders, offers, ages and a busy engine: all are in table and files."""
    options = BenchConfig(seconds=1.0, json=tmp_path / "a.json", csv=tmp_path / "a.csv")
    plan = Plan(
        picture=SMALL,
        viewers=2,
        aiortc_viewers=2,
        offers=2,
        engine_sessions=2,
        engine_jpeg_viewers=1,
    )
    assert run(tiny_config(), options, preset=TINY, plan=plan) == 0
    report: dict[str, Any] = json.loads((tmp_path / "a.json").read_text())
    rows = {row["figure"]: row for row in report["rows"]}
    assert report["machine"]["cores"] >= 1
    assert isinstance(report["doubts"], list)
    assert report["config"]["picture"] == "96x64 at 20 fps"
    assert next(iter(rows)) == "server CPU, streamgen, WebRTC viewers 2 : 1"
    marks = {name: row["mark"] for name, row in rows.items() if row["mark"] is not None}
    assert marks == {
        "server CPU, streamgen, WebRTC viewers 2 : 1": 2.0,
        "WHEP offer to first frame, p50 of 2": 1000.0,
        "engine with 2 sessions: lag, p99": 20.0,
    }
    for server in ("streamgen", "aiortc VP8", "aiortc H.264"):
        for viewers in (1, 2):
            name = f"{server}, viewers {viewers}"
            assert rows[f"{name}: server CPU"]["value"] > 0
            assert rows[f"{name}: frames of each"]["value"] > 0
            assert rows[f"{name}: sent to each"]["value"] > 0
    for way in ("WebRTC", "WebSocket JPEG", "WebSocket H.264"):
        assert 0 < rows[f"age of a frame, {way}, p50"]["value"] < 60_000
    assert rows["engine with 2 sessions: frames of a session"]["value"] > 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in rows)
    with (tmp_path / "a.csv").open(newline="") as file:
        assert [row["figure"] for row in csv.DictReader(file)] == list(rows)


def test_more_than_one_number_of_sessions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sessions 4,8: .* one number, as in --sessions 12"):
        run(tiny_config(), BenchConfig(sessions=(4, 8)), preset=TINY)


def test_ratios_compare_many_viewers_with_one_and_a_further_viewer_with_ours() -> None:
    ours = Growth(load(1, 20.0), load(20, 39.0))  # 1 % for each further viewer
    theirs = Growth(load(1, 30.0), load(2, 55.0))
    values = [figure.value for figure in ratios(ours, {"aiortc": theirs}, 2.0)]
    assert values == pytest.approx([39 / 20, 55 / 30, 30 / 20, 25.0])
    starved = Growth(load(1, 20.0), dataclasses.replace(load(20, 39.0), fps=15.0))
    assert [figure.value for figure in ratios(starved, {}, 2.0)] == pytest.approx([78 / 20])
    assert [figure.met for figure in ratios(ours, {}, 2.0)] == [True]
    assert [figure.met for figure in ratios(ours, {}, 1.9)] == [False]


def test_frames_or_bits_that_were_missed_are_told() -> None:
    growth = Growth(load(1, 20.0), dataclasses.replace(load(20, 39.0), fps=15.0, mbps=0.5))
    assert doubts({"ours": growth}, 30, {"ours": 3.0}) == [
        "ours, viewers 20: 15.0 of 30 frames a second arrived",
        "ours, viewers 20: 0.50 of 3 Mbit/s arrived",
    ]
    assert doubts({"theirs": Growth(load(1, 20.0), load(2, 39.0))}, 30, {}) == []


def test_a_ratio_to_nothing_is_not_told() -> None:
    assert ratio(3.0, 0.0) is None
    assert ratio(3.0, -0.1) is None
    assert Figure("a", None, "x", 2.0).met is None
    assert "not known" in Figure("a", None, "x", 2.0).line()


def test_an_age_is_of_the_frame_that_came_by_its_index_or_by_the_end_of_its_packet() -> None:
    """One name for two frames says nothing; of a frame that came twice the first counts."""
    dues = [
        (7, 1.0, {"h264": b"a"}),
        (8, 2.0, {"h264": b"same"}),
        (9, 3.0, {"h264": b"same"}),
        (10, 4.0, {"vp8": b"b"}),
    ]
    assert ages_ms([(7, 1.25), (10, 4.5), (11, 5.0)], dues, "jpeg") == [250.0, 500.0]
    assert ages_ms([(b"a", 1.5), (b"same", 2.5), (b"a", 9.0)], dues, "h264") == [500.0]
    assert ages_ms([(b"b", 4.25)], dues, "vp8") == [250.0]


def test_a_percentile_of_nothing_says_what_to_do() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    with pytest.raises(StreamgenError, match="more --seconds"):
        percentile([], 50)


def test_the_reel_moves_everywhere_and_its_end_meets_its_beginning() -> None:
    reel = paint_reel(SMALL).astype(int)[:, CELL:]  # below its number
    assert reel.shape == (16, 64 - CELL, 96, 3)
    steps = np.abs(reel - np.roll(reel, -1, axis=0)).mean(axis=(1, 2, 3))
    assert steps.min() > 3
    assert steps.max() < 2 * steps.min()  # no cut in it, nor where it begins again


async def test_the_source_makes_no_more_than_back_pressure_allows() -> None:
    """A chunk and two frames may wait; frames that are played make room."""
    stream = await ReelHost(SMALL).open(SessionConfig(prompt="a"))
    chunks = stream.chunks()
    first, second = await anext(chunks), await anext(chunks)
    assert [first.first_frame_index, second.first_frame_index] == [0, 4]
    third = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0.5)
    assert not third.done()
    stream.played(1)
    assert (await third).first_frame_index == 8
    await stream.close()
    assert [chunk async for chunk in chunks] == []
    assert [event async for event in stream.events()] == []


async def test_what_the_source_cannot_do_is_refused() -> None:
    host = ReelHost(SMALL)
    stream = await host.open(SessionConfig(prompt="a"))
    for asked in (stream.fork(None), stream.snapshot(), stream.replay(), host.restore(b"")):
        with pytest.raises(StreamError, match="cannot do this"):
            await asked


async def test_a_server_that_fails_or_ends_is_said() -> None:
    """What is asked of it raises, with its own words when it has any; nothing is left behind."""
    async with ServerProcess(serve_reel, SMALL) as server:
        with pytest.raises(StreamgenError, match=r"(?s)failed at witness: .*no such session"):
            await server.ask("witness", "nobody")
        with pytest.raises(StreamgenError, match=r"is answered 400: .*prompt"):
            await new_session(server.port, prompt="")
        server.process.kill()
        server.process.join()
        with pytest.raises(StreamgenError, match="ended before usage"):
            await server.ask("usage")


async def test_a_server_that_does_not_start_is_said() -> None:
    server = ServerProcess(serve_reel, "no picture")
    with pytest.raises(StreamgenError, match="ended before port"):
        await server.__aenter__()
    assert not server.process.is_alive()
