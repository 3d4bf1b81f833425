"""Layers in main memory: the same numbers from less on the device, and when it costs nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from streamgen import startup
from streamgen.account_memory import RESIDENT_BLOCKS, resident_parameters
from streamgen.device_state import weight_bytes
from streamgen.errors import ConfigError, Unsupported
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.presets import PRESETS
from streamgen.offload import (
    PIECE_BYTES,
    HostLane,
    OffloadedBlocks,
    offload,
    refusal,
)
from streamgen.startup import start_engine
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
