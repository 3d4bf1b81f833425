"""A fork ends in a second picture, or in a word that says why not; and in full screen both show."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.pages import complaints, resize
from tests.browser.test_two import TwoPanes

pytestmark = pytest.mark.browser

# What of the two pictures can be seen: [left, top, right, bottom] of each, in the window.
PLACES = """
    return [...document.querySelectorAll(".video")].map((video) => {
      const place = video.getBoundingClientRect();
      return [place.left, place.top, place.right, place.bottom].map(Math.round);
    });
"""
# The colours of a text and of what it stands on.
COLOURS = """
    const style = getComputedStyle(document.getElementById("notice"));
    return [style.color, style.backgroundColor].map((text) => text.match(/[0-9]+/g).map(Number));
"""
# What can be pressed and lies under the notice.
COVERED = """
    const over = document.getElementById("notice").getBoundingClientRect();
    const things = [...document.querySelectorAll("button, a, select, input, textarea")];
    return things.filter((thing) => {
      const { left, top, right, bottom } = thing.getBoundingClientRect();
      return thing.checkVisibility() && left < over.right && over.left < right
        && top < over.bottom && over.top < bottom;
    }).map((thing) => thing.id || thing.title);
"""
SWALLOW_FORKS = """
    const send = WebSocket.prototype.send;
    WebSocket.prototype.send = function (text) {
      if (text.includes("session.fork")) window.socket = this;
      else send.call(this, text);
    };
"""


class Forked(TwoPanes):
    """The page, driven by its keys."""

    def keys(self, text: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.browser).send_keys(text).perform()

    @property
    def notice(self) -> str:
        shown = "document.getElementById('notice')"
        return self.run(f"return {shown}.classList.contains('shown') ? {shown}.textContent : ''")

    @property
    def is_full(self) -> bool:
        return self.run("return document.fullscreenElement !== null")

    def enter_full_screen(self) -> None:
        self.keys("f")
        self.wait(lambda: self.is_full, "F does not fill the screen")


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (800, 600), (390, 844)])
def test_full_screen_shows_both(server: Any, browser: Any, width: int, height: int) -> None:
    """A fork made in full screen stands beside its parent, or under it where it is higher."""
    resize(browser, width, height)
    page = Forked(browser, server.url)
    page.wait_live()
    page.enter_full_screen()
    page.keys("d")
    page.wait(lambda: page.count(".pane") == 2, "no second pane came")
    page.wait(lambda: page.pane_state(2) == "live", "the fork does not play")
    size = page.run("return [innerWidth, innerHeight]")
    half = [size[0] // 2, size[1]] if size[0] > size[1] else [size[0], size[1] // 2]
    first, second = page.run(PLACES)
    assert first == [0, 0, *half]
    assert second == [size[0] - half[0], size[1] - half[1], *size]
    assert page.run("return document.getElementById('prompt-2').checkVisibility()")
    assert not page.run("return document.getElementById('prompt-1').checkVisibility()")
    width_of = "return document.getElementById('prompt-2').getBoundingClientRect().width"
    assert page.run(width_of) >= 250  # enough to write in
    page.keys("1")
    page.wait(
        lambda: page.run("return document.getElementById('prompt-1').checkVisibility()"),
        "the first one cannot be steered",
    )
    assert (
        page.run(
            "return document.elementFromPoint(...(({ left, top }) => [left + 9, top + 9])"
            "(document.getElementById('prompt-1').getBoundingClientRect())).id"
        )
        == "prompt-1"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_notice_is_legible_in_full_screen(server: Any, browser: Any, scheme: str) -> None:
    """What the page says stands out from its ground, beside the prompt box; Esc leads back."""
    from selenium.webdriver.common.keys import Keys

    wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
    page = Forked(browser, server.url)
    page.wait_live()
    page.enter_full_screen()
    page.press("pause-1")
    page.wait(lambda: page.state == "paused", "the page did not pause")
    page.keys("d")
    page.wait(lambda: page.notice != "", "nothing is said")
    text, ground = page.run(COLOURS)
    assert abs(sum(text[:3]) - sum(ground[:3])) > 400
    page.keys(Keys.ESCAPE)
    page.wait(lambda: not page.is_full, "Esc does not lead back")
    screen = "return document.body.dataset.screen"
    page.wait(lambda: page.run(screen) is None, "the page does not know that it is small again")


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1000, 700), (390, 844)])
def test_notice_covers_no_control(server: Any, browser: Any, width: int, height: int) -> None:
    """What the page says for a while is in nobody's way, in full screen neither."""
    resize(browser, width, height)
    page = Forked(browser, server.url)
    page.wait_live()
    page.keys("d")
    page.wait(lambda: page.notice != "", "nothing is said")
    page.wait(lambda: page.pane_state(2) == "live", "the fork does not play")
    assert page.run(COVERED) == []
    page.enter_full_screen()
    page.keys("d")
    assert page.notice.startswith("Not forked: two videos")
    assert page.run(COVERED) == []
    page.press("notice")
    assert page.notice == ""


def test_keys_after_a_click(server: Any, browser: Any) -> None:
    """A button that was clicked keeps Space and Enter for itself and no letter, in any case."""
    page = Forked(browser, server.url)
    page.wait_live()
    page.press("pause-1")
    page.wait(lambda: page.state == "paused", "the page did not pause")
    assert page.run("return document.activeElement.id") == "pause-1"
    page.keys(" ")
    page.wait(lambda: page.state == "live", "Space does not press the button")
    page.keys("D")  # as with Caps Lock
    page.wait(lambda: page.count(".pane") == 2, "D did not fork")
    page.wait(lambda: page.pane_state(2) == "live", "the fork does not play")
    page.keys("/")
    assert page.run("return document.activeElement.id") == "prompt-2"
    page.keys("d1")
    assert page.run("return document.activeElement.value") == "d1"
    told = page.run(
        "return document.getElementById('notice').textContent"
    )  # hidden by now, perhaps
    assert told.startswith("A second video")


def test_no_fork_without_a_word(own_server: Any, scripted: Any) -> None:
    """Who asks for a fork that cannot be is told why: while it waits, and with two there."""
    page = Forked(scripted(""), own_server.url)
    page.wait_live()
    own_server.stop()
    page.wait(lambda: page.state == "reconnecting", "the loss was not noticed")
    page.keys("d")
    page.wait(lambda: page.notice != "", "nothing is said")
    assert page.notice == "Not forked: the video does not play at present."
    own_server.start()
    page.wait_live()
    page.fork()
    page.keys("d")
    page.wait(lambda: page.notice.startswith("Not forked: two videos"), "nothing is said")


def test_fork_whose_answer_is_lost(server: Any, scripted: Any) -> None:
    """A second request waits for the first; one that a lost connection took is told, once."""
    page = Forked(scripted(SWALLOW_FORKS), server.url)
    page.wait_live()
    page.press("fork-1")
    assert page.run("return document.getElementById('fork-1').getAttribute('aria-busy')") == "true"
    page.keys("d")
    page.wait(lambda: page.notice == "Not forked: another fork is on its way.", "nothing is said")
    page.run("window.socket.close()")
    page.wait(lambda: page.notice.startswith("Not forked: the connection"), "nothing is said")
    page.wait_live()
    page.wait(lambda: page.run("return !document.getElementById('fork-1').disabled"), "no fork")
    assert page.count(".pane") == 1
    assert complaints(page.browser) == []
