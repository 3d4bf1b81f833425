"""Two hosts on one cable: network namespaces joined by a veth pair.

libnice, with which GStreamer does ICE, ignores loopback addresses, so server and viewer each need
an address of another kind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

SUBNET = "10.83.0"
CARRIER_WITHIN_S = 10.0


@dataclass(frozen=True)
class Host:
    """A network namespace with one address."""

    name: str
    address: str

    def command(self, *argv: str) -> list[str]:
        """Return the command that runs `argv` on this host."""
        return ["ip", "netns", "exec", self.name, *argv]


def hosts_problem() -> str | None:
    """Say why no such hosts can be made here, if so."""
    if not shutil.which("ip"):
        return "there is no ip command (Debian: iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with two_hosts():
            return None
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made: {error.stderr.strip()}"


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make two hosts that reach each other and nothing else, for the length of the block."""
    names = [f"interop-{side}-{os.getpid()}" for side in ("server", "viewer")]
    server, viewer = (Host(name, f"{SUBNET}.{n}") for n, name in enumerate(names, 1))
    with contextlib.ExitStack() as stack:
        for host in (server, viewer):
            _ip("netns", "add", host.name)
            stack.callback(_ip, "netns", "delete", host.name)
        # Both ends are made inside, so that none is ever seen on the machine's own network.
        end = ("name", "eth0", "netns")
        peer = ("type", "veth", "peer", *end, viewer.name)
        _ip("link", "add", *end, server.name, *peer)
        for host in (server, viewer):
            _ip("-netns", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-netns", host.name, "link", "set", link, "up")
        _wait_for_carrier(viewer)
        yield server, viewer


def _wait_for_carrier(host: Host) -> None:
    """Wait until programs on a host see that it is connected, which takes the kernel a while."""
    deadline = time.monotonic() + CARRIER_WITHIN_S
    while "state UP" not in _ip("-netns", host.name, "link", "show", "eth0"):
        assert time.monotonic() < deadline, "the cable carries nothing"
        time.sleep(0.02)


def _ip(*argv: str) -> str:
    return subprocess.run(["ip", *argv], check=True, capture_output=True, text=True).stdout
