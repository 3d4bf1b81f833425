"""bfloat16 where the device has products of it; elsewhere it would be slower than float32."""

from __future__ import annotations

import torch

from streamgen.models.fused import has_products


def has_bf16(device: torch.device) -> bool:
    """Return whether products of bfloat16 are built into a device."""
    return device.type != "cpu" or has_products(torch.bfloat16)


def mixed_precision(device: str) -> torch.autocast:
    """Return the context of a forward: bfloat16 if the device has it."""
    place = torch.device(device)
    return torch.autocast(place.type, torch.bfloat16, enabled=has_bf16(place))
