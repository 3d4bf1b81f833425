"""Layers in main memory: what the account says that they save, and when it costs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from streamgen import account
from streamgen.card_memory import memory_parts
from streamgen.config import engine_config
from streamgen.memory_check import has_graphs, running_need
from streamgen.models.causal_dit import CausalDiT
from streamgen.models.presets import PRESETS
from streamgen.startup import resolve, runner_config
from tests.streamgen.planning import planned, refused, text_of, with_clean_environment
from tests.streamgen.tiny import TINY

CUDA = torch.device("cuda")
SELF_FORCING = PRESETS["self-forcing"]


def test_memory_is_asked_for_two_blocks_and_no_graphs() -> None:
    def options(*, away: bool) -> object:
        flags = {"model": "self-forcing", "offload_layers": away, "dtype": "bf16"}
        return resolve(engine_config(flags=flags), SELF_FORCING)

    dit = SELF_FORCING.dit
    saved = 2 * 28 * account.block_parameters(dit)
    whole, away = (
        dict(running_need(options(away=x), SELF_FORCING, CUDA, 1).parts)  # type: ignore[arg-type]
        for x in (False, True)
    )
    assert whole["transformer"] - away["transformer"] == saved > 2.5e9
    assert "CUDA graphs" in whole
    assert "CUDA graphs" not in away
    assert not has_graphs(options(away=True), CUDA)  # type: ignore[arg-type]
    parts = [
        memory_parts(
            SELF_FORCING,
            runner_config(options(away=x), SELF_FORCING, CUDA),
            1,
            2,
            graphs=False,  # type: ignore[arg-type]
        )
        for x in (False, True)
    ]
    assert parts[0]["weights"] - parts[1]["weights"] == saved


def test_the_parameters_of_blocks_are_those_of_the_module() -> None:
    dit = CausalDiT(TINY.dit)
    for block in dit.blocks:
        assert account.block_parameters(dit.config) == sum(p.numel() for p in block.parameters())


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_clean_environment(monkeypatch, tmp_path)


@pytest.mark.usefixtures("clean_environment")
def test_a_plan_says_that_it_is_free_where_passes_are_longer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--gpu", "4090", "--model", "causal-wan-1.3b")
    plain = planned(capsys, *flags)
    away = planned(capsys, *flags, "--offload-layers")
    layers = away["offload"]
    assert layers["bytes_a_pass"] == 2 * 30 * account.block_parameters(SELF_FORCING.dit)
    assert layers["link"] == pytest.approx(26e9, rel=0.01)
    assert layers["transfer_s"] == pytest.approx(layers["bytes_a_pass"] / layers["link"])
    assert layers["transfer_s"] < layers["compute_s"]
    assert layers["slowdown"] == 1
    assert away["chunk_s"] == plain["chunk_s"]
    assert away["memory"][0]["weights"] < 0.1 * plain["memory"][0]["weights"]
    assert plain["offload"] is None
    text = text_of(capsys, *flags, "--offload-layers")
    assert "layers in main memory: 2.79 GB a pass at 26 GB/s take 107 ms" in text
    assert text.count(": free") == 1
    assert "1.00x  layers in main memory: free: bringing them takes 107 ms" in text_of(
        capsys, *flags
    )


@pytest.mark.usefixtures("clean_environment")
def test_a_plan_says_what_it_costs_where_it_is_not_free(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    facts = {"name": "slow link", "peak_flops": 165e12, "bandwidth": 1e12, "memory_bytes": 24e9}
    card = tmp_path / "card.json"
    card.write_text(json.dumps({**facts, "link": 1e9}))
    flags = ("--model", "self-forcing", "--gpu", str(card))
    plain, away = planned(capsys, *flags), planned(capsys, *flags, "--offload-layers")
    layers = away["offload"]
    assert layers["slowdown"] == pytest.approx(layers["transfer_s"] / layers["compute_s"])
    assert layers["slowdown"] > 2
    waits = {stage["name"]: stage for stage in away["stages"]}["waits for layers"]
    assert waits["seconds"] == pytest.approx(away["chunk_s"] - plain["chunk_s"])
    # Four forwards, one of them with the commit's row as well, each as long as the link takes.
    computed = sum(s["seconds"] for s in plain["stages"] if s["name"] != "VAE")
    assert waits["seconds"] == pytest.approx(4 * layers["transfer_s"] - computed)
    assert waits["bytes"] == 4 * layers["bytes_a_pass"]
    said = text_of(capsys, *flags, "--offload-layers")
    assert f"{layers['slowdown']:.1f}x the time of a session alone" in said
    took = f"bringing them takes {1000 * layers['transfer_s']:.0f} ms"
    assert f"no  layers in main memory: {took}" in text_of(capsys, *flags)
    card.write_text(json.dumps(facts))
    assert "nothing is known of the link of slow link" in refused(
        capsys, *flags, "--offload-layers"
    )
    assert planned(capsys, *flags)["offload"] is None


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gpu", "4090", "--quantize", "fp8"], "leave --quantize out"),
        (["--gpu", "h100", "--reference", "flux-1-dev"], "offload_layers is of sessions"),
    ],
)
def test_a_plan_refuses_what_cannot_be(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, *flags, "--offload-layers")
