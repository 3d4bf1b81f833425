"""Texts encoded beside the passes: failures, ends, and whatever happens."""

from __future__ import annotations

import dataclasses
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest
import torch

from streamgen.embeds import KEPT_EMBEDS, EmbedCache
from streamgen.encoding import texts_ahead
from streamgen.engine_client import EngineClient
from streamgen.messages import (
    Failed,
    Rejected,
    SetPrompt,
)
from streamgen.models.presets import Preset
from streamgen.session_config import SessionRequest
from tests.streamgen.published import PUBLISHED
from tests.streamgen.slow_texts import TIMEOUT_S, GatedEncoder, SlowStudio
from tests.streamgen.studio import FRAMES, Studio, alone, assert_same
from tests.streamgen.test_engine_machine import MAX_SESSIONS, TINIER, Machine
from tests.streamgen.test_engine_replay import Family, assert_replayed, scripted
from tests.streamgen.tiny import TINY, tiny_config
from tests.streamgen.viewers import REQUEST, play


def test_a_prompt_that_cannot_be_encoded_is_rejected_and_the_session_goes_on() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        other = studio.begin("a fox", seed=1)
        studio.encoder.failing["a star"] = torch.OutOfMemoryError("no room")
        studio.engine.control(session.id, SetPrompt("a star", event_id="e"))
        studio.encode("a star", "a star")
        num_made = len(studio.more(session, 3)) + 3
        assert_same(studio.made(session), alone(len(studio.made(session))))
        assert [e for e in studio.events[session.id] if isinstance(e, Rejected)] == [
            Rejected("e", "out_of_memory", "the prompt could not be encoded: no room")
        ]
        assert_same(studio.make(other, 5), alone(5, "a fox", seed=1))
        assert not [e for e in studio.events[other.id] if isinstance(e, Rejected | Failed)]
        del studio.encoder.failing["a star"]
        studio.engine.control(session.id, SetPrompt("a star", event_id="f"))
        studio.rest(session)
        studio.encode("a star")
        assert studio.more(session, 2)[-1].prompt_revision == 2
        assert num_made >= 6


def test_an_encoder_that_fails_once_is_not_noticed() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        studio.rest(session)
        studio.encoder.failing["a star"] = RuntimeError("out of luck")
        studio.engine.control(session.id, SetPrompt("a star", event_id="e"))
        studio.encode("a star")
        studio.encoder.failing.clear()
        studio.encode("a star")
        assert studio.more(session, 1)[0].started_event_ids == ("e",)


def test_a_new_session_whose_text_cannot_be_encoded_ends_alone() -> None:
    with SlowStudio() as studio:
        first = studio.begin()
        studio.encoder.failing["bad"] = RuntimeError("out of luck")
        bad = studio.open("bad", seed=1)
        studio.encode("bad", "bad")
        assert_same(studio.make(first, 6), alone(6))
        (failed,) = [e for e in studio.events[bad.id] if isinstance(e, Failed)]
        assert "out of luck" in failed.message
        assert bad.id not in studio.engine.sessions
        assert studio.audit() == studio.pool.num_pages - FRAMES


def test_a_session_that_ends_while_its_text_is_encoded_leaves_nothing() -> None:
    with SlowStudio() as studio:
        for prompt in ("a red ball", "a star", "a box"):
            session = studio.open(prompt)
            studio.step()
            studio.engine.close(session.id)
        assert studio.audit() == studio.pool.num_pages
        assert not studio.step()
        studio.encode("a red ball")
        assert not studio.step()
        assert studio.encoder.begun == ["a red ball"]
        assert not any(studio.engine.runner.text._pins)
        assert_same(studio.make(studio.open(), 2), alone(2))


def test_a_suspended_session_wants_no_text() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        studio.engine.control(session.id, SetPrompt("a star"))
        studio.engine.suspend(session.id)
        assert not list(texts_ahead(session))
        studio.engine.resume(session.id)
        studio.encode("a star")
        assert studio.more(session, 1)[0].prompt_revision == 1


def test_an_encoder_whose_device_is_lost_ends_the_engine() -> None:
    with SlowStudio() as studio:
        studio.open("bad")
        studio.encoder.failing["bad"] = torch.AcceleratorError("gone")
        studio.encode("bad")
        with pytest.raises(torch.AcceleratorError):
            studio.step()


def test_embeddings_that_are_needed_are_kept_however_many_come() -> None:
    cache, needed = EmbedCache(), [f"needed {n}" for n in range(3)]
    cache.needed = needed
    for text in (*needed, *(f"{n}" for n in range(KEPT_EMBEDS))):
        cache.put(text, torch.zeros(1))
    assert all(text in cache for text in needed)
    assert [text for text in ("0", "1", "2", "3") if text in cache] == ["3"]
    assert cache.get("3") is not None
    cache.put("more", torch.zeros(1))
    assert "3" in cache
    assert "4" not in cache


class HurriedStudio(SlowStudio):
    """A studio in which texts take a while: each step lets one through once in `one_in`."""

    def __init__(self, preset: Preset, random: np.random.Generator, **options: object) -> None:
        super().__init__(preset, **options)
        self.random = random

    def step(self) -> bool:
        ran, under_way = super().step(), self.encoding._under_way
        if under_way is not None and (not ran or not self.random.integers(6)):
            self.encoder.gate.release()
            assert not wait([under_way[1]], TIMEOUT_S).not_done
            return True
        return ran


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_while_texts_are_encoded_is_done_again(seed: int) -> None:
    random = np.random.default_rng(seed)
    options: dict[str, Any] = {"history_seconds": 4, "steps": 1, "fused": bool(seed % 2)}
    with HurriedStudio(TINY, random, **options) as studio:
        made = Family(studio, random).live(80)
        assert not studio.encoder.on_the_loop
    with Studio(deterministic=True, **options) as studio:
        for record, chunks in made:
            session = studio.engine.open_config(scripted(record))
            assert_replayed(chunks, studio.make(session, len(chunks)))
            studio.engine.close(session.id)


@pytest.mark.parametrize("seed", range(2))
def test_the_books_are_right_while_texts_are_encoded(seed: int) -> None:
    random = np.random.default_rng(seed)
    options: dict[str, Any] = {"max_sessions": MAX_SESSIONS, "max_queue": 2, "history_seconds": 2}
    with HurriedStudio(TINIER, random, **options) as studio:
        machine = Machine(studio, seed)
        for _ in range(400):
            machine.act()
            machine.check()
        machine.see_all_off()
        assert not studio.encoder.on_the_loop


async def test_an_engine_of_a_published_model_encodes_beside_its_passes() -> None:
    encoder = GatedEncoder()
    preset = dataclasses.replace(TINY, published=PUBLISHED, text_encoder=lambda dummy: encoder)
    config = tiny_config(load_format="dummy", max_sessions=2)
    client = EngineClient(config, preset=preset, own_process=False)
    await client.start()
    try:
        await client.wait_ready()
        encoder.gate.release()
        first = await client.open(REQUEST)
        assert [c.index for c in await play(first, until=1)] == [0, 1]
        second = await client.open(SessionRequest(prompt="a star", seed=1))
        assert [c.index for c in await play(first, until=5)] == [2, 3, 4, 5]
        assert second.state == "starting"
        encoder.gate.release()
        assert [c.index for c in await play(second, until=1)] == [0, 1]
        assert encoder.on_the_loop == ["warm-up"]
    finally:
        encoder.gate.release(100)
        await client.close()
