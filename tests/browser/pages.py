"""What the tests see and do on the page, as a person would."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 60.0
BLUE = "a blue ball rests in the snow on a clear day"
RED = "a red ball rests in the snow on a clear day"

# What of a pane's picture can be drawn; the newest lies on top.
SHOWN = "document.getElementById('video-{}').lastElementChild"
# The share of strongly red pixels: none in a blue scene, some in one with a red thing in it.
RED_SHARE = f"""
    const probe = new OffscreenCanvas(64, 64).getContext("2d");
    probe.drawImage({SHOWN.format(1)}, 0, 0, 64, 64);
    const {{ data }} = probe.getImageData(0, 0, 64, 64);
    let red = 0;
    for (let i = 0; i < data.length; i += 4) {{
      if (data[i] > 110 && data[i] > 1.8 * Math.max(data[i + 1], data[i + 2])) red += 1;
    }}
    return red / (data.length / 4);
"""
BOX = "document.getElementById('prompt-1')"
PICTURE = f"""
    const probe = document.createElement("canvas");
    probe.getContext("2d").drawImage({SHOWN.format(1)}, 0, 0, 96, 96);
    return probe.toDataURL();
"""


WAYS = ("webrtc", "webcodecs", "mse", "jpeg", "mjpeg")
# A sky of one colour, with the frame number painted into it.
FLAT_BLUE = "a flat blue sky, counted"
FLAT_RED = "a flat red sky, counted"
RGB = {FLAT_BLUE: (60, 110, 255), FLAT_RED: (255, 60, 50)}
MAX_COLOUR_ERROR = 4  # of 255: what a JPEG of quality 80 takes
# What is seen: the number painted into the picture, the number the page knows of, the colour below.
SEE = f"""
    const probe = new OffscreenCanvas(128, 128).getContext("2d");
    const see = () => {{
      probe.drawImage({SHOWN.format(1)}, 0, 0, 128, 128);
      const row = probe.getImageData(0, 4, 128, 1).data;
      let number = 0;
      for (let x = 4; x < 128; x += 8) number = 2 * number + (row[4 * x + 1] > 127 ? 1 : 0);
      const colour = [...probe.getImageData(64, 80, 1, 1).data].slice(0, 3);
      return [number, Number(document.getElementById("video-1").dataset.frameIndex), colour];
    }};
"""


class Page:
    """The page as a person uses it; reads what it shows.

    Its pictures come as JPEG, which carry their numbers and cost least to decode; with `via` None
    the page chooses.
    """

    def __init__(
        self, browser: Any, url: str, prompt: str = BLUE, via: str | None = "jpeg"
    ) -> None:
        self.browser = browser
        query = f"prompt={prompt.replace(' ', '+')}&seed=7"
        browser.get(f"{url}?{query}&via={via}" if via else f"{url}?{query}")

    @property
    def state(self) -> str:
        return self._find("body").get_attribute("data-state")

    @property
    def frame_index(self) -> int:
        value = self._find("#video-1").get_attribute("data-frame-index")
        return int(value) if value else -1

    @property
    def fps(self) -> float:
        return float(self.text("[data-stat=fps]").replace("–", "0"))

    @property
    def prompt_state(self) -> str:
        return self._find("#receipt-1").get_attribute("data-prompt-state")

    @property
    def receipt(self) -> str:
        return self._find("#receipt-1 .words").text

    def write(self, text: str) -> None:
        from selenium.webdriver.common.keys import Keys

        self._find("#prompt-1").send_keys(text, Keys.ENTER)

    def press(self, element_id: str) -> None:
        self._find(f"#{element_id}").click()

    def text(self, selector: str) -> str:
        return self._find(selector).text

    def run(self, script: str) -> Any:
        return self.browser.execute_script(script)

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}; the state is {self.state}"
            time.sleep(0.03)

    def wait_live(self, timeout_s: float = TIMEOUT_S) -> None:
        self.wait(lambda: self.state == "live", "the page did not become live", timeout_s)

    def wait_frames(self, count: int) -> None:
        """Wait until the picture is `count` frames further."""
        first = self.frame_index
        self.wait(lambda: self.frame_index >= first + count, f"{count} frames did not come")

    def _find(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)


def complaints(browser: Any) -> list[str]:
    """Errors of the page's own scripts and failed loads, as the console has them."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


class Media(Page):
    """A page whose pictures carry numbers."""

    def __init__(self, browser: Any, url: str, via: str | None, prompt: str = FLAT_BLUE) -> None:
        super().__init__(browser, url, prompt, via)

    @property
    def via(self) -> str:
        return self.run("return document.getElementById('via-1').value")

    def see(self) -> tuple[int, int, list[int]]:
        return tuple(self.run(f"{SEE} return see();"))

    def has_colour(self, prompt: str) -> bool:
        """Whether the picture has the colour of a prompt."""
        return is_colour(self.see()[2], prompt)


def is_colour(colour: list[int], prompt: str) -> bool:
    errors = [abs(a - b) for a, b in zip(colour, RGB[prompt], strict=True)]
    return max(errors) <= MAX_COLOUR_ERROR


def resize(browser: Any, width: int, height: int) -> None:
    """Give the page a window of so many pixels; a narrow one is a phone's."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
