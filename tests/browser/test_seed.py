"""The seed in the page's address, and whether it can be read where it is shown."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.browser.pages import Page, complaints, resize
from tests.browser.test_two import TwoPanes

pytestmark = pytest.mark.browser

SHOWN = "return document.getElementById('seed-1').value"
NOTICE = "return document.getElementById('notice').textContent"
OF_SERVER = "42"  # what the server of these tests chooses when none is asked for
EDITED = "document.querySelectorAll('.seed').forEach((f) => f.classList.toggle('edited', {}))"
CUT_OFF = """
    return [...document.querySelectorAll(".seed input")].filter((e) => e.checkVisibility())
      .map((e) => { e.value = "4294967295"; return [e.clientWidth, e.scrollWidth]; });
"""


class AtAddress(Page):
    """The page as its address is written by hand."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser = browser
        browser.get(address)


@pytest.mark.parametrize(
    ("written", "shown", "is_said"),
    [
        ("seed=", OF_SERVER, False),
        ("", OF_SERVER, False),
        ("seed=0", "0", False),
        ("seed=4294967295", "4294967295", False),
        ("seed=7.5", OF_SERVER, True),
        ("seed=-1", OF_SERVER, True),
        ("seed=4294967296", OF_SERVER, True),
        ("seed=seven", OF_SERVER, True),
    ],
)
def test_the_seed_of_the_address(
    server: Any, browser: Any, written: str, shown: str, is_said: bool
) -> None:
    """A seed is used; none leaves it to the server; what is no seed does too, and that is said."""
    page = AtAddress(browser, f"{server.url}?via=jpeg&{written}")
    page.wait_live()
    page.wait(lambda: page.run(SHOWN) == shown, "another seed is shown")
    said = page.run(NOTICE)
    if is_said:
        assert f"“{written.partition('=')[2]}” is no seed" in said
        assert "from 0 to 4294967295" in said
    else:
        assert said == ""
    assert complaints(browser) == []


def test_the_longest_seed_is_not_cut_off(server: Any, browser: Any) -> None:
    """With one pane and with two, as it is and while it is edited, at every width."""
    page = TwoPanes(browser, server.url)
    page.wait_live()
    for num_panes in (1, 2):
        if num_panes == 2:
            page.fork()
        for width, edited in itertools.product((390, 768, 1024, 1440), ("false", "true")):
            resize(browser, width, 900)
            page.run(EDITED.format(edited))
            fields = page.run(CUT_OFF)
            assert fields
            assert all(needed <= width_of for width_of, needed in fields), (width, fields)
            assert page.run("return document.documentElement.scrollWidth") <= width
