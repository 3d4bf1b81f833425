"""Which attention backend a machine gets, and why not another one."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from kvcache.attention.backend import AttentionBackend
from kvcache.attention.check import wrong_by
from kvcache.attention.flashinfer import FlashInferAttention
from kvcache.attention.gather import (
    GatherAttention,
    flash_attn_kernel,
    masked_kernel,
    varlen_kernel,
)
from kvcache.attention.static_pages import PageLimits, StaticTurn
from kvcache.errors import BackendError
from kvcache.geometry import KVGeometry
from kvcache.pool import KVPool

# The module each one needs, best first: torch's own needs nothing that could be missing or broken.
MODULES: Final = {
    "varlen": "torch.nn.attention.varlen",
    "flashinfer": "flashinfer",
    "flash_attn": "flash_attn",
    "sdpa": "torch.nn.functional",
}
NEEDED_CAPABILITY: Final = (8, 0)  # Ampere: the first with bfloat16 products
FLASHINFER_HEADS: Final = (64, 128, 256)
LARGEST_HEAD: Final = 256
HALVES: Final = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """What decides which backends can work.

    `broken` maps a module to the reason why it cannot be imported; others can.
    """

    device: str
    capability: tuple[int, int] | None  # of a CUDA device
    dtype: torch.dtype
    head_dim: int
    broken: Mapping[str, str]
    is_quantized: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The name of a backend that works here, and why it is this one."""

    name: str
    reason: str


def refusal(name: str, facts: AttentionFacts) -> str | None:
    """Return why a backend cannot work here, or None."""
    if MODULES[name] in facts.broken:
        return f"{MODULES[name]} cannot be imported: {facts.broken[MODULES[name]]}"
    if name == "sdpa":
        return None
    if facts.device != "cuda":
        return f"it needs a CUDA device, and this is {facts.device}"
    if facts.capability is not None and facts.capability < NEEDED_CAPABILITY:
        major, minor = facts.capability
        return f"it needs compute capability 8.0, and this card has {major}.{minor}"
    if facts.dtype not in HALVES:
        return f"it computes in 16 bits, and the cache is in {facts.dtype}"
    if name == "flashinfer" and facts.is_quantized:
        return "it reads pages where they lie, and those in 8 bits have to be converted"
    if name == "flashinfer" and facts.head_dim not in FLASHINFER_HEADS:
        return f"its heads have 64, 128 or 256 values, and the model's {facts.head_dim}"
    if facts.head_dim > LARGEST_HEAD or facts.head_dim % 8:
        return f"its heads have at most 256 values, a multiple of 8; the model's {facts.head_dim}"
    return None


def import_problem(module: str) -> str | None:
    """Import a module and return what went wrong, or None.

    A kernel built for another torch may raise anything.
    """
    try:
        importlib.import_module(module)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def facts_of(geometry: KVGeometry, device: torch.device) -> AttentionFacts:
    """Return the facts about this machine; kernels are imported only where there is CUDA."""
    on_cuda = device.type == "cuda"
    problems = {m: import_problem(m) for m in MODULES.values()} if on_cuda else {}
    return AttentionFacts(
        device.type,
        torch.cuda.get_device_capability(device) if on_cuda else None,
        geometry.dtype,
        geometry.head_dim,
        {module: problem for module, problem in problems.items() if problem is not None},
        geometry.is_quantized,
    )


def build(
    name: str, pool: KVPool, limits: PageLimits, turn: StaticTurn | None = None
) -> AttentionBackend:
    """Return the backend of this name, its inputs static."""
    if name == "flashinfer":
        return FlashInferAttention(pool, limits, turn=turn)
    kernels = {"varlen": varlen_kernel, "flash_attn": flash_attn_kernel}
    kernel = kernels[name]() if name in kernels else masked_kernel
    return GatherAttention(pool, kernel, limits, turn=turn)


def choose(
    wanted: str,
    geometry: KVGeometry,
    device: torch.device,
    *,
    facts: AttentionFacts | None = None,
    make: Callable[[str, KVPool, PageLimits], AttentionBackend] = build,
) -> Choice:
    """Return the backend asked for, or for "auto" the first that works and computes rightly.

    On CUDA each is compared with plain torch on random pages. Raises BackendError when the one
    asked for is missing, cannot work here or is wrong.
    """
    facts = facts or facts_of(geometry, device)
    if wanted != "auto" and wanted not in MODULES:
        raise BackendError(f"no attention backend is called {wanted!r}; there are {[*MODULES]}")
    passed_over: list[str] = []
    for name in MODULES if wanted == "auto" else (wanted,):
        problem = refusal(name, facts)
        if problem is None and facts.device == "cuda":
            problem = wrong_by(name, geometry, device, make)
        if problem is None:
            return Choice(name, "; ".join(passed_over) or "it is the first choice")
        passed_over.append(f"not {name}: {problem}")
    if wanted == "auto":
        raise BackendError(f"no attention backend works here: {'; '.join(passed_over)}")
    raise BackendError(f"attention backend {wanted!r} was asked for, but {problem}")
