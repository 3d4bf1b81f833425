"""GStreamer watches: by WHEP in `webrtcbin` from another host, and by plain HTTP."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Server
from tests.browser.pages import BLUE, FLAT_BLUE
from tests.browser.test_watching import call
from tests.interop.conftest import PORT
from tests.interop.hosts import Host
from tests.interop.pictures import check_counted, check_filmed, read_pictures

VIEWER = Path(__file__).with_name("gst_viewer.py")
SECONDS = 6.0
FPS = 16
LEAST = int(0.9 * FPS * SECONDS)
DEMUX = {
    "stream.mp4": "qtdemux ! h264parse ! avdec_h264",
    "stream.mjpeg": "multipartdemux ! image/jpeg ! jpegdec",
}


def watch(viewer: Host, server: Host, prompt: str, codec: str, save: Path) -> dict[str, Any]:
    """Return what GStreamer tells of how it watched."""
    url = f"http://{server.address}:{PORT}"
    asked = (url, prompt, str(save), "--codec", codec, "--seconds", str(SECONDS))
    command = viewer.command("/usr/bin/python3", str(VIEWER), *asked)
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("codec", ["h264", "vp8"])
def test_webrtcbin_plays(
    far_server: str, hosts: tuple[Host, Host], codec: str, tmp_path: Path
) -> None:
    """Frames come in order, at their rate, with the right colours."""
    prompt = FLAT_BLUE if far_server == "demo" else BLUE
    save = tmp_path / "seen.ppm"
    server, viewer = hosts
    told = watch(viewer, server, prompt, codec, save)
    print(far_server, codec, told)
    assert told["left"] == 200
    pictures = read_pictures(save)
    if far_server == "demo":
        check_counted(pictures, prompt, LEAST)
    else:
        check_filmed(pictures, LEAST)


@pytest.mark.parametrize("name", DEMUX)
def test_http_plays(server: Server, name: str, tmp_path: Path) -> None:
    """To its end."""
    fields = {"prompt": FLAT_BLUE, "num_frames": LEAST}
    made = call(server, "v1/realtime/sessions", json.dumps(fields).encode())
    url = f"{server.url}v1/realtime/sessions/{made['id']}/{name}?token={made['viewer_token']}"
    save = tmp_path / "seen.ppm"
    pipeline = (
        f"souphttpsrc location={url} ! {DEMUX[name]} ! videoconvert ! video/x-raw,format=RGB"
        f" ! pnmenc ! filesink location={save}"
    )
    command = ["gst-launch-1.0", "-q", *pipeline.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    check_counted(read_pictures(save), FLAT_BLUE, LEAST - 1)
