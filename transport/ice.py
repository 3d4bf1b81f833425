"""STUN and TURN servers: what their URLs may be, and what viewers are told of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CREDENTIALS_LAST_S: Final = 24 * 3600  # a TURN server asks for them again while it is used
DEFAULT_PORTS: Final = {"stun": 3478, "turn": 3478, "stuns": 5349, "turns": 5349}
BROADCAST: Final = ipaddress.ip_address("255.255.255.255")
EXAMPLES: Final = "stun:stun.example.org:3478 or turn:turn.example.org:3478?transport=udp"
_URL: Final = re.compile(
    r"(?P<scheme>[a-z]+):(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?:\?transport=(?P<transport>[a-z]+))?"
)


@dataclass(frozen=True, slots=True)
class IceServer:
    """A server that helps to connect: STUN tells addresses, TURN relays for who has credentials."""

    url: str
    scheme: str
    host: str
    port: int

    @property
    def relays(self) -> bool:
        """Whether it is a TURN server."""
        return self.scheme in ("turn", "turns")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a TURN server takes until the time that begins the name."""

    username: str
    password: str


def check_ice_server(url: str) -> IceServer:
    """Return what a URL names; raise ValueError, saying what is right, when it is none."""
    match = _URL.fullmatch(url)
    if match is None or match["scheme"] not in DEFAULT_PORTS:
        raise ValueError(f"{url!r} is no ICE server: it should be like {EXAMPLES}")
    scheme = match["scheme"]
    port = int(match["port"] or DEFAULT_PORTS[scheme])
    if not 1 <= port <= 65_535:
        raise ValueError(f"{url!r} has port {port}: it must be 1 to 65535")
    if match["transport"] is not None:
        if scheme in ("stun", "stuns"):
            raise ValueError(f"{url!r}: only turn: and turns: URLs have a transport")
        if match["transport"] not in ("udp", "tcp"):
            raise ValueError(f"{url!r}: the transport must be udp or tcp")
    return IceServer(url, scheme, match["host"].strip("[]"), port)


def check_ice_servers(urls: Iterable[str], turn_secret: str | None) -> tuple[IceServer, ...]:
    """Return the servers; raise ValueError for a wrong URL, or when a secret and its use differ."""
    servers = tuple(map(check_ice_server, urls))
    relays = [server.url for server in servers if server.relays]
    if relays and not turn_secret:
        raise ValueError(f"{relays[0]} needs --turn-secret, which the TURN server shares")
    if turn_secret and not relays:
        raise ValueError("--turn-secret needs an --ice-server that begins with turn: or turns:")
    return servers


def check_public_ip(address: str) -> str:
    """Return the address; raise ValueError when it is none that can be told to viewers."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError as error:
        raise ValueError(f"{address!r} is no IP address: --public-ip takes no name") from error
    if parsed.is_unspecified or parsed.is_multicast or parsed == BROADCAST:
        raise ValueError(f"{address} cannot be reached: --public-ip is what viewers connect to")
    return str(parsed)


def check_udp_ports(first: int, last: int) -> tuple[int, int]:
    """Return a range of ports; raise ValueError when it is none."""
    if not 1 <= first <= last <= 65_535:
        raise ValueError(
            f"{first}-{last} is no range of ports: it should be like 40000-40100, each 1 to 65535"
        )
    return first, last


def make_credentials(
    secret: str, now: float | None = None, lasting_s: float = CREDENTIALS_LAST_S
) -> Credentials:
    """Return credentials that a TURN server with the same secret takes for a while.

    This is the scheme of coturn's `use-auth-secret`. The secret itself cannot be found from them.
    """
    expires = int((time.time() if now is None else now) + lasting_s)
    username = f"{expires}:{secrets.token_hex(8)}"
    digest = hmac.new(secret.encode(), username.encode(), hashlib.sha1).digest()
    return Credentials(username, base64.b64encode(digest).decode())


def link_headers(
    servers: Iterable[IceServer], turn_secret: str | None, now: float | None = None
) -> list[str]:
    """Return the values of WHEP's `Link` headers, with new credentials for TURN servers."""
    credentials = None if turn_secret is None else make_credentials(turn_secret, now)
    links = []
    for server in servers:
        link = f'<{server.url}>; rel="ice-server"'
        if server.relays and credentials is not None:
            link += f'; username="{credentials.username}"; credential="{credentials.password}"'
            link += '; credential-type="password"'
        links.append(link)
    return links
