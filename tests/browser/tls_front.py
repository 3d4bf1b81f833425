"""TLS in front of a proxy, with a certificate made for the purpose.

`python -m tests.browser.tls_front PORT` hands what comes to a port of its own, which it prints, to
PORT on loopback. A process of its own, because it cannot know of handshakes that never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.certificate import certificate


@contextlib.contextmanager
def tls_front(url: str) -> Iterator[str]:
    """Serve what is at `url`, on loopback, over TLS; yield the URL there."""
    behind = urlsplit(url)
    command = [sys.executable, "-m", "tests.browser.tls_front", str(behind.port)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield f"https://127.0.0.1:{port}{behind.path}"
        finally:
            process.terminate()


async def serve(port_behind: int) -> None:
    """Serve until terminated."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader_behind, writer_behind = await asyncio.open_connection("127.0.0.1", port_behind)
        await asyncio.gather(pump(reader, writer_behind), pump(reader_behind, writer))

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_context())
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Pass on what comes; either end may be gone at any time."""
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()


def server_context() -> ssl.SSLContext:
    """Return the settings of a TLS server whose certificate nobody vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        context.load_cert_chain(*certificate(Path(directory)))
    return context


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
