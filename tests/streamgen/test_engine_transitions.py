"""What a change of prompt does, in each of its ways."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen.messages import Applied, Chunk, SetPrompt, Superseded, Update
from streamgen.model_runner import StepBatch
from streamgen.sampler import chunk_noise
from streamgen.session import Session
from streamgen.text import TextBlend, TextMix, blended
from tests.oracle import DenseDiT, random_weights
from tests.streamgen.studio import Studio, alone, assert_same, watch, watch_prompts
from tests.streamgen.tiny import TINY, HashEncoder
from tests.switch_oracle import DenseSwitches

RED = TextMix.of("a red ball")
STAR = TextMix.of("a star")


def embeds(text: str) -> Tensor:
    return HashEncoder().encode([text])[0]


def switched(studio: Studio, *controls: SetPrompt, at: int = 3, until: int = 10) -> list[Chunk]:
    """Return a session's chunks, controls given between two of them."""
    session = studio.open()
    studio.rest(session, at)
    for control in controls:
        studio.engine.control(session.id, control)
    return studio.make(session, until)


def texts_of(chunks: list[Chunk]) -> list[object]:
    return [chunk.record.text for chunk in chunks]


def test_a_cut_shows_the_new_text_at_once_and_keeps_the_history() -> None:
    with Studio() as studio:
        chunks = switched(studio, SetPrompt("a star", "cut", event_id="e"), until=5)
    assert texts_of(chunks) == [RED] * 3 + [STAR] * 2
    assert [c.record.kv_text for c in chunks] == texts_of(chunks)
    assert [c.active_event_ids for c in chunks] == [(), (), (), ("e",), ()]
    assert [c.completed_event_ids for c in chunks] == [(), (), (), ("e",), ()]


@pytest.mark.parametrize("curve", ["lerp", "slerp"])
def test_a_blend_goes_over_in_even_steps_and_ends_with_the_new_text_alone(curve: str) -> None:
    with Studio() as studio:
        seen = embeds_by_text(studio)
        chunks = switched(studio, SetPrompt("a star", "blend", 4, curve, event_id="e"))
    between = [TextBlend(RED, STAR, n / 4, curve) for n in (1, 2, 3)]
    assert texts_of(chunks) == [RED] * 3 + between + [STAR] * 4
    assert [c.prompt_revision for c in chunks] == [0] * 3 + [1] * 7
    assert [c.started_event_ids for c in chunks[2:5]] == [(), ("e",), ()]
    assert [c.active_event_ids for c in chunks[3:8]] == [("e",)] * 4 + [()]
    assert [c.completed_event_ids for c in chunks[3:8]] == [()] * 3 + [("e",), ()]
    for step in between:
        expected = blended(embeds("a red ball"), embeds("a star"), step.at, curve)
        torch.testing.assert_close(seen[step], expected)


def embeds_by_text(studio: Studio) -> dict[object, Tensor]:
    """Record what the model is conditioned on, by text."""
    seen: dict[object, Tensor] = {}
    runner: Any = studio.engine.runner
    embed = runner._embed

    def recorded(text: object) -> Tensor:
        seen[text] = embed(text)
        return seen[text]

    runner._embed = recorded
    return seen


def test_a_blend_of_one_chunk_is_a_cut() -> None:
    with Studio(deterministic=True) as studio:
        expected = switched(studio, SetPrompt("a star", "cut"))
    with Studio(deterministic=True) as studio:
        assert_same(switched(studio, SetPrompt("a star", "blend", 1)), expected)


def test_without_a_number_a_blend_takes_four_chunks() -> None:
    with Studio() as studio:
        chunks = switched(studio, SetPrompt("a star", "blend"))
    assert [isinstance(text, TextBlend) for text in texts_of(chunks)] == (
        [False] * 3 + [True] * 3 + [False] * 4
    )


def test_a_new_prompt_inside_a_blend_sets_out_from_what_was_shown() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, SetPrompt("a star", "blend", 4, event_id="old"))
        studio.rest(session, 5)  # half way
        studio.engine.control(session.id, SetPrompt("a cube", "blend", 2, event_id="new"))
        chunks = studio.make(session, 8)
        events = studio.events[session.id]
    half = TextMix((("a red ball", 0.5), ("a star", 0.5)))
    assert chunks[5].record.text == TextBlend(half, TextMix.of("a cube"), 0.5, "lerp")
    assert texts_of(chunks[6:]) == [TextMix.of("a cube")] * 2
    assert [c.active_event_ids for c in chunks[3:8]] == [("old",)] * 2 + [("new",)] * 2 + [()]
    assert [e.event_id for e in events if isinstance(e, Superseded)] == ["old"]
    assert [e.event_id for e in events if isinstance(e, Applied)] == ["old", "new"]


def test_a_cut_inside_a_blend_ends_it() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, SetPrompt("a star", "blend", 9))
        studio.rest(session, 5)
        studio.engine.control(session.id, SetPrompt("a cube", "cut"))
        assert texts_of(studio.make(session, 7)[5:]) == [TextMix.of("a cube")] * 2


def test_other_settings_leave_a_blend_under_way() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 3)
        studio.engine.control(session.id, SetPrompt("a star", "blend", 4))
        studio.rest(session, 4)
        studio.engine.control(session.id, Update(seed=7))
        chunks = studio.make(session, 7)
    shares = [c.record.text.at for c in chunks if isinstance(c.record.text, TextBlend)]
    assert shares == [0.25, 0.5, 0.75]


def test_the_weights_of_a_prompt_are_shares_of_what_the_model_is_told() -> None:
    prompt = [{"text": "a star", "weight": 3}, {"text": "a cube", "weight": 1}]
    with Studio() as studio:
        seen = embeds_by_text(studio)
        chunks = switched(studio, SetPrompt(prompt), until=5)
        mix = TextMix((("a star", 0.75), ("a cube", 0.25)))
        assert texts_of(chunks) == [RED] * 3 + [mix] * 2
        torch.testing.assert_close(seen[mix], 0.75 * embeds("a star") + 0.25 * embeds("a cube"))


def test_a_reset_begins_a_new_scene_as_a_new_session_would() -> None:
    fresh = alone(3, "a star")
    with Studio(deterministic=True) as studio:
        chunks = switched(studio, SetPrompt("a star", "reset"), until=6)
    assert [c.record.epoch for c in chunks] == [0] * 3 + [1] * 3
    assert [c.index for c in chunks] == list(range(6))
    for chunk, reference in zip(chunks[3:], fresh, strict=True):
        np.testing.assert_array_equal(chunk.latents, reference.latents)
        np.testing.assert_array_equal(chunk.frames, reference.frames)


@pytest.mark.parametrize("transition", ["recache", "blend", "reset"])
def test_before_the_first_chunk_every_transition_is_a_cut(transition: str) -> None:
    expected = alone(3, "a star")
    with Studio(deterministic=True) as studio:
        session = studio.open()
        studio.engine.control(session.id, SetPrompt("a star", transition))
        assert_same(studio.make(session, 3), expected)


@pytest.mark.parametrize("rebuild_sink", [False, True])
@pytest.mark.parametrize(
    ("window", "sink", "switches"),
    [
        (9, 0, (4,)),  # with a full window
        (9, 0, (2,)),  # before it is full
        (7, 0, (5,)),  # not a multiple of the chunk
        (9, 3, (4, 6, 8)),
        (9, 3, (1,)),
        (9, 2, (5, 6)),
    ],
)
def test_a_recache_equals_the_dense_reference_that_sees_both_ways(
    window: int, sink: int, switches: tuple[int, ...], rebuild_sink: bool
) -> None:
    preset = dataclasses.replace(TINY, rebuilds_sink=rebuild_sink)
    num_chunks = switches[-1] + 3
    with Studio(preset, window=window, sink=sink) as studio:
        dit = studio.engine.runner.dit
        weights = random_weights({k: tuple(v.shape) for k, v in dit.state_dict().items()}, seed=3)
        dit.load_state_dict(weights)
        session = studio.open()
        for n, chunk in enumerate(switches):
            studio.rest(session, chunk)
            studio.engine.control(session.id, SetPrompt(f"scene {n}", "recache"))
        made = np.concatenate([c.latents for c in studio.make(session, num_chunks)])
    sampler = TINY.make_sampler(TINY.steps)
    shape = (3, *TINY.latent_shape(*TINY.size))
    noise = [[chunk_noise(42, c, p, shape) for p in range(2)] for c in range(num_chunks)]
    stream = DenseSwitches(
        model=DenseDiT(weights, TINY.dit.num_heads, TINY.dit.freq_dim),
        prompts=[embeds("a red ball"), *(embeds(f"scene {n}") for n in range(len(switches)))],
        switch_frames=[3 * chunk for chunk in switches],
        noise=torch.cat([passes[0] for passes in noise]),
        renoise=torch.stack([torch.stack(passes[1:]) for passes in noise]),
        chunk_frames=3,
        timesteps=sampler.timesteps,
        sigmas=sampler.sigmas,
        window_frames=window,
        sink_frames=sink,
        rebuild_sink=rebuild_sink,
    )
    np.testing.assert_allclose(made, stream.run(), rtol=0, atol=5e-5)


def test_a_recache_takes_one_forward_and_no_commit() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 5)
        batches: list[StepBatch] = []
        watch(studio, batches.append)
        studio.engine.control(session.id, SetPrompt("a star", "recache"))
        studio.rest(session, 6)
    assert [len(batch.rows) for batch in batches] == [3, 1, 1]
    assert [{row.timestep for row in batch.rows} == {0.0} for batch in batches] == [
        True, False, False,
    ]  # fmt: skip


def test_q22_sixty_recaches_in_three_seconds_cost_one_a_chunk() -> None:
    """The last one is shown; every other is told that it was replaced."""
    with Studio() as studio:
        session = studio.open()
        studio.rest(session, 4)
        refills = 0

        def see(batch: StepBatch) -> None:
            nonlocal refills
            refills += sum(row.timestep == 0 for row in batch.rows) > 1

        watch(studio, see)
        for n in range(1, 61):
            studio.engine.control(session.id, SetPrompt(f"scene {n}", "recache", event_id=f"e{n}"))
            if n % 10 == 0:
                studio.step()
        begun = session.num_chunks
        chunks = studio.make(session, begun + 2)
        assert chunks[-1].prompt_revision == 60
        assert refills <= begun - 4 + 1
        told = {e.event_id for e in studio.events[session.id] if isinstance(e, Superseded)}
        applied = {e.event_id for e in studio.events[session.id] if isinstance(e, Applied)}
        assert told | applied == {f"e{n}" for n in range(1, 61)}
        assert not told & applied


@pytest.mark.parametrize("transition", ["cut", "blend", "recache", "reset"])
@pytest.mark.parametrize("num_steps", range(5))
def test_q23_whatever_the_moment_and_the_way_a_chunk_has_one_text(
    transition: str, num_steps: int
) -> None:
    """Between passes, in a recache, twice in a chunk: its rows all read the same."""
    with Studio(deterministic=True) as studio:
        session, other = studio.open(), studio.open("other", seed=9)
        studio.rest(session, 4)
        used = watch_prompts(studio)
        studio.engine.control(session.id, SetPrompt("a cube", "recache"))
        for _ in range(num_steps):
            studio.step()
        studio.engine.control(session.id, SetPrompt("ignored", "recache"))
        studio.engine.control(session.id, SetPrompt("a star", transition))
        chunks = studio.more(session, 6)
        assert_same(studio.make(other, 6), alone(6, "other", seed=9))
    assert chunks[-1].record.text == STAR
    assert "ignored" not in set.union(*used[session.id].values())
    for chunk in chunks:
        # Its commit may have been replaced by a recache, which reads the next chunk's text.
        own = used[session.id].get(chunk.index, set())
        assert str(chunk.record.text) in own or chunk.index < 4
        assert own <= {str(chunk.record.text), "a cube", "a star"}


@pytest.mark.parametrize("sink", [0, 1, 3])
def test_q37_a_kept_sink_is_what_it_was_after_every_switch(sink: int) -> None:
    """Nothing rewrites it once the window has moved on, nor is it ever empty or half written."""
    with Studio(deterministic=True, sink=sink, window=12) as studio:
        session = studio.open()
        studio.rest(session, 12)
        before = sink_of(studio, session, sink)
        assert all(page.abs().sum() > 0 for page in before)
        for n in range(3):
            studio.engine.control(session.id, SetPrompt(f"scene {n}", "recache"))
            studio.rest(session, session.num_chunks + 5)
            assert session.table is not None
            assert session.table.frames[:sink] == tuple(range(sink))
            after = sink_of(studio, session, sink)
            assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_q37_a_switch_before_the_sink_is_out_of_view_makes_it_again() -> None:
    with Studio(deterministic=True, sink=3, window=12) as studio:
        session = studio.open()
        studio.rest(session, 2)
        before = sink_of(studio, session, 3)
        studio.engine.control(session.id, SetPrompt("a star", "recache"))
        studio.rest(session, 3)
        after = sink_of(studio, session, 3)
        assert all(page.isfinite().all() for page in after)
        # K/V of the first layer are those of the latents alone.
        same = [torch.equal(a, b) for a, b in zip(after, before, strict=True)]
        assert same == ([True] * 3 + [False] * 3) * 2


def sink_of(studio: Studio, session: Session, sink: int) -> list[Tensor]:
    """Return copies of the K/V of the first frames that a session holds."""
    assert session.table is not None
    pages = [page for frame in range(sink) for page in session.table.pages_of(frame)]
    return [layer[page].clone() for layer in (*studio.pool.k, *studio.pool.v) for page in pages]
