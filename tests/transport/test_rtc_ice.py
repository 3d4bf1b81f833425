"""ICE servers: their URLs, their credentials, and what viewers are told."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from transport.ice import (
    check_ice_server,
    check_ice_servers,
    check_public_ip,
    check_udp_ports,
    link_headers,
    make_credentials,
)


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("stun:stun.example.org", "stun.example.org", 3478),
        ("stun:192.0.2.1:19302", "192.0.2.1", 19302),
        ("stuns:stun.example.org", "stun.example.org", 5349),
        ("turn:turn.example.org:3478?transport=udp", "turn.example.org", 3478),
        ("turns:turn.example.org?transport=tcp", "turn.example.org", 5349),
        ("turn:[2001:db8::1]:4000", "2001:db8::1", 4000),
    ],
)
def test_urls(url: str, host: str, port: int) -> None:
    """Host and port, which has a default."""
    server = check_ice_server(url)
    assert (server.url, server.host, server.port) == (url, host, port)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "should be like"),
        ("stun.example.org:3478", "should be like"),
        ("http://stun.example.org", "should be like"),
        ("stun://stun.example.org", "should be like"),
        ("turn:user:secret@turn.example.org", "should be like"),
        ("stun:a b", "should be like"),
        ('stun:a"b', "should be like"),
        ("stun:a\r\nX: y", "should be like"),
        ("stun:stun.example.org:0", "must be 1 to 65535"),
        ("stun:stun.example.org:70000", "must be 1 to 65535"),
        ("stun:stun.example.org?transport=udp", "only turn:"),
        ("turn:turn.example.org?transport=sctp", "udp or tcp"),
    ],
)
def test_wrong_urls(url: str, reason: str) -> None:
    """The error names the value and says what is right."""
    with pytest.raises(ValueError, match=reason) as raised:
        check_ice_server(url)
    assert repr(url) in str(raised.value)


def test_q08_partial_configuration() -> None:
    """Each half of TURN alone is an error that names the missing one."""
    with pytest.raises(ValueError, match="needs --turn-secret"):
        check_ice_servers(["stun:a.example", "turn:b.example"], None)
    with pytest.raises(ValueError, match="needs --turn-secret"):
        check_ice_servers(["turn:b.example"], "")
    with pytest.raises(ValueError, match="needs an --ice-server"):
        check_ice_servers(["stun:a.example"], "secret")
    assert len(check_ice_servers(["stun:a.example", "turn:b.example"], "secret")) == 2
    assert check_ice_servers([], None) == ()


def test_q08_credentials_are_new_each_time() -> None:
    """Later ones last longer, are those of coturn's scheme, and do not hold the secret."""
    first, later = make_credentials("s3cret", 1000.0, 5), make_credentials("s3cret", 1010.0, 5)
    assert (first.username[:5], later.username[:5]) == ("1005:", "1015:")
    assert first.username != make_credentials("s3cret", 1000.0, 5).username
    digest = hmac.new(b"s3cret", later.username.encode(), hashlib.sha1).digest()
    assert later.password == base64.b64encode(digest).decode()
    assert "s3cret" not in first.username + first.password


def test_link_headers() -> None:
    """STUN without, TURN with credentials."""
    servers = check_ice_servers(["stun:a.example", "turn:b.example?transport=udp"], "s3cret")
    stun, turn = link_headers(servers, "s3cret", 1000.0)
    assert stun == '<stun:a.example>; rel="ice-server"'
    assert turn.startswith('<turn:b.example?transport=udp>; rel="ice-server"; username="87400:')
    assert turn.endswith('; credential-type="password"')
    assert "s3cret" not in turn


def test_address_and_ports() -> None:
    """What cannot be reached, or is no range, is refused."""
    assert check_public_ip("203.0.113.7") == "203.0.113.7"
    for wrong in ("example.org", "203.0.113", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::"):
        with pytest.raises(ValueError, match="--public-ip"):
            check_public_ip(wrong)
    assert check_udp_ports(40_000, 40_010) == (40_000, 40_010)
    for first, last in ((0, 10), (10, 9), (1, 70_000)):
        with pytest.raises(ValueError, match=f"{first}-{last} is no range"):
            check_udp_ports(first, last)
