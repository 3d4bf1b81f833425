"""`streamgen replay`: a session made again as a file."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from streamgen.command_options import ReplayConfig
from streamgen.errors import ConfigError, InvalidRequest
from streamgen.library import Engine
from streamgen.replay import run
from streamgen.replay_file import to_lines
from tests.streamgen.tiny import TINY, tiny_config


@pytest.fixture
def lived(tmp_path: Path) -> tuple[Path, int]:
    """A session of some chunks, a prompt, a pause and a rewind; its replay and its frames."""
    with Engine(tiny_config(deterministic=True), preset=TINY) as engine:
        session = engine.open("a red ball", seed=3)
        made = [next(session) for _ in range(3)]
        session.set_prompt("a blue star", "blend", chunks=2)
        made += [next(session) for _ in range(3)]
        session.update(paused=True)
        session.update(paused=False)
        session.rewind(3)
        made += [next(session) for _ in range(3)]
        file = tmp_path / "session.jsonl"
        file.write_bytes(to_lines(session.record(), TINY.name))
        return file, session.record().num_generated


def frames_of(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_every_frame_is_made_again(lived: tuple[Path, int], tmp_path: Path) -> None:
    """The file has as many frames as the session had; a second replay gives the same ones."""
    file, num_frames = lived
    outputs = [tmp_path / "one.mp4", tmp_path / "two.mp4"]
    for output in outputs:
        assert run(file, output, tiny_config(), ReplayConfig(), preset=TINY) == 0
    one, two = map(frames_of, outputs)
    assert len(one) == num_frames
    np.testing.assert_array_equal(one, two)


def test_other_steps_give_other_pictures(lived: tuple[Path, int], tmp_path: Path) -> None:
    """The course of events is the same, each chunk is made in as many passes as asked for."""
    file, num_frames = lived
    run(file, tmp_path / "two.mp4", tiny_config(), ReplayConfig(), preset=TINY)
    run(file, tmp_path / "four.mp4", tiny_config(), ReplayConfig(replay_steps=4), preset=TINY)
    two, four = frames_of(tmp_path / "two.mp4"), frames_of(tmp_path / "four.mp4")
    assert len(two) == len(four) == num_frames
    assert any((a != b).any() for a, b in zip(two, four, strict=True))


@pytest.mark.parametrize(
    ("steps", "content", "error"),
    [
        (99, None, InvalidRequest),
        (None, b"", InvalidRequest),
        (None, b"{}\n", InvalidRequest),
        (None, b"\xff\xfe", InvalidRequest),
    ],
)
def test_what_cannot_be_replayed_is_refused_and_nothing_is_written(
    lived: tuple[Path, int],
    tmp_path: Path,
    steps: int | None,
    content: bytes | None,
    error: type[Exception],
) -> None:
    """Bad steps or a file that no server wrote end before a video is begun."""
    file, _ = lived
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(error):
        run(file, tmp_path / "a.mp4", tiny_config(), ReplayConfig(replay_steps=steps), preset=TINY)
    assert not list(tmp_path.glob("*.mp4"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error says which file, and what the system says of it."""
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        run(tmp_path / "none.jsonl", tmp_path / "a.mp4", tiny_config(), ReplayConfig(), preset=TINY)
