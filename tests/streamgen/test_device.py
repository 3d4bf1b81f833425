"""What is said about a device before anything is loaded, on machines of every kind."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from streamgen import startup
from streamgen.card_memory import memory_parts
from streamgen.device import (
    GIB,
    CardFacts,
    DeviceFacts,
    find_device,
    has_kernels,
    idle_card,
    require_memory,
)
from streamgen.errors import ConfigError, OutOfMemory
from streamgen.startup import checked_options, resolve, runner_config, start_engine
from tests.streamgen.tiny import TINY, tiny_config

WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
CARD = CardFacts("NVIDIA GeForce RTX 4090", (8, 9), 22 * GIB, 24 * GIB)
MACHINE = DeviceFacts("2.13.0+cu130", "13.0", WHEEL, None, True, (CARD,))
BARE = dataclasses.replace(MACHINE, cards=(), architectures=())


def test_a_card_is_taken_where_there_is_one() -> None:
    assert find_device("auto", MACHINE) == torch.device("cuda")
    assert find_device("cuda:0", MACHINE) == torch.device("cuda:0")
    assert find_device("cpu", MACHINE) == torch.device("cpu")
    assert find_device("auto", BARE) == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (
            "cuda",
            {"cuda_version": None, "torch_version": "2.13.0+cpu", "cards": ()},
            r"torch 2.13.0\+cpu is built without CUDA; use cpu, or install a CUDA build",
        ),
        ("cuda", {"cards": (), "visible": ""}, "CUDA_VISIBLE_DEVICES='' leaves no device visible"),
        ("cuda:0", {"cards": (), "visible": "9"}, "CUDA_VISIBLE_DEVICES='9' leaves no device"),
        ("cuda", {"cards": (), "has_driver": False}, "no NVIDIA driver; use cpu"),
        ("cuda", {"cards": ()}, "no card answers its driver; use cpu"),
        ("cuda:1", {}, "sees 1 CUDA devices here: cuda:0 to cuda:0"),
        ("cuda:1", {"visible": "3"}, r"1 CUDA devices here \(CUDA_VISIBLE_DEVICES='3'\)"),
        (
            "auto",
            {"cards": (CardFacts("Tesla V100", (7, 0), GIB, GIB),)},
            r"torch 2.13.0\+cu130 \(CUDA 13.0\) has no kernels for Tesla V100, sm_70, only for "
            "sm_75, .*; install a build of torch for it, or use cpu",
        ),
    ],
)
def test_q55_a_device_that_cannot_be_used_is_one_message_with_the_way_out(
    name: str, changes: dict[str, object], said: str
) -> None:
    facts = dataclasses.replace(MACHINE, **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=said) as caught:
        find_device(name, facts)
    assert caught.value.param == "device"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        ((8, 9), ("sm_86",), True),  # machine code of the same generation
        ((8, 6), ("sm_89",), False),  # but not for a newer card of it
        ((9, 0), ("sm_86",), False),
        ((9, 0), ("compute_86",), True),  # compiled when it is loaded
        ((8, 0), ("compute_86",), False),
        ((12, 1), ("sm_120",), True),
        ((12, 1), ("sm_120a",), False),
        ((9, 0), ("sm_90a",), True),
        ((7, 0), WHEEL, False),
        ((13, 0), WHEEL, True),
        ((8, 0), (), False),
    ],
)
def test_q55_which_cards_a_wheel_has_kernels_for(
    capability: tuple[int, int], architectures: tuple[str, ...], expected: bool
) -> None:
    assert has_kernels(capability, architectures) is expected


def test_q55_a_card_left_idle_is_told_and_no_card_is_nothing_to_tell() -> None:
    assert idle_card(MACHINE) is None
    assert idle_card(dataclasses.replace(BARE, has_driver=False)) is None
    said = idle_card(dataclasses.replace(BARE, cuda_version=None))
    assert said is not None
    assert "has an NVIDIA driver, but torch 2.13.0+cu130 is built without CUDA" in said


def test_q55_what_does_not_fit_is_refused_with_the_sum() -> None:
    require_memory({"weights": 2.0 * GIB, "K/V": 20.0 * GIB}, CARD)
    with pytest.raises(OutOfMemory, match=r"weights 2\.84 \+ K/V 20\.00 = 22\.84 GiB") as caught:
        require_memory({"weights": 2.84 * GIB, "K/V": 20.0 * GIB}, CARD)
    assert "RTX 4090 has 22.00 of 24.00 GiB free; give fewer sessions" in caught.value.message


def test_the_parts_are_what_a_runner_allocates() -> None:
    config = resolve(tiny_config(max_sessions=2), TINY)
    sizes = runner_config(config, TINY, torch.device("cpu"))
    parts = memory_parts(TINY, sizes, 2, 4, graphs=False)
    engine = start_engine(config, lambda *item: None, preset=TINY)
    try:
        runner = engine.runner
        assert parts["K/V"] == runner.pool.nbytes + runner.pool.scratch_nbytes
        assert parts["texts"] == runner.text.nbytes
        weights = sum(p.nbytes for p in runner.dit.parameters())
        assert parts["weights"] == pytest.approx(weights, rel=0.01)
        frame = runner.pool.geometry.frame_bytes
        assert parts["gathered K/V"] == TINY.window_frames * frame / TINY.dit.num_layers
        assert parts["decoder states"] == pytest.approx(2 * engine.decoder.state_bytes, rel=0.01)
    finally:
        engine.decoder.close()


@pytest.mark.parametrize(
    ("device", "asked", "effective"),
    [
        ("cuda", "auto", "i420"),
        ("cuda", "rgb", "rgb"),
        ("cpu", "auto", "rgb"),
        ("cpu", "i420", "i420"),
    ],
)
def test_frames_leave_a_card_as_i420_if_nothing_else_is_asked_for(
    device: str, asked: str, effective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceFacts, "here", lambda: MACHINE)
    config = checked_options(tiny_config(device=device, pixel_format=asked), TINY)
    assert config.pixel_format == effective
    assert (config.sources["pixel_format"] == "device") == (asked == "auto")


def test_q55_nothing_is_loaded_for_a_card_that_is_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = dataclasses.replace(MACHINE, cards=(dataclasses.replace(CARD, free_bytes=GIB),))
    monkeypatch.setattr(DeviceFacts, "here", lambda: small)
    monkeypatch.setattr(startup, "choose", lambda *arguments: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(startup, "build", lambda *a, **k: pytest.fail("weights are read"))
    with pytest.raises(OutOfMemory, match=r"RTX 4090 has 1\.00 of 24\.00 GiB free"):
        start_engine(tiny_config(device="cuda"), lambda *item: None, preset=TINY)


@pytest.mark.parametrize(
    ("options", "said", "param"),
    [
        ({"attention_backend": "flash_attn"}, "it needs a CUDA device", "attention_backend"),
        ({"attention_backend": "varlen"}, "it needs a CUDA device", "attention_backend"),
        ({"compile": True}, "compile is for CUDA, and the device is cpu", "compile"),
    ],
)
def test_q54_what_a_cpu_cannot_do_is_refused_before_anything_is_loaded(
    options: dict[str, object], said: str, param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "build", lambda *a, **k: pytest.fail("weights are read"))
    with pytest.raises(ConfigError, match=said) as caught:
        start_engine(tiny_config(device="cpu", **options), lambda *item: None, preset=TINY)
    assert caught.value.param == param
