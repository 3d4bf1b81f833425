"""`streamgen serve`: the web server in this process, the engine in one of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from streamgen import logs
from streamgen.config import NOT_OPTIONS, EngineConfig
from streamgen.engine_teller import EngineTeller
from streamgen.errors import ConfigError, StreamgenError
from streamgen.limits import UNLIMITED
from streamgen.machine import installed_version
from streamgen.serve_options import ServeConfig
from transport.http import create_app
from transport.ice import check_ice_servers, check_public_ip, check_udp_ports
from transport.metrics import Metrics
from transport.options import TransportOptions
from transport.recordings import check_directory, claimed
from transport.server import check_certificate, listen, uvicorn_config
from transport.video import has_nvenc

if TYPE_CHECKING:
    from streamgen.engine_client import EngineClient
    from streamgen.models.presets import Preset

logger: Final = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# In order it ends within 5 s; what hangs longer is cut off.
STOP_TIMEOUT_S: Final = 4.5
CUT_OFF: Final = 1
WATCH_INTERVAL_S: Final = 0.5
STDERR: Final = 2


def run(engine: EngineConfig, server: ServeConfig, *, preset: Preset | None = None) -> int:
    """Serve until told to stop, and return 0.

    The port is taken first, before anything slow. Ctrl-C and SIGTERM end everything in order, and
    the process within 5 seconds whatever the caller does then; a second one ends it at once. Raises
    OSError when the port cannot be had or another server records to the same directory, and
    StreamgenError when the engine's options are wrong or the model cannot be loaded.
    """
    logs.set_up(logs.LogSetup(server.log_level.upper(), server.log_format))
    if server.log_level != "debug":
        for name in ("uvicorn", "aioice", "aiortc"):  # a line for each request and address
            logging.getLogger(name).setLevel(logging.WARNING)
    check_options(server)
    with claimed(server.record), listen(server.host, server.port) as sock:
        from streamgen.engine_client import EngineClient  # torch takes seconds to import

        client = EngineClient(engine, preset=preset)
        asyncio.run(_serve(client, sock, server))
    return 0


def check_options(server: ServeConfig) -> None:
    """Raise ConfigError, before anything slow, when options cannot be met here.

    Raises OSError when nothing can be recorded to the directory that they name.
    """
    certfile, keyfile = server.ssl_certfile, server.ssl_keyfile
    if (certfile is None) != (keyfile is None):
        missing = "ssl_keyfile" if keyfile is None else "ssl_certfile"
        raise ConfigError("--ssl-certfile and --ssl-keyfile go together", param=missing)
    if certfile is not None and keyfile is not None:
        _check("ssl_certfile", check_certificate, certfile, keyfile)
    _check("turn_secret", check_ice_servers, server.ice_server, server.turn_secret)
    if server.public_ip is not None:
        _check("public_ip", check_public_ip, server.public_ip)
    if server.udp_port_range is not None:
        _check("udp_port_range", check_udp_ports, *server.udp_port_range)
    if server.record is not None:
        check_directory(server.record)
    server.check_expansion()
    if server.encoder == "nvenc" and not has_nvenc():
        raise ConfigError(
            "encoder nvenc: there is no NVENC here (A100 and H100 have none); use auto or x264",
            param="encoder",
        )


def _check(param: str, check: Callable[..., object], *values: object) -> None:
    """Have transport check an option, so that it is not first refused when torch is loaded."""
    try:
        check(*values)
    except ValueError as error:
        raise ConfigError(str(error), param=param) from error


async def _serve(client: EngineClient, sock: socket.socket, server: ServeConfig) -> None:
    from streamgen.expand import expander_of
    from streamgen.stream_host import EngineHost

    metrics = Metrics(client.preset.name)
    client.on_measures = EngineTeller(metrics).take
    host = EngineHost(client, expander_of(server))
    app = create_app(host, transport_options(client.config, server), metrics)
    config = uvicorn_config(app, server.ssl_certfile, server.ssl_keyfile)
    line = announcement(client.preset.name, sock, server)

    def goodbye() -> None:
        app.state.goodbye.say()
        app.state.sessions.goodbye()

    web = WebServer(config, line, goodbye)
    with stopping(web.stop):
        await _start_engine(client)
        watching = asyncio.create_task(_watch_engine(client, web))
        try:
            await web.serve(sockets=[sock])
        finally:
            await client.close()
    await watching


async def _start_engine(client: EngineClient) -> None:
    """Start the engine's process so that Ctrl-C, which goes to all processes, is not for it.

    It inherits the blocked signal. The tracker is started before, for it unblocks it.
    """
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS[:1])
    try:
        await client.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS[:1])


async def _watch_engine(client: EngineClient, web: WebServer) -> None:
    """End the server, and raise why, if the engine does not start; log it if it ends later.

    Without its engine the server stays, so that `/health` can say what is wrong.
    """
    try:
        await client.wait_ready()
    except StreamgenError:
        if web.should_exit:  # it was told to stop
            return
        web.stop()
        raise
    logger.info("%s is ready", client.preset.name)
    while client.stats().alive:
        await asyncio.sleep(WATCH_INTERVAL_S)
    if not web.should_exit:
        logger.error("the engine has ended: no session can be made, start the server again")


class WebServer(uvicorn.Server):
    """uvicorn, with its signals left to us and one line said once it accepts connections."""

    def __init__(
        self, config: uvicorn.Config, announcement: str, goodbye: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._announcement = announcement
        self._goodbye = goodbye

    def stop(self) -> None:
        """Tell the clients and end."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say goodbye first to those whose requests or responses have no end of their own."""
        self._goodbye()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: uvicorn's way ends the process before the engine is closed."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections and say where."""
        await super().startup(sockets)
        print(self._announcement, flush=True)


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C or SIGTERM; end the process at the second, or 5 s later.

    Once told to stop, both hold to the very end of the process: what comes after the block (threads
    that are waited for, torch taken apart) may hang as well.
    """
    watchdog = threading.Timer(STOP_TIMEOUT_S, cut_off, ["it did not end in time"])
    watchdog.daemon = True

    def handle(number: int, frame: FrameType | None) -> None:
        if watchdog.ident is not None:  # it was started
            cut_off("told twice")
        else:
            watchdog.start()
            stop()

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        if watchdog.ident is None:
            for number, handler in before.items():
                signal.signal(number, handler)


def cut_off(reason: str) -> None:
    """End this process and those it started, now."""
    # Not logged: a signal may have come while the log's lock was held.
    os.write(STDERR, f"streamgen serve: ended at once, {reason}\n".encode())
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(CUT_OFF)


def announcement(model: str, sock: socket.socket, server: ServeConfig) -> str:
    """Return the line that names the URL of the page."""
    address, port = sock.getsockname()[:2]
    host, reach = server.host, ""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.is_unspecified:
        host, reach = "localhost", ", on every interface"
    elif ":" in host:
        host = f"[{host}]"
    if not ip.is_loopback:
        logger.warning("no key is asked for: whoever reaches port %d can use this server", port)
    scheme = "http" if server.ssl_certfile is None else "https"
    return f"streamgen serves {model} at {scheme}://{host}:{port}{server.root_path}/{reach}"


def transport_options(engine: EngineConfig, server: ServeConfig) -> TransportOptions:
    """Return what the web server is told; `engine` has its effective values."""
    return TransportOptions(
        version=installed_version(),
        root_path=server.root_path,
        settings=effective_settings(engine) | effective_settings(server),
        encoder=server.encoder,
        bitrate=server.bitrate,
        ice_servers=server.ice_server,
        turn_secret=server.turn_secret,
        public_ip=server.public_ip,
        udp_ports=server.udp_port_range,
        record_dir=server.record,
        max_viewers=server.max_viewers,
        idle_timeout_s=server.idle_timeout,
        max_session_s=engine.max_session_seconds,
    )


def effective_settings(config: EngineConfig | ServeConfig) -> dict[str, Any]:
    """Return each option's value, as it would be written, and where it came from."""
    return {
        option.name: {
            "value": _as_written(option, getattr(config, option.name)),
            "source": config.sources.get(option.name, "default"),
        }
        for option in dataclasses.fields(config)
        if option.name not in NOT_OPTIONS
    }


def _as_written(option: dataclasses.Field[Any], value: object) -> object:
    key = option.name
    if option.metadata["secret"] and value is not None:
        return "(kept secret)"
    if isinstance(value, tuple):
        return {"size": "x", "udp_port_range": "-"}.get(key, ", ").join(map(str, value))
    if isinstance(value, Path):
        return str(value)
    return "none" if key == "window" and value == UNLIMITED else value
