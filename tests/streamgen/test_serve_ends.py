"""Every way in which `streamgen serve` ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from streamgen import cli, serve
from tests.streamgen.server_process import (
    PATIENCE_S,
    REPOSITORY,
    ServerProcess,
    client_of,
    is_alive,
    serving,
)

slow = pytest.mark.slow


def ended(server: ServerProcess, children: list[int]) -> int:
    """Wait for the server's end, require that nothing of it is left, and return the status."""
    status = server.wait()
    assert "Traceback" not in "".join(server.err), server.err
    assert server.rest_of_output() == ""
    deadline = time.monotonic() + 30  # multiprocessing's tracker ends a little later
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in children if is_alive(pid)]
    port = urlsplit(server.url).port
    assert port is not None
    socket.create_server(("127.0.0.1", port)).close()
    return status


@slow
async def test_q53_with_live_streams_it_ends_in_order() -> None:
    with serving() as server:
        async with client_of(server) as one, client_of(server) as two:
            for client in (one, two):
                await client.start()
                await client.until_frame(3)
            children = server.children()
            assert children
            server.signal(signal.SIGINT)
            codes = await asyncio.gather(one.until_closed(), two.until_closed())
        assert await asyncio.to_thread(ended, server, children) == 0
    # 1006: a machine that is slow may not get to say it before the time for goodbyes is over.
    assert set(codes) <= {1000, 1001, 1006, 1012}, codes


@slow
def test_q53_while_the_model_loads_it_ends_in_order() -> None:
    with serving(ready=False) as server:
        answer = server.get("readyz")
        assert answer.status_code == 503
        assert answer.json()["status"] == "warming"
        assert server.get("healthz").status_code == 200
        children = server.children()
        assert children
        server.signal(signal.SIGTERM)
        assert ended(server, children) == 0


@slow
def test_q53_a_second_signal_ends_it_at_once() -> None:
    with serving(ready=False) as server:
        children = server.children()
        os.kill(children[-1], signal.SIGSTOP)  # an engine that hangs
        server.signal(signal.SIGINT)
        time.sleep(0.5)
        server.signal(signal.SIGINT)
        assert ended(server, children) in (0, serve.CUT_OFF)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Put the signals' handlers back, which stay once the process was told to stop."""
    before = {number: signal.getsignal(number) for number in serve.STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()


def test_q53_the_second_signal_and_the_time_limit_cut_it_off(
    monkeypatch: pytest.MonkeyPatch, handlers: None
) -> None:
    reasons: list[str] = []
    stops: list[None] = []
    before = signal.getsignal(signal.SIGINT)
    with serve.stopping(lambda: stops.append(None)):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.setattr(serve, "cut_off", reasons.append)
    monkeypatch.setattr(serve, "STOP_TIMEOUT_S", 60.0)
    with serve.stopping(lambda: stops.append(None)):
        signal.raise_signal(signal.SIGINT)
        assert (len(stops), reasons) == (1, [])
        signal.raise_signal(signal.SIGTERM)
        assert reasons == ["told twice"]
    signal.raise_signal(signal.SIGINT)  # what comes after may hang, too
    assert (len(stops), reasons) == (1, ["told twice"] * 2)
    monkeypatch.setattr(serve, "STOP_TIMEOUT_S", 0.01)
    with serve.stopping(lambda: None):
        signal.raise_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        while len(reasons) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert reasons[2:] == ["it did not end in time"]


HANGS = """
import asyncio, os, signal, time
from streamgen import serve

async def work():
    with serve.stopping(lambda: None):
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
        os.kill(os.getpid(), signal.{})
        await asyncio.sleep(0.1)
    print(time.time(), flush=True)

asyncio.run(work())  # it waits for its threads
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_q53_what_hangs_after_the_last_line_is_cut_off_in_time(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGS.format(name)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    took_s = time.time() - float(ended.stdout)
    assert ended.returncode == serve.CUT_OFF
    assert ended.stderr == "streamgen serve: ended at once, it did not end in time\n"
    assert took_s < 120  # of 600; 4.5 on an idle machine


def test_q53_ctrl_c_while_torch_is_imported_leaves_nothing_to_wait_for() -> None:
    code = (
        "import atexit\nfrom streamgen import cli, serve\n"
        "def run(*options): raise KeyboardInterrupt\n"
        "serve.run = run\natexit.register(print, 'taken apart')\ncli.main(['serve'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (cli.INTERRUPTED, "")
    assert ended.stderr == "streamgen serve: interrupted\n"
