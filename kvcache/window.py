"""The settings of the sliding window and their arithmetic."""

from dataclasses import dataclass

from kvcache.errors import WindowError


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Set the sliding window, in latent frames.

    `window_frames` counts the sink and the chunk being generated; it need not be a multiple of the
    chunk. The first `sink_frames` frames of the stream stay visible for ever. `window_frames=None`
    never evicts and holds up to `max_frames`.
    """

    window_frames: int | None = 21
    sink_frames: int = 0
    max_frames: int | None = None

    def validate(self, chunk_frames: int) -> None:
        """Raise WindowError, with the arithmetic, when chunks of this size cannot be generated.

        A window of exactly sink + chunk is allowed: each chunk replaces the one before it.
        """
        if chunk_frames < 1:
            raise WindowError(f"chunk_frames must be positive, not {chunk_frames}")
        if self.sink_frames < 0:
            raise WindowError(f"sink_frames must not be negative, not {self.sink_frames}")
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
        if self.sink_frames + chunk_frames > self.window_frames:
            raise WindowError(
                f"sink_frames {self.sink_frames} + chunk_frames {chunk_frames} = "
                f"{self.sink_frames + chunk_frames} > window_frames {self.window_frames}"
            )

    def reserved_frames(self, chunk_frames: int, fused: bool) -> int:
        """Return the frames a session reserves.

        In a fused forward the commit row still sees what the next chunk evicts, which takes one
        chunk beside the window.
        """
        if self.window_frames is None:
            assert self.max_frames is not None, self
            return self.max_frames
        return self.window_frames + (chunk_frames if fused else 0)
