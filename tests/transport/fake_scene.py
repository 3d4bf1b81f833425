"""What a fake stream would remember of itself: small values that can be gone back to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from transport.fields import Prompt, PromptText, ProtocolError
from transport.stream import StreamConfig, StreamError
from transport.wire import Transition


@dataclass(frozen=True)
class Scene:
    """A stream between two chunks. `frame` is the scene's own time; the numbers are the wire's."""

    prompt: Prompt
    revision: int
    seed: int
    frame: int = 0
    num_chunks: int = 0
    num_frames: int = 0
    pts_s: float = 0.0
    before: Prompt | None = None  # what a blend comes from
    blend_chunks: int = 1
    blended: int = 1
    blend_id: str | None = None

    def turned(self, event_id: str, revision: int, prompt: Prompt, how: Transition) -> Scene:
        """Return the scene with a new prompt."""
        chunks = how.chunks or 3 if how.mode == "blend" else 1
        return replace(
            self,
            prompt=prompt,
            revision=revision,
            frame=0 if how.mode == "reset" else self.frame,
            before=self.prompt,
            blend_chunks=chunks,
            blended=0,
            blend_id=event_id,
        )

    def gone_back(self, past: Scene) -> Scene:
        """Return an earlier scene under the numbers of now."""
        return replace(
            past, num_chunks=self.num_chunks, num_frames=self.num_frames, pts_s=self.pts_s
        )


def to_blob(scene: Scene, config: StreamConfig) -> bytes:
    """Write a snapshot."""
    return json.dumps({"scene": asdict(scene), "config": asdict(config)}).encode()


def from_blob(blob: bytes) -> tuple[Scene, StreamConfig]:
    """Read a snapshot; StreamError for anything else."""
    try:
        data = json.loads(blob)
        scene, config = data["scene"], data["config"]
        scene["prompt"] = PromptText().parse(scene["prompt"], "prompt")
        config["prompt"] = scene["prompt"]
        scene["before"] = None
        return Scene(**scene), StreamConfig(**config)
    except (ValueError, KeyError, TypeError, ProtocolError) as error:
        raise StreamError("invalid_request", f"this is no snapshot: {error!r}") from error
