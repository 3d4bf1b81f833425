"""Whether the device that is asked for can do the work, told before any weights are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from streamgen.errors import ConfigError, NoDevice, OutOfMemory

GIB: Final = 2**30
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class CardFacts:
    """A CUDA device as torch sees it."""

    name: str
    capability: tuple[int, int]
    free_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        """Return a line for people."""
        major, minor = self.capability
        free, total = self.free_bytes / GIB, self.total_bytes / GIB
        return f"{self.name}, sm_{major}{minor}, {free:.1f} of {total:.1f} GiB free"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What decides which device can be used."""

    torch_version: str
    cuda_version: str | None  # None: torch was built without CUDA
    architectures: tuple[str, ...]  # that torch has kernels for, as in sm_90 and compute_90
    visible: str | None  # CUDA_VISIBLE_DEVICES
    has_driver: bool
    cards: tuple[CardFacts, ...]

    @classmethod
    def here(cls) -> DeviceFacts:
        """Return this machine's."""
        count = torch.cuda.device_count()
        return cls(
            torch.__version__,
            torch.version.cuda,
            tuple(torch.cuda.get_arch_list()) if count else (),
            os.environ.get(VISIBLE),
            NVIDIA_DRIVER.exists(),
            tuple(_card(index) for index in range(count)),
        )


def _card(index: int) -> CardFacts:
    free, total = torch.cuda.mem_get_info(index)
    return CardFacts(
        torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index), free, total
    )


def find_device(name: str, facts: DeviceFacts | None = None) -> torch.device:
    """Return the device of an option's value: auto, cpu, cuda or cuda:N.

    `auto` is the first card where torch sees one, else the CPU. Raises ConfigError with the way
    out when the machine has no such device, or torch no kernels for it.
    """
    facts = facts or DeviceFacts.here()
    if name == "auto":
        name = "cuda" if facts.cards else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"device {name!r} is not auto, cpu, cuda or cuda:N", param="device"
        ) from error
    if device.type == "cuda":
        problem = card_problem(device.index or 0, facts)
        if problem is not None:
            raise NoDevice(f"device {name!r}: {problem}", param="device")
    return device


def card_problem(index: int, facts: DeviceFacts) -> str | None:
    """Return why a card cannot be used and what to do about it, or None."""
    count = len(facts.cards)
    if facts.cuda_version is None:
        return (
            f"torch {facts.torch_version} is built without CUDA; "
            "use cpu, or install a CUDA build of torch"
        )
    if not count and facts.visible is not None:
        return (
            f"{VISIBLE}={facts.visible!r} leaves no device visible; unset it, or name one that "
            "nvidia-smi lists"
        )
    if not count:
        missing = "no card answers its driver" if facts.has_driver else "there is no NVIDIA driver"
        return f"torch {facts.torch_version} sees no CUDA device: {missing}; use cpu"
    if index >= count:
        limited = "" if facts.visible is None else f" ({VISIBLE}={facts.visible!r})"
        return f"torch sees {count} CUDA devices here{limited}: cuda:0 to cuda:{count - 1}; use one"
    card = facts.cards[index]
    if not has_kernels(card.capability, facts.architectures):
        return (
            f"torch {facts.torch_version} (CUDA {facts.cuda_version}) has no kernels for "
            f"{card.name}, sm_{card.capability[0]}{card.capability[1]}, only for "
            f"{', '.join(facts.architectures)}; install a build of torch for it, or use cpu"
        )
    return None


def has_kernels(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Return whether code for these architectures runs on a card of this capability.

    Machine code (sm) runs on cards of its generation that are no older; intermediate code
    (compute) on all that are no older. Code for an `a` architecture runs there alone. Source: CUDA
    C++ programming guide, sections on binary and PTX compatibility.
    """
    for architecture in architectures:
        kind, _, number = architecture.partition("_")
        digits = number.rstrip("af")
        made_for = (int(digits[:-1]), int(digits[-1]))
        if number.endswith("a"):
            if made_for == capability:
                return True
        elif made_for <= capability and (kind == "compute" or made_for[0] == capability[0]):
            return True
    return False


def idle_card(facts: DeviceFacts) -> str | None:
    """Return what keeps this machine's card idle when all is left to `auto`, or None."""
    if facts.cards or not facts.has_driver:
        return None
    return f"this machine has an NVIDIA driver, but {card_problem(0, facts)}"


def require_memory(parts: Mapping[str, float], card: CardFacts) -> None:
    """Raise OutOfMemory, with the sum, when parts in bytes do not fit in a card's free memory."""
    needed = sum(parts.values())
    if needed <= card.free_bytes:
        return
    terms = " + ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
    raise OutOfMemory(
        f"{terms} = {needed / GIB:.2f} GiB, and {card.name} has {card.free_bytes / GIB:.2f} of "
        f"{card.total_bytes / GIB:.2f} GiB free; give fewer sessions, a shorter window or a "
        "smaller size, or end what else uses the card"
    )
