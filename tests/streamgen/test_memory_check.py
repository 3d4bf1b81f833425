"""A published model that cannot fit is refused before it is loaded, with the arithmetic."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from streamgen import machine, memory_check, warm_up
from streamgen.config import EngineConfig, engine_config
from streamgen.errors import ConfigError, OutOfMemory
from streamgen.memory_check import fit_memory, loading_need, running_need
from streamgen.models.presets import POCKET, PRESETS, Preset
from streamgen.startup import checked_options, resolve

Say = Callable[[float], None]
CPU = torch.device("cpu")
SELF_FORCING, LONGLIVE = PRESETS["self-forcing"], PRESETS["longlive"]


def options(preset: Preset, **flags: object) -> EngineConfig:
    return resolve(engine_config(flags={"model": preset.name, **flags}), preset)


@pytest.fixture
def free_gb(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Let a test say how much memory is free."""

    def say(gigabytes: float) -> None:
        monkeypatch.setattr(machine, "free_memory", lambda: round(gigabytes * 1e9))

    return say


def test_the_ledger_is_the_accounts() -> None:
    """Figures of the account: K/V of a window and the chunk beside it, in bf16."""
    need = running_need(options(SELF_FORCING), SELF_FORCING, CPU, 1)
    parts = dict(need.parts)
    assert parts["K/V of 1 session"] == 24 * 1560 * 184_320
    assert parts["transformer"] == pytest.approx(2 * 1.419e9, rel=0.01)
    assert parts["text encoder"] == pytest.approx(2 * 5.68e9, rel=0.01)
    assert need.total == sum(parts.values())
    local = running_need(options(LONGLIVE), LONGLIVE, CPU, 1)
    assert dict(local.parts)["K/V of 1 session"] == 15 * 1560 * 184_320


def test_loading_takes_float32_beside_the_text_encoder() -> None:
    need = dict(loading_need(options(SELF_FORCING), SELF_FORCING).parts)
    assert need["transformer"] == pytest.approx(4 * 1.419e9, rel=0.01)
    assert "text encoder" not in dict(
        loading_need(options(SELF_FORCING, load_format="dummy"), SELF_FORCING).parts
    )


def test_a_text_encoder_on_the_card_counts_there() -> None:
    card = torch.device("cuda")
    beside = running_need(options(SELF_FORCING), SELF_FORCING, card, 1)
    on_it = running_need(options(SELF_FORCING, text_device="cuda"), SELF_FORCING, card, 1)
    assert on_it.total - beside.total == pytest.approx(2 * 5.68e9, rel=0.01)


def test_graphs_count_on_a_card_unless_passes_run_eagerly() -> None:
    card = torch.device("cuda")
    captured = dict(running_need(options(SELF_FORCING), SELF_FORCING, card, 1).parts)
    eager = running_need(options(SELF_FORCING, enforce_eager=True), SELF_FORCING, card, 1)
    assert captured["CUDA graphs"] == pytest.approx(2.44e9, rel=0.01)
    assert captured["gathered K/V"] == 2 * 21 * 1560 * 1536 * 2
    assert "CUDA graphs" not in dict(eager.parts)
    assert "CUDA graphs" not in dict(
        running_need(options(SELF_FORCING), SELF_FORCING, CPU, 1).parts
    )


def test_the_tiny_decoder_and_a_smaller_window_need_less() -> None:
    full = running_need(options(SELF_FORCING), SELF_FORCING, CPU, 1).total
    tiny = running_need(options(SELF_FORCING, decoder="tiny"), SELF_FORCING, CPU, 1).total
    small = running_need(
        options(SELF_FORCING, decoder="tiny", window=12), SELF_FORCING, CPU, 1
    ).total
    assert small < tiny < full


def test_weights_that_main_memory_cannot_hold_are_refused(free_gb: Say) -> None:
    free_gb(8)
    with pytest.raises(OutOfMemory) as caught:
        fit_memory(options(SELF_FORCING), SELF_FORCING, CPU)
    said = str(caught.value)
    total, *parts = map(float, re.findall(r"(\d+\.\d)(?: GB of main|[,)])", said))
    assert total == pytest.approx(sum(parts), abs=0.2)
    assert said.endswith("8.0 GB are free")


def test_sessions_that_were_asked_for_are_refused_with_what_fits(free_gb: Say) -> None:
    free_gb(40)
    asked = options(SELF_FORCING, max_sessions=8)
    with pytest.raises(OutOfMemory) as caught:
        fit_memory(asked, SELF_FORCING, CPU)
    found = re.search(r"K/V of 8 sessions 55\.2, .*: --max-sessions (\d) fits$", str(caught.value))
    assert found is not None, caught.value
    fewer = dataclasses.replace(asked, max_sessions=int(found[1]))
    assert fit_memory(fewer, SELF_FORCING, CPU) is fewer
    with pytest.raises(OutOfMemory):
        fit_memory(dataclasses.replace(asked, max_sessions=int(found[1]) + 1), SELF_FORCING, CPU)


def test_sessions_that_nobody_asked_for_are_as_many_as_fit(free_gb: Say) -> None:
    free_gb(40)
    config = fit_memory(options(SELF_FORCING), SELF_FORCING, CPU)
    assert 1 <= config.max_sessions < 8
    assert config.sources["max_sessions"] == "memory"
    assert fit_memory(config, SELF_FORCING, CPU) == config


def test_a_server_starts_with_as_many_sessions_as_fit(free_gb: Say) -> None:
    """Before the pages are counted: those of the eight that nobody asked for do not fit."""
    free_gb(30)
    config = EngineConfig(model="self-forcing", device="cpu", load_format="dummy", decoder="tiny")
    assert checked_options(config, SELF_FORCING).max_sessions == 3
    free_gb(15)
    with pytest.raises(OutOfMemory, match=r"needs .* GB on cpu \(transformer "):
        checked_options(config, SELF_FORCING)


def test_a_session_that_does_not_fit_is_told_what_needs_less(free_gb: Say) -> None:
    free_gb(20)
    with pytest.raises(OutOfMemory, match=r"K/V of 1 session 6\.9.*: --decoder tiny, a smaller"):
        fit_memory(options(SELF_FORCING), SELF_FORCING, CPU)


def test_bundled_models_are_not_asked(free_gb: Say) -> None:
    free_gb(0)
    config = options(POCKET)
    assert fit_memory(config, POCKET, CPU) is config


@pytest.mark.parametrize(
    ("dtype", "has_bf16", "says"),
    [
        ("fp32", True, "0.9 GB"),
        ("bf16", False, "0.4 GB"),
        ("auto", True, "0.4"),
        ("auto", False, "0.9 GB"),  # nothing is measured there: float32
    ],
)
def test_pages_that_main_memory_cannot_hold_are_refused(
    dtype: str, has_bf16: bool, says: str, free_gb: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a bundled model too, in the format that needs least: the system would end the process."""
    monkeypatch.setattr(warm_up, "has_products", lambda dtype: has_bf16)
    config = engine_config(flags={"dtype": dtype, "max_sessions": "125"})
    free_gb(0.4)
    with pytest.raises(
        OutOfMemory, match=rf"K/V of 125 sessions take {says}.* and 0.4 GB are free"
    ):
        checked_options(config, POCKET)
    free_gb(1.0)
    assert checked_options(config, POCKET).max_sessions == 125


@pytest.mark.parametrize("flags", [{"weights": "a"}, {"revision": "v2"}, {"decoder": "tiny"}])
def test_weights_of_another_model_are_refused_before_a_server_listens(
    flags: dict[str, str],
) -> None:
    with pytest.raises(ConfigError, match=r"pocket (brings|has only) its own"):
        checked_options(engine_config(flags=flags), POCKET)


def test_the_machine_is_asked_before_the_files(free_gb: Say) -> None:
    """What never fits need not be downloaded."""
    free_gb(1)
    with pytest.raises(OutOfMemory):
        checked_options(engine_config(flags={"model": "self-forcing"}), SELF_FORCING)


def test_memory_is_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:       1000 kB\nMemAvailable:    600 kB\n")
    monkeypatch.setattr(machine, "MEMORY_INFO", info)
    monkeypatch.setattr(machine, "CONTAINER_MEMORY", tmp_path)
    assert (machine.total_memory(), machine.free_memory()) == (1024_000, 614_400)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.total_memory() == 1024_000
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("200000\n")
    assert (machine.total_memory(), machine.free_memory()) == (500_000, 300_000)
    monkeypatch.setattr(machine, "MEMORY_INFO", tmp_path / "none")
    monkeypatch.setattr(machine, "CONTAINER_MEMORY", tmp_path / "none")
    assert (machine.total_memory(), machine.free_memory()) == (None, None)
    monkeypatch.setattr(memory_check.machine, "free_memory", lambda: None)
    config = options(SELF_FORCING)
    assert fit_memory(config, SELF_FORCING, CPU) is config
