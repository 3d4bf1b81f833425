"""The engine over a real, tiny model: company, controls, windows, reuse, failures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen import chunk_run
from streamgen.errors import Capacity, InvalidPrompt, InvalidRequest, NotFound
from streamgen.messages import Applied, Chunk, Failed, SetPrompt, StateChanged, Update
from streamgen.model_runner import StepBatch
from streamgen.sampler import chunk_noise
from streamgen.session import Session
from tests.oracle import DenseDiT, DenseStream, random_weights
from tests.streamgen.tiny import TINY, HashEncoder, Studio, assert_same, with_chunks

PASSES = TINY.steps + 1  # and the commit


def alone(
    num_chunks: int, prompt: str = "a red ball", seed: int = 42, **fields: Any
) -> list[Chunk]:
    """Return the chunks of a session that has an engine to itself."""
    with Studio(deterministic=True) as studio:
        return studio.make(studio.open(prompt, seed, **fields), num_chunks)


# Company.


@pytest.mark.parametrize(("num_others", "seed"), [(1, 0), (3, 2**32 - 1), (7, 0)])
def test_q24_a_session_in_company_equals_itself_alone_bit_for_bit(
    num_others: int, seed: int
) -> None:
    expected = alone(6, seed=seed)
    with Studio(deterministic=True) as studio:
        session = studio.open(seed=seed)
        for n in range(num_others):
            studio.open(f"other {n}", seed=n)
        assert_same(studio.make(session, 6), expected)


def test_q24_batched_products_stay_within_2e_5() -> None:
    expected = alone(6)
    with Studio() as studio:
        session = studio.open()
        for n in range(7):
            studio.open(f"other {n}", seed=n)
        for chunk, reference in zip(studio.make(session, 6), expected, strict=True):
            np.testing.assert_allclose(chunk.latents, reference.latents, rtol=0, atol=2e-5)


def test_q24_others_join_at_any_pass_and_leave_again() -> None:
    expected = alone(12)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 2)
        others = []
        for n in range(3):
            studio.step()  # so that each is at another pass than all before it
            others.append(studio.open(f"other {n}", seed=n))
        studio.make(session, 4)
        for other in others:
            studio.engine.close(other.id)
        assert_same(studio.make(session, 12), expected)


def test_q24_the_row_does_not_matter() -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        for n in range(3):
            studio.open(f"other {n}", seed=n)
        assert_same(studio.make(studio.open(), 6), expected)


def test_q24_rows_of_unequal_length_share_a_pass() -> None:
    preset = with_chunks(chunk_frames=3, first_chunk_frames=1)
    lengths: list[set[int]] = []
    runs = {}
    for deterministic in (True, False):
        with Studio(preset, deterministic=deterministic) as studio:
            watch(studio, lambda batch: lengths.append(set(batch.by_length())))
            first = studio.open("first", seed=1)
            studio.make(first, 3)
            runs[deterministic] = studio.make(studio.open(), 4)
    with Studio(preset) as studio:
        expected = studio.make(studio.open(), 4)
    assert {1, 3} in lengths
    assert_same(runs[True], expected)
    for chunk, reference in zip(runs[False], expected, strict=True):
        np.testing.assert_allclose(chunk.latents, reference.latents, rtol=0, atol=2e-5)


def test_q24_noise_is_keyed_by_seed_chunk_and_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[tuple[int, int, int], set[str]] = {}

    def draw(seed: int, chunk: int, pass_index: int, shape: Any) -> Tensor:
        noise = chunk_noise(seed, chunk, pass_index, shape)
        digest = hashlib.sha256(noise.numpy().tobytes()).hexdigest()
        drawn.setdefault((seed, chunk, pass_index), set()).add(digest)
        return noise

    monkeypatch.setattr(chunk_run, "chunk_noise", draw)
    for num_others in (0, 3):
        with Studio() as studio:
            session = studio.open()
            for n in range(num_others):
                studio.open(f"other {n}", seed=n)
            studio.make(session, 4)
            studio.engine.control(session.id, SetPrompt("a star"))
            studio.make(session, 6)
    mine = {key: digests for key, digests in drawn.items() if key[0] == 42}
    assert {(42, c, p) for c in range(6) for p in range(TINY.steps)} <= mine.keys()
    assert all(len(digests) == 1 for digests in mine.values())
    assert len(set.union(*mine.values())) == len(mine)


# The oracle.


@pytest.mark.parametrize(("window", "sink"), [(9, 0), (7, 0), (9, 2)])
def test_sessions_in_company_equal_the_dense_cache_free_reference(window: int, sink: int) -> None:
    with Studio(window=window, sink=sink) as studio:
        weights = with_random_weights(studio)
        sessions = [studio.open(f"scene {n}", seed=n) for n in range(3)]
        for session in sessions:
            studio.step()  # each at another pass than the others
            made = np.concatenate([c.latents for c in studio.make(session, 5)])
            expected, _ = dense_stream(weights, session, 5, window, sink).run()
            np.testing.assert_allclose(made, expected, rtol=0, atol=5e-5)


def test_after_a_resume_a_session_equals_the_dense_reference_over_the_kept_latents() -> None:
    with Studio() as studio:
        weights = with_random_weights(studio)
        session = studio.open()
        studio.make(session, 7)
        while session.run is not None:
            studio.step()
        studio.engine.suspend(session.id)
        studio.engine.resume(session.id)
        kept = torch.cat([chunk.latents for chunk in session.kept])
        assert len(kept) < 21  # the first frames are gone
        index = session.num_chunks
        made = studio.make(session, index + 1)[-1].latents
        stream = dense_stream(weights, session, index + 1, 9, 0)
        x = stream.noise[-3:]
        for k, (t, sigma) in enumerate(zip(stream.timesteps, stream.sigmas, strict=True)):
            x = (x.double() - sigma * stream.chunk_flow(kept, x, t)).float()
            if k + 1 < len(stream.sigmas):
                following = stream.sigmas[k + 1]
                x = (1 - following) * x + following * stream.renoise[-1, k]
        np.testing.assert_allclose(made, x, rtol=0, atol=5e-5)


# Controls.


@pytest.mark.parametrize("passes_done", range(PASSES + 2))
def test_q23_a_switch_at_any_moment_begins_with_a_whole_chunk(passes_done: int) -> None:
    """Between chunks, between passes, in the commit and during the decode, twice in a chunk."""
    with Studio(deterministic=True) as studio:
        session, other = studio.open(), studio.open("other", seed=9)
        used = watch_prompts(studio)
        studio.make(session, 2)
        while session.run is not None:
            studio.step()
        for _ in range(passes_done):
            studio.step()
        begun = session.num_chunks
        studio.engine.control(session.id, SetPrompt("ignored", event_id="old"))
        studio.engine.control(session.id, SetPrompt("a star", event_id="new"))
        chunks = studio.make(session, begun + 3)
        studio.make(other, begun + 3)
        assert [c.prompt_revision for c in chunks] == [0] * begun + [2] * 3
        (applied,) = [e for e in studio.events[session.id] if isinstance(e, Applied)]
        first = chunks[begun]
        assert applied == Applied("new", 2, begun, first.first_frame_index, first.pts_s)
        assert first.started_event_ids == ("new",)
    for index, texts in used[session.id].items():
        assert texts == {"a red ball" if index < begun else "a star"}, index
    with Studio(deterministic=True) as studio:  # the same switch, given between two chunks
        session = studio.open()
        studio.make(session, begun)
        while session.run is not None:
            studio.step()
        studio.engine.control(session.id, SetPrompt("a star"))
        assert_same(studio.make(session, begun + 3), chunks)


def test_q22_a_prompt_is_encoded_when_it_is_applied_and_once() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 2)
        before = studio.engine.runner.text.misses
        for n in range(60):
            studio.engine.control(session.id, SetPrompt(f"scene {n:02}"))
            if n % 20 == 19:
                studio.make(session, len(studio.chunks[session.id]) + 2)
        assert studio.engine.runner.text.misses - before == 3
        assert studio.chunks[session.id][-1].prompt_revision == 60


def test_q18_a_refused_prompt_leaves_both_sessions_as_they_were() -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session, other = studio.open(), studio.open("other", seed=1)
        studio.make(session, 2)
        for prompt in ("", "   ", None, [], [""], "\ud83d", "a\0b"):
            with pytest.raises(InvalidPrompt):
                studio.engine.control(other.id, SetPrompt(prompt))
            with pytest.raises(InvalidPrompt):
                studio.open(prompt)  # type: ignore[arg-type]
        assert_same(studio.make(session, 6), expected)
        assert {c.prompt_revision for c in studio.make(other, 6)} == {0}


def test_seed_and_steps_change_at_a_chunk_boundary() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 1)
        studio.step()
        studio.engine.control(session.id, Update(seed=7, steps=4))
        begun = session.num_chunks
        chunks = studio.make(session, begun + 2)
        assert [c.seed for c in chunks] == [42] * begun + [7, 7]
    with Studio() as studio:
        session = studio.open(steps=4)
        assert not np.array_equal(studio.make(session, 1)[0].latents, chunks[0].latents)


def test_pause_finishes_the_chunk_in_work_and_begins_no_other() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 2)
        studio.engine.control(session.id, Update(paused=True))
        while studio.step():
            pass
        num_made = len(studio.chunks[session.id])
        assert session.run is None
        studio.engine.control(session.id, Update(paused=False))
        studio.make(session, num_made + 1)
        states = [e.state for e in studio.events[session.id] if isinstance(e, StateChanged)]
        assert states == ["starting", "running", "paused", "running"]


# Frames.


@pytest.mark.parametrize("wanted", [1, 4, 9, 10, 33, 34])
def test_q27_exactly_the_frames_asked_for_are_delivered(wanted: int) -> None:
    with Studio() as studio:
        session = studio.open(num_frames=wanted)
        while studio.step():
            pass
        assert sum(len(c.frames) for c in studio.chunks[session.id]) == wanted
        assert studio.events[session.id][-1] == StateChanged("closed", "done")
        assert studio.audit() == studio.pool.num_pages


@pytest.mark.parametrize("layout", [(1, None), (2, None), (4, 1), (21, None)])
def test_q27_any_chunk_length_works(layout: tuple[int, int | None]) -> None:
    preset = with_chunks(chunk_frames=layout[0], first_chunk_frames=layout[1])
    with Studio(preset, window=24) as studio:
        session = studio.open(num_frames=90)
        while studio.step():
            pass
        chunks = studio.chunks[session.id]
        assert sum(len(c.frames) for c in chunks) == 90
        firsts = [c.first_frame_index for c in chunks]
        assert firsts == np.cumsum([0, *(len(c.frames) for c in chunks[:-1])]).tolist()


@pytest.mark.parametrize("suspend_after", [None, 2, 6])
def test_frames_of_a_stream_are_those_of_one_decode(suspend_after: int | None) -> None:
    """Also after a resume: the decoder's memory is remade from the last latents."""
    with Studio() as studio:
        session = studio.open()
        if suspend_after is not None:
            studio.make(session, suspend_after)
            studio.engine.suspend(session.id)
            studio.engine.resume(session.id)
        chunks = studio.make(session, 8)
        latents = torch.from_numpy(np.concatenate([c.latents for c in chunks]))
        vae: Any = studio.engine.decoder._vae
        whole = vae.decode(latents[None])[0].mul(255).round().to(torch.uint8)
        expected = whole.permute(0, 2, 3, 1).numpy()
        np.testing.assert_array_equal(np.concatenate([c.frames for c in chunks]), expected)


def test_nobody_watching_the_session_comes_to_rest() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.engine.played = lambda *report: None  # type: ignore[method-assign]
        while studio.step():
            pass
        assert session.lead_frames == 21
        assert len(studio.chunks[session.id]) == 2


# Windows.


@pytest.mark.parametrize(
    ("window", "sink", "expected"),
    [
        (12, 0, range(21, 33)),
        (12, 3, [0, 1, 2, *range(24, 33)]),
        (12, 1, [0, *range(22, 33)]),
        (7, 0, range(26, 33)),  # not a multiple of the chunk
        (6, 3, [0, 1, 2, 30, 31, 32]),
    ],
)
@pytest.mark.parametrize("per_session", [False, True])
def test_q39_a_window_is_what_was_asked_for(
    window: int, sink: int, expected: Any, per_session: bool
) -> None:
    options: dict[str, Any] = {"window": window, "sink": sink}
    with Studio(**({"window": 12} if per_session else options)) as studio:
        session = studio.open(**(options if per_session else {}))
        assert seen_at(studio, session, 30) == set(expected)


def test_q39_without_a_window_everything_is_seen() -> None:
    with Studio(window="none", max_session_seconds=10) as studio:
        assert seen_at(studio, studio.open(), 30) == set(range(33))


@pytest.mark.parametrize("num_latents", [9, 10, 12, 60])
def test_q35_a_stream_runs_past_its_window(num_latents: int) -> None:
    with Studio() as studio:
        chunks = studio.make(studio.open(), -(-num_latents // 3))
        assert all(np.isfinite(c.latents).all() for c in chunks)
        assert studio.audit() == studio.pool.num_pages - 9


def test_q35_what_cannot_be_is_refused_at_admission_and_takes_nothing() -> None:
    with Studio() as studio:
        for fields in ({"window": 6, "sink": 6}, {"window": -1}, {"window": 10}, {"window": 2}):
            with pytest.raises(InvalidRequest):
                studio.open(**fields)
        assert studio.audit() == studio.pool.num_pages


# Reuse.


def test_q41_pages_that_another_session_had_leave_no_trace() -> None:
    expected = alone(6, "b", seed=5)
    with Studio(deterministic=True, max_sessions=1) as studio:
        for seed, window in ((1, 9), (2, 6), (3, 7)):
            other = studio.open(f"a {seed}", seed=seed, window=window)
            studio.make(other, 5)
            studio.step()
            studio.engine.close(other.id)
            session = studio.open("b", seed=5)
            assert_same(studio.make(session, 6), expected)
            studio.engine.close(session.id)


@pytest.mark.parametrize("how", [SetPrompt("a star", "reset"), Update(reset="cache")])
def test_q41_after_a_reset_a_session_is_as_new(how: SetPrompt | Update) -> None:
    prompt = how.prompt if isinstance(how, SetPrompt) else "a red ball"
    fresh = alone(4, str(prompt))
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 5)
        studio.step()
        studio.engine.control(session.id, how)
        begun = session.num_chunks
        chunks = studio.make(session, begun + 4)
    assert [c.index for c in chunks] == list(range(begun + 4))
    assert [len(c.frames) for c in chunks[begun:]] == [9, 12, 12, 12]
    firsts = np.cumsum([0, *(len(c.frames) for c in chunks[:-1])])
    assert [c.first_frame_index for c in chunks] == firsts.tolist()
    for chunk, reference in zip(chunks[begun:], fresh, strict=True):
        np.testing.assert_array_equal(chunk.latents, reference.latents)
        np.testing.assert_array_equal(chunk.frames, reference.frames)


@pytest.mark.parametrize("passes_done", range(2 * PASSES))
def test_a_suspended_session_goes_on_where_it_stopped(passes_done: int) -> None:
    """Nothing was evicted yet, so what is made again is what was there, bit for bit."""
    expected = alone(3)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        for _ in range(passes_done):
            studio.step()
        studio.engine.suspend(session.id)
        studio.engine.suspend(session.id)
        assert studio.audit() == studio.pool.num_pages
        assert not any(studio.engine.runner.text._pins)
        studio.engine.resume(session.id)
        studio.engine.resume(session.id)
        assert_same(studio.make(session, 3), expected)


def test_what_was_before_a_reset_is_not_rebuilt() -> None:
    fresh = alone(3)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 4)
        studio.engine.control(session.id, Update(reset="cache"))
        begun = session.num_chunks
        studio.make(session, begun + 2)
        studio.engine.suspend(session.id)
        studio.engine.resume(session.id)
        chunks = studio.make(session, begun + 3)[begun:]
    for chunk, reference in zip(chunks, fresh, strict=True):
        np.testing.assert_array_equal(chunk.latents, reference.latents)
        np.testing.assert_array_equal(chunk.frames, reference.frames)


@pytest.mark.parametrize("sink", [0, 1, 3])
def test_a_rebuilt_window_holds_the_same_frames_each_under_its_own_prompt(sink: int) -> None:
    with Studio(deterministic=True, sink=sink) as studio:
        session = studio.open()
        for n in range(1, 8):
            studio.make(session, n)
            studio.engine.control(session.id, SetPrompt(f"scene {n}"))
        while session.run is not None:
            studio.step()
        held, kept = session.table.frames, list(session.kept)
        studio.engine.suspend(session.id)
        texts = watch_prompts(studio)
        studio.engine.resume(session.id)
        for _ in kept:
            studio.step()
        assert session.table.frames == held
        assert [{k.prompt.text} for k in kept] == list(texts[session.id].values())
        rebuilt = keys_of(studio, session)
        studio.engine.suspend(session.id)
        studio.engine.resume(session.id)
        for _ in kept:
            studio.step()
        again = keys_of(studio, session)
        assert torch.equal(rebuilt, again)
        frames = len(studio.chunks[session.id])
        assert len(studio.make(session, frames + 1)[-1].frames) == 12  # no seam in the decoder


def test_resuming_takes_a_place_like_opening() -> None:
    with Studio(max_sessions=1) as studio:
        session = studio.open()
        studio.make(session, 1)
        studio.engine.suspend(session.id)
        other = studio.open("other")
        with pytest.raises(Capacity) as caught:
            studio.engine.resume(session.id)
        assert caught.value.retry_after_s
        studio.engine.close(other.id)
        studio.engine.resume(session.id)
        studio.make(session, 2)


def test_a_full_engine_refuses_and_serves_on() -> None:
    expected = alone(3)
    with Studio(deterministic=True, max_sessions=2) as studio:
        session = studio.open()
        studio.open("other")
        with pytest.raises(Capacity, match="of 2 sessions"):
            studio.open("one too many")
        assert_same(studio.make(session, 3), expected)


def leave_cleanly(studio: Studio, session: Session) -> None:
    studio.engine.close(session.id)


def leave_suspended(studio: Studio, session: Session) -> None:
    studio.engine.suspend(session.id)
    studio.engine.close(session.id)


def leave_while_switching(studio: Studio, session: Session) -> None:
    studio.engine.control(session.id, SetPrompt("never shown", "reset"))
    studio.step()
    studio.engine.close(session.id)


def leave_while_resuming(studio: Studio, session: Session) -> None:
    studio.engine.suspend(session.id)
    studio.engine.resume(session.id)
    studio.step()
    studio.engine.close(session.id)


def leave_by_error(studio: Studio, session: Session) -> None:
    with failing(studio, lambda batch: True):
        while session.id in studio.engine.sessions:
            studio.step()


LEAVINGS = [
    leave_cleanly,
    leave_suspended,
    leave_while_switching,
    leave_while_resuming,
    leave_by_error,
]


def test_q36_a_hundred_rounds_of_leaving_free_every_page() -> None:
    with Studio(max_sessions=3) as studio:
        start = studio.audit()
        for n in range(100):
            session = studio.open(f"round {n}", seed=n)
            studio.make(session, 1 + n % 2)
            for _ in range(n % (PASSES + 1)):
                studio.step()
            LEAVINGS[n % len(LEAVINGS)](studio, session)
            assert studio.audit() == start
            assert studio.pool.num_unreserved == start
            assert not any(studio.engine.runner.text._pins)
            with pytest.raises(NotFound):
                studio.engine.close(session.id)


def test_q41_random_lives_keep_the_books_in_order() -> None:
    random = np.random.default_rng(0)
    with Studio(max_sessions=4) as studio:
        engine = studio.engine
        for _ in range(600):
            sessions = list(engine.sessions.values())
            action = random.integers(9)
            if action == 0 and engine.num_free:
                studio.open(seed=int(random.integers(9)), window=int(random.choice([3, 6, 7, 9])))
            elif action < 4 or not sessions:
                studio.step()
            else:
                session = sessions[random.integers(len(sessions))]
                if action == 4:
                    engine.control(session.id, Update(reset="cache"))
                elif action == 5:
                    engine.control(session.id, SetPrompt(f"scene {random.integers(99)}"))
                elif action == 6:
                    engine.suspend(session.id)
                elif action == 7 and engine.num_free:
                    engine.resume(session.id)
                elif action == 8:
                    engine.close(session.id)
            held = [s.table.num_slots for s in engine.sessions.values() if s.table is not None]
            assert studio.audit() == studio.pool.num_pages - sum(held)
        for session in list(engine.sessions.values()):
            engine.close(session.id)
        assert studio.audit() == studio.pool.num_pages


# Failures.


@pytest.mark.parametrize("failing_pass", range(2 * PASSES))
def test_a_pass_that_fails_once_is_rolled_back_and_changes_nothing(failing_pass: int) -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 3)
        for _ in range(failing_pass):
            studio.step()
        with failing(studio, lambda batch: True):
            studio.step()
        assert_same(studio.make(session, 6), expected)


def test_a_session_that_fails_twice_ends_alone_and_its_viewers_are_told() -> None:
    expected = alone(6)
    with Studio(deterministic=True) as studio:
        session, bad = studio.open(), studio.open("bad", seed=1)
        studio.make(session, 2)
        while bad.run is None:
            studio.step()
        with failing(
            studio, lambda batch: any(r.text_slot == slot_of(studio, "bad") for r in batch.rows)
        ):
            while bad.id in studio.engine.sessions:
                studio.step()
        assert studio.events[bad.id][-2:] == [
            Failed("internal", "a pass failed twice: out of luck", True),
            StateChanged("failed", "internal"),
        ]
        assert_same(studio.make(session, 6), expected)
        assert studio.audit() == studio.pool.num_pages - 9


def test_running_out_of_memory_twice_has_its_own_code() -> None:
    with Studio() as studio:
        session = studio.open()

        def full(batch: StepBatch) -> list[Tensor]:
            raise torch.OutOfMemoryError("no room")

        studio.engine.runner.run = full  # type: ignore[method-assign]
        for _ in range(2):
            studio.step()
        (failed,) = [e for e in studio.events[session.id] if isinstance(e, Failed)]
        assert (failed.code, failed.retryable) == ("out_of_memory", True)


@pytest.mark.parametrize("times", [1, 2])
def test_values_that_are_not_finite_never_leave(times: int) -> None:
    expected = alone(4)
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 2)
        while session.run is not None:
            studio.step()
        run = studio.engine.runner.run

        def poisoned(batch: StepBatch) -> list[Tensor]:
            return [torch.full_like(flow, torch.nan) for flow in run(batch)]

        studio.engine.runner.run = poisoned  # type: ignore[method-assign]
        for _ in range(times * TINY.steps):
            studio.step()
        studio.engine.runner.run = run  # type: ignore[method-assign]
        if times == 1:
            assert_same(studio.make(session, 4), expected)
        else:
            (failed,) = [e for e in studio.events[session.id] if isinstance(e, Failed)]
            assert "not finite" in failed.message
            assert len(studio.chunks[session.id]) == 2
            assert studio.audit() == studio.pool.num_pages


def test_a_text_encoder_that_fails_once_loses_no_control() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 2)
        while session.run is not None:
            studio.step()
        encoder = studio.engine.runner.text_encoder
        studio.engine.runner.text_encoder = None  # type: ignore[assignment]
        studio.engine.control(session.id, SetPrompt("a star", event_id="e"))
        studio.step()
        studio.engine.runner.text_encoder = encoder
        chunk = studio.make(session, 3)[-1]
        assert (chunk.prompt_revision, chunk.started_event_ids) == (1, ("e",))


@pytest.mark.parametrize("times", [1, 2])
def test_a_decode_that_fails_is_tried_again_once(times: int) -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 1)
        vae = studio.engine.decoder._vae
        studio.engine.decoder._vae = FailingVAE(vae, times)  # type: ignore[assignment]
        if times == 1:
            assert len(studio.make(session, 2)[-1].frames) == 12
        else:
            while session.id in studio.engine.sessions:
                studio.step()
            assert isinstance(studio.events[session.id][-2], Failed)
            assert studio.audit() == studio.pool.num_pages


# Helpers.


def with_random_weights(studio: Studio) -> dict[str, Tensor]:
    """Give the engine's DiT weights at which every part of it shows, and return them."""
    dit = studio.engine.runner.dit
    weights = random_weights({k: tuple(v.shape) for k, v in dit.state_dict().items()}, seed=3)
    dit.load_state_dict(weights)
    return weights


def dense_stream(
    weights: dict[str, Tensor], session: Session, num_chunks: int, window: int, sink: int
) -> DenseStream:
    """Return the reference of a session that has had one prompt and no reset."""
    sampler, seed = TINY.make_sampler(session.steps), session.seed
    shape = (TINY.chunks.chunk_frames, *TINY.latent_shape(*TINY.size))
    noise = [[chunk_noise(seed, c, p, shape) for p in range(2)] for c in range(num_chunks)]
    return DenseStream(
        model=DenseDiT(weights, TINY.dit.num_heads, TINY.dit.freq_dim),
        prompt=HashEncoder().encode([session.prompt.text])[0],
        noise=torch.cat([passes[0] for passes in noise]),
        renoise=torch.stack([torch.stack(passes[1:]) for passes in noise]),
        chunk_frames=TINY.chunks.chunk_frames,
        timesteps=sampler.timesteps,
        sigmas=sampler.sigmas,
        window_frames=window,
        sink_frames=sink,
    )


class FailingVAE:
    """A decoder that raises a few times before it works."""

    def __init__(self, vae: Any, times: int) -> None:
        self.vae, self.times = vae, times

    def decode_step(self, latents: Tensor, state: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("out of luck")
        return self.vae.decode_step(latents, state)


class failing:
    """While it lasts, batches that `when` picks raise."""

    def __init__(self, studio: Studio, when: Callable[[StepBatch], bool]) -> None:
        self.runner, self.when = studio.engine.runner, when

    def __enter__(self) -> None:
        run = self.runner.run

        def raising(batch: StepBatch) -> list[Tensor]:
            if self.when(batch):
                raise RuntimeError("out of luck")
            return run(batch)

        self.runner.run = raising  # type: ignore[method-assign]

    def __exit__(self, *error: object) -> None:
        del self.runner.run


def watch(studio: Studio, see: Callable[[StepBatch], None]) -> None:
    """Call `see` with every batch before it runs."""
    run = studio.engine.runner.run

    def watched(batch: StepBatch) -> list[Tensor]:
        see(batch)
        return run(batch)

    studio.engine.runner.run = watched  # type: ignore[method-assign]


def watch_prompts(studio: Studio) -> dict[str, dict[int, set[str]]]:
    """Record, by session and chunk in order of work, the texts that its passes read."""
    used: dict[str, dict[int, set[str]]] = {}
    begun: dict[str, int] = {}

    def see(batch: StepBatch) -> None:
        texts = {slot: str(text) for text, slot in studio.engine.runner.text._slots.items()}
        for session in studio.engine.sessions.values():
            run = session.run
            if run is None or not any(row.staging is run.staging for row in batch.rows):
                continue
            index = run.spec.index if run.spec else session.kept.index(session.uncommitted[0])
            used.setdefault(session.id, {}).setdefault(index, set()).add(texts[run.text_slot])
            begun[session.id] = index

    watch(studio, see)
    return used


def seen_at(studio: Studio, session: Session, frame: int) -> set[int]:
    """Return the latent frames that the chunk with this latent frame attends to."""
    while True:
        assert studio.step()
        run = session.run
        if run and frame in range(
            run.staging.frame_index, run.staging.frame_index + run.staging.num_frames
        ):
            return set(run.staging.visible_frames)


def keys_of(studio: Studio, session: Session) -> Tensor:
    """Return a copy of all K and V that a session holds, frames ascending."""
    assert session.table is not None
    pages = [p for frame in session.table.frames for p in session.table.pages_of(frame)]
    return torch.stack([layer[pages] for layer in (*studio.pool.k, *studio.pool.v)])


def slot_of(studio: Studio, text: str) -> int | None:
    slot: int | None = studio.engine.runner.text._slots.get(text)
    return slot
