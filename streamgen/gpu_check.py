"""`make gpu-check`: the tests that need a card, then frames a second at the shape of Wan 2.1 1.3B.

    python -m streamgen.gpu_check [--output gpu-check] [--no-tests] [--quick]

Exit status: 0 done, 1 a test failed, 3 this machine cannot do it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from streamgen import machine
from streamgen.device import DeviceFacts, card_problem
from streamgen.gpu_bench import BenchRow, Sweep, document, markdown, measure

TESTS: Final = Path(__file__).parents[1] / "tests"
CANNOT: Final = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Check this machine's card and return the exit status."""
    parser = argparse.ArgumentParser(prog="gpu-check", description="Check and measure a GPU.")
    parser.add_argument(
        "--output", type=Path, default=Path("gpu-check"), help="name of the .md and .json to write"
    )
    parser.add_argument("--no-tests", action="store_true", help="measure only")
    parser.add_argument("--quick", action="store_true", help="one size and one window only")
    arguments = parser.parse_args(argv)
    facts = DeviceFacts.here()
    problem = card_problem(0, facts)
    if problem is not None:
        print(f"gpu-check cannot run here: {problem}")
        return CANNOT
    if not arguments.no_tests and _run_tests() != 0:
        return 1
    sweep = Sweep(sizes=((832, 480),), windows=(21,)) if arguments.quick else Sweep()
    rows = measure(sweep, torch.device("cuda"), _tell)
    card = facts.cards[0]
    title = f"{card.name}, torch {facts.torch_version}, CUDA {facts.cuda_version}"
    about = {
        "card": card.name,
        "capability": card.capability,
        "memory_bytes": card.total_bytes,
        "torch": facts.torch_version,
        "cuda": facts.cuda_version,
        "commit": machine.commit(),
    }
    arguments.output.with_suffix(".md").write_text(markdown(rows, title))
    arguments.output.with_suffix(".json").write_text(document(rows, about))
    print(f"written to {arguments.output}.md and {arguments.output}.json")
    return 0


def _run_tests() -> int:
    if not TESTS.is_dir():
        print("this installation has no tests beside it: only measuring")
        return 0
    return subprocess.run([sys.executable, "-m", "pytest", "-m", "gpu", str(TESTS)]).returncode


def _tell(row: BenchRow) -> None:
    predicted = "" if row.predicted_fps is None else f" (predicted {row.predicted_fps:.1f})"
    print(
        f"{row.size} window {row.window} {row.decoder:<4} {row.way:<20} {row.sessions} sessions: "
        f"{row.fps:.1f} fps{predicted}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
