"""The library: one chunk at a time, several threads in turn, and never past `close`."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from streamgen.errors import Conflict
from streamgen.library import Engine
from tests.streamgen.tiny import TINY, tiny_config


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(tiny_config(deterministic=True), preset=TINY) as engine:
        yield engine


def test_a_prompt_shows_in_the_chunk_that_is_asked_for_next(engine: Engine) -> None:
    """No chunk is begun before it is asked for, so none is ahead of its prompt."""
    session = engine.open("a red ball", seed=3)
    for n in range(4):
        chunk = next(session)
        assert (chunk.index, str(chunk.record.text)) == (n, "a red ball" if n == 0 else f"{n - 1}")
        session.set_prompt(f"{n}")


def test_the_chunk_after_a_rewind_is_the_first_of_the_new_branch(engine: Engine) -> None:
    """It is kept like any other: it can be gone back to and forked at."""
    session = engine.open("a red ball", seed=3)
    made = [next(session) for _ in range(4)]
    session.rewind(1)
    again = next(session)
    assert (again.index, again.record.draw) == (4, 2)
    np.testing.assert_allclose(again.latents, made[2].latents, atol=0.2)
    session.fork(4)
    session.rewind(4)


def test_threads_take_turns(engine: Engine) -> None:
    """Sessions iterated in threads of their own give what they give alone."""
    expected = {}
    for seed in range(3):
        with engine.open("a red ball", seed=seed) as session:
            expected[seed] = [next(session).latents for _ in range(4)]
    made: dict[int, list[np.ndarray]] = {}

    def run(seed: int) -> None:
        with engine.open("a red ball", seed=seed) as session:
            made[seed] = [next(session).latents for _ in range(4)]

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(3):
        np.testing.assert_array_equal(made[seed], expected[seed])


def test_several_threads_share_one_session(engine: Engine) -> None:
    """Each chunk is given once, whoever asks."""
    session = engine.open("a red ball")
    indices: list[int] = []
    threads = [
        threading.Thread(target=lambda: indices.extend(next(session).index for _ in range(3)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(indices) == list(range(9))


def test_a_closed_engine_opens_nothing(engine: Engine) -> None:
    """The error says so, and what to do."""
    engine.close()
    with pytest.raises(Conflict, match="closed; make another"):
        engine.open("a red ball")
