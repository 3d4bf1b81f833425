"""`streamgen serve` as a process of its own, for tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
from websockets.asyncio.client import connect

from tests.transport.realtime_client import RealtimeClient

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 300.0  # the machine may be busy; torch alone can take a minute to import
LIGHT = ("--load-format", "dummy", "--dtype", "fp32", "--threads", "1", "--steps", "2")


class ServerProcess:
    """A server on a free port, over random weights. `url` is where it says that its page is."""

    def __init__(self, argv: Sequence[str] = LIGHT, environ: Mapping[str, str] = {}) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("STREAMGEN_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "streamgen.cli", "serve", "--port", "0", *argv],
            cwd=REPOSITORY,
            env={**inherited, "OMP_NUM_THREADS": "1", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.err: list[str] = []
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self.err.extend, args=(self.process.stderr,))
        self._reader.start()
        watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        watchdog.start()
        self.line = self.process.stdout.readline()
        watchdog.cancel()
        assert " at http" in self.line, (self.line, self.wait(), self.err)
        self.url = self.line.split(" at ")[1].split(",")[0].strip()

    @property
    def socket_url(self) -> str:
        return f"ws{self.url.removeprefix('http')}v1/realtime/video"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE_S)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.get("readyz").status_code != 200:
            assert self.process.poll() is None, self.err
            assert time.monotonic() < deadline, self.err
            time.sleep(0.1)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def children(self) -> list[int]:
        """Return the processes that it started, oldest first; a new engine may be a thread's."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        listed = [(thread / "children").read_text().split() for thread in threads]
        return sorted(int(n) for numbers in listed for n in numbers)

    def wait(self) -> int:
        """Wait for its end, and return the status."""
        status = self.process.wait(PATIENCE_S)
        self._reader.join()
        return status

    def rest_of_output(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            for pid in self.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.kill()
        self.wait()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


@contextlib.contextmanager
def serving(
    *argv: str, ready: bool = True, environ: Mapping[str, str] = {}
) -> Iterator[ServerProcess]:
    """Run a server for the length of the block."""
    server = ServerProcess((*LIGHT, *argv), environ)
    try:
        if ready:
            server.wait_ready()
        yield server
    finally:
        server.close()


@contextlib.asynccontextmanager
async def client_of(server: ServerProcess) -> AsyncIterator[RealtimeClient]:
    """Open a realtime socket for the length of the block."""
    async with connect(server.socket_url, max_size=None, close_timeout=1) as connection:
        yield RealtimeClient(connection, patience_s=PATIENCE_S)


def is_alive(pid: int) -> bool:
    """Return whether a process lives; one that has ended and waits to be seen does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
