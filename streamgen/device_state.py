"""How an engine's device stands, asked a few times a second."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from streamgen.measures import DeviceState, Measures, Totals

if TYPE_CHECKING:
    from streamgen.engine import StreamEngine

MEMORY_STATUS: Final = Path("/proc/self/statm")


def measures_of(engine: StreamEngine) -> Measures:
    """Return what an engine did since it was asked last, and how it stands."""
    text, sessions = engine.runner.text, engine.sessions.values()
    device = DeviceState(
        busy_share=engine.admissions.busy_share(sessions),
        scatter=engine.costs.usual.scatter,
        pages_unowned=pages_unowned(engine),
        memory=tuple(memory(engine).items()),
    )
    totals = Totals(text.hits, text.misses, engine.decoder.num_oom)
    return engine.runner.meter.take(device, totals)


def pages_unowned(engine: StreamEngine) -> int:
    """Return the cache pages that are taken, or set aside, and belong to no session."""
    pool, chunk_frames = engine.runner.pool, engine.runner.config.chunk_frames
    owned = sum(
        session.config.window.reserved_frames(chunk_frames, fused=True)
        for session in engine.sessions.values()
        if session.table is not None
    )
    taken = max(pool.num_reserved, pool.allocator.num_used)
    return max(0, taken - owned * pool.geometry.pages_per_frame)


def memory(engine: StreamEngine) -> dict[str, int]:
    """Return the bytes of each kind that an engine's process holds."""
    runner = engine.runner
    sizes = {
        "weights": engine.weight_bytes,
        "kv_cache": runner.pool.nbytes + runner.pool.scratch_nbytes,
        "prompt_cache": runner.text.nbytes,
        "decoder": sum(session.stream.nbytes for session in engine.sessions.values()),
    }
    if engine.watch.sampler is not None:
        sizes["reference"] = engine.watch.sampler.nbytes
    if MEMORY_STATUS.exists():
        sizes["resident"] = int(MEMORY_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if runner.config.device.type == "cuda":
        sizes["device"] = torch.cuda.memory_reserved(runner.config.device)
    return sizes


def weight_bytes(*parts: object) -> int:
    """Return the bytes of the parameters and buffers of those that are modules."""
    modules = [part for part in parts if isinstance(part, nn.Module)]
    return sum(
        tensor.nbytes for module in modules for tensor in (*module.parameters(), *module.buffers())
    )
