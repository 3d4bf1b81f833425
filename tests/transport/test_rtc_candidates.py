"""Where viewers are told to send: ports, the advertised address, and servers that are dead."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import NoReturn, cast

import pytest
from aioice import Candidate, Connection
from aioice.ice import StunProtocol
from aioice.stun import Class, Message, parse_message

from transport import rtc_candidates
from transport.rtc_candidates import Reach
from transport.stream import StreamError

DEAD = ("192.0.2.1", 3478)


@contextlib.asynccontextmanager
async def gathered(
    reach: Reach, addresses: tuple[str, ...] = ("127.0.0.1",)
) -> AsyncIterator[list[Candidate]]:
    """Gather for one connection."""
    connection = Connection(ice_controlling=False)
    try:
        gathering = reach.gather(connection, 1, list(addresses), lambda: None)
        yield await asyncio.wait_for(gathering, 30.0)
    finally:
        await connection.close()


def free_ports(number: int) -> int:
    """Return the first of so many UDP ports that are free on 127.0.0.1."""
    for first in range(42_000, 60_000, number):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + number):
                    sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise OSError("no free ports")


async def test_own_addresses() -> None:
    """One host candidate each; 127.0.0.1 when there is no other."""
    async with gathered(Reach(), ("127.0.0.1", "127.0.0.2")) as found:
        assert [(one.type, one.host) for one in found] == [
            ("host", "127.0.0.1"),
            ("host", "127.0.0.2"),
        ]
    async with gathered(Reach(), ()) as found:
        assert [one.host for one in found] == ["127.0.0.1"]


async def test_q08_address_and_range() -> None:
    """The advertised address takes the place of those of its kind; ports are within the range."""
    first = free_ports(11)
    reach = Reach(public_ip="203.0.113.7", udp_ports=(first, first + 10))
    async with contextlib.AsyncExitStack() as stack:
        ports = set()
        for _ in range(11):
            (one,) = await stack.enter_async_context(gathered(reach))
            assert (one.type, one.host) == ("host", "203.0.113.7")
            ports.add(one.port)
        assert ports == set(range(first, first + 11))
        with pytest.raises(StreamError, match=f"no UDP port of {first}-{first + 10}") as raised:
            await stack.enter_async_context(gathered(reach))
        assert (raised.value.code, raised.value.retry_after_s) == ("capacity", 5)
    async with gathered(reach) as found:
        assert len(found) == 1, "ports are given back"
    six = Reach(public_ip="2001:db8::7")
    async with gathered(six) as found:
        assert [one.host for one in found] == ["127.0.0.1"]


@pytest.mark.parametrize("number", [1, 3])
async def test_q05_dead_stun_servers(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are waited for together, until time is up, and the next viewer asks none."""
    asked, waiting = list[int](), list[int]()

    async def ask(protocol: StunProtocol, server: tuple[str, int]) -> NoReturn:
        asked.append(1)
        waiting.append(1)
        try:
            await asyncio.sleep(3600)
        finally:
            most.append(len(waiting))
            waiting.pop()
        raise AssertionError

    most = list[int]()
    monkeypatch.setattr(rtc_candidates, "server_reflexive_candidate", ask)
    monkeypatch.setattr(rtc_candidates, "STUN_TIMEOUT_S", 0.2)
    reach = Reach(stun_servers=tuple((f"192.0.2.{i}", 3478) for i in range(1, number + 1)))
    began = time.monotonic()
    async with gathered(reach) as found:
        assert time.monotonic() - began > 0.2 - 0.01
        assert [one.type for one in found] == ["host"]
    assert (len(asked), max(most), waiting) == (number, number, [])
    async with gathered(reach) as found:
        assert len(found) == 1
    assert len(asked) == number


class Stun(asyncio.DatagramProtocol):
    """Answers that whoever asks is at 198.51.100.9."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer."""
        asked = parse_message(data)
        answer = Message(asked.message_method, Class.RESPONSE, asked.transaction_id)
        answer.attributes["XOR-MAPPED-ADDRESS"] = ("198.51.100.9", 4242)
        self.transport.sendto(bytes(answer), addr)


async def test_one_that_lives_among_dead_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says is told, without a wait for the others."""
    monkeypatch.setattr(rtc_candidates, "STUN_TIMEOUT_S", 600.0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Stun, local_addr=("127.0.0.1", 0))
    server = transport.get_extra_info("sockname")
    try:
        async with gathered(Reach(stun_servers=(DEAD, server))) as found:
            told = [(one.type, one.host, one.port) for one in found]
            assert told[1:] == [("srflx", "198.51.100.9", 4242)]
    finally:
        transport.close()
