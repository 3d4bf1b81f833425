"""Layers in main memory: the same numbers from less on the device, and when it costs nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from streamgen import account, startup
from streamgen.account_memory import RESIDENT_BLOCKS, resident_parameters
from streamgen.card_memory import memory_parts
from streamgen.config import engine_config
from streamgen.device_state import weight_bytes
from streamgen.errors import ConfigError, Unsupported
from streamgen.memory_check import has_graphs, running_need
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.presets import PRESETS
from streamgen.offload import (
    PIECE_BYTES,
    HostLane,
    OffloadedBlocks,
    offload,
    refusal,
)
from streamgen.startup import resolve, runner_config, start_engine
from tests.streamgen.planning import planned, refused, text_of, with_clean_environment
from tests.streamgen.static_runner import new_runner, run_streams
from tests.streamgen.tiny import TINY, tiny_config

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SELF_FORCING = PRESETS["self-forcing"]
SHAPE = (2, 3, 4, 4, 4)


def transformer(num_layers: int = 5) -> CausalDiT:
    torch.manual_seed(0)
    config = DiTConfig(
        dim=24, ffn_dim=40, num_layers=num_layers, num_heads=2, text_dim=6, text_len=5, in_dim=4,
        out_dim=4, freq_dim=16,
    )  # fmt: skip
    return CausalDiT(config).requires_grad_(False).eval()


def forward(dit: CausalDiT, seed: int = 0) -> tuple[Tensor, ...]:
    """Return the flow of two rows that see themselves alone, and the texts' K/V."""
    generator = torch.Generator().manual_seed(seed)
    dtype = dit.patch_embedding.weight.dtype
    latents = torch.randn(SHAPE, generator=generator)
    k, v = dit.text_kv(torch.randn(2, 5, 6, generator=generator))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = (x.transpose(1, 2) for x in (q, k, v))
        return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2)

    t = torch.full(SHAPE[:2], 700.0)
    start = torch.tensor([0, 6])
    with torch.inference_mode():
        flow = dit(latents.to(dtype), t, start, lambda layer: (k[layer], v[layer]), attend)
    return flow, k, v


class LateLane:
    """A link at its slowest: what is brought arrives when it is waited for, and is NaN before."""

    def __init__(self) -> None:
        self.coming: dict[int, tuple[Tensor, list[Tensor]]] = {}
        self.num_bytes = 0

    def bring(self, slot: int, target: Tensor, pieces: list[Tensor]) -> None:
        target.fill_(torch.nan)
        self.coming[slot] = target, pieces
        self.num_bytes += sum(piece.nbytes for piece in pieces)

    def wait(self, slot: int) -> None:
        if slot in self.coming:
            HostLane().bring(slot, *self.coming.pop(slot))


def late(dit: CausalDiT, dtype: torch.dtype = torch.float32) -> LateLane:
    """Offload a transformer over a late link."""
    lane = LateLane()
    dit.blocks = OffloadedBlocks(dit.blocks, CPU, dtype, lane)
    return lane


@pytest.mark.parametrize("num_layers", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_those_of_the_whole_model(num_layers: int, dtype: torch.dtype) -> None:
    dit = transformer(num_layers)
    whole = copy.deepcopy(dit).to(CPU, dtype)
    late(dit, dtype)
    dit.to(CPU, dtype)
    for seed in range(3):
        pairs = zip(forward(dit, seed), forward(whole, seed), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_pass_brings_each_block_once_and_begins_two_ahead() -> None:
    dit = transformer()
    block = sum(p.nbytes for p in next(iter(dit.blocks)).parameters())
    lane = late(dit)
    packed = lane.num_bytes // RESIDENT_BLOCKS
    assert block <= packed < 1.5 * block  # weights begin at whole lines
    assert sorted(lane.coming) == [0, 1]
    for _ in range(3):
        before = lane.num_bytes
        for layer, _block in enumerate(dit.blocks):
            assert lane.num_bytes - before == layer * packed
            assert layer % RESIDENT_BLOCKS not in lane.coming
        assert lane.num_bytes - before == 5 * packed
        assert sorted(lane.coming) == [0, 1]  # for the next pass


def test_a_pass_that_is_left_halfway_does_no_harm() -> None:
    dit = transformer()
    expected = forward(copy.deepcopy(dit))
    late(dit)
    for num_done in (1, 2, 4):
        blocks: Iterator[nn.Module] = iter(dit.blocks)
        for _ in range(num_done):
            next(blocks)
        blocks.close()  # type: ignore[attr-defined]
        pairs = zip(forward(dit), expected, strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_the_device_has_the_weights_of_two_blocks_whatever_the_depth() -> None:
    held = []
    for num_layers in (3, 7):
        dit = transformer(num_layers)
        offload(dit, CPU, torch.bfloat16)
        blocks = dit.blocks
        offload(dit, CPU, torch.bfloat16)  # once is enough
        assert dit.blocks is blocks
        dit.to(CPU, torch.bfloat16)
        assert len(dit.blocks) == num_layers
        room = {p.untyped_storage().data_ptr() for p in dit.blocks.parameters()}
        assert len(room) == RESIDENT_BLOCKS
        held.append(weight_bytes(dit))
        assert held[-1] == 2 * resident_parameters(dit.config, True)
    assert held[0] == held[1]


def test_large_blocks_come_in_pieces() -> None:
    torch.manual_seed(0)
    width = PIECE_BYTES // 4 // 1000
    blocks = nn.ModuleList(nn.Linear(1500, width).requires_grad_(False) for _ in range(3))
    x = torch.randn(1, 1500)
    expected = [block(x) for block in blocks]
    offloaded = OffloadedBlocks(blocks, CPU, torch.float32, HostLane())
    assert [len(pieces) for pieces in offloaded._pieces] == [2, 2, 2]
    for block, result in zip(offloaded, expected, strict=True):
        assert torch.equal(block(x), result)
    assert all(isinstance(block, nn.Identity) for block in blocks)  # theirs are free


@pytest.mark.parametrize("static", [False, True])
def test_sessions_get_what_they_get_from_a_whole_model(static: bool) -> None:
    mine = run_streams(new_runner(static=static, offload_layers=True))
    theirs = run_streams(new_runner(static=static))
    for some, others in zip(mine, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_loras_are_not_changed_under_way() -> None:
    with pytest.raises(Unsupported, match="give LoRAs when the engine starts") as told:
        new_runner(offload_layers=True).set_loras([])
    assert told.value.param == "lora"


# What cannot be.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compile": True}, "leave --compile out"),
        ({"quantization": "fp8"}, "leave --quantization out"),
        ({"sample_quality": 1.0}, "second copy of all weights"),
    ],
)
def test_what_needs_all_weights_on_the_card_is_refused(
    options: dict[str, object], said: str
) -> None:
    why = refusal(tiny_config(offload_layers=True, **options), CUDA)
    assert why is not None
    assert said in why
    assert refusal(tiny_config(offload_layers=True, kv_cache_dtype="fp8"), CUDA) is None


def test_a_cpu_has_nothing_to_offload_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "build", lambda *a, **k: pytest.fail("weights are read"))
    config = tiny_config(device="cpu", offload_layers=True)
    with pytest.raises(ConfigError, match="offload_layers: the device is cpu") as told:
        start_engine(config, lambda *item: None, preset=TINY)
    assert told.value.param == "offload_layers"


# The account.


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
    dit = transformer(3)
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
