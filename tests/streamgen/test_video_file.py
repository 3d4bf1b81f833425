"""The video file: its colours, its containers."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from streamgen.errors import ConfigError
from streamgen.video_file import VideoFile
from tests.streamgen.video_making import read


def test_the_picture_is_tagged_with_the_colours_it_has(tmp_path: Path) -> None:
    bars = np.array(
        [(30, 200, 30), (255, 0, 0), (0, 0, 255), (255, 255, 255), (128, 128, 128), (200, 30, 180)],
        np.uint8,
    )
    picture = np.broadcast_to(bars.repeat(16, axis=0), (64, 96, 3))
    with VideoFile(tmp_path / "bars.mp4", 96, 64, 24) as video:
        video.add(np.stack([picture] * 5))
    shown = read(tmp_path / "bars.mp4")[-1, 32, 8::16].astype(int)
    assert np.abs(shown - bars).max() <= 3
    with av.open(str(tmp_path / "bars.mp4")) as container:
        codec = container.streams.video[0].codec_context
        smpte170m, studio = 6, 1
        assert codec.colorspace == codec.color_primaries == codec.color_trc == smpte170m
        assert codec.color_range == studio
        assert codec.pix_fmt == "yuv420p"
        assert codec.name == "h264"


@pytest.mark.parametrize("suffix", [".mov", ".mkv", ".MP4"])
def test_other_containers_hold_the_same_frames(suffix: str, tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (3, 32, 48, 3), np.uint8)
    for name in (f"a{suffix}", "b.mp4"):
        with VideoFile(tmp_path / name, 48, 32, 16) as video:
            video.add(picture)
    np.testing.assert_array_equal(read(tmp_path / f"a{suffix}"), read(tmp_path / "b.mp4"))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must end in one of"):
        VideoFile(tmp_path / "a.avi", 48, 32, 16)
