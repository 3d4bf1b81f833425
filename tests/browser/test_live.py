"""The whole product in a real browser: the bundled model, made live, obeying its prompt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Server
from tests.browser.pages import BLUE, PICTURE, RED, RED_SHARE, Page

pytestmark = pytest.mark.browser

WARM_UP_S = 120.0


def test_picture_moves_and_follows_the_prompt(browser: Any, pocket_server: Server) -> None:
    """Frames move; after a new prompt its receipt comes and its colour is in the picture."""
    page = Page(browser, pocket_server.url, BLUE, via=None)
    page.wait_live(WARM_UP_S)
    picture, frame_index = page.run(PICTURE), page.frame_index
    page.wait(lambda: page.frame_index > frame_index + 16, "no more frames came")
    assert page.run(PICTURE) != picture
    assert page.run(RED_SHARE) < 0.01
    page.write(RED)
    page.wait(lambda: page.prompt_state == "shown", "the prompt was not shown")
    page.wait(lambda: page.run(RED_SHARE) > 0.02, "no red in the picture")
