import pytest

from kvcache import WindowConfig, WindowError


@pytest.mark.parametrize(
    ("config", "chunk_frames"),
    [
        (WindowConfig(21, 0), 3),
        (WindowConfig(21, 3), 1),
        (WindowConfig(12, 1), 3),
        (WindowConfig(7, 0), 3),  # not a multiple of the chunk
        (WindowConfig(6, 3), 3),  # nothing rolls: each chunk replaces the one before it
        (WindowConfig(3, 0), 3),
        (WindowConfig(None, 0, 24), 3),
        (WindowConfig(None, 3, 3), 3),
    ],
)
def test_possible_settings(config: WindowConfig, chunk_frames: int) -> None:
    config.validate(chunk_frames)


@pytest.mark.parametrize(
    ("config", "chunk_frames", "message"),
    [
        (WindowConfig(6, 6), 3, r"sink_frames 6 \+ chunk_frames 3 = 9 > window_frames 6"),
        (WindowConfig(6, 7), 1, r"sink_frames 7 \+ chunk_frames 1 = 8 > window_frames 6"),
        (WindowConfig(2, 0), 3, r"sink_frames 0 \+ chunk_frames 3 = 3 > window_frames 2"),
        (WindowConfig(-1, 0), 1, r"> window_frames -1"),
        (WindowConfig(6, -1), 3, "sink_frames must not be negative, not -1"),
        (WindowConfig(6, 0), 0, "chunk_frames must be positive, not 0"),
        (WindowConfig(None, 0), 3, "needs max_frames"),
        (WindowConfig(None, 0, 2), 3, "max_frames 2 < chunk_frames 3"),
        (WindowConfig(21, 0, 81), 3, "max_frames 81 limits only an unlimited window"),
    ],
)
def test_impossible_settings_show_the_arithmetic(
    config: WindowConfig, chunk_frames: int, message: str
) -> None:
    with pytest.raises(WindowError, match=message):
        config.validate(chunk_frames)


def test_fusing_costs_one_chunk() -> None:
    assert WindowConfig(21).reserved_frames(3, fused=True) == 24
    assert WindowConfig(21).reserved_frames(3, fused=False) == 21
    assert WindowConfig(None, 0, 81).reserved_frames(3, fused=True) == 81
