"""Replay fixtures made by the published reference implementations through the product's modules.

`streamgen parity DIR...` prints every output's largest absolute error beside its tolerance.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import torch

from kvcache import KVCacheError
from streamgen.errors import CheckpointError
from streamgen.parity import (
    causvid,
    diffusers_map,
    longlive2,
    schedule,
    taehv,
    transformer,
    wan_vae,
)
from streamgen.parity.check import Check
from streamgen.parity.fixture import Fixture, FixtureError

__all__ = ["Check", "Fixture", "FixtureError", "run"]

# How to check a kind of fixture, and a pattern of the names of its inputs.
_KINDS: Final[dict[str, tuple[Callable[[Fixture], Iterator[Check]], str]]] = {
    "causvid_tiny": (causvid.check, causvid.INPUTS),
    "diffusers_map": (diffusers_map.check, diffusers_map.INPUTS),
    "longlive2_window": (longlive2.check, longlive2.INPUTS),
    "longlive_local": (transformer.check, transformer.INPUTS),
    "longlive_switch": (transformer.check, transformer.INPUTS),
    "schedule": (schedule.check, schedule.INPUTS),
    "sf_local": (transformer.check, transformer.INPUTS),
    "sf_tiny": (transformer.check, transformer.INPUTS),
    "taehv_tiny": (taehv.check, taehv.INPUTS),
    "wanvae_tiny": (wan_vae.check, wan_vae.INPUTS),
}


def run(directories: Sequence[str | Path]) -> int:
    """Replay fixture directories and report on standard output; return the exit status.

    0: every output within its tolerance. 1: one was not, or a kind of fixture is not supported.
    2: a directory could not be replayed; what is wrong with it goes to standard error. A tensor
    that no rule covers is reported as skipped and counts for neither side.
    """
    num_passed = num_failed = num_unusable = 0
    for directory in map(Path, directories):
        name = directory.resolve().name
        try:
            fixture = Fixture(directory)
            checked = set()
            for check in _replay(fixture):
                print(check.line(name), flush=True)
                checked.add(check.name)
                num_passed += check.ok
                num_failed += not check.ok
            for skipped in sorted(_outputs(fixture) - checked):
                print(f"{name}/{skipped} - - skipped  no rule says how to check this tensor")
        except (FixtureError, CheckpointError, KVCacheError) as error:
            print(f"streamgen parity: {directory}: {error}", file=sys.stderr)
            num_unusable += 1
    print(f"{num_passed} passed, {num_failed} failed")
    if num_unusable:
        return 2
    return 1 if num_failed else 0


@torch.no_grad()
def _replay(fixture: Fixture) -> Iterator[Check]:
    if fixture.kind not in _KINDS:
        note = f"kind {fixture.kind!r} is not supported; supported: {', '.join(_KINDS)}"
        yield Check("fixture", math.nan, 0.0, note)
        return
    check, _ = _KINDS[fixture.kind]
    yield from check(fixture)


def _outputs(fixture: Fixture) -> set[str]:
    if fixture.kind not in _KINDS:
        return set()
    _, inputs = _KINDS[fixture.kind]
    return {name for name in fixture.tensors if not re.fullmatch(inputs, name)}
