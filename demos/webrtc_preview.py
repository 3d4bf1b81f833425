"""Watch a session over WebRTC in a process that knows nothing but WHEP; show it, or save it.

    streamgen serve
    python demos/webrtc_preview.py "a red ball bounces on the grass" --save ball.mp4

Given the WHEP address of a session that runs, it joins that one instead of making its own. Needs
aiortc and httpx; to show a window tkinter and pillow too. Of an .mp4 all frames are kept, of a .png
the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urljoin

import av
import httpx
from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

SDP = {"Content-Type": "application/sdp"}
PATIENCE_S = 60.0  # a server that is cold takes a while


def words(answer: httpx.Response) -> str:
    """Return what an answer says of itself; one that comes from a proxy has only its status."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"{answer.status_code} {answer.reason_phrase}"


async def ask(http: httpx.AsyncClient, method: str, url: str, **body: object) -> httpx.Response:
    """Return a server's answer; wait when it asks for that, end with its words if it refuses."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            answer = await http.request(method, url, **body)  # type: ignore[arg-type]
        except httpx.HTTPError as error:
            raise SystemExit(f"{url} cannot be reached: {error}") from error
        if not answer.is_error:
            return answer
        wait_s = answer.headers.get("retry-after", "")
        if not wait_s.isdecimal() or time.monotonic() + int(wait_s) > deadline:
            raise SystemExit(f"the server says: {words(answer)}")
        print(f"the server says: {words(answer)}")
        await asyncio.sleep(int(wait_s))


async def end(http: httpx.AsyncClient, session: str) -> None:
    """End a session, so that others have its place at once."""
    with contextlib.suppress(httpx.HTTPError):  # a server that is gone has ended it
        await http.delete(session)


async def frames(server: str, target: str, codec: str | None) -> AsyncIterator[av.VideoFrame]:
    """Yield what is seen of a session, which is made, and ended again, if `target` is a prompt."""
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    receiver = connection.addTransceiver("video", direction="recvonly")
    if codec:
        wanted = (f"video/{codec}", "video/rtx")
        known = RTCRtpReceiver.getCapabilities("video").codecs
        receiver.setCodecPreferences([one for one in known if one.mimeType.lower() in wanted])
    await connection.setLocalDescription(await connection.createOffer())
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http, contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(connection.close)  # which tells the server
        if not target.startswith(("http://", "https://")):
            sessions = f"{server.rstrip('/')}/v1/realtime/sessions"
            made = (await ask(http, "POST", sessions, json={"prompt": target})).json()
            own = f"{sessions}/{made['id']}?token={made['resume_token']}"
            stack.push_async_callback(end, http, own)
            target = urljoin(server, made["urls"]["whep"])
        offer = connection.localDescription.sdp
        answer = await ask(http, "POST", target, content=offer, headers=SDP)
        described = RTCSessionDescription(answer.text, "answer")
        await connection.setRemoteDescription(described)
        try:
            while True:
                yield await asyncio.wait_for(receiver.receiver.track.recv(), PATIENCE_S)
        except MediaStreamError:
            print("the session ended")
        except asyncio.TimeoutError:
            raise SystemExit(f"no frame came for {PATIENCE_S:g} s") from None


class Film:
    """An MP4 file of frames at the times they had."""

    def __init__(self, path: Path, width: int, height: int) -> None:
        self._file = av.open(str(path), "w")
        self._stream = self._file.add_stream("libx264", rate=30)
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        self._begin: int | None = None

    def add(self, frame: av.VideoFrame) -> None:
        """Take the next frame."""
        assert frame.pts is not None
        self._begin = frame.pts if self._begin is None else self._begin
        copy = av.VideoFrame.from_ndarray(frame.to_ndarray(format="yuv420p"), format="yuv420p")
        copy.pts, copy.time_base = frame.pts - self._begin, frame.time_base
        self._file.mux(self._stream.encode(copy))

    def close(self) -> None:
        """Write the end."""
        self._file.mux(self._stream.encode(None))
        self._file.close()


class Window:
    """A window with the newest frame."""

    def __init__(self) -> None:
        import tkinter  # a server's Python often has none

        try:
            self._root = tkinter.Tk()
        except tkinter.TclError as error:
            raise SystemExit(f"no window can be shown: {error}") from error
        self._label = tkinter.Label(self._root)
        self._label.pack()

    def add(self, frame: av.VideoFrame) -> None:
        """Show a frame."""
        from PIL import ImageTk

        self._photo = ImageTk.PhotoImage(frame.to_image())
        self._label.configure(image=self._photo)
        self._root.update()

    def close(self) -> None:
        """Take the window away."""
        self._root.destroy()


async def preview(arguments: argparse.Namespace) -> None:
    """Watch for as long as was asked for, and tell how it went."""
    began, num_frames, save = time.monotonic(), 0, arguments.save
    with contextlib.ExitStack() as stack:
        seen = frames(arguments.url, arguments.target, arguments.codec)
        screen = stack.enter_context(contextlib.closing(Window())) if arguments.show else None
        film = None
        async with contextlib.aclosing(seen):
            async for frame in seen:
                if num_frames == 0:
                    print(f"first frame after {time.monotonic() - began:.2f} s")
                    began = time.monotonic()
                    if save and save.suffix != ".png":
                        film = Film(save, frame.width, frame.height)
                        stack.callback(film.close)
                num_frames += 1
                for place in filter(None, (screen, film)):
                    place.add(frame)
                if time.monotonic() - began >= arguments.seconds:
                    break
    if num_frames:
        fps = (num_frames - 1) / max(1e-6, time.monotonic() - began)
        print(f"{num_frames} frames of {frame.width}x{frame.height}, {fps:.1f} fps")
        if save and save.suffix == ".png":
            frame.to_image().save(save)


def main() -> None:
    """Read the command line and watch."""
    parser = argparse.ArgumentParser(description="Watch a session over WebRTC.")
    parser.add_argument("target", nargs="?", default="a red ball bounces on the grass",
                        help="a prompt, or the WHEP address of a session that runs")  # fmt: skip
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server's page")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to watch")
    parser.add_argument("--codec", choices=("h264", "vp8"), help="the only one to offer")
    parser.add_argument("--show", action="store_true", help="open a window")
    parser.add_argument("--save", metavar="FILE", type=Path, help="an .mp4 or a .png")
    arguments = parser.parse_args()
    save = arguments.save
    if save and (save.suffix not in (".mp4", ".png") or not save.parent.is_dir()):
        parser.error(f"--save {save}: name an .mp4 or a .png in a folder that there is")
    asyncio.run(preview(arguments))


if __name__ == "__main__":
    main()
