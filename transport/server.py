"""How the application is run: the listening socket, and uvicorn's settings."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI

from transport.wire import MAX_FIRST_MESSAGE_BYTES

UNSENT_BYTES: Final = 128 * 1024
TCP_TIMEOUT_MS: Final = 30_000
SHUTDOWN_TIMEOUT_S: Final = 2


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise OSError, naming the address, when it cannot be had.

    Called before a model is loaded, so that a taken port is said at once. On Linux what the kernel
    holds back for a slow client is bounded (measured: 5 s of video become 0.5 s), and a client that
    takes nothing for 30 s is cut off even when the socket is being closed already.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio turns Nagle off only for sockets that say they are TCP.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_TIMEOUT_MS)
        sock.bind(address)
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    sock.setblocking(False)
    return sock


def check_certificate(certfile: Path, keyfile: Path) -> None:
    """Raise ValueError, naming the files, unless they are a certificate and its key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"{certfile} and {keyfile} are no certificate and key: {error}") from error


def uvicorn_config(
    app: FastAPI, certfile: Path | None = None, keyfile: Path | None = None
) -> uvicorn.Config:
    """Return the settings of the server, measured to carry video; logging is left to the caller.

    Compression is off: JPEG does not shrink, and deflate takes a core. The reader of a realtime
    socket is never blocked, so a ping that goes unanswered for 20 s means that the client is gone.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return uvicorn.Config(
        app,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_max_size=MAX_FIRST_MESSAGE_BYTES,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        log_config=None,
        server_header=False,
    )


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether uvicorn says something that we do not: who drops a client logs it."""
    return record.getMessage() != "ASGI callable returned without completing response."
