"""The K/V of the window made again under a new prompt."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen.messages import Applied, SetPrompt, Superseded
from streamgen.model_runner import StepBatch
from streamgen.sampler import chunk_noise
from streamgen.session import Session
from tests.oracle import DenseDiT, random_weights
from tests.streamgen.studio import Studio, watch
from tests.streamgen.tiny import TINY, HashEncoder
from tests.switch_oracle import DenseSwitches


def embeds(text: str) -> Tensor:
    return HashEncoder().encode([text])[0]


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
