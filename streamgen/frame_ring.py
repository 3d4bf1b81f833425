"""Frames from one process to another through shared memory: a ring of slots, one chunk each.

The client makes the ring and lets the slots go free, the engine fills them. The memory is a file
without a name once both have opened it, so however a process dies, nothing is left behind; and a
reader's view keeps its mapping alive, whoever closes the ring.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

SHARED_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Where a ring is and how it is divided; goes to the other process."""

    path: Path
    num_slots: int
    slot_bytes: int


class FrameRing:
    """One process's mapping of the ring. Only the writer knows which slots are free."""

    def __init__(self, layout: RingLayout) -> None:
        self.layout = layout
        with layout.path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), layout.num_slots * layout.slot_bytes)
        self._free = deque(range(layout.num_slots))

    @classmethod
    def create(cls, num_slots: int, slot_bytes: int) -> FrameRing:
        """Make a ring, in shared memory where it fits. `unlink` it when the other end is open."""
        size = num_slots * slot_bytes
        fits = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > size
        handle, name = tempfile.mkstemp(".frames", "streamgen-", SHARED_MEMORY if fits else None)
        try:
            os.ftruncate(handle, size)
        finally:
            os.close(handle)
        return cls(RingLayout(Path(name), num_slots, slot_bytes))

    def unlink(self) -> None:
        """Take the file's name away; mappings stay. Idempotent."""
        self.layout.path.unlink(missing_ok=True)

    def put(self, frames: npt.NDArray[np.uint8]) -> int | None:
        """Copy a chunk's frames into a free slot and return it, or None when there is none."""
        assert frames.nbytes <= self.layout.slot_bytes, (frames.shape, self.layout)
        if not self._free:
            return None
        slot = self._free.popleft()
        start = slot * self.layout.slot_bytes
        target = np.frombuffer(self._memory, np.uint8, frames.nbytes, start)
        np.copyto(target, frames.reshape(-1))
        return slot

    def release(self, slot: int) -> None:
        """Let a slot be written again."""
        assert slot not in self._free, slot
        self._free.append(slot)

    def view(self, slot: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Return a read-only view of a slot's frames, valid until the slot is let go."""
        start = slot * self.layout.slot_bytes
        count = int(np.prod(shape))
        frames = np.frombuffer(self._memory, np.uint8, count, start).reshape(shape)
        frames.flags.writeable = False
        return frames
