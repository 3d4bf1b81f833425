"""Those who only watch, the recording, and the page behind TLS and a path prefix."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import DEMO_SERVER, PrefixProxy, Server, new_tab
from tests.browser.pages import FLAT_BLUE, FLAT_RED, WAYS, Media, Page, complaints, is_colour
from tests.browser.test_two import delete, get
from tests.browser.tls_front import tls_front

pytestmark = pytest.mark.browser

NO_CLIPBOARD = "navigator.clipboard.writeText = () => Promise.reject(new Error('forbidden'));"
KEEP_CLIPBOARD = """
    navigator.clipboard.writeText = async (text) => { window.copied = text; };
"""
VISIBLE = "return [...document.querySelectorAll('{}')].filter((e) => e.checkVisibility()).length"


class Watching(Media):
    """The page of somebody who has a link."""

    def __init__(self, browser: Any, link: str) -> None:
        self.browser = browser
        browser.get(link)


def make(server: Any) -> dict[str, Any]:
    """Create a session that runs whether it is watched or not."""
    body = json.dumps({"prompt": FLAT_BLUE, "run_unwatched": True}).encode()
    return call(server, "v1/realtime/sessions", body)


def call(server: Any, path: str, body: bytes) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{server.url}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        made: dict[str, Any] = json.load(answer)
    return made


def link_to(base: str, made: dict[str, Any], via: str | None = None) -> str:
    link = f"{base}?watch={made['id']}&token={made['viewer_token']}"
    return f"{link}&via={via}" if via else link


@pytest.fixture
def recording_server(tmp_path: Path) -> Iterator[Server]:
    server = Server(f"{DEMO_SERVER} --record {tmp_path}")
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("via", WAYS)
def test_watching(server: Any, browser: Any, via: str) -> None:
    """A link shows the picture and the prompts as they take over, and nothing to steer with."""
    made = make(server)
    page = Watching(browser, link_to(server.url, made, via))
    page.wait_live()
    page.wait(lambda: page.has_colour(FLAT_BLUE), "the picture has another colour")
    page.wait(lambda: page.text("#caption-1") == FLAT_BLUE, "the prompt is not told")
    for hidden in ("textarea", "input", "#pause-1", "#fork-1", "#start-over-1", "#film-1 button"):
        assert page.run(VISIBLE.format(hidden)) == 0, hidden
    assert page.run(VISIBLE.format("#share, #full-screen-1, #via-1")) == 3
    event = {"type": "session.interaction", "interaction": {"event": {"prompt": FLAT_RED}}}
    events = f"v1/realtime/sessions/{made['id']}/events?token={made['resume_token']}"
    call(server, events, json.dumps(event).encode())
    page.wait(lambda: page.text("#caption-1") == FLAT_RED, "the new prompt is not told")
    page.wait(lambda: page.has_colour(FLAT_RED), "the picture does not follow")
    assert page.via == via
    assert complaints(browser) == []
    delete(server, made)
    page.wait(lambda: page.state == "ended", "the end is not told")
    assert page.run("return document.getElementById('panel-button-1').hidden")


@pytest.mark.parametrize("via", ["jpeg", "webrtc"])
def test_joining_while_paused(server: Any, browser: Any, via: str) -> None:
    """Who opens the link of a video that stands still sees its picture and its prompt."""
    made = make(server)
    state = lambda: get(server, f"v1/realtime/sessions/{made['id']}")["state"]  # noqa: E731
    page = Watching(browser, link_to(server.url, made, via))
    page.wait_live()
    events = f"v1/realtime/sessions/{made['id']}/events?token={made['resume_token']}"
    call(server, events, json.dumps({"type": "session.update", "paused": True}).encode())
    page.wait(lambda: state() == "paused", "the session does not pause")
    for _ in range(2):  # the first one may still be told of the chunk that is on screen
        browser.refresh()
        page.wait(lambda: page.state == "paused", "the pause is not told")
        page.wait(lambda: page.has_colour(FLAT_BLUE), "no picture")
        assert page.text("#caption-1") == FLAT_BLUE
    delete(server, made)


def test_watcher_cannot_steer(server: Any, browser: Any) -> None:
    """No key changes what somebody else has made; a watcher that leaves does not end it."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    made = make(server)
    page = Watching(browser, link_to(server.url, made))
    page.wait_live()
    ActionChains(browser).send_keys(" ", "d", "/", Keys.ARROW_LEFT, "a", Keys.ENTER).perform()
    page.wait_frames(16)
    session = get(server, f"v1/realtime/sessions/{made['id']}")
    assert session["state"] == "running"
    assert [prompt["prompt"] for prompt in session["prompts"]] == [FLAT_BLUE]
    assert page.run("return document.querySelectorAll('.pane').length") == 1
    browser.get("about:blank")
    assert get(server, f"v1/realtime/sessions/{made['id']}")["state"] == "running"
    delete(server, made)


def test_share_button(server: Any, scripted: Any) -> None:
    """The button copies a link under which the same session is watched; watchers can pass it on."""
    page = Page(scripted(KEEP_CLIPBOARD), server.url)
    page.wait_live()
    page.press("share")
    page.wait(lambda: page.run("return window.copied"), "nothing was copied")
    link = page.run("return window.copied")
    assert link.startswith(f"{server.url}?watch=")
    page.wait(lambda: page.text("#notice").startswith("Link copied"), "the copying is not told")
    with new_tab(page.browser):
        watching = Watching(page.browser, link)
        watching.wait_live()
        watching.wait_frames(8)
        watching.run(KEEP_CLIPBOARD)
        watching.press("share")
        watching.wait(lambda: watching.run("return window.copied") == link, "another link")
    page.wait_live()


def test_share_without_clipboard(server: Any, scripted: Any) -> None:
    """Where pages may not write to the clipboard the link is copied the old way, or shown."""
    page = Page(scripted(NO_CLIPBOARD), server.url)
    page.wait_live()
    page.run("document.execCommand = () => false")
    page.press("share")
    page.wait(lambda: "?watch=" in page.text("#notice"), "the link is not shown")


@pytest.mark.parametrize(
    ("query", "state", "words"),
    [
        ("watch=nothing&token=x", "ended", "This video is over."),
        ("watch={id}&token=wrong", "error", "This link does not let anybody watch"),
        ("watch={id}", "error", "This link does not let anybody watch"),
    ],
)
def test_bad_links(server: Any, browser: Any, query: str, state: str, words: str) -> None:
    """A link that leads nowhere says why."""
    made = make(server)
    page = Watching(browser, f"{server.url}?{query.format(id=made['id'])}")
    page.wait(lambda: page.state == state, "the fault is not told")
    assert words in page.text("#panel-text-1")
    delete(server, made)


def test_no_recording(server: Any, browser: Any) -> None:
    """Where nothing is recorded there is nothing to download."""
    page = Page(browser, server.url)
    page.wait_live()
    assert page.run(VISIBLE.format("#download")) == 0


def test_recording(recording_server: Any, browser: Any) -> None:
    """The recording can be had under the link that the page shows."""
    page = Page(browser, recording_server.url)
    page.wait_live()
    page.wait(lambda: page.run(VISIBLE.format("#download")) == 1, "no download is offered")
    page.wait_frames(20)
    link = page.run("return document.getElementById('download').href")
    with urllib.request.urlopen(link, timeout=60) as answer:
        assert answer.headers["content-type"] == "video/mp4"
        assert b"ftyp" in answer.read(64)


@pytest.mark.parametrize("via", WAYS)
def test_q15_tls_and_prefix(proxy: PrefixProxy, browser: Any, via: str) -> None:
    """Behind TLS and a path prefix all goes by https and wss, and under the prefix."""
    browser.execute_cdp_cmd("Security.setIgnoreCertificateErrors", {"ignore": True})
    with tls_front(proxy.url) as url:
        page = Media(browser, url, via)
        page.wait_live()
        number = page.see()[0]
        page.wait(lambda: page.see()[0] > number + 8, "the pictures stand still")
        assert page.via == via
        assert is_colour(page.see()[2], FLAT_BLUE)
        asked = page.run("return performance.getEntriesByType('resource').map((e) => e.name)")
        assert all(name.startswith(url) for name in asked)
        assert page.run("return isSecureContext")
        assert proxy.missed == complaints(browser) == []
        browser.get("about:blank")
