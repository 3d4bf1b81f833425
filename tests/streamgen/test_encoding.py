"""Texts encoded beside the passes: nobody waits for a text but the session that needs it."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen.embeds import KEPT_EMBEDS, EmbedCache
from streamgen.encoding import Encoding, texts_ahead
from streamgen.engine_client import EngineClient
from streamgen.messages import (
    Applied,
    Failed,
    Rejected,
    Rewind,
    SetPrompt,
    Superseded,
    Update,
)
from streamgen.models.presets import Preset
from streamgen.session import Session
from streamgen.session_config import SessionRequest
from tests.streamgen.published import PUBLISHED
from tests.streamgen.studio import FRAMES, Studio, alone, assert_same
from tests.streamgen.test_engine_machine import MAX_SESSIONS, TINIER, Machine
from tests.streamgen.test_engine_replay import Family, assert_replayed, replayed, scripted
from tests.streamgen.tiny import TINY, HashEncoder, tiny_config
from tests.streamgen.viewers import REQUEST, play

TIMEOUT_S = 20.0


class GatedEncoder(HashEncoder):
    """Encode beside the passes when told to, one text each time; those of `failing` fail."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.on_the_loop: list[str] = []  # which stops every session
        self.failing: dict[str, Exception] = {}
        self.gate = threading.Semaphore(0)

    def encode(self, prompts: list[str]) -> Tensor:
        (prompt,) = prompts
        if not threading.current_thread().name.startswith("encoder"):
            self.on_the_loop.append(prompt)
            return super().encode(prompts)
        self.begun.append(prompt)
        assert self.gate.acquire(timeout=TIMEOUT_S), f"nobody let {prompt!r} through"
        if prompt in self.failing:
            raise self.failing[prompt]
        return super().encode(prompts)


class SlowStudio(Studio):
    """A studio whose texts are encoded beside the passes, when a test says so."""

    def __init__(self, preset: Preset = TINY, **options: object) -> None:
        self.encoder = GatedEncoder()
        preset = dataclasses.replace(preset, text_encoder=lambda dummy: self.encoder)
        super().__init__(preset, encode_beside=True, deterministic=True, **options)

    def __exit__(self, *error: object) -> None:
        self.encoder.gate.release(100)
        super().__exit__(*error)

    @property
    def encoding(self) -> Encoding:
        encoding = self.engine.passes.encoding
        assert encoding is not None
        return encoding

    def encode(self, *texts: str) -> None:
        """Let these texts be encoded, in this order, and no other."""
        for text in texts:
            self.engine.passes.prepare(self.clock(), self.engine.output)
            under_way = self.encoding._under_way
            assert under_way is not None, f"nothing is encoded, and not {text!r}"
            assert under_way[0] == text
            self.encoder.gate.release()
            assert not wait([under_way[1]], TIMEOUT_S).not_done

    def begin(self, prompt: str = "a red ball", num_chunks: int = 3, seed: int = 42) -> Session:
        """Return a session that made so many chunks and stands between two."""
        session = self.open(prompt, seed)
        self.encode(prompt)
        self.make(session, num_chunks)
        self.rest(session)
        return session

    def rest(self, session: Session, num_chunks: int = 0) -> None:
        """Step to the moment between two chunks; all that are made are out."""
        super().rest(session, num_chunks)
        self.engine.emit_decoded(wait_for=self.engine.num_decoding)

    def texts(self, session: Session) -> list[str]:
        return [str(chunk.record.text) for chunk in self.made(session)]


def assert_replays(studio: SlowStudio, session: Session) -> None:
    """Require that a session's log makes its chunks again, with every text at once."""
    made = studio.made(session)
    assert_replayed(made, replayed(studio.engine.record(session.id), len(made)))


def test_a_new_session_waits_for_its_text_and_nobody_else_does() -> None:
    with SlowStudio() as studio:
        first = studio.begin()
        second = studio.open("a star", seed=1)
        assert_same(studio.make(first, 8), alone(8))
        assert second.state.value == "starting"
        assert not studio.made(second)
        studio.encode("a star")
        assert_same(studio.make(second, 3), alone(3, "a star", seed=1))
        assert not studio.encoder.on_the_loop


def test_with_nothing_else_to_do_the_engine_rests_while_a_text_is_encoded() -> None:
    with SlowStudio() as studio:
        session = studio.open()
        assert studio.step()  # it begins, and finds that it has no text
        assert not any(studio.step() for _ in range(3))
        studio.encode("a red ball")
        assert studio.step()
        assert_same(studio.make(session, 2), alone(2))


@pytest.mark.parametrize("transition", ["cut", "blend", "recache", "reset"])
def test_a_session_shows_its_old_prompt_until_the_new_one_is_encoded(transition: str) -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        control = SetPrompt("a star", transition, event_id="e")
        receipt = studio.engine.control(session.id, control)
        assert receipt.prompt_revision == 1
        studio.more(session, 3)
        assert set(studio.texts(session)) == {"a red ball"}
        studio.rest(session)
        index = session.num_chunks
        studio.encode("a star")
        chunks = studio.make(session, index + 5)
        shown = next(e for e in studio.events[session.id] if isinstance(e, Applied))
        assert (shown.event_id, shown.chunk_index) == ("e", index)
        assert [c.prompt_revision for c in chunks] == [0] * index + [1] * 5
        with Studio(deterministic=True) as inline:
            other = inline.open()
            inline.rest(other, index)
            inline.engine.control(other.id, control)
            assert_same(chunks, inline.make(other, index + 5))
        assert_replays(studio, session)
        assert not studio.encoder.on_the_loop


def test_of_twenty_prompts_the_newest_is_shown_and_the_superseded_ones_are_not_encoded() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        for n in range(20):
            control = SetPrompt(f"scene {n}", event_id=f"{n}")
            studio.engine.control(session.id, control)
            studio.step()
        studio.encode("scene 0", "scene 19")
        studio.more(session, 3)
        told = [e for e in studio.events[session.id] if isinstance(e, Superseded)]
        assert [e.event_id for e in told] == [f"{n}" for n in range(19)]
        assert studio.texts(session)[-1] == "scene 19"
        assert studio.made(session)[-1].prompt_revision == 20
        assert studio.encoder.begun == ["a red ball", "scene 0", "scene 19"]


def test_who_changes_the_prompt_all_the_time_does_not_keep_others_waiting() -> None:
    with SlowStudio() as studio:
        first = studio.begin()
        studio.engine.control(first.id, SetPrompt("scene 0"))
        studio.step()
        second = studio.open("a star", seed=1)
        studio.step()
        studio.engine.control(first.id, SetPrompt("scene 1"))
        studio.encode("scene 0", "a star", "scene 1")
        assert_same(studio.make(second, 2), alone(2, "a star", seed=1))


def test_settings_do_not_wait_for_a_prompt() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        studio.engine.control(session.id, SetPrompt("a star", event_id="p"))
        studio.engine.control(session.id, Update(seed=7, event_id="s"))
        assert studio.more(session, 1)[0].started_event_ids == ("s",)
        studio.rest(session)
        studio.encode("a star")
        chunks = studio.more(session, 2)
        assert [c.started_event_ids for c in chunks] == [("p",), ()]
        assert {c.seed for c in chunks} == {7}
        assert_replays(studio, session)


def test_a_blend_goes_on_while_the_prompt_after_it_is_encoded() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        studio.engine.control(session.id, SetPrompt("a star", "blend", 5, event_id="b"))
        studio.encode("a star")
        studio.more(session, 1)
        studio.rest(session)
        studio.engine.control(session.id, SetPrompt("a box", event_id="c"))
        assert Superseded("b") in studio.events[session.id]
        later = studio.more(session, 3)
        assert not any(c.active_event_ids or c.completed_event_ids for c in later)
        assert len({str(c.record.text) for c in later}) == 3
        studio.rest(session)
        studio.encode("a box")
        assert studio.more(session, 1)[-1].started_event_ids == ("c",)
        assert_replays(studio, session)


def test_a_scripts_prompt_is_encoded_ahead_and_begins_at_its_chunk_all_the_same() -> None:
    score = [{"at_chunk": 2, "prompt": "a star"}, {"at_chunk": 4, "prompt": "a box"}]
    with Studio(deterministic=True) as inline:
        expected = inline.make(inline.open(score=score), 6)
    with SlowStudio() as studio:
        session = studio.open(score=score)
        studio.encode("a red ball", "a star")
        studio.make(session, 4)
        while studio.step():
            pass
        assert len(studio.made(session)) == 4  # the next one has another text
        studio.encode("a box")
        assert_same(studio.make(session, 6), expected)
        assert not studio.encoder.on_the_loop


def test_a_rewind_does_not_wait_for_a_text_that_it_calls_off() -> None:
    with SlowStudio() as studio:
        session = studio.open(score=[{"at_chunk": 3, "prompt": "a star"}])
        studio.encode("a red ball")
        studio.make(session, 3)
        while studio.step():
            pass
        assert session.spec is not None
        studio.engine.control(session.id, Rewind(1, "r"))
        assert studio.more(session, 1)[0].started_event_ids == ("r",)
        assert set(studio.texts(session)) == {"a red ball"}


def test_a_prompt_after_a_rewind_is_that_of_the_first_chunk_then() -> None:
    with SlowStudio() as studio:
        session = studio.begin()
        num_made = session.num_chunks
        studio.engine.control(session.id, Rewind(1, "r"))
        studio.engine.control(session.id, SetPrompt("a star", event_id="p"))
        while studio.step():
            pass
        assert len(studio.made(session)) == num_made
        studio.encode("a star")
        chunk = studio.more(session, 1)[0]
        assert (chunk.started_event_ids, chunk.prompt_revision) == (("r", "p"), 2)
        assert_replays(studio, session)


def test_a_restored_session_has_the_texts_of_its_window_encoded_first() -> None:
    with SlowStudio() as studio:
        session = studio.begin(num_chunks=2)
        studio.engine.control(session.id, SetPrompt("a star"))
        studio.encode("a star")
        studio.more(session, 1)
        studio.rest(session)
        record = studio.engine.record(session.id)
    with SlowStudio() as studio, Studio(deterministic=True) as inline:
        again = studio.engine.restore(record)
        assert studio.step()
        assert not studio.step()
        studio.encode("a red ball", "a star")
        assert_same(studio.more(again, 2), inline.more(inline.engine.restore(record), 2))
        assert not studio.encoder.on_the_loop


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
        machine.engine.scheduler.max_rows = machine.engine.runner.config.max_rows
        for session in list(machine.engine.sessions.values()):
            machine.see_off(session)
        studio.engine.emit_decoded(wait_for=studio.engine.num_decoding)
        assert studio.audit() == studio.pool.num_pages == studio.pool.num_unreserved
        assert not any(studio.engine.runner.text._pins)
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
