"""Every way to the picture in a real browser: what it carries, and what follows when it dies."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest

from tests.browser.pages import FLAT_BLUE, FLAT_RED, SEE, SHOWN, WAYS, Media, complaints, is_colour

pytestmark = pytest.mark.browser

DRAWN = ("webcodecs", "jpeg")  # frame by frame, by the page itself

WATCH = f"""
    {SEE}
    window.seen = [];
    window.told = [];
    const look = () => {{ seen.push(see()); requestAnimationFrame(look); }};
    look();
    new MutationObserver(() => told.push(see()))
        .observe(document.getElementById("video-1"), {{ attributeFilter: ["data-frame-index"] }});
"""
# What is on screen when the page says that the prompt is.
CATCH = f"""
    {SEE}
    window.caught = null;
    const receipt = document.getElementById("receipt-1");
    new MutationObserver(() => {{
      if (receipt.dataset.promptState === "shown") window.caught ??= see();
    }}).observe(receipt, {{ attributes: true }});
"""
KEEP_PEERS = """
    window.peers = [];
    const fetch = window.fetch;
    window.fetch = async (url, options) => {
      const answer = await fetch(url, options);
      if (options?.method === "POST" && String(url).includes("/whep")) {
        peers.push(new URL(answer.headers.get("location"), url).href);
      }
      return answer;
    };
"""


@pytest.mark.parametrize("via", WAYS)
def test_plays(server: Any, browser: Any, via: str) -> None:
    """Frames come in order, with the right colour, and their numbers are known."""
    page = Media(browser, server.url, via)
    page.wait_live()
    page.run(WATCH)
    count = "return new Set(seen.map(([number]) => number)).size"
    page.wait(lambda: page.run(count) > 30, "hardly any frame was shown")
    seen = page.run("return seen")
    assert page.via == via
    numbers = [number for number, _, _ in seen]
    assert numbers == sorted(numbers)
    lags = [number - index for number, index, _ in page.run("return told")]
    if via in DRAWN:
        assert not any(lags)
    else:
        # A player is ahead of what the page is told; without numbers the page can only estimate.
        low, high = (0, 2) if via == "mse" else (-4, 4)
        assert low <= statistics.median(lags) <= high
    assert all(is_colour(colour, FLAT_BLUE) for _, _, colour in seen)
    page.wait(lambda: page.fps > 2, "the frame rate is too low")
    if via != "mjpeg":
        page.wait(lambda: page.text("[data-stat=bitrate]") != "–", "no bitrate is shown")
    assert page.text("#timeline-1 [aria-current] .text") == FLAT_BLUE
    assert complaints(browser) == []


@pytest.mark.parametrize("via", WAYS)
def test_prompt_is_dated_by_its_picture(server: Any, browser: Any, via: str) -> None:
    """A prompt counts as on screen when the picture has its colour, and not before."""
    page = Media(browser, server.url, via)
    page.wait_live()
    page.wait_frames(12)
    page.run(CATCH)
    page.write(FLAT_RED)
    page.wait(lambda: page.run("return window.caught"), "the prompt was not shown")
    assert is_colour(page.run("return window.caught")[2], FLAT_RED)
    assert page.receipt.startswith("On screen after ")
    shown = page.receipt.removeprefix("On screen after ")
    assert page.text("[data-stat=prompt_to_picture_ms]") == shown
    assert page.via == via


@pytest.mark.parametrize("via", WAYS)
def test_survives_a_dropped_connection(proxy: Any, browser: Any, via: str) -> None:
    """After a cut the same session goes on, by the same way."""
    page = Media(browser, proxy.url, via)
    page.wait_live()
    page.wait_frames(20)
    number = page.see()[0]
    page.run("""
        window.states = [];
        new MutationObserver(() => states.push(document.body.dataset.state))
            .observe(document.body, { attributes: true });
    """)
    proxy.cut()
    page.wait(lambda: "reconnecting" in page.run("return states"), "the loss was not noticed")
    page.wait_live()
    page.wait(lambda: page.see()[0] > number + 8, "the session does not go on")
    assert page.via == via
    assert page.has_colour(FLAT_BLUE)
    assert proxy.missed == []


def test_webrtc_comes_first(server: Any, browser: Any) -> None:
    """Left to itself the page takes WebRTC, into a muted inline element, and says so."""
    page = Media(browser, server.url, None)
    page.wait_live()
    assert page.via == "webrtc"
    shown = "return document.getElementById('via-1').selectedOptions[0].textContent"
    assert page.run(shown) == "WebRTC"
    video = SHOWN.format(1)
    assert page.run(f"return [{video}.muted, {video}.playsInline, {video}.controls]") == [
        True,
        True,
        False,
    ]


def test_lost_peer(server: Any, scripted: Any) -> None:
    """When only the WebRTC connection ends it is made again; the session does not notice."""
    page = Media(scripted(KEEP_PEERS), server.url, "webrtc")
    page.wait_live()
    page.wait_frames(8)
    number = page.see()[0]
    page.run("fetch(window.peers[0], { method: 'DELETE' })")
    page.wait(lambda: len(page.run("return window.peers")) == 2, "no second peer was made")
    page.wait_live()
    page.wait(lambda: page.see()[0] > number + 24, "no pictures came again")
    assert page.via == "webrtc"
    assert page.run("return document.querySelectorAll('#timeline-1 li').length") == 1


def test_leaving_frees_the_peer(server: Any, scripted: Any) -> None:
    """A page that goes away takes leave of the server."""
    page = Media(scripted(KEEP_PEERS), server.url, "webrtc")
    page.wait_live()
    (peer,) = page.run("return window.peers")
    page.browser.get(f"{server.url}version")
    gone = "fetch(arguments[0]).then((answer) => arguments[1](answer.status))"
    page.browser.set_script_timeout(30)
    deadline = time.monotonic() + 12  # it would be missed after 15 s
    while page.browser.execute_async_script(gone, peer) != 404:
        assert time.monotonic() < deadline, "the peer is still there"
        time.sleep(0.2)


def test_choosing_by_hand(server: Any, browser: Any) -> None:
    """The menu changes the way while the session goes on, and the picture never goes away."""
    page = Media(browser, server.url, "jpeg")
    page.wait_live()
    page.wait_frames(8)
    page.run(WATCH)
    for way in ("webrtc", "webcodecs", "mjpeg", "mse", "jpeg"):
        number = page.see()[0]
        page.run(f"""
            const menu = document.getElementById("via-1");
            menu.value = "{way}";
            menu.dispatchEvent(new Event("change"));
        """)
        page.wait(lambda: page.see()[0] > number + 16, f"nothing comes by {way}")  # noqa: B023
        page.wait_live()
        assert page.via == way
    seen = page.run("return window.seen")
    assert all(is_colour(colour, FLAT_BLUE) for _, _, colour in seen)
    assert page.run("return document.querySelectorAll('#timeline-1 li').length") == 1


def test_pause_by_webrtc(server: Any, browser: Any) -> None:
    """A paused session is no lost one, and goes on with the next frame."""
    page = Media(browser, server.url, "webrtc")
    page.wait_live()
    page.press("pause-1")
    page.wait(lambda: page.state == "paused", "the page did not pause")
    time.sleep(5.0)  # longer than pictures may stay out
    assert (page.state, page.via) == ("paused", "webrtc")
    page.press("pause-1")
    page.wait_live()
    number = page.see()[0]
    page.wait(lambda: page.see()[0] > number + 8, "it does not go on")
