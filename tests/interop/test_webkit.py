"""WebKit opens the page, finds a way to the pictures, and shows them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Server
from tests.browser.pages import (
    BLUE,
    FLAT_BLUE,
    FLAT_RED,
    PICTURE,
    SEE,
    SHOWN,
    WAYS,
    Media,
    Page,
    is_colour,
)

SEEN = 40
WATCH = f"""
    {SEE}
    window.seen = [];
    const look = () => {{ seen.push(see()); requestAnimationFrame(look); }};
    look();
"""
# How far the picture's green is from its mean: nothing in a black or empty one.
DETAIL = f"""
    const probe = new OffscreenCanvas(32, 32).getContext("2d");
    probe.drawImage({SHOWN.format(1)}, 0, 0, 32, 32);
    const {{ data }} = probe.getImageData(0, 0, 32, 32);
    const green = [...data].filter((_, i) => i % 4 === 1);
    const mean = green.reduce((a, b) => a + b) / green.length;
    return Math.sqrt(green.reduce((sum, y) => sum + (y - mean) ** 2, 0) / green.length);
"""
USABLE = """
    const ways = [...document.getElementById("via-1").options];
    return ways.filter((way) => !way.disabled).map((way) => way.value);
"""


def check_counted(page: Media) -> None:
    """Check that pictures come in order, one after the other, and of the right colour."""
    page.run(WATCH)
    count = "return new Set(seen.map(([number]) => number)).size"
    page.wait(lambda: page.run(count) > SEEN, "hardly any frame was shown")
    seen = page.run("return seen")
    numbers = [number for number, _, _ in seen]
    assert numbers == sorted(numbers)
    # A browser without a card, on a machine with other work, does not paint each of them.
    assert numbers[-1] - numbers[0] < 4 * SEEN
    assert all(is_colour(colour, FLAT_BLUE) for _, _, colour in seen)


def test_finds_a_way(server: Server, webkit: Any) -> None:
    """The page takes the first way that this WebKit can do, and a prompt changes the picture."""
    page = Media(webkit, server.url, None)
    page.wait_live()
    usable = page.run(USABLE)
    print(page.run("return navigator.userAgent"), "can do", usable, "and uses", page.via)
    assert page.via == usable[0]
    check_counted(page)
    page.write(FLAT_RED)
    page.wait(lambda: page.has_colour(FLAT_RED), "the prompt is not seen")
    page.wait(lambda: page.receipt.startswith("On screen after "), "the prompt is not dated")


@pytest.mark.parametrize("via", WAYS)
def test_plays(server: Server, webkit: Any, via: str) -> None:
    """Each way that it can do works."""
    page = Media(webkit, server.url, via)
    page.wait_live()
    if via not in page.run(USABLE):
        assert via == "webrtc", "each other way works in every WebKit"
        assert page.run("return !window.RTCPeerConnection")
        pytest.skip("this WebKit is built without WebRTC")
    assert page.via == via
    check_counted(page)


def test_shows_the_product(pocket_server: Server, webkit: Any) -> None:
    """The bundled model's video is shown, and moves."""
    page = Page(webkit, pocket_server.url, BLUE, None)
    page.wait_live(120.0)
    page.wait_frames(8)
    before = page.run(PICTURE)
    page.wait_frames(32)
    assert page.run(PICTURE) != before
    assert page.run(DETAIL) > 10
