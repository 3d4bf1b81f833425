"""Options: where they come from, and what a request may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcache import WindowConfig
from streamgen import limits
from streamgen.config import EngineConfig, engine_config
from streamgen.device import find_device
from streamgen.errors import ConfigError, InvalidPrompt, InvalidRequest, Unsupported
from streamgen.session_config import SessionConfig, SessionRequest
from streamgen.startup import resolve
from streamgen.text import TextMix
from tests.streamgen.tiny import TINY, tiny_config, with_chunks


def effective(**options: object) -> EngineConfig:
    return resolve(tiny_config(**options), TINY)


def session(engine: EngineConfig | None = None, **fields: object) -> SessionConfig:
    request = SessionRequest(**({"prompt": "a red ball"} | fields))
    return request.resolve(TINY, engine or effective())


def test_later_layers_win_and_every_value_knows_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("window: 6\nsink: 1\nmax-sessions: 3\n")
    config = engine_config(
        flags={"sink": 2, "model": "tiny"},
        environ={"STREAMGEN_SINK": "4", "STREAMGEN_DETERMINISTIC": "true", "PATH": "/bin"},
        file=file,
    )
    config = resolve(config, TINY)
    assert (config.window, config.sink, config.max_sessions) == (6, 2, 3)
    assert config.deterministic is True
    assert config.size == TINY.size
    origin = {k: config.sources[k] for k in ("window", "sink", "deterministic", "size", "dtype")}
    assert origin == {
        "window": "file engine.yaml",
        "sink": "flag --sink",
        "deterministic": "env STREAMGEN_DETERMINISTIC",
        "size": "preset",
        "dtype": "default",
    }


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ({"flags": {"windov": 6}}, "flag --windov"),
        ({"environ": {"STREAMGEN_WINDOV": "6"}}, "env STREAMGEN_WINDOV"),
        ({"file": "windov: 6"}, "file engine.yaml"),
    ],
)
def test_q39_a_misspelt_key_is_an_error_in_every_layer(
    layer: dict[str, object], source: str, tmp_path: Path
) -> None:
    if "file" in layer:
        (tmp_path / "engine.yaml").write_text(str(layer["file"]))
        layer = {"file": tmp_path / "engine.yaml"}
    with pytest.raises(ConfigError, match=f"{source}.*'windov'; did you mean window"):
        engine_config(**layer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "fp16"),
        ("max_sessions", "0"),
        ("max_sessions", True),
        ("steps", "many"),
        ("size", "480p"),
        ("size", "832*480"),
        ("window", "0"),
        ("max_session_seconds", "-1"),
        ("deterministic", "maybe"),
        ("fused", "yes"),
        ("max_queue", "-1"),
        ("max_utilisation", "1.5"),
        ("max_utilisation", "0"),
        ("history_seconds", "-1"),
        ("stall_timeout", "soon"),
        ("faults", "vae.decode:maybe"),
        ("faults", "vae.decode@0"),
        ("model", ""),
    ],
)
def test_a_value_that_does_not_parse_names_option_and_legal_values(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"flag --{key.replace('_', '-')}: {key} = .*expected"):
        engine_config(flags={key: value})


def test_options_that_may_be_left_off_say_so() -> None:
    off = {"max_utilisation": "none", "history_seconds": "none", "faults": "none", "max_queue": 0}
    config = engine_config(flags=off | {"fused": "off"})
    assert (config.max_utilisation, config.history_seconds, config.faults) == (None, None, None)
    assert (config.max_queue, config.fused) == (0, False)
    assert engine_config(flags={"faults": "vae.decode:oom@3"}).faults == "vae.decode:oom@3"


@pytest.mark.parametrize("content", ["- a\n- b", "window: [", "3"])
def test_a_file_that_is_no_mapping_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"engine\.yaml"):
        engine_config(file=file)
    with pytest.raises(ConfigError, match="No such file"):
        engine_config(file=tmp_path / "absent.yaml")


def test_a_device_that_is_not_there_is_said_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="use cpu, or install a CUDA build"):
        find_device("cuda:99")
    with pytest.raises(ConfigError, match="not auto, cpu, cuda"):
        find_device("toaster")


@pytest.mark.parametrize(
    ("width", "height", "nearest"),
    [
        (674, 389, "672x384"),
        (833, 480, "832x480"),
        (840, 488, "832x480"),
        (8, 8, "16x16"),
        (15, 15, "16x16"),
        (0, 480, "16x480"),
        (-832, 480, "16x480"),
        (832, 100000, "48x8320"),
        (16, 40000, "16x24960"),
    ],
)
def test_q26_a_size_off_the_grid_is_refused_with_the_nearest_legal_one(
    width: int, height: int, nearest: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"nearest legal size is {nearest}$") as caught:
        limits.check_size(width, height, max_pixels=832 * 480)
    assert caught.value.param == "size"
    nearest_width, nearest_height = limits.parse_size(nearest)
    assert limits.check_size(nearest_width, nearest_height, 832 * 480)


@pytest.mark.parametrize("side", ["832", 832.0, float("nan"), None, True, [832]])
def test_q26_a_side_that_is_no_whole_number_is_refused(side: object) -> None:
    with pytest.raises(InvalidRequest, match="whole numbers of pixels"):
        limits.check_size(side, 480, 832 * 480)


def test_q26_legal_sizes_that_this_engine_does_not_make_are_unsupported() -> None:
    assert limits.check_size(480, 832, 832 * 480) == (480, 832)
    assert limits.check_size(16, 16, 832 * 480) == (16, 16)
    assert limits.parse_size("832X480") == (832, 480)
    with pytest.raises(Unsupported, match="--size 32x48"):
        session(width=32, height=48)
    assert session(width=48).height == 32


def test_q26_the_engines_own_size_follows_the_same_rule() -> None:
    with pytest.raises(InvalidRequest, match="nearest legal size is 48x32"):
        effective(size="50x32")


@pytest.mark.parametrize("seed", [-1, 2**32, 2**63, "42", 1.5, True])
def test_q24_a_bad_seed_is_refused(seed: object) -> None:
    with pytest.raises(InvalidRequest, match=r"0\.\.4294967295"):
        session(seed=seed)


def test_q24_no_seed_means_a_random_one_that_is_told() -> None:
    seeds = {session(seed=None).seed for _ in range(4)}
    assert len(seeds) > 1
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert [session(seed=s).seed for s in (0, 2**32 - 1)] == [0, 2**32 - 1]


@pytest.mark.parametrize(
    "prompt", ["", "   ", "\n\t", None, [], [""], [{"text": "", "weight": 1}], 7, [None], {}]
)
def test_q18_a_prompt_without_text_is_refused(prompt: object) -> None:
    with pytest.raises(InvalidPrompt):
        session(prompt=prompt)


def test_q18_several_texts_are_mixed_by_their_weights_and_one_is_itself() -> None:
    one = TextMix.of("a star")
    assert session(prompt=[{"text": "a star", "weight": 0.2}]).prompt == one
    assert session(prompt=(("a star", 2.0),)).prompt == session(prompt="a star").prompt == one
    mix = session(prompt=[{"text": "a star", "weight": 3}, "a cube", ("a star", 4)]).prompt
    assert mix == TextMix((("a star", 7 / 8), ("a cube", 1 / 8)))
    assert session(prompt=mix).prompt == mix


@pytest.mark.parametrize("weight", [0, -1, 1001, float("nan"), float("inf"), True, "1", None])
def test_q18_a_weight_that_is_no_share_is_refused(weight: object) -> None:
    with pytest.raises(InvalidPrompt, match="above 0, at most 1000"):
        session(prompt=[{"text": "a star", "weight": weight}, "a cube"])


def test_q18_more_than_sixteen_texts_or_unknown_fields_are_refused() -> None:
    assert len(session(prompt=[f"scene {n}" for n in range(16)]).prompt.parts) == 16
    with pytest.raises(InvalidPrompt, match="list of 1,000 texts; at most 16"):
        session(prompt=["a"] * 1000)
    with pytest.raises(InvalidPrompt, match="'wait'"):
        session(prompt=[{"text": "a star", "wait": 1.0}])


@pytest.mark.parametrize("prompt", ["a\0b", "\ud83d", "x" * 2001, "y" * 100_000])
def test_q20_what_is_not_text_or_too_long_is_refused(prompt: str) -> None:
    with pytest.raises(InvalidPrompt) as caught:
        session(prompt=prompt)
    caught.value.message.encode()  # the refusal itself can be sent


@pytest.mark.parametrize(
    "prompt",
    [
        "👨‍👩‍👧‍👦 on the beach",
        "你好，雨中的猫",
        "مرحبا \u202e بالعالم",
        "e" + "\u0301" * 200,
        "\ufffe",
        "cafe\u0301",
    ],
)
def test_q20_other_text_is_kept_character_by_character(prompt: str) -> None:
    assert session(prompt=prompt).prompt == TextMix.of(prompt)


@pytest.mark.parametrize("num_frames", [0, -1, 1.5, "81", True])
def test_q27_an_impossible_number_of_frames_is_refused(num_frames: object) -> None:
    with pytest.raises(InvalidRequest, match="num_frames"):
        session(num_frames=num_frames)


@pytest.mark.parametrize(
    "field",
    [
        {"steps": 0},
        {"steps": 5},
        {"fps": 0},
        {"fps": 61},
        {"window": 0},
        {"sink": -1},
        {"priority": "high"},
    ],
)
def test_numbers_out_of_range_are_refused(field: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        session(**field)


@pytest.mark.parametrize(
    ("fields", "arithmetic"),
    [
        ({"window": 10}, "window 10 > 9"),  # more than a session's share of the cache
        ({"window": 2}, "sink_frames 0 [+] chunk_frames 3 = 3 > window_frames 2"),
        ({"window": 6, "sink": 6}, "sink_frames 6 [+] chunk_frames 3 = 9 > window_frames 6"),
        ({"window": 6, "sink": 7}, "sink_frames 7 [+] chunk_frames 3 = 10 > window_frames 6"),
        ({"window": -1}, "endless.*holds 9 latent frames"),
        ({"window": -1, "num_frames": 40}, "40 frames = 12 latent frames.*holds 9"),
    ],
)
def test_q35_impossible_windows_are_refused_with_the_arithmetic(
    fields: dict[str, object], arithmetic: str
) -> None:
    with pytest.raises(InvalidRequest, match=arithmetic) as caught:
        session(**fields)
    assert caught.value.param == "window"


def test_q35_a_window_of_sink_and_chunk_alone_is_legal() -> None:
    assert session(window=6, sink=3).window == WindowConfig(6, 3)
    assert session(window=5).window == WindowConfig(5)  # not a multiple of the chunk


def test_q35_an_unlimited_window_is_legal_when_the_video_fits() -> None:
    assert session(window=-1, num_frames=33).window == WindowConfig(None, 0, max_frames=9)


def test_q35_an_engine_without_a_window_needs_an_end_and_gives_it_to_every_session() -> None:
    with pytest.raises(InvalidRequest, match="--max-session-seconds"):
        effective(window="none")
    engine = effective(window="none", max_session_seconds=4)
    config = session(engine)
    assert config.num_frames == 64
    assert config.window == WindowConfig(None, 0, max_frames=18)


def test_q27_a_chunk_of_one_frame_and_a_shorter_first_chunk_are_legal() -> None:
    for preset in (with_chunks(chunk_frames=1), with_chunks(chunk_frames=3, first_chunk_frames=1)):
        assert SessionRequest(prompt="x").resolve(preset, resolve(tiny_config(), preset))
