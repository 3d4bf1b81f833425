"""The durable state of a session: what the server keeps so that the engine is disposable.

K/V, decoder state and pixels are remade from it, after a suspension, a rewind, a crash, or in
another server.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamgen.messages import Control
from streamgen.score import ScriptEntry
from streamgen.session_config import SessionConfig
from streamgen.text import Text, TextMix


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRecord:
    """Keep all that makes a chunk's K/V again, or lets a session go back to it.

    `index` and frame numbers are the stream's and never go back; `epoch` counts the resets before
    it; `draw`, which keys the noise, and `first_latent` are the model's and start again with an
    epoch. `latents` are clean, float32 `[n, C, h, w]`. Its pixels were made under `text`, its K/V
    under `kv_text`, which is another for a sink after a recache that is not kept any more.
    `is_recached`: the window's K/V were made again before it. `controls` began to act with it.
    """

    index: int
    epoch: int
    draw: int
    first_latent: int
    latents: npt.NDArray[np.float32]
    text: Text
    kv_text: Text
    revision: int
    seed: int
    steps: int
    first_frame_index: int
    num_frames: int
    pts_s: float
    fps: int
    controls: tuple[Control, ...] = ()
    is_recached: bool = False


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What was done to a session before a chunk: a control, or None when K/V were rebuilt."""

    chunk_index: int
    control: Control | None


@dataclass(frozen=True, slots=True, eq=False)
class SessionRecord:
    """Keep a session between two chunks.

    `text` to `fps` are in effect after the newest chunk; `epoch` and the numbers after it are the
    next chunk's. `revision` is the newest accepted. `pending` holds controls that were accepted and
    have not begun to act, oldest first; `log` all that did, from chunk 0 on.
    """

    config: SessionConfig
    chunks: tuple[ChunkRecord, ...]  # oldest first
    text: TextMix
    revision: int
    seed: int
    steps: int
    fps: int
    epoch: int
    num_chunks: int
    num_model_chunks: int
    num_generated: int
    pts_s: float
    pending: tuple[Control, ...] = ()
    paused: bool = False
    script: tuple[ScriptEntry, ...] = ()
    log: tuple[LogEntry, ...] = ()
