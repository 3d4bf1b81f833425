"""Errors of the cache.

    KVCacheError
    ├── GeometryError     sizes that do not fit together (also a ValueError)
    ├── WindowError       impossible window settings or a frame out of turn (also a ValueError)
    ├── PoolExhausted     not enough pages or slots; try again later
    ├── OwnershipError    a page freed twice, or used by somebody who does not hold it
    ├── AuditError        the allocator's books do not balance
    └── BackendError      an attention backend is missing, cannot work here, or is wrong

Nothing is changed by a call that raises one of them.
"""


class KVCacheError(Exception):
    """Base of every error this package raises."""


class GeometryError(KVCacheError, ValueError):
    """Sizes do not fit together."""


class WindowError(KVCacheError, ValueError):
    """The window's arithmetic does not allow this."""


class PoolExhausted(KVCacheError):
    """The pool cannot give what was asked for.

    `requested` and `available` count in the unit `noun` of the pool that refused.
    """

    def __init__(self, requested: int, available: int, noun: str) -> None:
        super().__init__(requested, available, noun)
        self.requested = requested
        self.available = available
        self.noun = noun

    def __str__(self) -> str:
        return f"{self.requested} {self.noun} requested, {self.available} available"


class OwnershipError(KVCacheError):
    """A page was freed or shared by somebody who does not hold it."""


class AuditError(KVCacheError):
    """The allocator's books do not balance."""


class BackendError(KVCacheError):
    """An attention backend is missing, cannot work here, or computes something else."""
