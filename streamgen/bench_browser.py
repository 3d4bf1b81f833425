"""How old a frame is when Chromium shows it, by each way that the page knows.

The page runs as people have it. A script beside it reads the number that is painted into each
picture: when the page takes it as shown (a video element's requestVideoFrameCallback, the animation
frame of a canvas), and at every animation frame, which brings to the screen what it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from streamgen.bench_figures import Due, Figure, percentile
from streamgen.bench_process import LOOPBACK, ServerProcess
from streamgen.bench_source import CELL, CHUNKS_IN_REEL, NUMBER_BITS, Picture
from streamgen.bench_viewers import new_session
from streamgen.errors import StreamgenError

WAYS: Final = {"webrtc": ("WebRTC", 60.0), "jpeg": ("JPEG", 25.0), "webcodecs": ("WebCodecs", 35.0)}
WHAT: Final = {"told": "when Chromium's page has it", "seen": "on Chromium's screen"}
OLDEST_S: Final = 0.8  # half of what the numbers take to come again
LIVE_WITHIN_S: Final = 60.0
FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1440,900",
    # Both together, or WebRTC finds no way to a server on loopback.
    "--allow-loopback-in-peer-connection",
    "--disable-features=WebRtcHideLocalIpsWithMdns",
)
WATCH: Final = f"""
    const probe = new OffscreenCanvas({CELL * NUMBER_BITS}, {CELL})
      .getContext("2d", {{ willReadFrequently: true }});
    const screen = document.getElementById("video-1");
    const note = (numbers) => {{
      const at = performance.timeOrigin + performance.now();
      const shown = screen.lastElementChild;
      if (!shown) return;
      probe.drawImage(shown, 0, 0);
      const row = probe.getImageData(0, {CELL // 2}, {CELL * NUMBER_BITS}, 1).data;
      let number = 0;
      for (let bit = 0; bit < {NUMBER_BITS}; bit += 1) {{
        number = 2 * number + (row[4 * ({CELL} * bit + {CELL // 2}) + 1] > 127);
      }}
      if (number !== numbers.at(-1)?.[0]) numbers.push([number, at]);
    }};
    window.noted = {{ told: [], seen: [] }};
    new MutationObserver(() => note(window.noted.told))
      .observe(screen, {{ attributeFilter: ["data-frame-index"] }});
    const look = () => {{
      requestAnimationFrame(look);
      note(window.noted.seen);
    }};
    look();
"""

Seen = tuple[int, float]  # the number of a picture, and when it was there


async def measure_screen(server: ServerProcess, picture: Picture, seconds: float) -> list[Figure]:
    """Return the ages of frames on screen, each way measured for so many seconds.

    Raises StreamgenError when there is no browser, or the page shows nothing.
    """
    session = await new_session(server.port, prompt="a moving picture, on a page")
    await server.ask("witness", session["id"])
    num_numbers = CHUNKS_IN_REEL * picture.chunk_frames  # until they come again
    figures = []
    with chromium() as browser:
        for way, (name, mark) in WAYS.items():
            await asyncio.to_thread(_show, browser, server.port, session, way)
            await server.ask("due")
            await asyncio.to_thread(browser.execute_script, WATCH)
            await asyncio.sleep(seconds)
            noted = await asyncio.to_thread(browser.execute_script, "return window.noted")
            epoch_s, dues = time.time() - time.monotonic(), await server.ask("due")
            for key, what in WHAT.items():
                times = [(int(number), at_ms / 1000 - epoch_s) for number, at_ms in noted[key][1:]]
                ages = screen_ages_ms(times, dues, num_numbers)
                figures += [
                    Figure(f"age {what}, {name}, p50", percentile(ages, 50), "ms", mark),
                    Figure(f"age {what}, {name}, p95", percentile(ages, 95), "ms"),
                ]
    return figures


def screen_ages_ms(seen: Sequence[Seen], dues: Sequence[Due], num_numbers: int) -> list[float]:
    """Return the age of each frame that was seen, in ms: numbers come again, late ones do not."""
    ages = []
    for number, at_s in seen:
        same = [at_s - due_s for index, due_s, _ in dues if index % num_numbers == number]
        ages += [1000 * age for age in same if 0 <= age < OLDEST_S][:1]
    return ages


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium, with a profile that is thrown away; StreamgenError when there is none."""
    driver = shutil.which("chromedriver")
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from selenium import webdriver
    except ImportError as error:
        raise StreamgenError("--browser needs selenium: pip install selenium") from error
    if not driver or not binary:
        raise StreamgenError("--browser needs Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            yield browser
        finally:
            browser.quit()


def _show(browser: Any, port: int, session: dict[str, Any], way: str) -> None:
    """Open the page of those who watch, and wait until pictures come by the way that is meant."""
    asked = {"watch": session["id"], "token": session["viewer_token"], "via": way}
    browser.get(f"http://{LOOPBACK}:{port}/?{urlencode(asked)}")
    deadline = time.monotonic() + LIVE_WITHIN_S
    while browser.execute_script("return document.body.dataset.state") != "live":
        if time.monotonic() > deadline:
            raise StreamgenError(f"the page showed nothing by {way} within {LIVE_WITHIN_S:g} s")
        time.sleep(0.1)
    time.sleep(1.0)  # what it begins with is shown
    used = browser.execute_script("return document.getElementById('via-1').value")
    if used != way:
        raise StreamgenError(f"the page left {way} for {used}")
