"""`streamgen eval` on files: a verdict, a status and pictures out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from streamgen import cli
from streamgen.errors import ConfigError
from streamgen.quality_report import difference_picture
from tests.streamgen.evaluating import evaluate, read_png, run_eval, write_video
from tests.streamgen.video_making import make

# Video files.


def test_a_video_is_as_good_as_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = str(write_video(tmp_path / "a.mp4", 20))
    status, report = run_eval(tmp_path, "--baseline", video, "--candidate", video)
    assert status == cli.DONE
    assert report["verdict"] == "invisible"
    assert report["clips"][0]["psnr_db"] == 100
    assert report["clips"][0]["ssim"] == pytest.approx(1)
    said = capsys.readouterr().out
    assert "invisible: 35 dB or more in every chunk" in said
    assert "chunks those of pocket" in said


@pytest.mark.parametrize(
    ("brighter", "verdict", "status"), [(6, "visible", cli.DONE), (30, "reject", cli.CHECK_FAILED)]
)
def test_a_worse_video_is_judged_by_its_distance(
    brighter: int, verdict: str, status: int, tmp_path: Path
) -> None:
    baseline = str(write_video(tmp_path / "a.mp4", 20))
    candidate = str(write_video(tmp_path / "b.mp4", 20 + brighter))
    found, report = run_eval(tmp_path, "--baseline", baseline, "--candidate", candidate)
    assert (found, report["verdict"]) == (status, verdict)
    expected = 48.13 - 20 * np.log10(brighter)
    assert report["worst_chunk_psnr_db"] == pytest.approx(expected, abs=1.5)  # a codec's noise
    clip = report["clips"][0]
    assert len(clip["frames"]) == 24
    assert [chunk["first_frame"] for chunk in clip["chunks"]] == [0, 9, 21]


def test_the_pictures_show_both_and_their_difference(tmp_path: Path) -> None:
    baseline, candidate = write_video(tmp_path / "a.mp4", 20), write_video(tmp_path / "b.mp4", 30)
    sheet, difference = tmp_path / "sheet.png", tmp_path / "difference.png"
    run_eval(
        tmp_path, "--baseline", str(baseline), "--candidate", str(candidate),
        "--sheet", str(sheet), "--difference", str(difference),
    )  # fmt: skip
    shown = read_png(sheet)
    assert shown.shape == (3 * 48 + 2 * 2, 8 * 64 + 7 * 2, 3)
    top, middle, bottom = (shown[i * 50 : i * 50 + 48, :64].astype(int) for i in range(3))
    assert (middle - top).mean() == pytest.approx(10, abs=2)
    assert bottom.mean() == pytest.approx(80, abs=16)  # eight times as much
    worst = read_png(difference)
    assert worst.shape == (48, 3 * 64 + 2 * 2, 3)


def test_a_difference_is_white_from_32_levels_on() -> None:
    a = np.zeros((1, 3, 3), np.uint8)
    b = np.array([[[0] * 3, [1] * 3, [32] * 3]], np.uint8)
    assert difference_picture(a, b)[0, :, 0].tolist() == [0, 8, 255]
    assert difference_picture(b, a)[0, :, 0].tolist() == [0, 8, 255]


@pytest.mark.parametrize(
    ("size", "num_frames", "message"),
    [
        ({"width": 80}, 24, "64x48 pixels and"),
        ({"fps": 24}, 24, "16 frames a second and"),
        ({}, 20, "24 frames and"),
    ],
)
def test_videos_that_do_not_fit_are_refused(
    size: dict[str, int],
    num_frames: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    baseline = str(write_video(tmp_path / "a.mp4", 20))
    candidate = str(write_video(tmp_path / "b.mp4", 20, num_frames, **size))
    status = cli.main(["eval", "--baseline", baseline, "--candidate", candidate])
    assert status == cli.WRONG_USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--candidate is missing"),
        (["--candidate", "none.mp4"], "compare two files, or two sets of options"),
        (["--baseline", "a.mp4", "--candidate", "b.mp4"], "--baseline: cannot read a.mp4"),
        (["--baseline", "a.safetensors", "--candidate", "b.mp4"], "a codec's noise"),
        (["--baseline", "a.safetensors", "--candidate", "b.safetensors"], "cannot read"),
        (["--candidate", "stepz=2"], "did you mean steps?"),
        (["--candidate", "steps=many"], "--candidate steps=many"),
        (["--candidate", "steps=2,dtype"], "as in steps=2,dtype=bf16"),
        (["--candidate", "steps=2,steps=3"], "steps is given twice"),
        (["--candidate", "pixel-format=i420"], "pixel_format is a server's"),
        (["--candidate", "model=longlive"], "both sides are of one model, pocket"),
        (["--candidate", "size=64x64"], "128x128 pixels and candidate has 64x64"),
        (["--candidate", "steps=2", "--metrics", "psnr,fid"], "FID is refused"),
        (["--candidate", "steps=2", "--metrics", "vmaf"], "expected some of psnr, ssim, lpips"),
        (["--candidate", "steps=2", "--seeds", "1,x"], "expected whole numbers"),
        (["--candidate", "steps=2", "--sheet", "a.jpg"], "must end in one of .png"),
    ],
)
def test_mistakes_are_answered_in_a_line(
    argv: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = cli.main(["eval", *argv])
    except SystemExit as ended:
        status = int(ended.code or 0)
    said = capsys.readouterr()
    assert status == cli.WRONG_USAGE, said
    assert message in said.err
    assert len(said.err.splitlines()) <= 2


def test_a_file_that_is_no_video_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video at all" * 100)
    path = str(tmp_path / "a.mp4")
    assert cli.main(["eval", "--baseline", path, "--candidate", path]) == cli.WRONG_USAGE
    assert f"cannot read {path}" in capsys.readouterr().err


# Latents.


def test_latents_are_decoded_by_their_model(tmp_path: Path) -> None:
    first = make(tmp_path, name="a.mp4", seconds=1.5).with_suffix(".safetensors")
    again = make(tmp_path, name="b.mp4", seconds=1.5).with_suffix(".safetensors")
    report = evaluate(tmp_path, baseline=str(first), candidate=str(again))
    assert report["verdict"] == "invisible"
    assert report["status"] == 0
    assert len(report["clips"][0]["frames"]) == 33  # whole chunks


def test_latents_of_another_making_are_refused(tmp_path: Path) -> None:
    first = make(tmp_path, name="a.mp4").with_suffix(".safetensors")
    for name, other in (("b.mp4", {"seed": 8}), ("c.mp4", {"prompt": "a blue star"})):
        candidate = make(tmp_path, name=name, **other).with_suffix(".safetensors")
        with pytest.raises(ConfigError, match=r"made with (seed|prompts)"):
            evaluate(tmp_path, baseline=str(first), candidate=str(candidate))


def test_latents_may_be_of_sixteen_bits(tmp_path: Path) -> None:
    """And are judged by what they decode to."""
    file = make(tmp_path, name="a.mp4", seconds=1.5).with_suffix(".safetensors")
    rewritten(file, tmp_path / "b.safetensors", lambda latents: latents.bfloat16())
    report = evaluate(tmp_path, baseline=str(file), candidate=str(tmp_path / "b.safetensors"))
    assert 30 < report["clips"][0]["psnr_db"] < 100


@pytest.mark.parametrize(
    ("change", "made_from", "message"),
    [
        (lambda x: x * float("nan"), {}, "some of it is not finite"),
        (lambda x: x[:0], {}, r"torch.float32 of the shape \[0, 4, "),
        (lambda x: x[0], {}, r"of the shape \[4, "),
        (lambda x: x.int(), {}, "it has torch.int32"),
        (lambda x: x, {"fps": "nan"}, "its fps are 'nan'"),
        (lambda x: x, {"fps": "0"}, "its fps are '0'"),
        (lambda x: x[:, :2], {}, "has 2 channels, tiny has 4"),
    ],
)
def test_latents_that_are_none_are_refused(
    change: Callable[[torch.Tensor], torch.Tensor], made_from: dict[str, str], message: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """What is not finite decodes to one grey picture on both sides, which would pass."""
    file, broken = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    facts = {"model": "tiny", "seed": "1", "fps": "16", "prompts": "[]"}
    save_file({"latents": torch.zeros(2, 4, 6, 8)}, file, facts)
    rewritten(file, broken, change, **made_from)
    with pytest.raises(ConfigError, match=message):
        evaluate(tmp_path, baseline=str(broken), candidate=str(broken))


def rewritten(
    source: Path, target: Path, change: Callable[[torch.Tensor], torch.Tensor], **made_from: str
) -> None:
    """Write a file of latents again with something changed."""
    with safe_open(source, "pt") as file:
        latents, facts = file.get_tensor("latents"), file.metadata()
    save_file({"latents": change(latents).contiguous()}, target, {**facts, **made_from})


def test_a_video_that_changes_its_size_is_refused(tmp_path: Path) -> None:
    first, second = (write_video(tmp_path / f"{w}.mkv", 20, 4, width=w) for w in (64, 80))
    joined = tmp_path / "joined.h264"
    with joined.open("wb") as target:
        for part in (first, second):
            with av.open(str(part)) as container:
                raw = av.BitStreamFilterContext("h264_mp4toannexb", container.streams.video[0])
                for packet in container.demux(video=0):
                    target.writelines(bytes(out) for out in raw.filter(packet))
    with pytest.raises(ConfigError, match="goes from 64x48 to 80x48 pixels"):
        evaluate(tmp_path, baseline=str(joined), candidate=str(joined))


@pytest.mark.parametrize("option", [{"seconds": 3.0}, {"seeds": (1,)}, {"prompt": ("a",)}])
def test_what_is_of_options_is_refused_with_files(
    option: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is of options, not of files"):
        evaluate(tmp_path, baseline="a.mp4", candidate="b.mp4", **option)
