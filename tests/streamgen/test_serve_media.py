"""`streamgen serve` with pictures over plain HTTP, with recordings, and over TLS."""

from __future__ import annotations

import io
import signal
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import av
import httpx
import pytest

from streamgen import cli
from tests.certificate import certificate
from tests.streamgen.server_process import PATIENCE_S, ServerProcess, serving

pytestmark = pytest.mark.slow


def make_session(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    """Create a session that needs no viewer, and return the answer."""
    body = {"prompt": "a ball", "run_unwatched": True, **fields}
    url = server.url + "v1/realtime/sessions"
    answer = httpx.post(url, json=body, timeout=PATIENCE_S)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_q53_responses_without_an_end_do_not_hold_the_server_up() -> None:
    with serving() as server:
        urls = make_session(server)["urls"]
        begun, ended = threading.Barrier(3), list[int]()

        def watch(path: str) -> None:
            with httpx.stream("GET", server.url + path.lstrip("/"), timeout=PATIENCE_S) as answer:
                parts = answer.iter_raw()
                next(parts)
                begun.wait(PATIENCE_S)
                ended.append(sum(len(part) for part in parts))

        threads = [threading.Thread(target=watch, args=[urls[name]]) for name in ("mjpeg", "mp4")]
        for thread in threads:
            thread.start()
        begun.wait(PATIENCE_S)
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), PATIENCE_S) as uploading:
            uploading.sendall(
                b"POST /v1/realtime/sessions/restore HTTP/1.1\r\nHost: x\r\n"
                b"Content-Type: application/octet-stream\r\nContent-Length: 9\r\n"
                b"Expect: 100-continue\r\n\r\n"
            )
            assert uploading.recv(1000).startswith(b"HTTP/1.1 100")  # it reads the body
            uploading.sendall(b"half")
            server.signal(signal.SIGINT)
            assert uploading.recv(1000).startswith(b"HTTP/1.1 503")
        assert server.wait() == 0
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(ended) == 2  # none was cut off in the middle
        assert not [line for line in server.err if "Cancel" in line or "Traceback" in line]


def num_pictures(film: bytes) -> int:
    """Return how many pictures an MP4 has."""
    with av.open(io.BytesIO(film)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_a_session_is_recorded_while_it_is_shown(tmp_path: Path) -> None:
    with serving("--record", str(tmp_path / "films")) as server:
        made = make_session(server, num_frames=33)
        url = server.url + made["urls"]["recording"].lstrip("/")
        deadline = time.monotonic() + PATIENCE_S
        film = httpx.get(url, timeout=PATIENCE_S)
        while film.status_code != 200 or num_pictures(film.content) < 33:
            assert time.monotonic() < deadline, server.err
            time.sleep(0.2)
            film = httpx.get(url, timeout=PATIENCE_S)
        (file,) = (tmp_path / "films").iterdir()
        assert film.content == file.read_bytes()
        assert num_pictures(film.content) == 33


def test_q15_it_serves_https_with_a_certificate(tmp_path: Path) -> None:
    certfile, keyfile = certificate(tmp_path)
    flags = ("--ssl-certfile", str(certfile), "--ssl-keyfile", str(keyfile))
    with serving(*flags, ready=False) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(certfile))
        assert httpx.get(server.url + "healthz", verify=trusted).json() == {"status": "ok"}
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url + "healthz")


def test_a_certificate_that_is_none_is_said_before_the_model_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, keyfile = certificate(tmp_path)
    status = cli.main(
        ["serve", "--port", "0", "--ssl-certfile", str(keyfile), "--ssl-keyfile", str(keyfile)]
    )
    assert status == cli.WRONG_USAGE
    assert "are no certificate and key" in capsys.readouterr().err


def test_a_relay_without_its_secret_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["serve", "--port", "0", "--ice-server", "turn:turn.example.org"])
    assert status == cli.WRONG_USAGE
    assert "turn:turn.example.org needs --turn-secret" in capsys.readouterr().err


def test_a_directory_that_takes_no_recording_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    status = cli.main(
        ["serve", "--port", "0", "--load-format", "dummy", "--record", str(tmp_path / "file")]
    )
    assert status == cli.MACHINE_CANNOT
    assert "cannot record to" in capsys.readouterr().err
