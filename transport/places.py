"""How many may watch at a time, on all sessions of a server together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from transport.fanout import Spectator, Viewer
from transport.stream import StreamError


class Places:
    """Gives places to viewers. `watching()` returns those who have entered.

    Sockets for messages alone are bounded too: there may be one beside each with pictures.
    """

    def __init__(self, most: int, watching: Callable[[], Iterable[Spectator]]) -> None:
        self._most = most
        self._watching = watching
        self._entering: set[Spectator] = set()  # a suspended session takes its time to wake

    @contextmanager
    def hold(self, viewer: Spectator) -> Iterator[None]:
        """Keep a place for a viewer while it enters; raise StreamError when there is none."""
        self.check(shows=_shows(viewer))
        self._entering.add(viewer)
        try:
            yield
        finally:
            self._entering.discard(viewer)

    def check(self, *, shows: bool = True) -> None:
        """Raise StreamError when there is no place, for one that shows pictures or does not."""
        taken = self._entering | set(self._watching())
        if sum(_shows(one) == shows for one in taken) >= self._most:
            raise StreamError(
                "capacity", f"all {self._most} places for viewers are taken", retryable=True,
                retry_after_s=10,
            )  # fmt: skip


def _shows(viewer: Spectator) -> bool:
    return not (isinstance(viewer, Viewer) and viewer.format == "none")
