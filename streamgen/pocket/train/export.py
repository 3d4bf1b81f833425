"""Put trained weights where the package looks for them, as bfloat16.

    python -m streamgen.pocket.train.export --dit runs/distilled/dit.safetensors \
        --vae runs/decoder/vae.safetensors

Prints each file's size and SHA-256, which `docs/pocket.md` records.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = Path(__file__).parent.parent / "weights"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dit", type=Path)
    parser.add_argument("--vae", type=Path)
    args = parser.parse_args()
    WEIGHTS.mkdir(exist_ok=True)
    for name, source in (("dit", args.dit), ("vae", args.vae)):
        if source is not None:
            weights = {k: v.to(torch.bfloat16) for k, v in load_file(source).items()}
            save_file(weights, WEIGHTS / f"{name}.safetensors")
    for path in sorted(WEIGHTS.glob("*.safetensors")):
        content = path.read_bytes()
        print(f"{path.name} {len(content):,} bytes {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
