import numpy as np
import pytest

from streamgen.pocket.detectors import read, saturation, sharpness
from streamgen.pocket.measures import degrade
from streamgen.pocket.regions import close, components, open_
from streamgen.pocket.world import ATTRIBUTES, DRIFT_PERIOD, Scene, random_scene, render


def test_regions():
    picture = np.zeros((12, 16), bool)
    picture[1:6, 1:6] = True
    picture[2, 3] = False
    picture[7:10, 2:4] = True
    picture[1:11, 9] = True
    picture[10, 9:15] = True
    found = components(picture)
    assert [int(region.sum()) for region in found] == [24, 15, 6]
    assert np.array_equal(np.logical_or.reduce(found), picture)
    assert close(picture, 1)[2, 3]
    assert not open_(picture, 1)[1:11, 9].any()
    assert components(np.zeros((4, 4), bool)) == []


def test_components_join_below():
    cup = np.array([[1, 0, 1], [1, 0, 1], [1, 1, 1]], bool)
    assert len(components(cup)) == 1


@pytest.mark.parametrize("degraded", [False, True])
def test_detectors_on_renderings(degraded):
    rng = np.random.default_rng(20)
    wrong = dict.fromkeys((*ATTRIBUTES, "count"), 0)
    total = 30
    for _ in range(total):
        scene = random_scene(rng)
        clip = render(scene, 36, int(rng.integers(500)))
        seen = read(degrade(clip, rng) if degraded else clip)
        for name in ATTRIBUTES:
            wrong[name] += seen.values[name] != getattr(scene, name)
        wrong["count"] += seen.count != 1
        assert seen.presence > 0.9
    assert max(wrong.values()) <= degraded, wrong


@pytest.mark.parametrize("place", ATTRIBUTES["place"])
@pytest.mark.parametrize("colour", ATTRIBUTES["colour"])
def test_every_colour_is_told_from_every_ground(place, colour):
    for time in ATTRIBUTES["time"]:
        scene = Scene(place, time, "clear", "ball", colour, "rests", seed=3)
        values = read(render(scene, 12)).values
        assert (values["place"], values["colour"], values["shape"]) == (place, colour, "ball")


def test_an_empty_scene_has_no_object():
    passing = Scene("meadow", "day", "clear", "ball", "red", "drifts", seed=1)
    at_left, at_right = render(passing, 1), render(passing, 1, DRIFT_PERIOD // 2)
    empty = np.concatenate([at_right[:, :, :64], at_left[:, :, 64:]], axis=2)
    seen = read(np.repeat(empty, 24, axis=0))
    assert (seen.count, seen.presence) == (0, 0.0)
    assert seen.values["shape"] is None
    assert seen.values["place"] == "meadow"


def test_two_objects_are_counted():
    def half(seed: int) -> np.ndarray:
        return render(Scene("sea", "night", "clear", "ball", "green", "rests", seed), 12)

    by_place = {round(float(read(half(seed)).centres[0, 0])): half(seed) for seed in range(12)}
    left, right = by_place[min(by_place)], by_place[max(by_place)]
    both = np.concatenate([left[:, :, :64], right[:, :, 64:]], axis=2)
    assert read(both).count == 2


@pytest.mark.parametrize("picture", ["black", "grey", "noise"])
def test_pictures_of_nothing_are_given_no_names(picture):
    clips = {
        "black": np.zeros((24, 128, 128, 3), np.uint8),
        "grey": np.full((24, 128, 128, 3), 128, np.uint8),
        "noise": np.random.default_rng(0).integers(0, 256, (24, 128, 128, 3), np.uint8),
    }
    seen = read(clips[picture])
    assert seen.values["place"] is None
    assert seen.values["shape"] is None
    assert seen.presence == 0


def test_figures_of_long_runs_see_decay():
    clip = render(Scene("meadow", "day", "clear", "star", "red", "rests"), 4)
    grey = np.repeat(clip.mean(axis=-1, keepdims=True), 3, axis=-1).astype(np.uint8)
    assert saturation(grey) == 0
    assert saturation(clip) > 50
    rng = np.random.default_rng(0)
    assert sharpness(degrade(degrade(clip, rng), rng)) < 0.8 * sharpness(clip)


def test_a_grey_sky_without_drops_is_no_rain():
    """A model that learnt the clouds but blurs what falls does not get away with it."""
    wet = Scene("sea", "night", "rain", "heart", "purple", "rests", seed=1)
    assert read(render(wet, 24)).values["weather"] == "rain"
    usual = np.median(np.stack([render(wet, 1, 7 * i)[0] for i in range(15)]), axis=0)
    seen = read(np.repeat(usual[None].astype(np.uint8), 24, axis=0))
    assert seen.values["weather"] is None
    assert seen.values["time"] == "night"


def test_a_bar_is_none_of_the_shapes():
    clip = render(Scene("meadow", "day", "clear", "ball", "red", "rests", seed=1), 12)
    x = round(float(read(clip).centres[0, 0]))
    clip[:, 58:72, 20:108] = clip[:, 64:65, x : x + 1]
    seen = read(clip)
    assert seen.values["colour"] == "red"
    assert seen.values["shape"] is None
