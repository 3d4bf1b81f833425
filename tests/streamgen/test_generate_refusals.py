"""What `streamgen generate` refuses, before a model is loaded and without leaving a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgen import cli, library
from streamgen.command_options import prompt_changes
from streamgen.errors import ConfigError, InvalidRequest
from streamgen.expand import ExpansionFailed
from tests.streamgen.video_making import make


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test fail if it loads a model."""

    def load(*arguments: object, **options: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(library, "start_engine", load)


def test_q27_a_length_of_no_frame_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"0\.01 s at 16 fps are no frame"):
        make(tmp_path, seconds=0.01)


def test_a_prompt_that_would_never_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--prompt-at 1\.9: the last chunk .* begins at 1\.31 s"):
        make(tmp_path, seconds=2, prompt_at=prompt_changes("1.9:too late"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.avi", "must end in one of .mp4, .mov, .mkv"),
        ("out", "must end in one of"),
        ("none/out.mp4", "there is no folder"),
        ("folder.mp4", "is a folder"),
    ],
)
def test_a_file_that_cannot_be_is_refused_first(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, name=name)
    with pytest.raises(ConfigError, match=r"must end in one of \.safetensors"):
        make(tmp_path, latents=tmp_path / "latents.pt")


def refuse(capsys: pytest.CaptureFixture[str], folder: Path, *argv: str) -> str:
    """Require the command to end with status 2, one line and no file; return the line."""
    given = set(folder.iterdir())
    assert cli.main(["generate", *argv, "-o", str(folder / "out.mp4")]) == cli.WRONG_USAGE
    assert set(folder.iterdir()) == given
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    said.encode()  # it can be shown
    return said


@pytest.mark.parametrize("place", ["start", "change"])
def test_q17_a_prompt_that_is_too_long_is_refused_with_its_length(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("x" * 2001, "word " * 2000, "x" * 100_000):
        argv = [text] if place == "start" else ["a", "--prompt-at", f"1:{text}"]
        said = refuse(capsys, tmp_path, *argv)
        assert f"the prompt has {len(text):,} characters; at most 2,000 are read" in said


@pytest.mark.parametrize("prompt", ["", "  ", "\n\t", "\ud83d", "a\0b"])
def test_q20_what_is_no_text_is_refused(
    prompt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the prompt" in refuse(capsys, tmp_path, prompt)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("130x128", "the nearest legal size is 128x128"),
        ("8x8", "the nearest legal size is 16x16"),
        ("1024x1024", "the nearest legal size is 256x256"),
        ("128*128", "WxH"),
    ],
)
def test_q26_a_size_off_the_grid_is_refused(
    size: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refuse(capsys, tmp_path, "a star", "--size", size)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--seed", "-1"], "0..4294967295"),
        (["--seed", "4294967296"], "0..4294967295"),
        (["--steps", "99"], "num_inference_steps 99 is outside"),
        (["--window", "2"], "window_frames 2"),
        (["--sink", "7"], "sink_frames 7"),
        (["--model", "none"], "no model is called 'none'"),
    ],
)
def test_impossible_options_are_refused(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refuse(capsys, tmp_path, "a star", *argv)


def test_an_expansion_that_cannot_be_ends_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExpansionFailed, match="/no/such/program"):
        make(tmp_path, expand_prompt="/no/such/program")
    said = refuse(capsys, tmp_path, "a", "--expand-model", "m")
    assert "--expand-model needs --expand-endpoint" in said
