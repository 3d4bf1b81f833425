"""How many frames a second this machine makes, for one session and for several at once.

    python demos/fps_benchmark.py --sessions 1,2,4 --seconds 10

The same as `streamgen bench sessions`, whose flags it takes.
"""

from __future__ import annotations

import sys

from streamgen.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "sessions", *sys.argv[1:]]))
