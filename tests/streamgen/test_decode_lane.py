"""Decodes in the order of what they read, whatever the device's lane."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from streamgen.decode_lane import HostLane, Moment
from streamgen.decoder import StreamingDecoder, decode_meanwhile
from streamgen.models.taehv import TAEHV, TAEHVConfig

CONFIG = TAEHVConfig(latent_channels=4, encoder_width=8, decoder_widths=(16, 8, 8, 8))


class WatchedLane(HostLane):
    """A lane that notes what happens in it, and where a fetch may fail."""

    def __init__(self) -> None:
        self.passed = 0
        self.entered: list[tuple[Moment, int]] = []
        self.is_inside = False
        self.failures = 0

    def now(self) -> Moment:
        self.passed += 1
        return self.passed

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self.is_inside = True
        yield
        self.is_inside = False

    def after(self, moment: Moment, *inputs: Tensor) -> Any:
        self.entered.append((moment, len(inputs)))
        return self._inside()

    def fetch(self, pixels: Tensor) -> npt.NDArray[np.uint8]:
        assert self.is_inside
        if self.failures:
            self.failures -= 1
            self.is_inside = False
            raise torch.OutOfMemoryError("pinned memory")
        return super().fetch(pixels)


@pytest.fixture
def vae() -> TAEHV:
    torch.manual_seed(0)
    return TAEHV(CONFIG).requires_grad_(False).eval()


def decoder(vae: TAEHV, lane: HostLane) -> StreamingDecoder:
    return StreamingDecoder(vae, torch.device("cpu"), torch.float32, num_threads=1, lane=lane)


def test_a_decode_waits_for_the_moment_of_its_submission(vae: TAEHV) -> None:
    lane = WatchedLane()
    decodes = decoder(vae, lane)
    try:
        stream = decodes.open()
        decodes.prime(stream, torch.randn(2, 4, 4, 4))
        pixels = decodes.submit(stream, torch.randn(3, 4, 4, 4), 12).result()
    finally:
        decodes.close()
    assert pixels.shape == (12, 32, 32, 3)
    assert not pixels.flags.writeable
    assert lane.entered == [(1, 0), (2, 1), (3, 1)]


def test_q48_a_copy_that_fails_once_decodes_nothing_twice(vae: TAEHV) -> None:
    """The stream's memory is as it was until its pixels have arrived."""
    latents = torch.randn(6, 4, 4, 4, generator=torch.Generator().manual_seed(1))
    results = []
    for failures in (0, 1):
        lane = WatchedLane()
        decodes = decoder(vae, lane)
        try:
            stream = decodes.open()
            first = decodes.submit(stream, latents[:3], 9).result()
            lane.failures = failures
            results.append([first, decodes.submit(stream, latents[3:], 12).result()])
        finally:
            decodes.close()
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


class HeldLane(WatchedLane):
    """Lets a decode go on when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def fetch(self, pixels: Tensor) -> npt.NDArray[np.uint8]:
        assert self.go.wait(30)
        return super().fetch(pixels)


def test_a_decoder_is_busy_while_it_decodes_and_no_longer(vae: TAEHV) -> None:
    lane = HeldLane()
    decodes = decoder(vae, lane)
    try:
        assert decodes.busy_s == 0
        pixels = decodes.submit(decodes.open(), torch.randn(1, 4, 4, 4), 1)
        while (before := decodes.busy_s) == 0:
            time.sleep(0.001)
        assert decodes.busy_s > before
        lane.go.set()
        pixels.result()
    finally:
        decodes.close()  # waits for the thread
    assert decodes.busy_s == decodes.busy_s > before


def test_decodes_go_on_meanwhile_and_end_with_their_seconds(vae: TAEHV) -> None:
    with decode_meanwhile(vae, torch.randn(3, 4, 4, 4), 1) as seconds:
        while len(seconds) < 2:
            time.sleep(0.001)
    count = len(seconds)
    assert min(seconds) > 0
    time.sleep(0.05)
    assert len(seconds) == count


class SlowStart:
    """A decoder whose thread is late."""

    def __init__(self, vae: TAEHV) -> None:
        self.decode_step = vae.decode_step
        self._state = vae.decoder_state

    def decoder_state(self) -> Any:
        time.sleep(0.05)
        return self._state()


def test_however_short_the_while_there_is_a_decode(vae: TAEHV) -> None:
    with decode_meanwhile(SlowStart(vae), torch.randn(1, 4, 4, 4), 1) as seconds:
        pass
    assert seconds


def test_a_decode_that_fails_meanwhile_is_told(vae: TAEHV) -> None:
    with (
        pytest.raises(RuntimeError, match="channels"),
        decode_meanwhile(vae, torch.randn(3, 5, 4, 4), 1),
    ):
        pass
