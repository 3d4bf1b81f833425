"""A file over HTTP, whole or a range of it, as long as it is now: it may be growing."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from transport.entity_tags import names_weakly
from transport.parts_response import PartsResponse
from transport.stream import StreamError

PART_BYTES: Final = 256 * 1024
ONE_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


class FilePart:
    """Bytes `begin` to `end`, without it, of a file."""

    def __init__(self, file: BinaryIO, begin: int, end: int) -> None:
        self._file = file
        self._at = begin
        self._end = end

    async def next_part(self) -> bytes | None:
        """Read on; None at the end."""
        if self._at >= self._end:
            return None
        size = min(PART_BYTES, self._end - self._at)
        data = await asyncio.to_thread(os.pread, self._file.fileno(), size, self._at)
        if not data:
            raise OSError(f"{self._file.name} has become shorter")
        self._at += len(data)
        return data


class FileResponse(Response):
    """Send a file, or the one range of it that the request's headers ask for."""

    def __init__(
        self,
        path: Path,
        request_headers: Mapping[str, str],
        media_type: str,
        send_timeout_s: float,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(None, 200, headers, media_type)
        self._path = path
        self._request_headers = request_headers
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise StreamError when the file is gone, HTTPException 416 for a range outside it."""
        try:
            file = await asyncio.to_thread(self._path.open, "rb")
        except FileNotFoundError as error:
            raise StreamError("not_found", "the recording was removed") from error
        with file:
            await self._answer(file, scope["method"])(scope, receive, send)

    def _answer(self, file: BinaryIO, method: str) -> Response:
        """Return what is to be sent, by the preconditions in the order of RFC 9110, 13.2.2."""
        status, asked = os.fstat(file.fileno()), self._request_headers
        # The file only grows: of one size it is always the same.
        etag = f'"{status.st_dev:x}-{status.st_ino:x}-{status.st_size:x}"'
        headers = {**self.headers, "accept-ranges": "bytes", "etag": etag}
        if names_weakly(asked.get("if-none-match", ""), etag):
            about_body = ("content-type", "content-length")
            kept = {name: value for name, value in headers.items() if name not in about_body}
            return Response(None, 304, kept)
        wanted = None
        # A tag of when the file was shorter is an old one, and a date is none.
        if method == "GET" and asked.get("if-range", etag).strip() == etag:
            wanted = byte_range(asked.get("range"), status.st_size)
        begin, end = wanted or (0, status.st_size)
        headers["content-length"] = str(end - begin)
        if wanted:
            headers["content-range"] = f"bytes {begin}-{end - 1}/{status.st_size}"
        return PartsResponse(
            FilePart(file, begin, end),
            self._send_timeout_s,
            headers,
            status_code=206 if wanted else 200,
        )


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return first byte and end of the range that a header asks for, None for the whole.

    What is no single range of bytes is ignored, as the standard allows. Raises HTTPException 416
    for one that begins after the end.
    """
    match = ONE_RANGE.fullmatch((header or "").replace(" ", ""))
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        begin, end = max(0, size - int(last)), size
    else:
        begin, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < begin:
            return None
    if begin >= end:
        raise HTTPException(416, f"the file has {size} bytes", {"Content-Range": f"bytes */{size}"})
    return begin, end
