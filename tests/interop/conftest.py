"""What `make interop` needs; without it nothing here is collected."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import DEMO_SERVER, POCKET_SERVER, REPOSITORY, Server
from tests.interop.hosts import Host, two_hosts

PORT = 8000
if "INTEROP" not in os.environ:
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session")
def hosts() -> Iterator[tuple[Host, Host]]:
    """The server's and the viewer's."""
    with two_hosts() as hosts:
        yield hosts


@pytest.fixture(params=["demo", "pocket"])
def far_server(request: pytest.FixtureRequest, hosts: tuple[Host, Host]) -> Iterator[str]:
    """A server on a host of its own; its name."""
    host, _ = hosts
    modules = {"demo": ("tests.transport.demo_server",), "pocket": ("streamgen.cli", "serve")}
    listen = ("--host", host.address)
    command = host.command(sys.executable, "-m", *modules[request.param], *listen)
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment)
    yield request.param
    process.terminate()
    process.wait(30)


def _served(command: str) -> Iterator[Server]:
    server = Server(command)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Pictures that carry numbers, on loopback."""
    yield from _served(DEMO_SERVER)


@pytest.fixture(scope="session")
def pocket_server() -> Iterator[Server]:
    """The product as it is shipped, on loopback."""
    yield from _served(POCKET_SERVER)


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """A screen that nobody sees."""
    reader, writer = os.pipe()
    command = ["Xvfb", "-displayfd", str(writer), "-screen", "0", "1440x900x24", "-nolisten", "tcp"]
    process = subprocess.Popen(command, pass_fds=[writer], stderr=subprocess.DEVNULL)
    os.close(writer)
    with os.fdopen(reader) as told:
        number = told.readline().strip()
    assert number, "Xvfb did not start"
    yield f":{number}"
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="session")
def webkit(display: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """WebKit's own small browser, with an empty home."""
    from selenium import webdriver
    from selenium.webdriver.webkitgtk.options import Options
    from selenium.webdriver.webkitgtk.service import Service

    home = str(tmp_path_factory.mktemp("home"))
    environment = {
        **os.environ,
        "DISPLAY": display,
        "HOME": home,
        "XDG_RUNTIME_DIR": home,
        "WEBKIT_DISABLE_DMABUF_RENDERER": "1",  # without a card it paints 5 times a second with it
    }
    with warnings.catch_warnings():
        # Selenium's own class uses what Selenium has deprecated.
        warnings.filterwarnings("ignore", "setting remote_server_addr", DeprecationWarning)
        driver = webdriver.WebKitGTK(Options(), Service(env=environment))
    yield driver
    driver.quit()
