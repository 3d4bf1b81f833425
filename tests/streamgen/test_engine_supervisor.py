"""One engine after another, with engines that only pretend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from streamgen.config import EngineConfig
from streamgen.engine_commands import Command, Load, Ping, Pong, Reply, Stage, Stopped
from streamgen.engine_supervisor import EngineSupervisor
from streamgen.errors import EngineStopped, StreamgenError
from tests.streamgen.tiny import tiny_config

READY = Stage("ready", 1.0)


class PretendLink:
    """An engine that says what a test tells it to."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.sent: list[Command] = []
        self.num_stops = 0
        self.num_kills = 0
        self.start_error: OSError | None = None
        self.say: Callable[[Reply], None] | None = None  # once it was started

    def start(self, deliver: Callable[[Reply], None]) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.say = deliver

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def view(self, slot: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        raise AssertionError

    def stop(self) -> None:
        self.num_stops += 1

    def kill(self) -> None:
        self.num_kills += 1
        assert self.say is not None
        self.say(Stopped(EngineStopped("killed")))


class Scene:
    """A supervisor, its engines, and what it tells."""

    def __init__(self, **options: object) -> None:
        self.links: list[PretendLink] = []
        self.told: list[object] = []
        self.start_error: OSError | None = None
        self.supervisor = EngineSupervisor(tiny_config(**options), self.make_link, self)

    def make_link(self, config: EngineConfig, measured: object) -> PretendLink:
        link = PretendLink(config)
        link.start_error = self.start_error
        self.links.append(link)
        return link

    def heard(self, reply: Reply) -> None:
        self.told.append(reply)

    def engine_ready(self) -> None:
        self.told.append("ready")

    def engine_died(self, error: StreamgenError) -> None:
        self.told.append("died")

    def engine_ended(self, error: StreamgenError | None) -> None:
        self.told.append(("ended", error and error.message))

    async def say(self, *replies: Reply) -> None:
        """Let the newest engine say something, and wait until a new one would have been started."""
        while (say := self.links[-1].say) is None:
            await asyncio.sleep(0.005)
        for reply in replies:
            say(reply)
        for _ in range(20):
            await asyncio.sleep(0.005)
        while (replacing := self.supervisor._replacing) is not None and not replacing.done():
            await asyncio.sleep(0.005)

    async def die(self) -> None:
        await self.say(Stopped(EngineStopped("it died")))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgen.engine_supervisor.PING_INTERVAL_S", 0.01)
    monkeypatch.setattr("streamgen.watchdog.PING_INTERVAL_S", 0.01)


async def test_an_engine_that_dies_is_followed_by_one_without_faults() -> None:
    scene = Scene(faults="worker.kill@3")
    scene.supervisor.start()
    await scene.say(Stage("weights", 0.1), READY)
    assert scene.supervisor.is_ready
    await scene.die()
    assert not scene.supervisor.is_ready
    assert scene.supervisor.stage == Stage("restart", 0.0)
    await scene.say(Stage("weights", 0.1))
    assert scene.supervisor.stage == Stage("restart", 0.1)
    await scene.say(READY)
    assert scene.supervisor.stage == READY
    assert scene.told == ["ready", "died", "ready"]
    assert [link.config.faults for link in scene.links] == ["worker.kill@3", None]
    assert scene.links[0].num_stops == 1
    assert scene.supervisor.num_restarts == 1
    await scene.supervisor.close()
    assert scene.told[-1] == ("ended", None)


async def test_a_first_start_that_fails_is_an_error_at_once() -> None:
    scene = Scene()
    scene.supervisor.start()
    await scene.say(Stopped(StreamgenError("no weights")))
    assert scene.told == [("ended", "no weights")]
    assert len(scene.links) == 1
    await scene.supervisor.close()
    assert len(scene.told) == 1


async def test_an_engine_that_dies_three_times_is_given_up() -> None:
    scene = Scene()
    scene.supervisor.start()
    for _ in range(3):
        await scene.say(READY)
        await scene.die()
    assert len(scene.links) == 3
    assert scene.told[-2:] == [
        "ready",
        ("ended", "it died; it died too often to be started again"),
    ]
    await scene.supervisor.close()


async def test_starts_that_fail_one_after_the_other_are_given_up() -> None:
    scene = Scene()
    scene.supervisor.start()
    await scene.say(READY)
    scene.start_error = OSError("no process left")
    await scene.die()
    while not isinstance(scene.told[-1], tuple):
        await asyncio.sleep(0.005)
    assert scene.told[:2] == ["ready", "died"]
    assert scene.told[-1] == (
        "ended",
        "the engine cannot be started: no process left; it died too often to be started again",
    )
    await scene.supervisor.close()


@pytest.mark.usefixtures("quick")
async def test_an_engine_is_asked_for_signs_of_life_and_any_word_is_one() -> None:
    scene = Scene(stall_timeout=1)
    scene.supervisor.start()
    await scene.say(READY)
    link = scene.links[0]
    for reply in (Pong(), Load(1, 2)):
        while scene.supervisor.busy_s == 0:
            await asyncio.sleep(0.005)
        await scene.say(reply)
    assert link.sent.count(Ping()) >= 2
    assert not link.num_kills
    await scene.supervisor.close()


@pytest.mark.usefixtures("quick")
async def test_q14_a_stuck_engine_is_busy_and_then_killed_and_replaced() -> None:
    scene = Scene(stall_timeout=0.5)
    scene.supervisor.start()
    await scene.say(READY)
    while not scene.supervisor.busy_s:
        await asyncio.sleep(0.005)
    assert scene.supervisor.is_ready  # busy, not dead
    while len(scene.links) == 1:
        await asyncio.sleep(0.005)
    assert scene.links[0].num_kills == 1
    assert scene.supervisor.busy_s == 0
    await scene.say(READY)
    assert scene.told == ["ready", "died", "ready"]
    await scene.supervisor.close()


@pytest.mark.usefixtures("quick")
async def test_without_a_time_limit_a_stuck_engine_is_left_alone() -> None:
    scene = Scene(stall_timeout=None)
    scene.supervisor.start()
    await scene.say(READY)
    while scene.supervisor.busy_s <= 0.05:
        await asyncio.sleep(0.005)
    assert not scene.links[0].num_kills
    await scene.supervisor.close()


@pytest.mark.usefixtures("quick")
async def test_a_start_that_takes_much_longer_than_the_first_one_is_a_stuck_engine() -> None:
    scene = Scene(stall_timeout=0.5)
    scene.supervisor.start()
    await scene.say(READY)
    await scene.die()
    while scene.links[1].num_kills == 0:
        await asyncio.sleep(0.005)
    await scene.supervisor.close()


async def test_closing_while_an_engine_is_replaced_leaves_none_behind() -> None:
    scene = Scene()
    scene.supervisor.start()
    await scene.say(READY)
    assert scene.links[0].say is not None
    scene.links[0].say(Stopped(EngineStopped("it died")))
    await asyncio.sleep(0)
    await scene.supervisor.close()
    assert scene.told == ["ready", "died", ("ended", None)]
    assert all(link.num_stops for link in scene.links)


async def test_what_an_engine_says_after_its_end_is_not_heard() -> None:
    scene = Scene()
    scene.supervisor.start()
    await scene.say(READY)
    await scene.die()
    assert scene.links[0].say is not None
    scene.links[0].say(Load(7, 7))
    await scene.say(READY)
    assert scene.told == ["ready", "died", "ready"]
    await scene.supervisor.close()
