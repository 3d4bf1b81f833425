"""What the page does where a way to the picture is closed, forbidden, or wants a click."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.browser.conftest import new_tab
from tests.browser.pages import WAYS, Media

pytestmark = pytest.mark.browser

FORBIDDEN = "window.{} = class {{ constructor() {{ throw new Error('forbidden'); }} }};"
WITHOUT_VIDEO = """
    for (const name of ["RTCPeerConnection", "VideoDecoder", "MediaSource"]) delete window[name];
"""
# An offer that is never answered, as behind a firewall.
SILENT_WHEP = """
    const fetch = window.fetch;
    window.fetch = (url, ...rest) => String(url).includes("/whep")
        ? new Promise(() => {}) : fetch(url, ...rest);
"""
# While `broken` is set the view socket and the images lead nowhere.
NOWHERE = """
    window.broken = true;
    window.WebSocket = class extends WebSocket {
      constructor(url) { super(broken && String(url).includes("/view") ? `${url}/none` : url); }
    };
    Object.defineProperty(HTMLImageElement.prototype, "src", {
      set(url) { this.setAttribute("src", broken ? "none" : url); },
    });
"""
NO_CALLBACKS = "HTMLVideoElement.prototype.requestVideoFrameCallback = () => 1;"
REFUSED_PLAY = """
    const { play } = HTMLMediaElement.prototype;
    const { setAttribute } = Element.prototype;
    addEventListener("click", () => { window.clicked = true; }, true);
    Element.prototype.setAttribute = function (name, value) {
      if (name !== "autoplay") setAttribute.call(this, name, value);
    };
    HTMLMediaElement.prototype.play = function () {
      return window.clicked ? play.call(this)
          : Promise.reject(new DOMException("not allowed", "NotAllowedError"));
    };
"""


@pytest.mark.parametrize(
    ("scripts", "expected"),
    [
        ((FORBIDDEN.format("RTCPeerConnection"),), "webcodecs"),
        ((FORBIDDEN.format("RTCPeerConnection"), FORBIDDEN.format("VideoDecoder")), "mse"),
        (
            (WITHOUT_VIDEO,),
            "jpeg",
        ),
        ((SILENT_WHEP,), "webcodecs"),
    ],
    ids=["no-webrtc", "no-webcodecs", "canvas-only", "no-answer"],
)
def test_falls_back(server: Any, scripted: Any, scripts: tuple[str, ...], expected: str) -> None:
    """What a browser or a network does not let through is replaced by the next best way."""
    browser = None
    for script in scripts:
        browser = scripted(script)
    page = Media(browser, server.url, None)
    page.wait_live()
    assert page.via == expected
    number = page.see()[0]
    page.wait(lambda: page.see()[0] > number + 8, "the pictures stand still")


@pytest.mark.parametrize("via", ["webrtc", "mse"])
def test_frames_that_no_callback_tells_of(server: Any, scripted: Any, via: str) -> None:
    """A player whose frame callbacks never come is watched all the same (WebKitGTK, no GPU)."""
    page = Media(scripted(NO_CALLBACKS), server.url, via)
    page.wait_live()
    number, index = page.see()[:2]
    page.wait(lambda: page.see()[0] > number + 16, "the picture stands still")
    assert page.see()[1] > index + 8
    assert page.via == via


def test_nothing_comes_through(server: Any, scripted: Any) -> None:
    """When no way works the page says so, keeps the session, and offers to try again."""
    page = Media(scripted(WITHOUT_VIDEO + NOWHERE), server.url, None)
    page.wait(lambda: page.state == "error", "the failure is not told")
    assert page.text("#panel-text-1").startswith("No picture comes through (")
    assert page.text("#panel-button-1") == "Try again"
    page.run("window.broken = false")
    page.press("panel-button-1")
    page.wait_live()
    assert page.via == "jpeg"


@pytest.mark.parametrize("via", ["webrtc", "mse"])
def test_q09_autoplay_refused(server: Any, scripted: Any, via: str) -> None:
    """A browser that wants a click gets a button for it, and plays after one click."""
    page = Media(scripted(REFUSED_PLAY), server.url, via)
    page.wait(lambda: page.text("#panel-button-1") == "Click to play", "no click is asked for")
    assert page.state == "blocked"
    time.sleep(5.0)  # longer than a way may take to show a picture
    assert (page.state, page.via) == ("blocked", via)
    page.press("panel-button-1")
    page.wait_live()
    number = page.see()[0]
    page.wait(lambda: page.see()[0] > number + 8, "it does not play")
    assert page.via == via


@pytest.mark.parametrize("via", WAYS)
def test_q09_newest_frame_after_a_hidden_time(server: Any, browser: Any, via: str) -> None:
    """Seen again, the page shows what is made now: the server tells how much that is."""
    page = Media(browser, server.url, via)
    page.wait_live()
    page.wait_frames(8)
    number = page.see()[0]
    with new_tab(browser):
        page.wait(lambda: server.num_made() >= number + 90, "the stream stands still")
    page.wait(lambda: page.see()[0] >= server.num_made() - 50, "the picture is old")
    page.wait_live()
    assert page.via == via
