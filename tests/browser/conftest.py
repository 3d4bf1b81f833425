"""Chromium, a streamgen server, and a proxy that can cut the wire between them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamgen.bench_browser import FLAGS

REPOSITORY = Path(__file__).parents[2]
POCKET_SERVER = f"{shlex.quote(sys.executable)} -m streamgen.cli serve --port {{port}}"
DEMO_SERVER = f"{shlex.quote(sys.executable)} -m tests.transport.demo_server {{port}}"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
START_TIMEOUT_S = 120.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a browser where there is none."""
    missing = None
    if not CHROMIUM or not CHROMEDRIVER:
        missing = "Chromium or ChromeDriver is not installed (Debian: chromium chromium-driver)"
    else:
        try:
            import selenium  # noqa: F401
        except ImportError:
            missing = "selenium is not installed"
    for item in items:
        if missing and item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason=missing))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Server:
    """A server process on a loopback port.

    The command is STREAMGEN_TEST_SERVER, with {port} in it, or else the demo server of the
    transport tests: `STREAMGEN_TEST_SERVER="streamgen serve --port {port}" pytest -m browser`.
    """

    def __init__(self, command: str | None = None) -> None:
        self.port = free_port()
        self._command = command or os.environ.get("STREAMGEN_TEST_SERVER", DEMO_SERVER)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def num_made(self) -> int:
        """Return how many frames the session has that is watched, shown or about to be."""
        with urllib.request.urlopen(f"{self.url}v1/realtime/sessions", timeout=30) as answer:
            sessions = json.load(answer)["data"]
        (watched,) = (one for one in sessions if one["viewers"] and one["state"] == "running")
        return watched["chunk"] * watched["config"]["chunk_frames"]

    def start(self) -> None:
        command = self._command.format(port=self.port)
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        environment.pop("STREAMGEN_TEST_SERVER", None)  # it is no option of the server's
        self._process = subprocess.Popen(shlex.split(command), cwd=REPOSITORY, env=environment)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready():
            assert self._process.poll() is None, f"the server ended: {command}"
            assert time.monotonic() < deadline, f"the server did not become ready: {command}"
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}readyz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False


class PrefixProxy:
    """A TCP proxy that serves `server` under a path prefix, strips it, and can cut connections."""

    def __init__(self, server: Server, prefix: str) -> None:
        self.prefix = prefix
        self.missed: list[str] = []  # request targets outside the prefix
        self.canned: dict[bytes, bytes] = {}  # answers given in the server's place, by target
        self._server = server
        self._connections: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{prefix}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close every connection there is."""
        for connection in tuple(self._connections):
            _shut(connection)

    def close(self) -> None:
        _shut(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                data = _receive(client)
                if not data:
                    return
                head += data
            method, target, rest = head.split(b" ", 2)
            path = target.partition(b"?")[0]
            if not (path + b"/").startswith(self.prefix.encode() + b"/"):
                self.missed.append(target.decode())
                client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                return
            target = b"/" + target[len(self.prefix) :].removeprefix(b"/")
            if target in self.canned:
                client.sendall(self.canned[target])
                return
            if b"upgrade: websocket" not in head.lower():
                # One request a connection, so that each has its own first line to rewrite.
                rest = rest.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
                rest = rest.replace(b"Connection: keep-alive\r\n", b"")
            try:
                upstream = socket.create_connection(("127.0.0.1", self._server.port))
            except OSError:
                return
            with upstream:
                self._connections |= {client, upstream}
                upstream.sendall(b" ".join((method, target, rest)))
                back = threading.Thread(target=_pump, args=(upstream, client), daemon=True)
                back.start()
                _pump(client, upstream)
                back.join()
                self._connections -= {client, upstream}


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := _receive(source):
            sink.sendall(data)
    except OSError:
        pass  # the sink was cut; the other direction ends too
    _shut(source)
    _shut(sink)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was closed already
        connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that all tests share."""
    server = Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def pocket_server() -> Iterator[Server]:
    """The product as it is shipped: `streamgen serve` with the bundled model."""
    server = Server(POCKET_SERVER)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that the test may stop and start."""
    server = Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def proxy(server: Server) -> Iterator[PrefixProxy]:
    proxy = PrefixProxy(server, "/gpu1/live")
    yield proxy
    proxy.close()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium with an empty profile."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """Its window, empty and of its own size; leaving a page ends that page's session."""
    chromium.get_log("browser")  # what an earlier test left there
    yield chromium
    chromium.get("about:blank")
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture
def scripted(browser: Any) -> Iterator[Any]:
    """A function that has a script run before each page's own; returns the browser."""
    added = []

    def script(source: str) -> Any:
        command = "Page.addScriptToEvaluateOnNewDocument"
        added.append(browser.execute_cdp_cmd(command, {"source": f"{{ {source} }}"}))
        return browser

    yield script
    for identifier in added:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", identifier)


@contextlib.contextmanager
def new_tab(browser: Any) -> Iterator[None]:
    """Be in a new tab, which hides the present one, for a while."""
    window = browser.current_window_handle
    browser.switch_to.new_window("tab")
    try:
        yield
    finally:
        browser.close()
        browser.switch_to.window(window)
