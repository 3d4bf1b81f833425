"""`streamgen generate`: the file it makes, what decides its pixels, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from streamgen import cli, generate
from streamgen.command_options import GenerateConfig, prompt_changes
from streamgen.errors import StreamgenError
from streamgen.generate import Change, Progress, count_frames, plan_changes
from streamgen.step import ChunkPlan
from streamgen.video_file import VideoFile
from tests.streamgen.tiny import TINY, tiny_config
from tests.streamgen.video_making import make, read, read_latents

POCKET = ["--load-format", "dummy", "--threads", "1", "--steps", "2"]


@pytest.mark.parametrize(
    ("seconds", "num_frames"),
    [(1 / 16, 1), (2 / 16, 2), (0.25, 4), (5 / 16, 5), (0.6, 10), (1.3, 21), (1.35, 22), (5, 80)],
)
def test_q27_a_length_gives_exactly_its_frames(
    seconds: float, num_frames: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert count_frames(seconds, TINY.fps) == num_frames
    path = make(tmp_path, seconds=seconds)
    assert len(read(path)) == num_frames
    assert f"{num_frames} frames" in capsys.readouterr().out


def test_q34_the_file_plays_at_the_models_rate(tmp_path: Path) -> None:
    with av.open(str(make(tmp_path, seconds=2))) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 16
        assert (stream.width, stream.height) == TINY.size
        times = sorted(frame.pts * stream.time_base for frame in container.decode(stream))
    assert times == [Fraction(i, 16) for i in range(32)]


def test_same_seed_and_prompts_give_the_same_file(tmp_path: Path) -> None:
    changes = prompt_changes(["0.5:a blue star"])
    first = make(tmp_path, name="1.mp4", seconds=1, prompt_at=changes)
    again = make(tmp_path, name="2.mp4", seconds=1, prompt_at=changes)
    other = make(tmp_path, name="3.mp4", seconds=1, prompt_at=changes, seed=8)
    assert first.read_bytes() == again.read_bytes()
    np.testing.assert_array_equal(read_latents(first)[0], read_latents(again)[0])
    assert (read_latents(first)[0] != read_latents(other)[0]).all(axis=(1, 2, 3)).all()


def test_a_prompt_shows_from_the_first_chunk_that_begins_at_its_moment(tmp_path: Path) -> None:
    changes = prompt_changes(["0.5:a blue star"])
    plain, _ = read_latents(make(tmp_path, seconds=2))
    changed, facts = read_latents(make(tmp_path, seconds=2, prompt_at=changes))
    # 0.5 s is frame 8; the chunks begin with frames 0, 9, 21 and latents 0, 3, 6.
    same = (plain == changed).all(axis=(1, 2, 3))
    assert same[:3].all()
    assert not same[3:].any()
    assert json.loads(facts["prompts"]) == [[0, "a red ball"], [9, "a blue star"]]


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ([], []),
        (["0.5625:at the border"], [Change(9, "at the border")]),
        (["0.57:just after it"], [Change(21, "just after it")]),
        (["0.8:b", "0.6:a"], [Change(21, "b")]),  # of one chunk the latest
        (["0.1:a", "1.4:b"], [Change(9, "a"), Change(33, "b")]),
    ],
)
def test_changes_fall_to_chunks(given: list[str], changes: list[Change]) -> None:
    options = GenerateConfig(prompt_at=prompt_changes(given))
    assert plan_changes(options, ChunkPlan(3), fps=16, num_frames=40) == changes


def test_a_moment_that_is_a_frame_is_that_frame_whatever_its_digits() -> None:
    for fps in (15, 24, 25, 30):
        plan = ChunkPlan(chunk_frames=1, temporal_factor=1)
        for frame in range(1, 200):
            options = GenerateConfig(prompt_at=prompt_changes(f"{frame / fps:.12g}:a"))
            assert plan_changes(options, plan, fps, 201) == [Change(frame, "a")]


def test_latents_are_those_of_every_chunk_whole(tmp_path: Path) -> None:
    latents, facts = read_latents(make(tmp_path, seconds=10 / 16))
    assert latents.shape == (6, 4, 4, 6)
    assert facts == {
        "model": "tiny", "seed": "7", "fps": "16", "prompts": '[[0, "a red ball"]]',
    }  # fmt: skip


def test_latents_are_written_only_when_asked_for(tmp_path: Path) -> None:
    make(tmp_path, latents=None)
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]


def test_q17_the_longest_prompt_is_read_whole(tmp_path: Path) -> None:
    first = make(tmp_path, "x" * 1999 + "a", name="1.mp4", seconds=1 / 16)
    other = make(tmp_path, "x" * 1999 + "b", name="2.mp4", seconds=1 / 16)
    assert (read_latents(first)[0] != read_latents(other)[0]).any()


@pytest.mark.parametrize(
    "prompt", ["👨‍👩‍👧‍👦", "你好，雨中的猫", "مرحبا \u202e", "e" + "\u0301" * 200]
)
def test_q20_any_text_is_made_into_a_video_and_kept(prompt: str, tmp_path: Path) -> None:
    _, facts = read_latents(make(tmp_path, prompt, seconds=1 / 16))
    assert json.loads(facts["prompts"]) == [[0, prompt]]


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_run_that_breaks_off_leaves_what_was_there(
    fault: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(tmp_path, latents=None).read_bytes()

    def fail(self: VideoFile, frames: object) -> None:
        raise fault

    monkeypatch.setattr(VideoFile, "add", fail)
    with pytest.raises(type(fault)):
        make(tmp_path, seed=8)
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]
    assert (tmp_path / "out.mp4").read_bytes() == before


def test_a_failed_session_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamgen.model_runner import ModelRunner

    run, calls = ModelRunner.run, 0

    def fail(self: ModelRunner, batch: object) -> object:
        nonlocal calls
        calls += 1
        if calls > 80:  # well after the warm-up
            raise RuntimeError("kernel")
        return run(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelRunner, "run", fail)
    with pytest.raises(StreamgenError, match="kernel"):
        make(tmp_path, seconds=60)
    assert list(tmp_path.iterdir()) == []


def test_a_window_without_an_end_holds_the_whole_video(tmp_path: Path) -> None:
    config = tiny_config(window="none")
    options = GenerateConfig(seconds=3.0, seed=7)
    assert generate.run("a star", tmp_path / "a.mp4", config, options, preset=TINY) == 0
    assert len(read(tmp_path / "a.mp4")) == 48


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_bar_is_drawn_on_terminals_only() -> None:
    for out in (terminal := Terminal(), file := io.StringIO()):
        with Progress(80, out) as progress:
            progress.show(9)
            progress.show(80)
    assert file.getvalue() == ""
    drawn = terminal.getvalue().split("\r")
    assert "0/80 frames" in drawn[1]
    assert "[###---" in drawn[2]
    assert "--" not in drawn[-1]
    assert drawn[-1].endswith("\n")


@pytest.mark.slow
def test_the_bundled_model_makes_a_video(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["a red ball", "--seconds", "1", "--prompt-at", "0.5:a blue star", *POCKET]
    assert cli.main(["generate", *argv, "-o", str(tmp_path / "a.mp4")]) == cli.DONE
    said = capsys.readouterr()
    assert f"{tmp_path / 'a.mp4'}: 16 frames, 1 s at 16 fps, 128x128, seed " in said.out
    assert said.err == ""
    seed = int(said.out.split()[-1])
    for name, number in (("same", seed), ("other", (seed + 1) % 2**32)):
        output = str(tmp_path / f"{name}.mp4")
        assert cli.main(["generate", *argv, "--seed", str(number), "-o", output]) == cli.DONE
    first, same, other = (read(tmp_path / f"{name}.mp4") for name in ("a", "same", "other"))
    assert first.shape == (16, 128, 128, 3)
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_prompts_that_are_expanded_are_told_and_kept_with_the_latents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "caption.py"
    program.write_text("import sys; print(sys.stdin.read().upper())")
    change = prompt_changes("0.5:A STAR")
    plain = make(tmp_path, "A RED BALL", name="1.mp4", prompt_at=change, seconds=1)
    options = {"expand_prompt": f"{sys.executable} '{program}'", "seconds": 1}
    capsys.readouterr()
    made = make(tmp_path, name="2.mp4", prompt_at=prompt_changes("0.5:a star"), **options)
    told = capsys.readouterr().out.splitlines()
    assert told[:2] == ["prompt: A RED BALL", "prompt from 0.562 s on: A STAR"]
    assert read_latents(made)[1]["prompts"] == read_latents(plain)[1]["prompts"]
    np.testing.assert_array_equal(read_latents(made)[0], read_latents(plain)[0])
