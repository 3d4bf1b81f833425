"""What this installation and this machine are, for figures and bug reports. Imports no torch."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "streamgen-video"
PACKAGE: Final = Path(__file__).parent
# Numbers that glibc's mallopt takes, from its malloc.h.
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
CPU_INFO: Final = Path("/proc/cpuinfo")
MEMORY_INFO: Final = Path("/proc/meminfo")
# What a container may use of the machine's memory, and uses: of cgroups' version 2.
CONTAINER_MEMORY: Final = Path("/sys/fs/cgroup")


def installed_version(distribution: str = DISTRIBUTION) -> str:
    """Return a distribution's version, or "not installed"; a checkout alone is not."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """Return what the processor calls itself."""
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def free_memory() -> int | None:
    """Return the bytes of memory that a new process can have, or None where nobody says."""
    found = [n for n in (_memory_line("MemAvailable"), _free_in_container()) if n is not None]
    return min(found, default=None)


def total_memory() -> int | None:
    """Return the bytes of memory of this machine, or of the container this runs in."""
    found = [n for n in (_memory_line("MemTotal"), _container("memory.max")) if n is not None]
    return min(found, default=None)


def commit() -> str | None:
    """Return the commit of the checkout this runs from, "+" after it when files differ from it.

    None when it is no checkout, or there is no git.
    """
    git = ["git", "-C", str(PACKAGE), "describe", "--always", "--exclude=*", "--dirty=+"]
    # A package installed below somebody else's repository has a commit, but not its own.
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        answer = subprocess.run(git, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def keep_freed_memory() -> bool:
    """Let glibc keep the memory of tensors that are freed; return whether it does.

    It gives large pieces back to the system, which clears every page of them when the next tensor
    asks: a quarter of the time of a decode on a CPU. Holds for the whole process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if platform.libc_ver()[0] else None
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(TRIM_THRESHOLD, (1 << 31) - 1))


def give_back_freed_memory() -> bool:
    """Give the system all that glibc keeps; return whether there was any."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if platform.libc_ver()[0] else None
    return trim is not None and bool(trim(0))


def _memory_line(key: str) -> int | None:
    if MEMORY_INFO.exists():
        for line in MEMORY_INFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return 1024 * int(value.split()[0])
    return None


def _free_in_container() -> int | None:
    most, used = _container("memory.max"), _container("memory.current")
    return None if most is None or used is None else max(0, most - used)


def _container(name: str) -> int | None:
    file = CONTAINER_MEMORY / name
    text = file.read_text().strip() if file.exists() else ""
    return int(text) if text.isdigit() else None
