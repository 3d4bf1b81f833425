"""Ages on screen, from numbers that are painted into pictures and come again."""

import numpy as np

from streamgen.bench_browser import screen_ages_ms
from streamgen.bench_source import CELL, NUMBER_BITS, Picture, paint_reel


def test_each_picture_of_the_reel_carries_its_number() -> None:
    reel = paint_reel(Picture(CELL * NUMBER_BITS, 32, 20, 12))
    bits = reel[:, CELL // 2, CELL // 2 :: CELL, 1] > 127
    weights = 2 ** np.arange(NUMBER_BITS)[::-1]
    assert (bits @ weights).tolist() == list(range(48))


def test_an_age_is_told_from_the_nearest_frame_of_that_number() -> None:
    dues = [(index, 10 + index / 20, {}) for index in range(64)]  # numbers come again after 0.8 s
    # Nothing was due shortly before the last one was seen.
    seen = [(0, 10.02), (5, 10.30), (0, 10.86), (15, 14.2)]
    ages = screen_ages_ms(seen, dues, 16)
    np.testing.assert_allclose(ages, [20, 50, 60])
