"""A Hugging Face Hub on the loopback interface, for tests of downloads."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants as constants
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Files by repository and path, errors by repository, and what was asked for."""

    def __init__(self, files: Mapping[tuple[str, str], bytes]) -> None:
        self.files = dict(files)
        self.errors: dict[str, str] = {}  # the Hub's code of it
        self.cut_at: int | None = None  # bytes after which the next download breaks off
        self.sent: list[tuple[str, int]] = []  # path, first byte
        self.revisions: list[str] = []


@contextmanager
def serving(hub: Hub, monkeypatch: pytest.MonkeyPatch, cache: str) -> Iterator[str]:
    """Serve a hub and make it the one that is asked; nothing else is."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, *arguments: object) -> None:
            pass

        def _answer(self, *, body: bool) -> None:
            repository, _, rest = self.path.lstrip("/").partition("/resolve/")
            revision, _, name = rest.partition("/")
            name = name.replace("%2B", "+")
            hub.revisions.append(revision)
            content = hub.files.get((repository, name))
            code = hub.errors.get(repository) or ("EntryNotFound" if content is None else None)
            if code is not None:
                self.send_response(403 if code == "GatedRepo" else 404)
                self.send_header("X-Error-Code", code)
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            assert content is not None
            start = 0
            if asked := self.headers.get("Range"):
                start = int(asked.removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content) - start))
            if start:
                self.send_header(
                    "Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}"
                )
            self.end_headers()
            if body:
                hub.sent.append((name, start))
                cut, hub.cut_at = hub.cut_at, None
                self.wfile.write(content[start:cut])
                if cut is not None:
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    point_at(endpoint, monkeypatch, cache)
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def point_at(endpoint: str, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """Make huggingface_hub ask an endpoint, as HF_ENDPOINT and HF_HOME do before it is imported."""
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
