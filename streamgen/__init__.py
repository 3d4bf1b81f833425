"""Generate endless video with a few-step causal diffusion transformer.

`from streamgen import Engine` is the library; `streamgen serve` is the server. Names are loaded
when they are first used, so that a command that needs no model does not wait for torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamgen.errors import StreamgenError
    from streamgen.library import Engine, EngineSession
    from streamgen.messages import Chunk, Receipt

# OpenMP reads this when torch is loaded. Its threads then sleep between two products. Spinning,
# they take the cores from the decoder, the server and each other: with two threads on two cores
# and another process at work, 4 frames a second instead of 59.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = ["Chunk", "Engine", "EngineSession", "Receipt", "StreamgenError"]

_MODULES = {
    "Chunk": "messages",
    "Engine": "library",
    "EngineSession": "library",
    "Receipt": "messages",
    "StreamgenError": "errors",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'streamgen' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"streamgen.{_MODULES[name]}"), name)
