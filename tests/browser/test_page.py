"""The page in a real browser: what a person sees and can do."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.browser.conftest import new_tab
from tests.browser.pages import BLUE, BOX, PICTURE, RED, RED_SHARE, Page, complaints, resize

pytestmark = pytest.mark.browser


def test_opens_and_plays(server: Any, browser: Any) -> None:
    """The page becomes live by itself, frames move, and their rate, seed and prompt are shown."""
    page = Page(browser, server.url)
    page.wait_live()
    before = page.run(PICTURE)
    page.wait_frames(40)
    assert page.run(PICTURE) != before
    page.wait(lambda: page.text("#status") == "Live", "the page does not say that it is live")
    assert page.text("#caption-1") == BLUE
    assert browser.title.startswith(BLUE)
    page.wait(lambda: page.fps > 2, "the frame rate is too low")
    assert page.run("return document.getElementById('seed-1').value") == "7"
    page.wait(lambda: page.text("[data-stat=chunk_ms_p50]") != "–", "no figures came")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    assert complaints(browser) == []


def test_prompt_reaches_the_screen(server: Any, browser: Any) -> None:
    """A prompt goes from sent over accepted to the screen, and the canvas has its colour."""
    page = Page(browser, server.url)
    page.wait_live()
    page.wait_frames(4)
    assert page.run(RED_SHARE) < 0.005
    page.run("""
        window.seen = [];
        const receipt = document.getElementById("receipt-1");
        new MutationObserver(() => seen.push(receipt.dataset.promptState))
            .observe(receipt, { attributes: true });
    """)
    page.write(RED)
    page.wait(lambda: page.prompt_state == "shown", "the prompt did not reach the screen")
    states = list(dict.fromkeys(page.run("return window.seen")))
    assert states[:2] == ["sent", "accepted"]
    assert states[-1] == "shown"
    assert page.receipt.startswith("On screen after ")
    assert page.receipt.endswith(" ms")
    assert page.text("#caption-1") == RED
    assert page.text("#timeline-1 [aria-current] .text") == RED
    page.wait(lambda: page.run(RED_SHARE) > 0.008, "the picture did not turn red")


def test_pause_and_resume(server: Any, browser: Any) -> None:
    """Pause stops the frames, resume goes on with the next one."""
    page = Page(browser, server.url)
    page.wait_live()
    page.press("pause-1")
    page.wait(lambda: page.state == "paused", "the page did not pause")
    index = -1
    while page.frame_index != index:  # one may have been on its way
        index = page.frame_index
        time.sleep(0.3)
    picture = page.run(PICTURE)
    time.sleep(0.7)
    assert (page.frame_index, page.run(PICTURE)) == (index, picture)
    page.press("panel-button-1")
    page.wait_live()
    page.wait_frames(8)


def test_blank_prompt(server: Any, browser: Any) -> None:
    """A blank prompt is refused with a hint and not sent; the stream goes on."""
    page = Page(browser, server.url)
    page.wait_live()
    page.write("   ")
    assert page.prompt_state == "refused"
    assert page.receipt == "Write what you want to see first."
    assert page.run("return document.querySelectorAll('#timeline-1 li').length") == 1
    page.wait_frames(4)


def test_refused_prompt(server: Any, browser: Any) -> None:
    """A prompt that the server refuses says why, comes back for editing, and changes nothing."""
    page = Page(browser, server.url)
    page.wait_live()
    page.run(f"{BOX}.value = 'a\\0b'; {BOX}.form.requestSubmit()")
    page.wait(lambda: page.prompt_state == "rejected", "the prompt was not refused")
    assert page.receipt.startswith("Refused: ")
    assert "NUL" in page.receipt
    assert page.run(f"return {BOX}.value.length") == 3
    assert page.text("#caption-1") == BLUE
    page.wait_frames(4)


def test_seed(server: Any, browser: Any) -> None:
    """The seed can be set and renewed; what is shown is what the server uses."""
    page = Page(browser, server.url)
    page.wait_live()
    seed = "return document.getElementById('seed-1').value"
    page.run("document.getElementById('seed-1').value = '4294967296'")
    page.run("document.getElementById('seed-form-1').requestSubmit()")
    assert page.text("#seed-hint-1") == "A whole number from 0 to 4294967295."
    page.press("new-seed-1")
    page.wait(lambda: page.run(seed) not in ("7", "4294967296"), "the seed did not change")
    page.wait_frames(30)


def test_server_restart(own_server: Any, browser: Any) -> None:
    """A server that goes away and comes back: reconnecting, then live with the same prompt."""
    page = Page(browser, own_server.url)
    page.wait_live()
    page.write(RED)
    page.wait(lambda: page.prompt_state == "shown", "the prompt did not reach the screen")
    own_server.stop()
    page.wait(lambda: page.state == "reconnecting", "the loss was not noticed")
    own_server.start()
    page.wait_live()
    page.wait_frames(4)
    assert page.text("#caption-1") == RED
    page.wait(lambda: page.run(RED_SHARE) > 0.008, "the new session has another prompt")


def test_dropped_connection(proxy: Any, browser: Any) -> None:
    """A connection that breaks is made again and the same session goes on."""
    page = Page(browser, proxy.url)
    page.wait_live()
    page.wait_frames(20)
    index = page.frame_index
    page.run("""
        window.seen = [];
        new MutationObserver(() => seen.push(document.body.dataset.state))
            .observe(document.body, { attributes: true });
    """)
    proxy.cut()
    page.wait(lambda: "reconnecting" in page.run("return seen"), "the loss was not noticed")
    page.wait_live()
    page.wait_frames(4)
    assert page.frame_index > index


def test_warming(proxy: Any, browser: Any) -> None:
    """While the server warms up the page says what it does, takes a prompt, and then plays it."""
    body = b'{"status":"warming","stage":"weights","progress":0.6}'
    head = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    proxy.canned[b"/readyz"] = head % len(body) + body
    page = Page(browser, proxy.url)
    page.wait(lambda: page.state == "warming", "the page does not say that the server warms up")
    assert page.text("#panel-title-1") == "Warming up"
    assert page.text("#panel-text-1") == "Loading the model."
    assert page.run("return document.getElementById('panel-progress-1').value") == 0.6
    page.write(RED)
    assert page.prompt_state == "waiting"
    proxy.canned.clear()
    page.wait_live()
    page.wait(lambda: page.prompt_state == "shown", "the prompt did not reach the screen")
    assert page.text("#caption-1") == RED


@pytest.mark.parametrize("ending", ["/", ""])
def test_path_prefix(proxy: Any, browser: Any, ending: str) -> None:
    """Everything the page asks for lies under the prefix, with and without its last slash."""
    page = Page(browser, proxy.url.removesuffix("/") + ending)
    page.wait_live()
    page.wait_frames(4)
    if ending:
        assert proxy.missed == complaints(browser) == []
    else:
        # The browser fetches ahead what it finds in the text before the page's base is known.
        assert all(missed.endswith((".css", "/app.js")) for missed in proxy.missed)


def test_hidden_page(server: Any, browser: Any) -> None:
    """A hidden page lets the stream go on and shows the newest frame when it is seen again."""
    page = Page(browser, server.url)
    page.wait_live()
    page.wait_frames(4)
    index = page.frame_index
    page.run("document.addEventListener('visibilitychange', () => { window.hid = true; })")
    with new_tab(browser):
        page.wait(lambda: server.num_made() >= index + 60, "the stream stands still")
    assert page.run("return window.hid"), "the page was never hidden"
    page.wait(lambda: page.frame_index >= server.num_made() - 40, "the picture is old")
    page.wait_frames(4)
    assert page.state == "live"


def test_fits_every_width(server: Any, browser: Any) -> None:
    """No width makes the page scroll sideways, and the picture and the prompt box can be seen."""
    page = Page(browser, server.url)
    page.wait_live()
    for width in (360, 390, 768, 1440):
        resize(browser, width, 844)
        assert page.run("return document.documentElement.scrollWidth") <= width
        edges = f"const r = {BOX}.getBoundingClientRect(); return [r.left, r.right, r.bottom]"
        left, right, bottom = page.run(edges)
        assert 0 <= left < right <= width
        assert bottom <= 844
        shown = page.run("return document.getElementById('video-1').clientWidth")
        assert shown >= min(width - 64, 480)


def test_keyboard(server: Any, browser: Any) -> None:
    """Space pauses and resumes; a slash leads to the prompt box, where a space is a space."""
    from selenium.webdriver.common.action_chains import ActionChains

    page = Page(browser, server.url)
    page.wait_live()
    keys = lambda text: ActionChains(browser).send_keys(text).perform()  # noqa: E731
    keys(" ")
    page.wait(lambda: page.state == "paused", "the page did not pause")
    keys(" ")
    page.wait_live()
    keys("/")
    keys("a b")
    assert page.run(f"return {BOX}.value") == "a b"
    assert page.state == "live"
