"""The settings of the sliding window and their arithmetic."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kvcache.errors import WindowError

Rotary = Literal["absolute", "relative"]


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Set the sliding window, in latent frames.

    `window_frames` counts the sink and the chunk being generated; it need not be a multiple of the
    chunk. The first `sink_frames` frames of the stream stay visible for ever. `window_frames=None`
    never evicts and holds up to `max_frames`.

    `rotary` says how far the sink is from the rest. `absolute`: as far as its frames are, further
    with every chunk. `relative`: right before the oldest other frame in view, as if nothing had
    been between them; its keys are rotated again, on pages of their own.
    """

    window_frames: int | None = 21
    sink_frames: int = 0
    max_frames: int | None = None
    rotary: Rotary = "absolute"

    def validate(self, chunk_frames: int, num_pinned: int = 0) -> None:
        """Raise WindowError, with the arithmetic, when chunks of this size cannot be generated.

        `num_pinned` frames stay in view beside the sink. A window of exactly sink + chunk is
        allowed: each chunk replaces the one before it.
        """
        if chunk_frames < 1:
            raise WindowError(f"chunk_frames must be positive, not {chunk_frames}")
        if self.sink_frames < 0:
            raise WindowError(f"sink_frames must not be negative, not {self.sink_frames}")
        if self.rotary not in get_args(Rotary):
            raise WindowError(f"rotary must be absolute or relative, not {self.rotary!r}")
        if self.window_frames is None:
            if self.max_frames is None:
                raise WindowError("an unlimited window (window_frames=None) needs max_frames")
            if self.max_frames < chunk_frames:
                raise WindowError(f"max_frames {self.max_frames} < chunk_frames {chunk_frames}")
            return
        if self.max_frames is not None:
            raise WindowError(
                f"max_frames {self.max_frames} limits only an unlimited window, "
                f"but window_frames is {self.window_frames}"
            )
        needed = self.sink_frames + num_pinned + chunk_frames
        if needed > self.window_frames:
            pinned = f" + {num_pinned} pinned" if num_pinned else ""
            raise WindowError(
                f"sink_frames {self.sink_frames}{pinned} + chunk_frames {chunk_frames} = "
                f"{needed} > window_frames {self.window_frames}"
            )

    def pushed_out(
        self, held: Sequence[int], num_new: int, pinned: Collection[int] = ()
    ) -> list[int]:
        """Return which of the frames held, ascending, leave when so many new ones come.

        Raises WindowError, with the arithmetic, when an unlimited window has no room for them.
        """
        needed = len(held) + num_new
        if self.window_frames is not None:
            behind = [frame for frame in held[self.sink_frames :] if frame not in pinned]
            return behind[: max(0, needed - self.window_frames)]
        if self.max_frames is not None and needed > self.max_frames:
            raise WindowError(
                f"{len(held)} frames held + {num_new} new = {needed} > "
                f"max_frames {self.max_frames} of the unlimited window"
            )
        return []

    def reserved_frames(self, chunk_frames: int, fused: bool) -> int:
        """Return the frames a session reserves.

        In a fused forward the commit row still sees what the next chunk evicts, which takes one
        chunk beside the window.
        """
        if self.window_frames is None:
            assert self.max_frames is not None, self
            held = self.max_frames
        else:
            held = self.window_frames + (chunk_frames if fused else 0)
        return held + self.rotated_frames(fused)

    def rotated_frames(self, fused: bool) -> int:
        """Return how many of the reserved frames hold rotated copies of the sink.

        The two rows of a fused forward may see the sink at two distances.
        """
        if self.rotary == "absolute":
            return 0
        return self.sink_frames * (2 if fused else 1)
