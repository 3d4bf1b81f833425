"""The chunks of a session that are kept: what its K/V and its past can be made from again."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from kvcache import WindowConfig
from streamgen.decoder import PRIME_LATENTS
from streamgen.errors import NotFound
from streamgen.record import ChunkRecord
from streamgen.text import Text

_TIME_ERROR_S: Final = 1e-6  # of media times, which are sums


class History:
    """Records of chunks in the order they were made, on the branch that the session is on.

    Kept are those that the window or the decoder's memory can need, the sink, and the last
    `seconds` of video before the newest, to go back to, whatever its frame rate was.
    """

    def __init__(
        self, window: WindowConfig, seconds: float, chunks: Iterable[ChunkRecord] = ()
    ) -> None:
        self.window = window
        self.seconds = seconds
        self.chunks: deque[ChunkRecord] = deque(chunks)

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[ChunkRecord]:
        return iter(self.chunks)

    def add(self, chunk: ChunkRecord) -> None:
        """Keep a chunk that was just made, and let go of what nobody can ask for any more."""
        self.chunks.append(chunk)
        if self.window.window_frames is None:
            return
        reach_s = chunk.pts_s - self.seconds + _TIME_ERROR_S
        needed: set[int] = set()
        for early in [c for c in self.chunks if c.pts_s + c.num_frames / c.fps > reach_s]:
            needed |= {id(c) for c in self._seen_after(early, self._reach)}
        texts: dict[int, Text] = {}  # of a sink that a recache made again which is forgotten now
        for recaching in [c for c in self.chunks if id(c) not in needed]:
            texts |= dict.fromkeys(map(id, self._made_again_by(recaching)), recaching.text)
        self.chunks = deque(
            dataclasses.replace(c, kv_text=texts[id(c)]) if id(c) in texts else c
            for c in self.chunks
            if id(c) in needed
        )

    def in_window(self) -> list[ChunkRecord]:
        """Return the chunks that the next one may see, oldest first, with those of the sink."""
        return self._seen_after(self.chunks[-1], self.window.window_frames) if self.chunks else []

    def recent_latents(self) -> list[ChunkRecord]:
        """Return the chunks that the decoder's memory is made of."""
        chunks = self._seen_after(self.chunks[-1], self._reach) if self.chunks else []
        last = chunks[-1].first_latent + len(chunks[-1].latents) if chunks else 0
        recent = [c for c in chunks if c.first_latent + len(c.latents) > last - PRIME_LATENTS]
        # Beyond a gap lies the sink, which the decoder has forgotten.
        for later, earlier in pairwise(reversed(recent)):
            if earlier.draw + 1 != later.draw:
                return recent[recent.index(later) :]
        return recent

    def go_back(self, index: int) -> ChunkRecord:
        """Drop all after a chunk and return it. Raises NotFound when it is not kept."""
        found = self.find(index)
        while self.chunks[-1] is not found:
            self.chunks.pop()
        return found

    def find(self, index: int) -> ChunkRecord:
        """Return the chunk of this number. Raises NotFound, naming those that are kept."""
        for chunk in self.chunks:
            if chunk.index == index and self._is_whole(chunk):
                return chunk
        there = runs([chunk.index for chunk in self.chunks if self._is_whole(chunk)])
        raise NotFound(f"chunk {index} is not kept; there is {there}", param="to_chunk")

    def texts_in_window(self) -> list[tuple[ChunkRecord, Text]]:
        """Return the chunks that the next one may see, and what their K/V are made under.

        That is a chunk's own text, or that of the last recache since that made it again.
        """
        texts = {id(chunk): chunk.kv_text for chunk in self.chunks}
        for recaching in self.chunks:
            texts |= dict.fromkeys(map(id, self._made_again_by(recaching)), recaching.text)
        return [(chunk, texts[id(chunk)]) for chunk in self.in_window()]

    def _made_again_by(self, chunk: ChunkRecord) -> list[ChunkRecord]:
        """Return the chunks whose K/V were made again right before a chunk.

        All in view, that is; but a sink that the rest has left behind is kept as it was.
        """
        before = [c for c in self.chunks if c.epoch == chunk.epoch and c.draw < chunk.draw]
        if not chunk.is_recached or not before:
            return []
        seen = self._seen_after(before[-1], self.window.window_frames)
        is_whole = all(one.draw + 1 == other.draw for one, other in pairwise(seen))
        sink = 0 if is_whole and seen[0].draw == 0 else self.window.sink_frames
        return [c for c in seen if c.first_latent + len(c.latents) > sink]

    @property
    def _reach(self) -> int | None:
        """Return the latents that the window or the decoder can need, None for all of them."""
        window = self.window.window_frames
        return None if window is None else max(window, PRIME_LATENTS)

    def _seen_after(self, newest: ChunkRecord, reach: int | None) -> list[ChunkRecord]:
        """Return the sink's chunks and those of the last `reach` latents up to `newest`."""
        before = [c for c in self.chunks if c.epoch == newest.epoch and c.draw <= newest.draw]
        if reach is None:
            return before
        oldest = newest.first_latent + len(newest.latents) - reach
        sink = self.window.sink_frames
        return [
            c for c in before if c.first_latent < sink or c.first_latent + len(c.latents) > oldest
        ]

    def _is_whole(self, chunk: ChunkRecord) -> bool:
        """Return whether all that a window ending with this chunk needs is there."""
        end = chunk.first_latent + len(chunk.latents)
        window = self.window.window_frames
        wanted = set(range(0 if window is None else max(0, end - window), end))
        wanted |= set(range(min(self.window.sink_frames, end)))
        seen = self._seen_after(chunk, window)
        return wanted <= {c.first_latent + i for c in seen for i in range(len(c.latents))}


def runs(numbers: Sequence[int]) -> str:
    """Return ascending numbers in words, neighbours as "first to last"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join(" to ".join(map(str, part)) for part in parts) or "none yet"
