"""Where viewers may send to: this machine's addresses, in a range of ports, and what STUN says.

Takes the place of aioice's own gathering, which knows no range, no advertised address and only one
STUN server, and waits 5 s for that.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aioice.candidate import Candidate, candidate_foundation, candidate_priority
from aioice.ice import Connection, StunProtocol, server_reflexive_candidate

from transport.rtc_patches import keep_protocol
from transport.stream import StreamError

logger = logging.getLogger(__name__)

STUN_TIMEOUT_S: Final = 1.5  # for all servers together
ASK_AGAIN_S: Final = 60.0  # after none answered, so that not every viewer waits for them


@dataclass
class Reach:
    """How this server is reached, besides its own addresses on any port."""

    stun_servers: tuple[tuple[str, int], ...] = ()
    public_ip: str | None = None
    udp_ports: tuple[int, int] | None = None
    _ask_again_at: float = field(default=float("-inf"), init=False)

    async def gather(
        self,
        connection: Connection,
        component: int,
        addresses: list[str],
        heard: Callable[[], None],
    ) -> list[Candidate]:
        """Open a socket on each address and return the candidates.

        `heard` is called with each datagram that comes. Raises StreamError when no socket can be
        opened.
        """
        protocols = []
        # Without any other address a viewer on the same machine is reached.
        for address in addresses or ["127.0.0.1"]:
            protocol = await self._open(connection, address, heard)
            if protocol is not None:
                protocol.local_candidate = self._host(protocol, component)
                protocols.append(protocol)
        if not protocols:
            ports = "" if self.udp_ports is None else " of {}-{}".format(*self.udp_ports)
            raise StreamError(
                "capacity", f"no UDP port{ports} is free", retryable=True, retry_after_s=5
            )
        hosts = [self._advertised(protocol.local_candidate) for protocol in protocols]
        found = {(one.host, one.port): one for one in hosts}
        for one in await self._ask_stun(protocols):
            found.setdefault((one.host, one.port), one)
        return list(found.values())

    async def _open(
        self, connection: Connection, address: str, heard: Callable[[], None]
    ) -> StunProtocol | None:
        loop = asyncio.get_running_loop()
        for port in self._ports():
            try:
                _, protocol = await loop.create_datagram_endpoint(
                    lambda: _Heard(connection, heard), local_addr=(address, port)
                )
            except OSError as error:
                logger.debug("cannot bind to %s port %d: %s", address, port, error)
                continue
            keep_protocol(connection, protocol)
            return protocol
        return None

    def _ports(self) -> list[int]:
        if self.udp_ports is None:
            return [0]
        first, last = self.udp_ports
        return random.sample(range(first, last + 1), last - first + 1)

    def _host(self, protocol: StunProtocol, component: int) -> Candidate:
        host, port = protocol.transport.get_extra_info("sockname")[:2]
        return _candidate("host", component, host, port)

    def _advertised(self, host: Candidate) -> Candidate:
        """Return what viewers are told of a socket: the advertised address, if of its kind."""
        if self.public_ip is None:
            return host
        address = ipaddress.ip_address(self.public_ip)
        if address.version != ipaddress.ip_address(host.host).version:
            return host
        return _candidate("host", host.component, self.public_ip, host.port)

    async def _ask_stun(self, protocols: list[StunProtocol]) -> list[Candidate]:
        """Return what the first server to answer says of each socket."""
        now = time.monotonic()
        if not self.stun_servers or now < self._ask_again_at:
            return []
        loop = asyncio.get_running_loop()
        asked = {
            loop.create_task(server_reflexive_candidate(protocol, server)): protocol
            for server in self.stun_servers
            for protocol in protocols
            if ipaddress.ip_address(protocol.local_candidate.host).version == 4
        }
        found: dict[StunProtocol, Candidate] = {}
        try:
            await self._collect(asked, found, now + STUN_TIMEOUT_S)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if asked and not found:
            logger.warning(
                "no STUN server answers: viewers are not told of its address for a while"
            )
            self._ask_again_at = now + ASK_AGAIN_S
        return list(found.values())

    async def _collect(
        self,
        asked: dict[asyncio.Task[tuple[Candidate, None]], StunProtocol],
        found: dict[StunProtocol, Candidate],
        until: float,
    ) -> None:
        waiting = set(asked)
        while waiting and len(found) < len(set(asked.values())):
            left_s = until - time.monotonic()
            done, waiting = await asyncio.wait(
                waiting, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return
            for task in done:
                if task.exception() is None:
                    found.setdefault(asked[task], task.result()[0])


class _Heard(StunProtocol):
    """A socket that tells when something came."""

    def __init__(self, connection: Connection, heard: Callable[[], None]) -> None:
        super().__init__(connection)
        self._heard = heard

    def datagram_received(self, data: bytes | str, addr: tuple[Any, ...]) -> None:
        self._heard()
        super().datagram_received(data, addr)


def _candidate(kind: str, component: int, host: str, port: int) -> Candidate:
    return Candidate(
        foundation=candidate_foundation(kind, "udp", host),
        component=component,
        transport="udp",
        priority=candidate_priority(component, kind),
        host=host,
        port=port,
        type=kind,
    )
