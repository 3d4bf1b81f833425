"""What can go wrong, as one small tree. Each error names the offending value and the way out.

    StreamgenError                 code                retryable
    ├── InvalidRequest             invalid_request     no
    │   ├── InvalidPrompt
    │   └── ConfigError            └── CheckpointError
    ├── Unsupported                unsupported         no
    ├── NotFound                   not_found           no
    ├── Conflict                   conflict            no
    ├── Capacity                   capacity            yes, after retry_after_s
    ├── ModelNotReady              model_not_ready     yes
    ├── OutOfMemory                out_of_memory       yes
    ├── EngineStopped              worker_restarted    yes
    └── GenerationFailed           internal            yes

The codes are those of the wire protocol, so whoever catches one can pass it on as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

_NUM_NAMED: Final = 3


class StreamgenError(Exception):
    """Base of everything the engine raises for its caller.

    `message` is a sentence for a person, `param` the request field at fault or None, and
    `retry_after_s` the seconds after which the same request may succeed, or None.
    """

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        # In tenths, and never too early.
        self.retry_after_s = None if retry_after_s is None else math.ceil(10 * retry_after_s) / 10

    def __reduce__(self) -> tuple[object, ...]:
        # Exception pickles its positional arguments only; these cross the process border.
        return _rebuild, (type(self), self.message, self.param, self.retry_after_s)


class InvalidRequest(StreamgenError):
    """The request is wrong in itself: repeating it cannot help."""

    code = "invalid_request"


class InvalidPrompt(InvalidRequest):
    """The prompt is empty, too long or not text that can be sent back."""


class ConfigError(InvalidRequest):
    """An option of the engine is unknown, has an impossible value or contradicts another."""


class NoDevice(ConfigError):
    """A device that an option names is not there, or this torch cannot use it."""


class CheckpointError(ConfigError):
    """A checkpoint is missing, is no such file, does not fit the model or misbehaves."""


class Unsupported(StreamgenError):
    """Well formed, but this model or this version cannot do it."""

    code = "unsupported"


class NotFound(StreamgenError):
    """No such session or model."""

    code = "not_found"


class Conflict(StreamgenError):
    """The session is not in a state that allows this."""

    code = "conflict"


class Capacity(StreamgenError):
    """Every place is taken; the same request may succeed later."""

    code = "capacity"
    retryable = True


class ModelNotReady(StreamgenError):
    """The engine is still loading or warming up."""

    code = "model_not_ready"
    retryable = True


class OutOfMemory(StreamgenError):
    """A pass did not fit into the device's memory twice in a row, or the model never will."""

    code = "out_of_memory"
    retryable = True


class EngineStopped(StreamgenError):
    """The engine's process ended, so its sessions did too."""

    code = "worker_restarted"
    retryable = True


class GenerationFailed(StreamgenError):
    """A pass raised, or gave values that are not finite, twice in a row."""

    code = "internal"
    retryable = True


def ending_error(code: str, message: str) -> StreamgenError:
    """Return the error that a session ended with, from its code."""
    kinds: tuple[type[StreamgenError], ...] = (OutOfMemory, EngineStopped)
    return next((k for k in kinds if k.code == code), GenerationFailed)(message)


def first_names(names: Sequence[str]) -> str:
    """Return the first few of the names that a message is about."""
    more = ", ..." if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more


def _rebuild(
    kind: type[StreamgenError], message: str, param: str | None, retry_after_s: float | None
) -> StreamgenError:
    return kind(message, param=param, retry_after_s=retry_after_s)
