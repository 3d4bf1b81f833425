"""torch's own files are read in safe mode: tensors come, code never runs."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from streamgen import replay_file, snapshot
from streamgen.config import EngineConfig
from streamgen.errors import InvalidRequest
from streamgen.models.dit_size import dit_config_of
from streamgen.models.loader import CheckpointError, load_checkpoint, load_safetensors_strict
from streamgen.models.lora import LoraMerger
from streamgen.models.taehv import TAEHV
from streamgen.models.wan_vae import WanVAE, WanVAEConfig
from streamgen.pocket.text_encoder import ConceptEncoder
from streamgen.startup import resolve
from tests.streamgen.checkpoints import Bomb, pickled, same, tiny_dit, tiny_weights, weights_of
from tests.streamgen.tiny import TINY, tiny_config

NAMES = ("model.pt", "model.pth", "model.bin", "model.ckpt", "model.safetensors", "model.json", "x")
FORMS = ("torch", "torch legacy", "pickle", "text pickle", "in a container")


def bomb_bytes(form: str, marker: Path) -> bytes:
    """Return a checkpoint that has all tensors, and leaves a marker when it is unpickled."""
    held: dict[str, object] = {**tiny_weights(), "blocks.0.extra": Bomb(marker)}
    if form == "in a container":
        held = {"generator_ema": held, "state_dict": Bomb(marker)}
    if "text" in form or form == "pickle":
        return pickle.dumps({"extra": Bomb(marker)}, protocol=0 if "text" in form else 4)
    buffer = io.BytesIO()
    torch.save(held, buffer, _use_new_zipfile_serialization=form != "torch legacy")
    return buffer.getvalue()


def _shard(path: Path) -> None:
    index = path.with_name("a.safetensors.index.json")
    index.write_text(f'{{"weight_map": {{"blocks.0.extra": "{path.name}"}}}}')
    load_checkpoint(tiny_dit(), index)


def _vae(path: Path) -> None:
    config = WanVAEConfig(
        dim=4, z_dim=4, dim_mult=(1, 1), num_res_blocks=1, temporal_downsample=(True,),
        latent_mean=(0.0,) * 4, latent_std=(1.0,) * 4,
    )  # fmt: skip
    vae = WanVAE(config)
    load_checkpoint(vae, path, layouts={"original": vae.original_keys()})


ROLES: dict[str, Callable[[Path], object]] = {
    "main checkpoint": lambda path: load_checkpoint(tiny_dit(), path),
    "its container": lambda path: load_checkpoint(tiny_dit(), path, container="generator_ema"),
    "its folder": lambda path: load_checkpoint(tiny_dit(), path.parent),
    "its shard": _shard,
    "its size": dit_config_of,
    "VAE": _vae,
    "tiny VAE": lambda path: load_checkpoint(TAEHV(TINY.vae), path),
    "bundled file": lambda path: load_safetensors_strict(tiny_dit(), path),
    "text encoder": ConceptEncoder.load,
    "LoRA": lambda path: LoraMerger(tiny_dit()).load([path]),
}


def test_q47_the_marker_appears_where_pickles_are_trusted(tmp_path: Path) -> None:
    """Or the tests below would prove nothing."""
    marker = tmp_path / "marker"
    for form in FORMS:
        blob = bomb_bytes(form, marker)
        if "pickle" in form:
            pickle.loads(blob)
        else:
            torch.load(io.BytesIO(blob), weights_only=False)
        assert marker.exists(), form
        marker.unlink()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("role", ROLES)
def test_q47_no_role_and_no_name_runs_a_pickle(
    tmp_path: Path, role: str, form: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even with the environment variable that makes torch load unsafely by default."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    marker, folder = tmp_path / "marker", tmp_path / "offered"
    folder.mkdir()
    path = folder / name
    path.write_bytes(bomb_bytes(form, marker))
    with pytest.raises(CheckpointError) as caught:
        ROLES[role](path)
    assert not marker.exists()
    assert str(folder) in str(caught.value)
    assert "weights_only" not in str(caught.value), "no advice on how to run it after all"


def test_q47_a_refusal_says_what_was_found(tmp_path: Path) -> None:
    path = pickled(tmp_path / "model.pt", {"a": Bomb(tmp_path / "marker")})
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tiny_dit(), path)
    assert str(caught.value) == (
        f"{path} holds getattr beside tensors, and reading that could run code:"
        " convert it to safetensors"
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", [snapshot.from_bytes, replay_file.from_lines])
def test_q47_resume_state_is_no_pickle(
    tmp_path: Path, form: str, reader: Callable[..., object]
) -> None:
    """What `restore` is uploaded and `replay` is given."""
    engine: EngineConfig = resolve(tiny_config(), TINY)
    with pytest.raises(InvalidRequest):
        reader(bomb_bytes(form, tmp_path / "marker"), TINY, engine)
    assert not (tmp_path / "marker").exists()


def test_q47_the_oldest_torch_has_a_sound_safe_mode() -> None:
    """Before 2.10 it could be got around (GHSA-63cw-57p8-fm3p)."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (floor,) = re.findall(r'"torch>=(\d+)\.(\d+)', project)
    assert tuple(map(int, floor)) >= (2, 10)


@pytest.mark.parametrize("legacy", [True, False])
def test_plain_files_of_any_age_are_read(tmp_path: Path, legacy: bool) -> None:
    """A module's own state dict, parameters and shared storage included."""
    wanted = tiny_weights()
    held: dict[str, torch.Tensor] = {n: nn.Parameter(t) for n, t in wanted.items()}
    whole = torch.cat([wanted["head.head.bias"], wanted["patch_embedding.bias"]])
    held["head.head.bias"], held["patch_embedding.bias"] = whole.split([16, 24])
    path = tmp_path / "toy.pt"
    torch.save(held, path, _use_new_zipfile_serialization=not legacy)
    module = tiny_dit()
    load_checkpoint(module, path)
    assert same(weights_of(module), wanted)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ([torch.ones(1)], "holds no tensors by name: it is a list"),
        (torch.ones(1), "holds no tensors by name: it is a Tensor"),
        ({}, "holds no tensors"),
        ({"a": torch.ones(1), "step": 7}, "holds 1 values that are no plain tensors, first step"),
        ({5: torch.ones(1)}, "holds 1 values that are no plain tensors, first 5"),
        ({"a": torch.eye(2).to_sparse()}, "holds 1 values that are no plain tensors, first a"),
        ({"a": torch.ones(1, device="meta")}, "holds 1 values that are no plain tensors, first a"),
    ],
)
def test_q42_torch_files_of_other_things_are_refused(
    tmp_path: Path, held: object, said: str
) -> None:
    path = pickled(tmp_path / "toy.pt", held)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tiny_dit(), path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("legacy", [True, False])
def test_q42_damaged_torch_files_are_refused(tmp_path: Path, legacy: bool) -> None:
    """Cut anywhere, or with bytes changed in its head: refused, and the module is as before."""
    path = tmp_path / "toy.pt"
    torch.save(tiny_weights(), path, _use_new_zipfile_serialization=not legacy)
    whole = path.read_bytes()
    module = tiny_dit()
    before = weights_of(module)
    cuts = [whole[: len(whole) * i // 9] for i in range(9)]
    texts = [b"version https://git-lfs.github.com/spec/v1\n", b"<html>", b"\x80\x02", b"PK\x03\x04"]
    for blob in [*cuts, *texts, whole[:2] + b"\xff" + whole[3:]]:
        path.write_bytes(blob)
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(module, path)
        assert str(path) in str(caught.value)
    assert same(weights_of(module), before)
