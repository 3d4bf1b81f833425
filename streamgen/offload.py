"""Blocks whose weights stay in main memory and come to the device when it is their turn.

There is room for two of them on the device: while one computes, the weights of the next come in on
a stream of their own. After the last block the first two come again, for the next pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from streamgen.account_memory import RESIDENT_BLOCKS
from streamgen.config import EngineConfig
from streamgen.models.causal_dit import CausalDiT

ALIGNED: Final = 64  # elements: where a weight begins, as products want it
# Pinned memory is rounded up to a power of two, so a block's is taken in pieces of that kind.
PIECE_BYTES: Final = 1 << 24


class Lane(Protocol):
    """Bring weights to the device, beside what it computes."""

    def bring(self, slot: int, target: Tensor, pieces: list[Tensor]) -> None:
        """Begin to copy pieces to a slot, after all work that the caller has given the device."""

    def wait(self, slot: int) -> None:
        """Let the caller's work for the device wait for what is coming to a slot."""


class HostLane:
    """A CPU's: a copy is done when the call returns."""

    def bring(self, slot: int, target: Tensor, pieces: list[Tensor]) -> None:
        _copy(target, pieces)

    def wait(self, slot: int) -> None:
        pass


class CudaLane:
    """A CUDA stream for copies from pinned memory; events order it with the passes' stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._arrived = [torch.cuda.Event() for _ in range(RESIDENT_BLOCKS)]

    def bring(self, slot: int, target: Tensor, pieces: list[Tensor]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            _copy(target, pieces)
        self._arrived[slot].record(self._stream)

    def wait(self, slot: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._arrived[slot])


class OffloadedBlocks(nn.Module):
    """Iterate over blocks in order, each with its weights on the device when it is handed out.

    `slots` are the modules that are handed out, in turn. What is done with one is given to the
    device before the next is asked for; a pass that is left halfway does no harm. The blocks are
    taken from the list that is given, to free them one by one.
    """

    def __init__(
        self, blocks: nn.ModuleList, device: torch.device, dtype: torch.dtype, lane: Lane
    ) -> None:
        super().__init__()
        self._lane = lane
        num_slots = min(RESIDENT_BLOCKS, len(blocks))
        template = blocks[0]
        sizes = [p.shape for p in template.parameters()]
        self._pieces: list[list[Tensor]] = []
        for i, block in enumerate(blocks):
            assert [p.shape for p in block.parameters()] == sizes, f"block {i} is unlike the first"
            assert not [*block.buffers()], f"block {i} has buffers"
            self._pieces.append(_pieces(_packed(block, dtype), device))
            blocks[i] = nn.Identity()
        self._room = [
            torch.zeros(_packed_size(template), dtype=dtype, device=device)
            for _ in range(num_slots)
        ]
        self.slots = nn.ModuleList(_on(template, room) for room in self._room)
        self._held: list[int | None] = [None] * num_slots
        for slot in range(num_slots):
            self._bring(slot, slot)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._pieces)

    def __iter__(self) -> Iterator[nn.Module]:
        """Hand out block after block."""
        num_slots = len(self.slots)
        for block in range(len(self)):
            slot = block % num_slots
            self._bring(block, slot)
            self._lane.wait(slot)
            yield self.slots[slot]
            follower = block + num_slots
            self._bring(follower if follower < len(self) else slot, slot)

    @torch.no_grad()
    def _bring(self, block: int, slot: int) -> None:
        if self._held[slot] != block:
            self._held[slot] = None  # should it fail
            self._lane.bring(slot, self._room[slot], self._pieces[block])
            self._held[slot] = block


def offload(dit: CausalDiT, device: torch.device, dtype: torch.dtype) -> None:
    """Keep the blocks of a transformer in main memory from now on. Does nothing a second time."""
    if isinstance(dit.blocks, OffloadedBlocks):
        return
    lane = CudaLane(device) if device.type == "cuda" else HostLane()
    with torch.inference_mode(False):
        dit.blocks = OffloadedBlocks(dit.blocks, device, dtype, lane)  # type: ignore[assignment]


def refusal(config: EngineConfig, device: torch.device) -> str | None:
    """Return why an engine with these options cannot keep layers in main memory, or None."""
    if device.type != "cuda":
        return f"the device is {device}, whose weights are in main memory anyhow"
    if config.compile:
        return "compiled blocks are bound to weights that stay where they are; leave --compile out"
    if config.quantization != "none":
        return "all weights are quantised on the card at once; leave --quantization out"
    if config.sample_quality is not None:
        return "sampled quality needs a second copy of all weights on the card; leave it out"
    return None


def _packed_size(block: nn.Module) -> int:
    return sum(_aligned(p.numel()) for p in block.parameters())


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _packed(block: nn.Module, dtype: torch.dtype) -> Tensor:
    """Return a block's weights in one row."""
    packed = torch.zeros(_packed_size(block), dtype=dtype)
    start = 0
    for parameter in block.parameters():
        packed[start : start + parameter.numel()] = parameter.detach().flatten()
        start += _aligned(parameter.numel())
    return packed


def _pieces(packed: Tensor, device: torch.device) -> list[Tensor]:
    pieces = packed.split(PIECE_BYTES // packed.itemsize)
    return [piece.pin_memory() if device.type == "cuda" else piece for piece in pieces]


def _on(template: nn.Module, room: Tensor) -> nn.Module:
    """Return a copy of a block whose weights are in this room."""
    places: dict[int, Tensor] = {}
    start = 0
    for parameter in template.parameters():
        place = room[start : start + parameter.numel()].view(parameter.shape)
        places[id(parameter)] = nn.Parameter(place, requires_grad=False)
        start += _aligned(parameter.numel())
    return copy.deepcopy(template, places)


def _copy(target: Tensor, pieces: list[Tensor]) -> None:
    start = 0
    for piece in pieces:
        target[start : start + len(piece)].copy_(piece, non_blocking=True)
        start += len(piece)
