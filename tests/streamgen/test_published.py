"""A published model is loaded from its authors' files, or refused with what is wrong."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch

from streamgen.errors import CheckpointError, ConfigError
from streamgen.models.checkpoint_keys import original_name
from streamgen.models.lora import LoraSource
from streamgen.models.presets import build, check_weights
from streamgen.models.taehv import TAEHV
from streamgen.models.weights import WeightOptions
from tests.streamgen.checkpoints import pickled, renamed, same, saved, weights_of
from tests.streamgen.published import (
    PRESET,
    PUBLISHED,
    TINY_VAE_NAME,
    dit_weights,
    tiny_vae_weights,
    vae_weights,
    with_published,
    write_cache,
    write_diffusers,
    write_original,
)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let no file of this machine's own cache be found."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return cache


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_original(tmp_path_factory.mktemp("original"))


@pytest.fixture
def copied(original: Path, tmp_path: Path) -> Path:
    """The model's files, to be changed."""
    return Path(shutil.copytree(original, tmp_path / "copied"))


def refusal(options: WeightOptions) -> str:
    """Return the message of the refusal, which the check without weights gives, too."""
    with pytest.raises(CheckpointError) as caught:
        build(PRESET, options=options)
    with pytest.raises(CheckpointError) as checked:
        check_weights(PRESET, options)
    assert str(checked.value) == str(caught.value)
    return str(caught.value)


def test_a_model_is_loaded_from_its_authors_files(
    original: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        model = build(PRESET, options=WeightOptions(original))
    assert same(weights_of(model.dit), dit_weights())
    assert same(weights_of(model.vae), vae_weights())
    assert model.text_encoder.encode(["a red ball"]).shape == (1, 12, 64)
    assert "container generator_ema, layout original, wrappers _fsdp_wrapped_module" in caplog.text
    assert not any(p.requires_grad for p in model.dit.parameters())


def test_the_layout_of_diffusers_gives_the_same_model(original: Path, tmp_path: Path) -> None:
    left = build(PRESET, options=WeightOptions(original))
    right = build(PRESET, options=WeightOptions(write_diffusers(tmp_path / "diffusers")))
    assert same(weights_of(left.dit), weights_of(right.dit))
    assert same(weights_of(left.vae), weights_of(right.vae))
    prompts = ["a blue star on the sea"]
    assert torch.equal(left.text_encoder.encode(prompts), right.text_encoder.encode(prompts))


def test_the_check_without_weights_accepts_what_loads(original: Path, tmp_path: Path) -> None:
    check_weights(PRESET, WeightOptions(original))
    check_weights(PRESET, WeightOptions(original, decoder="tiny"))
    check_weights(PRESET, WeightOptions(write_diffusers(tmp_path / "diffusers")))


def test_the_tiny_decoder_stands_in_for_the_full_one(original: Path) -> None:
    model = build(PRESET, options=WeightOptions(original, decoder="tiny"))
    assert isinstance(model.vae, TAEHV)
    assert same(weights_of(model.vae), tiny_vae_weights())


def test_a_tiny_decoder_that_is_not_there_is_named_with_its_address(copied: Path) -> None:
    (copied / TINY_VAE_NAME).unlink()
    said = refusal(WeightOptions(copied, decoder="tiny"))
    assert PUBLISHED.tiny_vae in said
    assert "--weights" in said


def test_files_come_from_the_hubs_cache(original: Path, empty_cache: Path) -> None:
    write_cache(empty_cache, original)
    model = build(PRESET)
    assert same(weights_of(model.dit), dit_weights())


def test_one_file_may_be_named_while_the_others_come_from_the_cache(
    original: Path, empty_cache: Path, tmp_path: Path
) -> None:
    write_cache(empty_cache, original)
    own = saved(tmp_path / "mine.safetensors", dit_weights(seed=9))
    model = build(PRESET, options=WeightOptions(own))
    assert same(weights_of(model.dit), dit_weights(seed=9))


def test_a_revision_is_of_the_transformers_repository(original: Path, empty_cache: Path) -> None:
    write_cache(empty_cache, original)
    refs = empty_cache / "models--someone--tiny/refs"
    (refs / "main").rename(refs / "v2")
    assert "checkpoints/tiny.pt of someone/tiny" in refusal(WeightOptions())
    build(PRESET, options=WeightOptions(revision="v2"))


def test_what_was_not_downloaded_is_named_with_the_command() -> None:
    said = refusal(WeightOptions())
    assert "4 files are not in the Hub's cache, first checkpoints/tiny.pt of someone/tiny" in said
    assert "streamgen download tiny-published" in said


def test_a_folder_that_lacks_a_file_is_named(copied: Path) -> None:
    (copied / "text.pth").unlink()
    said = refusal(WeightOptions(copied))
    assert f"1 files are neither in {copied} nor in the Hub's cache, first text.pth" in said
    assert "no such file or folder" in refusal(WeightOptions(copied / "none"))


def test_safetensors_are_taken_before_a_pickle(copied: Path) -> None:
    """Q47: where both exist."""
    saved(copied / "checkpoints/tiny.safetensors", dit_weights(seed=5))
    model = build(PRESET, options=WeightOptions(copied))
    assert same(weights_of(model.dit), dit_weights(seed=5))


def test_q43_the_part_that_was_asked_for_is_loaded(copied: Path) -> None:
    """Zeros and ones, so that one taken for the other shows."""
    ones = {name: torch.ones_like(tensor) for name, tensor in dit_weights().items()}
    parts = {"generator": dit_weights(7), "generator_ema": dit_weights(8), "model": {"x": ones}}
    pickled(copied / "checkpoints/tiny.pt", parts)
    for container, seed in ((None, 8), ("generator_ema", 8), ("generator", 7)):
        model = build(PRESET, options=WeightOptions(copied, container=container))
        assert same(weights_of(model.dit), dit_weights(seed)), container
    assert "has no container 'state_dict'" in refusal(WeightOptions(copied, container="state_dict"))


def test_q43_a_part_that_is_missing_is_an_error_and_no_fallback(copied: Path) -> None:
    pickled(copied / "checkpoints/tiny.pt", {"generator": dit_weights(), "step": 1000})
    said = refusal(WeightOptions(copied))
    assert "generator (" in said
    assert "name the container" in said
    build(PRESET, options=WeightOptions(copied, container="generator"))


def test_a_file_without_parts_is_taken_as_it_is(copied: Path) -> None:
    pickled(copied / "checkpoints/tiny.pt", dit_weights())
    build(PRESET, options=WeightOptions(copied))


def test_a_transformer_of_another_size_is_named_with_both(copied: Path) -> None:
    other = dataclasses.replace(PRESET.dit, num_layers=1)
    preset = dataclasses.replace(PRESET, dit=other)
    options = WeightOptions(copied)
    with pytest.raises(CheckpointError) as caught:
        build(preset, options=options)
    said = str(caught.value)
    assert "extra, first blocks.1." in said
    assert "width 48, 2 layers, 4 channels, tiny-published is one of" in said


def test_the_models_own_lora_and_those_asked_for_add_up(copied: Path) -> None:
    """LongLive's way: a base, and a LoRA in a container of its file."""
    layer, rank = "blocks.0.self_attn.q", 2
    down, up = torch.randn(rank, 48), torch.randn(48, rank)
    spelled = f"base_model.model.{layer}.lora_{{}}.weight"
    lora = {spelled.format("A"): down, spelled.format("B"): up}
    pickled(copied / "lora.pt", {"generator_lora": lora})
    style = saved(copied / "style.safetensors", lora)
    from streamgen.models.preset import HubFile

    preset = with_published(
        lora=HubFile("someone/tiny", "lora.pt"), lora_container="generator_lora"
    )
    options = WeightOptions(copied, loras=(LoraSource(style, 0.5),))
    check_weights(preset, options)
    model = build(preset, options=options)
    wanted = dit_weights()[f"{layer}.weight"] + 1.5 * up @ down
    assert torch.allclose(model.dit.state_dict()[f"{layer}.weight"], wanted, atol=1e-5)
    (copied / "lora.pt").unlink()
    with pytest.raises(CheckpointError, match=r"first lora\.pt of someone/tiny"):
        build(preset, options=options)


def test_a_lora_that_does_not_fit_is_refused(copied: Path) -> None:
    path = saved(copied / "style.safetensors", {"blocks.7.ffn.0.lora_A.weight": torch.ones(2, 48)})
    said = refusal(WeightOptions(copied, loras=(LoraSource(path),)))
    assert "1 for layers that the model does not have" in said


@pytest.mark.parametrize("file", ["checkpoints/tiny.pt", "base_vae.pth", "text.pth"])
def test_q42_weights_that_fit_but_do_nothing_are_refused(file: str, copied: Path) -> None:
    held = torch.load(copied / file)
    part = held.get("generator_ema", held)
    for tensor in part.values():
        tensor.zero_()
    pickled(copied / file, held)
    with pytest.raises(CheckpointError, match="every output of the self check is"):
        build(PRESET, options=WeightOptions(copied))


@pytest.mark.parametrize(
    "options", [{"path": Path("a")}, {"container": "generator"}, {"revision": "v2"}]
)
def test_a_model_with_weights_of_its_own_refuses_others(options: dict[str, object]) -> None:
    from streamgen.models.presets import POCKET

    with pytest.raises(ConfigError, match="pocket brings its own weights; leave --"):
        build(POCKET, options=WeightOptions(**options))
    with pytest.raises(ConfigError, match="pocket has only its own decoder"):
        build(POCKET, options=WeightOptions(decoder="tiny"))


def test_wrappers_and_layouts_of_the_transformer_mix(copied: Path) -> None:
    """A file of the other layout in a container with wrappers is no special case."""
    from streamgen.models.checkpoint_keys import diffusers_name

    names = renamed(dit_weights(), lambda name: f"module._orig_mod.{diffusers_name(name)}")
    assert all(original_name(n.removeprefix("module._orig_mod.")) in dit_weights() for n in names)
    pickled(copied / "checkpoints/tiny.pt", {"generator_ema": names})
    assert same(weights_of(build(PRESET, options=WeightOptions(copied)).dit), dit_weights())
