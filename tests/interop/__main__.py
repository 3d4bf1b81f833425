"""`make interop`: other people's players watch a server, each as a person would use it.

    python -m tests.interop [PYTEST OPTIONS]

Exit status: 0 all play, 1 one does not, 3 this machine cannot do it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.interop.hosts import hosts_problem

CANNOT = 3
SYSTEM_PYTHON = "/usr/bin/python3"  # which has the bindings of Debian's packages
COMMANDS = ("gst-launch-1.0", "WebKitWebDriver", "Xvfb")
ELEMENTS = (
    *("webrtcbin", "nicesrc", "dtlsdec", "srtpdec", "rtph264depay", "rtpvp8depay"),
    *("souphttpsrc", "qtdemux", "multipartdemux"),
    *("avdec_h264", "vp8dec", "jpegdec", "pnmenc"),
)


def problem() -> str | None:
    """Say what is missing on this machine, if anything is."""
    for command in COMMANDS:
        if not shutil.which(command):
            return f"there is no {command}"
    for element in ELEMENTS:
        if subprocess.run(["gst-inspect-1.0", element], capture_output=True).returncode:
            return f"GStreamer has no {element}"
    bindings = "import gi; gi.require_version('GstWebRTC', '1.0')"
    if subprocess.run([SYSTEM_PYTHON, "-c", bindings], capture_output=True).returncode:
        return f"{SYSTEM_PYTHON} has no bindings of GStreamer's WebRTC"
    return hosts_problem()


def main() -> int:
    """Run what there is and return the exit status."""
    found = problem()
    if found:
        print(f"interop cannot run here: {found} (PLAYERS in the Makefile names Debian's packages)")
        return CANNOT
    tests = [sys.executable, "-m", "pytest", "-s", str(Path(__file__).parent), *sys.argv[1:]]
    done = subprocess.run(tests, env={**os.environ, "INTEROP": "1"})
    return min(done.returncode, 1)


if __name__ == "__main__":
    sys.exit(main())
