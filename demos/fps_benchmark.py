"""How many frames a second this machine makes, for one session and for several at once.

    python demos/fps_benchmark.py --sessions 1,2,4 --seconds 10

The same as `streamgen bench sessions`, whose flags it takes: the bundled model, on the CPU too.

    python demos/fps_benchmark.py gpu --quick

On a card: the shape of Wan 2.1 1.3B with random weights, as `make gpu-check` measures it.
"""

from __future__ import annotations

import sys


def run(argv: list[str]) -> int:
    """Measure, and return the exit status."""
    if argv[:1] == ["gpu"]:
        from streamgen.gpu_check import main as check

        return check(["--no-tests", *argv[1:]])
    from streamgen.cli import main as command

    return command(["bench", "sessions", *argv])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
