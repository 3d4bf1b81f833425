"""A session in any company is itself alone, and what a model without a cache makes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen.messages import SetPrompt
from streamgen.models import preset as presets
from streamgen.sampler import chunk_noise
from streamgen.session import Session
from tests.oracle import DenseDiT, DenseStream, random_weights
from tests.streamgen.studio import (
    Studio,
    alone,
    assert_same,
    watch,
)
from tests.streamgen.tiny import TINY, HashEncoder, with_chunks


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
    with Studio(preset, deterministic=True) as studio:
        expected = studio.make(studio.open(), 4)
    assert {1, 3} in lengths
    assert_same(runs[True], expected)
    for chunk, reference in zip(runs[False], expected, strict=True):
        np.testing.assert_allclose(chunk.latents, reference.latents, rtol=0, atol=2e-5)


def test_a_model_shapes_the_noise_of_openings_alone() -> None:
    """Of a stream's first chunk and of the first after a reset; rewound, it is drawn as before."""
    seeds: list[int] = []

    def raised(noise: Tensor, seed: int) -> Tensor:
        seeds.append(seed)
        return noise + 2

    with Studio(replace(TINY, opening_noise=raised), deterministic=True) as studio:
        session = studio.open()
        first = studio.make(session, 3)[0]
        assert seeds == [42]
        studio.engine.control(session.id, SetPrompt("a star", "reset"))
        studio.make(session, 5)
        assert seeds == [42, 42]
    plain = alone(1)[0]
    assert not np.array_equal(first.latents, plain.latents)


def test_q24_noise_is_keyed_by_seed_chunk_and_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[tuple[int, int, int], set[str]] = {}

    def draw(seed: int, chunk: int, pass_index: int, shape: Any) -> Tensor:
        noise = chunk_noise(seed, chunk, pass_index, shape)
        digest = hashlib.sha256(noise.numpy().tobytes()).hexdigest()
        drawn.setdefault((seed, chunk, pass_index), set()).add(digest)
        return noise

    monkeypatch.setattr(presets, "chunk_noise", draw)
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
    with Studio(history_seconds="none") as studio:
        weights = with_random_weights(studio)
        session = studio.open()
        studio.make(session, 7)
        studio.rest(session)
        studio.engine.suspend(session.id)
        studio.engine.resume(session.id)
        kept = torch.cat([torch.tensor(chunk.latents) for chunk in session.history])
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
        prompt=HashEncoder().encode([str(session.text)])[0],
        noise=torch.cat([passes[0] for passes in noise]),
        renoise=torch.stack([torch.stack(passes[1:]) for passes in noise]),
        chunk_frames=TINY.chunks.chunk_frames,
        timesteps=sampler.timesteps,
        sigmas=sampler.sigmas,
        window_frames=window,
        sink_frames=sink,
    )


@pytest.mark.parametrize("how", ["recache", "suspend"])
def test_q24_rows_of_another_length_beside_a_refill_are_not_padded(how: str) -> None:
    """The rows of a refill read from one another and stay together, and they alone."""
    preset = with_chunks(chunk_frames=3, first_chunk_frames=1)
    with Studio(preset, deterministic=True) as studio:
        expected = studio.make(studio.open(), 3)
    with Studio(preset, deterministic=True) as studio:
        other = studio.open("other", seed=9)
        studio.rest(other, 4)
        if how == "recache":
            studio.engine.control(other.id, SetPrompt("a star", "recache"))
        else:
            studio.engine.suspend(other.id)
            studio.engine.resume(other.id)
        assert_same(studio.make(studio.open(), 3), expected)
