"""`streamgen serve`, as processes: start, settings and input."""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamgen import cli, engine_client, serve
from streamgen.models.loader import CheckpointError
from streamgen.serve_options import ServeConfig
from tests.streamgen.server_process import ServerProcess, client_of, serving
from tests.streamgen.tiny import TINY, tiny_config

slow = pytest.mark.slow
BY_MEMORY = ("--max-utilisation", "none")  # a busy machine would let fewer in


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose options come from everywhere, behind a path prefix."""
    file = tmp_path_factory.mktemp("serve") / "server.yaml"
    file.write_text("window: 12\nsink: 1\nmax-viewers: 5\nroot_path: /gpu1/live\n")
    environ = {"STREAMGEN_SINK": "3", "STREAMGEN_IDLE_TIMEOUT": "30", "STREAMGEN_SEED": "1"}
    flags = ("--config", str(file), "--max-sessions", "3", *BY_MEMORY)
    with serving(*flags, environ=environ) as server:
        yield server


@slow
def test_one_line_says_where_the_page_is(server: ServerProcess) -> None:
    assert server.line == f"streamgen serves pocket at {server.url}\n"
    assert server.url.endswith("/gpu1/live/")
    assert "<html" in server.get("").text
    assert server.get("healthz").status_code == server.get("health").status_code == 200
    free = server.get("readyz").json()["capacity"]["sessions_free"]
    assert free == 3
    model = server.get("v1/models").json()["data"][0]
    assert (model["id"], model["width"], model["fps"]) == ("pocket", 128, 16)
    assert model["suggestions"]


@slow
def test_q39_the_settings_in_effect_say_where_they_came_from(server: ServerProcess) -> None:
    shown = server.get("v1/config").json()
    assert shown["window"] == {"value": 12, "source": "file server.yaml"}
    assert shown["sink"] == {"value": 3, "source": "env STREAMGEN_SINK"}
    assert shown["max_sessions"] == {"value": 3, "source": "flag --max-sessions"}
    assert shown["idle_timeout"] == {"value": 30.0, "source": "env STREAMGEN_IDLE_TIMEOUT"}
    assert shown["max_viewers"] == {"value": 5, "source": "file server.yaml"}
    assert shown["size"] == {"value": "128x128", "source": "preset"}
    assert shown["device"] == {"value": "auto", "source": "default"}


@slow
async def test_q39_a_session_has_the_servers_window_or_its_own(server: ServerProcess) -> None:
    for asked, effective in (({}, (12, 3)), ({"window": 6, "sink": 0}, (6, 0))):
        async with client_of(server) as client:
            config = (await client.start(**asked))["config"]
            assert (config["window"], config["sink"]) == effective
            await client.send("session.stop")
            await client.until_closed()


@slow
async def test_q27_a_session_delivers_exactly_the_frames_it_was_asked_for(
    server: ServerProcess,
) -> None:
    for num_frames in (1, 2, 10, 22):
        async with client_of(server) as client:
            await client.start(num_frames=num_frames, format="raw")
            await client.until("session.done", stopped=False)
            assert await client.until_closed() == 1000
        assert client.frames[-1].index == num_frames - 1  # a slow client may miss earlier ones
        assert all(len(frame.payload) == 128 * 128 * 3 for frame in client.frames)
        chunks = client.of_type("video.chunk_metadata")
        assert sum(chunk["num_frames"] for chunk in chunks) == num_frames


@slow
async def test_q34_frames_carry_the_times_of_the_models_rate(server: ServerProcess) -> None:
    async with client_of(server) as client:
        config = (await client.start(num_frames=22))["config"]
        await client.until("session.done")
    assert config["fps"] == 16
    assert all(frame.pts_us == round(frame.index * 1e6 / 16) for frame in client.frames)
    assert client.frames[0].decode().shape == (128, 128, 3)


@slow
@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"prompt": "x" * 2001}, id="q17"),
        pytest.param({"prompt": "x" * 100_000}, id="q17-100k"),
        pytest.param({"prompt": "\ud83d"}, id="q20-surrogate"),
        pytest.param({"prompt": "a\0b"}, id="q20-nul"),
        pytest.param({"prompt": "a", "size": "674x389"}, id="q26"),
        pytest.param({"prompt": "a", "size": "128*128"}, id="q26-star"),
        pytest.param({"prompt": "a", "num_frames": 0}, id="q27"),
        pytest.param({"prompt": "a", "windov": 6}, id="q39"),
    ],
)
async def test_q17_q20_q26_q27_q39_bad_starts_are_answered_and_a_good_one_may_follow(
    bad: dict[str, Any], server: ServerProcess
) -> None:
    prompt = "👨‍👩‍👧‍👦 你好，雨中的猫 مرحبا"
    async with client_of(server) as client:
        await client.send("session.start", **bad)
        answer = await client.until("error")
        assert answer["code"] in ("invalid_request", "unsupported")
        assert "Traceback" not in answer["message"]
        session_id = (await client.start(prompt, num_frames=1))["session_id"]
        session = await asyncio.to_thread(server.get, f"v1/realtime/sessions/{session_id}")
        assert [entry["prompt"] for entry in session.json()["prompts"]] == [prompt]
        await client.until("session.done")


# What cannot be.


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test fail if it starts an engine."""

    def start(*arguments: object, **options: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(engine_client, "EngineClient", start)


def test_q53_a_port_that_is_taken_is_said_before_the_model_loads(
    no_engine: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--port", str(port)]) == cli.MACHINE_CANNOT
    said = capsys.readouterr()
    assert said.err == (
        f"streamgen serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    )
    assert said.out == ""


def test_q53_an_address_that_is_not_this_machines_is_said(
    no_engine: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--host", "192.0.2.1"]) == cli.MACHINE_CANNOT
    assert "cannot listen on 192.0.2.1:8000: " in capsys.readouterr().err


def test_impossible_options_leave_the_port_free(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["none"], ["--size", "50x50"], ["--window", "2"], ["--window", "none"]):
        assert cli.main(["serve", *argv, "--port", "0"]) == cli.WRONG_USAGE
        assert capsys.readouterr().err.count("\n") == 1


@slow
def test_q42_a_model_that_does_not_load_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "dit.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    broken = dataclasses.replace(TINY, weights=tmp_path)
    before = signal.getsignal(signal.SIGINT)  # in the background of a script it is ignored
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        serve.run(tiny_config(), ServeConfig(port=0), preset=broken)
    assert multiprocessing.active_children() == []
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("host", "url", "warned"),
    [
        ("127.0.0.1", "http://127.0.0.1:{port}/", False),
        ("0.0.0.0", "http://localhost:{port}/, on every interface", True),
        ("localhost", "http://localhost:{port}/", False),
    ],
)
def test_the_line_names_an_address_that_a_browser_can_open(
    host: str, url: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with serve.listen(host, 0) as sock:
        port = sock.getsockname()[1]
        line = serve.announcement("pocket", sock, ServeConfig(host=host, port=0))
    assert line == f"streamgen serves pocket at {url.format(port=port)}"
    assert ("no key is asked for" in caplog.text) == warned
