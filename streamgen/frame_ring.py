"""Frames from one process to another through shared memory: a ring of slots, one chunk each.

The client makes the ring and lets slots go free, the engine fills them. The memory never has a
name, so however a process dies, nothing is left behind; and a reader's view keeps its mapping
alive, whatever becomes of the ring.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections import deque
from multiprocessing import reduction
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SHARED_MEMORY: Final = Path("/dev/shm")


class FrameRing:
    """One process's mapping of the ring; only the writer asks which slots are free.

    As an argument of a process that is being started it becomes that process's own mapping. After
    that `seal` it.
    """

    def __init__(self, descriptor: int, num_slots: int, slot_bytes: int) -> None:
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self._descriptor: int | None = descriptor
        self._memory = mmap.mmap(descriptor, num_slots * slot_bytes)
        self._free = deque(range(num_slots))

    @classmethod
    def create(cls, num_slots: int, slot_bytes: int) -> FrameRing:
        """Make a ring, in shared memory where it fits and else in a temporary file."""
        size = num_slots * slot_bytes
        fits = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > size
        with tempfile.TemporaryFile(dir=SHARED_MEMORY if fits else None) as file:
            os.ftruncate(file.fileno(), size)
            return cls(os.dup(file.fileno()), num_slots, slot_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        assert self._descriptor is not None, "the ring is sealed"
        return _rebuild, (reduction.DupFd(self._descriptor), self.num_slots, self.slot_bytes)

    def seal(self) -> None:
        """Give no more processes the ring; mappings stay. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def put(self, frames: npt.NDArray[np.uint8]) -> int | None:
        """Copy a chunk's frames into a free slot and return it, or None when there is none."""
        assert frames.nbytes <= self.slot_bytes, (frames.shape, self.slot_bytes)
        if not self._free:
            return None
        slot = self._free.popleft()
        target = np.frombuffer(self._memory, np.uint8, frames.nbytes, slot * self.slot_bytes)
        np.copyto(target, frames.reshape(-1))
        return slot

    def release(self, slot: int) -> None:
        """Let a slot be written again."""
        assert slot not in self._free, slot
        self._free.append(slot)

    def view(self, slot: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Return a read-only view of a slot's frames, valid until the slot is let go."""
        count = int(np.prod(shape))
        flat = np.frombuffer(self._memory, np.uint8, count, slot * self.slot_bytes)
        frames = flat.reshape(shape)
        frames.flags.writeable = False
        return frames


def _rebuild(descriptor: Any, num_slots: int, slot_bytes: int) -> FrameRing:
    ring = FrameRing(descriptor.detach(), num_slots, slot_bytes)
    ring.seal()
    return ring
