"""LoRAs changed at run time, under passes that run eagerly and passes that are captured."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from kvcache import OwnershipError
from streamgen.model_runner import ModelRunner, StepBatch
from streamgen.models.loader import CheckpointError
from tests.streamgen.checkpoints import saved
from tests.streamgen.static_runner import Stream, captured, new_runner


def output_hash(runner: ModelRunner) -> str:
    """Return a digest of a first pass, from text to flow."""
    stream = Stream(runner, 1)
    [flow] = runner.run(StepBatch((stream.rows(800.0)[0],)))
    stream.table.release()
    runner.release_text(stream.slot)
    return hashlib.sha256(flow.numpy().tobytes()).hexdigest()


def lora(folder: Path, seed: int, columns: int = 24) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in ("blocks.0.self_attn.q", "blocks.1.cross_attn.k"):
        tensors[f"diffusion_model.{layer}.lora_up.weight"] = torch.randn(24, 2, generator=generator)
        down = torch.randn(2, columns, generator=generator)
        tensors[f"diffusion_model.{layer}.lora_down.weight"] = down
    return saved(folder / f"{seed}-{columns}.safetensors", tensors)


@pytest.mark.parametrize("graphs", [False, True])
def test_q45_a_lora_shows_in_the_next_replay_and_leaves_without_a_trace(
    graphs: bool, tmp_path: Path
) -> None:
    runner = new_runner()
    if graphs:
        captured(runner)
    a, b, wrong = lora(tmp_path, 1), lora(tmp_path, 2), lora(tmp_path, 3, columns=23)
    seen: dict[Path | None, set[str]] = {None: {output_hash(runner)}, a: set(), b: set()}
    for path in [a, b, a, None] * 3:
        runner.set_loras([path] if path else [])
        seen[path].add(output_hash(runner))
        for failing in (wrong, tmp_path / "absent.safetensors"):
            with pytest.raises(CheckpointError):
                runner.set_loras([failing])
        assert output_hash(runner) in seen[path]
    assert [len(hashes) for hashes in seen.values()] == [1, 1, 1]
    assert len(set.union(*seen.values())) == 3
    fresh = new_runner()
    fresh.set_loras([a])
    assert output_hash(fresh) in seen[a]
    assert (runner.num_eager == 0) is graphs


def test_q45_weights_are_not_changed_under_a_chunk(tmp_path: Path) -> None:
    runner = new_runner()
    before = output_hash(runner)
    stream = Stream(runner, 0)
    with pytest.raises(OwnershipError, match="1 text slots are being read"):
        runner.set_loras([lora(tmp_path, 1)])
    runner.release_text(stream.slot)
    assert output_hash(runner) == before
