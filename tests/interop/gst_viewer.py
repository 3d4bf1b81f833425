"""Watch a new session in GStreamer's webrtcbin, over WHEP, and keep the pictures.

    /usr/bin/python3 tests/interop/gst_viewer.py http://10.83.0.1:8000 "a red sky" seen.ppm

Runs under the system's Python, which has GStreamer's bindings, and imports nothing else. Writes the
pictures one after the other as PPM, and prints one line of JSON about how it went.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstSdp", "1.0")
gi.require_version("GstWebRTC", "1.0")
from gi.repository import Gst, GstSdp, GstWebRTC  # noqa: E402

CODECS = {
    "h264": "encoding-name=H264,packetization-mode=(string)1,profile-level-id=(string)42e01f",
    "vp8": "encoding-name=VP8",
}
PIPELINE = """
    webrtcbin name=rtc bundle-policy=max-bundle ! decodebin ! videoconvert
    ! video/x-raw,format=RGB ! pnmenc ! filesink name=file location={}
"""


def ask(method: str, url: str, body: bytes = b"", kind: str = "application/json") -> Any:
    """Return the server's answer, open."""
    request = urllib.request.Request(url, body or None, {"Content-Type": kind}, method=method)
    return urllib.request.urlopen(request, timeout=30)


def make_session(server: str, prompt: str, patience_s: float) -> str:
    """Return the WHEP address of a new session, as soon as the server makes one."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            body = json.dumps({"prompt": prompt, "seed": 7}).encode()
            with ask("POST", f"{server}/v1/realtime/sessions", body) as answer:
                return urljoin(server, json.load(answer)["urls"]["whep"])
        except urllib.error.URLError as error:  # it starts, or its model does
            warming = not isinstance(error, urllib.error.HTTPError) or error.code == 503
            if not warming or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def wait(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} within {timeout_s:g} s")
        time.sleep(0.005)


class Viewer:
    """A pipeline that receives one video."""

    def __init__(self, codec: str, save: str) -> None:
        self.arrivals: list[float] = []
        self.pipeline = Gst.parse_launch(PIPELINE.format(save))
        self.rtc = self.pipeline.get_by_name("rtc")
        caps = f"application/x-rtp,media=video,payload=96,clock-rate=90000,{CODECS[codec]}"
        way = GstWebRTC.WebRTCRTPTransceiverDirection.RECVONLY
        transceiver = self.rtc.emit("add-transceiver", way, Gst.Caps.from_string(caps))
        transceiver.set_property("do-nack", True)
        pad = self.pipeline.get_by_name("file").get_static_pad("sink")
        pad.add_probe(Gst.PadProbeType.BUFFER, self._arrived)
        self.pipeline.set_state(Gst.State.PLAYING)

    def _arrived(self, pad: Gst.Pad, info: Gst.PadProbeInfo) -> Gst.PadProbeReturn:
        self.arrivals.append(time.monotonic())
        return Gst.PadProbeReturn.OK

    def offer(self) -> str:
        """Return the offer, with all candidates."""
        promise = Gst.Promise.new()
        self.rtc.emit("create-offer", None, promise)
        promise.wait()
        reply = promise.get_reply()  # which the offer is a part of
        self.rtc.emit("set-local-description", reply.get_value("offer"), Gst.Promise.new())
        complete = GstWebRTC.WebRTCICEGatheringState.COMPLETE
        wait(lambda: self.rtc.get_property("ice-gathering-state") == complete, "no candidates")
        return self.rtc.get_property("local-description").sdp.as_text()

    def take(self, text: str) -> None:
        """Take the answer."""
        _, sdp = GstSdp.SDPMessage.new_from_text(text)
        answer = GstWebRTC.WebRTCSessionDescription.new(GstWebRTC.WebRTCSDPType.ANSWER, sdp)
        self.rtc.emit("set-remote-description", answer, Gst.Promise.new())

    def play(self, seconds: float) -> None:
        """Receive for so long from the first picture on; end the process when that fails."""
        wait(lambda: bool(self.arrivals), "no picture came")
        kinds = Gst.MessageType.ERROR | Gst.MessageType.EOS
        message = self.pipeline.get_bus().timed_pop_filtered(int(seconds * Gst.SECOND), kinds)
        if message is not None:
            detail = message.parse_error() if message.type == Gst.MessageType.ERROR else "it ended"
            raise SystemExit(f"the pipeline failed: {detail}")

    def close(self) -> None:
        """End, and have the file written."""
        self.pipeline.set_state(Gst.State.NULL)


def main() -> None:
    """Watch, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", help="address of the server")
    parser.add_argument("prompt")
    parser.add_argument("save", help="file for the pictures")
    parser.add_argument("--codec", choices=CODECS, default="h264", help="the only one to offer")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long to watch")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds until it is ready")
    asked = parser.parse_args()
    Gst.init(None)
    whep = make_session(asked.server, asked.prompt, asked.patience)
    viewer = Viewer(asked.codec, asked.save)
    offer = viewer.offer()
    offered_at = time.monotonic()
    with ask("POST", whep, offer.encode(), "application/sdp") as answer:
        resource, sdp = urljoin(whep, answer.headers["Location"]), answer.read().decode()
    viewer.take(sdp)
    viewer.play(asked.seconds)
    with ask("DELETE", resource) as answer:
        left = answer.status
    viewer.close()
    arrivals = viewer.arrivals
    # In the first second comes what followed the last keyframe, all at once.
    steady = [at for at in arrivals if at > arrivals[0] + 1.0]
    print(
        json.dumps(
            {
                "version": Gst.version_string(),
                "left": left,
                "first_s": arrivals[0] - offered_at,
                "gap_s": max(b - a for a, b in itertools.pairwise(arrivals)),
                "fps": (len(steady) - 1) / (steady[-1] - steady[0]),
            }
        )
    )


if __name__ == "__main__":
    main()
