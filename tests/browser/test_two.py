"""Two videos on one page: forked, steered apart, taken back; and what the server says of itself."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.pages import BLUE, RED, SHOWN, Page, complaints, resize

pytestmark = pytest.mark.browser

GREEN = "a green star drifts over the sea"
# Keeps the page's sockets in reach, so that a test can speak as the server does.
KEEP_SOCKETS = """
    window.sockets = [];
    window.WebSocket = class extends WebSocket {
      constructor(...args) { super(...args); window.sockets.push(this); }
    };
"""


@pytest.fixture
def heard(browser: Any) -> Iterator[Any]:
    """A browser whose pages keep their sockets."""
    script = {"source": KEEP_SOCKETS}
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    yield browser
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


class TwoPanes(Page):
    """The page with its second pane; pane 1 is what the first page's helpers look at."""

    def frame(self, number: int) -> int:
        value = self._find(f"#video-{number}").get_attribute("data-frame-index")
        return int(value or -1)

    def pane_state(self, number: int) -> str:
        return self._find(f"#pane-{number}").get_attribute("data-state")

    def fork(self) -> None:
        """Fork and wait until both play."""
        self.press("fork-1")
        self.wait(lambda: self.count(".pane") == 2, "no second pane came")
        self.wait(lambda: self.pane_state(2) == "live", "the fork does not play")
        first = [self.frame(1), self.frame(2)]
        self.wait(lambda: self.frame(1) > first[0] + 8, "the parent stands still")
        self.wait(lambda: self.frame(2) > first[1] + 8, "the fork stands still")

    def ask(self, number: int, text: str) -> None:
        from selenium.webdriver.common.keys import Keys

        self._find(f"#prompt-{number}").send_keys(text, Keys.ENTER)
        self.wait(lambda: self.text(f"#caption-{number}") == text, "the prompt was not shown")

    def count(self, selector: str) -> int:
        return int(self.run(f"return document.querySelectorAll('{selector}').length"))

    def say(self, message: dict[str, Any], socket: int = 0) -> None:
        """Let the page hear a message of the server."""
        event = json.dumps({"data": json.dumps(message)})
        self.run(f"window.sockets[{socket}].onmessage({event})")

    def colour(self, number: int) -> str:
        """Return which of red, green and blue is strongest in a picture."""
        return self.run(f"""
            const probe = new OffscreenCanvas(8, 8).getContext("2d");
            probe.drawImage({SHOWN.format(number)}, 0, 0, 8, 8);
            const data = probe.getImageData(0, 0, 8, 8).data;
            const sums = [0, 1, 2].map((c) => data.filter((_, i) => i % 4 === c)
                .reduce((a, b) => a + b, 0));
            return ["red", "green", "blue"][sums.indexOf(Math.max(...sums))];
        """)


def test_fork_and_steer_apart(server: Any, browser: Any) -> None:
    """The fork plays beside its parent, each obeys its own box; closing it leaves the other."""
    page = TwoPanes(browser, server.url)
    page.wait_live()
    page.wait_frames(8)
    page.fork()
    assert page.text("#caption-2") == BLUE
    assert page.count("#timeline-2 li") == 1  # the past they share
    page.ask(2, GREEN)
    page.wait(lambda: page.colour(2) == "green", "the fork did not turn green")
    assert page.colour(1) == "blue"
    assert page.text("#caption-1") == BLUE
    assert page.run("return document.getElementById('fork-1').disabled")
    page.wait(lambda: page.text("#stats-2 [data-stat=fps]") != "–", "the fork has no figures")
    page.press("close-1")
    page.wait(lambda: page.count(".pane") == 1, "the parent was not closed")
    frame = page.frame(2)
    page.wait(lambda: page.frame(2) > frame + 8, "the fork ended with its parent")
    assert complaints(browser) == []


def test_rewind_one_of_two(server: Any, browser: Any) -> None:
    """The timeline leads back to an earlier prompt in one pane; the other goes on as it was."""
    page = TwoPanes(browser, server.url)
    page.wait_live()
    page.wait_frames(16)
    page.ask(1, RED)
    page.wait_frames(16)
    page.fork()
    before = page.frame(2)
    page.run("document.querySelector('#timeline-2 li:last-child .row').click()")
    page.wait(lambda: page.text("#caption-2") == BLUE, "the fork did not go back")
    page.wait(lambda: page.colour(2) == "blue", "the fork's picture did not go back")
    assert page.frame(2) > before
    assert page.text("#caption-1") == RED
    assert page.colour(1) == "red"
    assert page.text("#timeline-2 [aria-current] .words").startswith("Back at 0:0")
    undone = page.text("#timeline-2 [data-undone] .words")
    assert undone == "Undone by going back"
    assert page.count("#timeline-1 li") == 2
    page.ask(2, GREEN)
    assert complaints(browser) == []


def test_film_leads_back(server: Any, browser: Any) -> None:
    """Each moment is a tile; a chosen one is gone back to, and what came after it is gone."""
    page = TwoPanes(browser, server.url)
    page.wait_live()
    page.wait(lambda: page.count("#film-1 button") >= 5, "the film does not grow")
    second = "#film-1 button:nth-last-child(2)"
    left_behind = page.run(f"return document.querySelector('{second}').title")
    page.run("document.querySelector('#film-1 button:last-child').click()")
    page.wait(lambda: page.receipt.startswith("Back at 0:00"), "the page did not go back")
    page.wait_frames(8)
    assert page.run(f"return document.querySelector('{second}').title") != left_behind
    assert page.state == "live"


def test_keys_for_film_and_fork(server: Any, browser: Any) -> None:
    """The left arrow leads into the film, Enter goes back, D forks, 1 and 2 choose a pane."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page = TwoPanes(browser, server.url)
    page.wait_live()
    keys = lambda text: ActionChains(browser).send_keys(text).perform()  # noqa: E731
    page.wait(lambda: page.count("#film-1 button") >= 4, "the film does not grow")
    keys(Keys.ARROW_LEFT)
    assert page.run("return document.activeElement.parentElement.id") == "film-1"
    keys(Keys.ARROW_LEFT)
    keys(Keys.ENTER)
    page.wait(lambda: page.receipt.startswith("Back at "), "Enter did not go back")
    page.run("document.activeElement.blur()")
    keys("d")
    page.wait(lambda: page.count(".pane") == 2, "D did not fork")
    page.wait(lambda: page.pane_state(2) == "live", "the fork does not play")
    active = "return document.querySelector('.pane[data-active]').id"
    assert page.run(active) == "pane-2"
    keys("1")
    assert page.run(active) == "pane-1"
    keys(" ")
    page.wait(lambda: page.pane_state(1) == "paused", "Space does not reach pane 1")
    assert page.pane_state(2) == "live"


def test_transitions_are_sent(server: Any, heard: Any) -> None:
    """What is chosen goes with the prompt: a blend with its number of chunks, else nothing."""
    page = TwoPanes(heard, server.url)
    page.wait_live()
    page.run("""
        window.sent = [];
        const send = sockets[0].send.bind(sockets[0]);
        sockets[0].send = (text) => { sent.push(JSON.parse(text)); send(text); };
    """)
    choose = """
        const select = document.getElementById("transition-1");
        select.value = "{}";
        select.dispatchEvent(new Event("change"));
    """
    assert not page.run("return document.getElementById('chunks-1').offsetWidth")
    for mode in ("", "blend", "recache", "reset"):
        page.run(choose.format(mode))
        page.ask(1, f"{mode or 'auto'} red")
    sent = page.run("return sent.filter(({type}) => type === 'session.interaction')")
    transitions = [message["interaction"].get("transition") for message in sent]
    assert transitions == [
        None,
        {"mode": "blend", "chunks": 4},
        {"mode": "recache"},
        {"mode": "reset"},
    ]


def test_queue(own_server: Any, browser: Any) -> None:
    """A page that has to wait says at which place, and plays when its turn comes."""
    made = [post(own_server, {"prompt": "a", "run_unwatched": True}) for _ in range(3)]
    ahead = post(own_server, {"prompt": "a", "run_unwatched": True})
    page = TwoPanes(browser, own_server.url)
    page.wait(lambda: page.state == "queued", "the page does not say that it waits")
    page.wait(lambda: page.text("#panel-text-1").startswith("One is before you"), "no place")
    delete(own_server, ahead)
    page.wait(lambda: page.text("#panel-text-1").startswith("You are next"), "the place stays")
    assert page.text("#panel-button-1") == "Leave the queue"
    delete(own_server, made[0])
    page.wait_live()
    page.wait_frames(4)


def test_leaving_the_queue(own_server: Any, browser: Any) -> None:
    """The place is given back at once, and the page can wait again."""
    for _ in range(3):
        post(own_server, {"prompt": "a", "run_unwatched": True})
    page = TwoPanes(browser, own_server.url)
    page.wait(lambda: page.state == "queued", "the page does not say that it waits")
    page.press("panel-button-1")
    assert page.state == "ended"
    waiting = lambda: get(own_server, "readyz")["capacity"]["queue_length"]  # noqa: E731
    page.wait(lambda: waiting() == 0, "the place was not given back")
    page.press("panel-button-1")
    page.wait(lambda: page.state == "queued", "the page does not wait again")


def test_overload_and_restart_are_said(server: Any, heard: Any) -> None:
    """A notice over the picture while something is traded; a passing one after a restart."""
    page = TwoPanes(heard, server.url)
    page.wait_live()
    page.say({"type": "session.overload", "level": 2, "action": "fewer denoise steps"})
    assert page.text("#overload-1") == "Fewer denoise steps."
    page.say({"type": "session.overload", "level": 0, "action": "all is well"})
    assert page.text("#overload-1") == ""
    page.say({"type": "session.worker_restarted"})
    page.wait(lambda: "started again" in page.text("#notice"), "the restart is not said")
    page.wait_frames(4)


def test_moments_that_are_not_kept(server: Any, heard: Any) -> None:
    """A refused way back says why, and what is as old is offered no more."""
    page = TwoPanes(heard, server.url)
    page.wait_live()
    page.wait(lambda: page.count("#film-1 button") >= 4, "the film does not grow")
    page.run("""
        window.asked = null;
        const send = sockets[0].send.bind(sockets[0]);
        sockets[0].send = (text) => {
          const message = JSON.parse(text);
          if (message.type === "session.rewind") window.asked = message;
          else send(text);
        };
        document.querySelector("#film-1 button:nth-last-child(2)").click();
    """)
    asked = page.run("return window.asked")
    error = {"code": "invalid_request", "message": "chunk 1 is not kept", "param": "to_chunk"}
    page.say({"type": "error", "retryable": False, "event_id": asked["event_id"], **error})
    assert page.receipt == "Refused: chunk 1 is not kept"
    assert page.run("return document.querySelector('#timeline-1 li:last-child .act').disabled")
    assert page.state == "live"


def test_two_fit_every_width(server: Any, browser: Any) -> None:
    """Both pictures can be seen side by side, and the active one's prompt box below them."""
    page = TwoPanes(browser, server.url)
    page.wait_live()
    page.fork()
    edges = (
        "return [1, 2].map((n) => document.getElementById(`video-${n}`).getBoundingClientRect())"
        ".map((r) => [r.left, r.right, r.top, r.bottom])"
    )
    lowest = "return document.getElementById('prompt-2').getBoundingClientRect().bottom"
    for width in (360, 768, 1100, 1440):
        resize(browser, width, 900)
        assert page.run("return document.documentElement.scrollWidth") <= width
        left, right = page.run(edges)
        assert 0 <= left[0] < left[1] <= right[0] < right[1] <= width
        assert left[2] == right[2]
        assert left[3] < page.run(lowest) <= 900


def post(server: Any, body: dict[str, Any]) -> dict[str, Any]:
    """Create a session and return the answer."""
    request = urllib.request.Request(
        f"{server.url}v1/realtime/sessions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


def delete(server: Any, made: dict[str, Any]) -> None:
    """End a session."""
    url = f"{server.url}v1/realtime/sessions/{made['id']}?token={made['resume_token']}"
    urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=60).close()


def get(server: Any, path: str) -> Any:
    """Return a JSON answer."""
    with urllib.request.urlopen(f"{server.url}{path}", timeout=60) as answer:
        return json.load(answer)
