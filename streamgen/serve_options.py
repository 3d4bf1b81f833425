"""The options of `streamgen serve`, beside the engine's own. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streamgen.command_options import path
from streamgen.config import choice, name, option, seconds, whole
from streamgen.expand_options import ExpandConfig
from streamgen.logs import FORMATS
from transport.ice import EXAMPLES, check_ice_server, check_public_ip

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LEAST_BITRATE: Final = 100_000
LARGEST_BITRATE: Final = 100_000_000


def port_number(value: object) -> int:
    """Parse a TCP port; 0 means any free one."""
    number = int(value) if isinstance(value, str) and value.strip().isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= 65535:
        raise ValueError("expected a port from 0 to 65535, 0 for any free one")
    return number


def host_name(value: object) -> str:
    """Parse the name or address of a network interface."""
    try:
        host = name(value)
        host.encode("idna")  # what the resolver does first; its own error is no OSError
    except ValueError as error:
        raise ValueError("expected a host name or an address") from error
    return host


def path_prefix(value: object) -> str:
    """Parse the path under which a proxy serves: nothing, or /a/b without a slash at its end."""
    well_formed = isinstance(value, str) and value.startswith("/") and not value.endswith("/")
    if value != "" and not well_formed:
        raise ValueError("expected a path as in /gpu1/live, without a slash at its end")
    return str(value)


def bit_rate(value: object) -> int | None:
    """Parse bits a second, as in 4M, 800k or 2500000; auto goes by the size of the picture."""
    if value in (None, "auto"):
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kM]?)", str(value).strip())
    bits = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6}[match[2]] if match else 0.0
    if isinstance(value, bool) or not LEAST_BITRATE <= bits <= LARGEST_BITRATE:
        raise ValueError("expected auto or bits a second from 100k to 100M, as in 4M or 800k")
    return round(bits)


def ice_servers(value: object) -> tuple[str, ...]:
    """Parse one URL of a STUN or TURN server or a list of them, as flags given several times."""
    urls = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for url in urls:
        if not isinstance(url, str):
            raise ValueError(f"expected a URL such as {EXAMPLES}")
        check_ice_server(url)
    return urls


def ip_address(value: object) -> str:
    """Parse an IPv4 or IPv6 address that viewers can connect to."""
    if not isinstance(value, str):
        raise ValueError("expected an address, as in 203.0.113.7")
    return check_public_ip(value.strip())


def port_range(value: object) -> tuple[int, int]:
    """Parse two ports, as in 40000-40100."""
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", str(value).strip())
    first, last = map(int, match.groups()) if match else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise ValueError("expected two ports from 1 to 65535, the smaller first: 40000-40100")
    return first, last


def secret(value: object) -> str:
    """Parse a secret of at least 8 characters."""
    if not isinstance(value, str) or len(value) < 8:
        raise ValueError("expected at least 8 characters")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig(ExpandConfig):
    """What the server is told beside the engine's options."""

    host: str = option("127.0.0.1", host_name, "interface to listen at; 0.0.0.0 is all of them")
    port: int = option(8000, port_number, "port to listen at")
    root_path: str = option("", path_prefix, "path prefix under which a proxy serves this")
    max_viewers: int = option(64, whole(1), "viewers of all sessions together")
    idle_timeout: float | None = option(
        60.0, seconds, "seconds that a session nobody watches is kept"
    )
    encoder: str = option(
        "auto",
        choice("auto", "nvenc", "x264", "vp8"),
        "of H.264; auto is NVENC where there is one; vp8 prefers VP8 for WebRTC",
    )
    bitrate: int | None = option(None, bit_rate, "most bits a second of a video, as in 4M")
    ice_server: tuple[str, ...] = option(
        (), ice_servers, "STUN or TURN server told to WebRTC viewers, as in stun:host:3478"
    )
    turn_secret: str | None = option(
        None,
        secret,
        "secret shared with the TURN servers; credentials are made with it",
        secret=True,
    )
    public_ip: str | None = option(
        None, ip_address, "address under which WebRTC viewers reach this machine"
    )
    udp_port_range: tuple[int, int] | None = option(
        None, port_range, "UDP ports for WebRTC, as in 40000-40100"
    )
    record: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "directory that gets an MP4 of each session"
    )
    ssl_certfile: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "PEM file of the certificate, for https"
    )
    ssl_keyfile: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "PEM file of the certificate's key"
    )
    log_level: str = option("info", choice(*LOG_LEVELS), "least important lines to log")
    log_format: str = option(
        "text",
        choice(*FORMATS),
        "json: an object a line, and a line for each chunk",
    )
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
