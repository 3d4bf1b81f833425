"""What the server is told at its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """Limits and facts of one server. `settings` is what `/v1/config` shows."""

    version: str = "0"
    root_path: str = ""
    web_root: Path = Path(__file__).parent / "web"
    settings: Mapping[str, Any] = field(default_factory=dict)
    jpeg_quality: int = 80
    encoder: str = (
        "auto"  # of H.264: "x264" or "nvenc"; "vp8" prefers VP8 where a viewer can choose
    )
    bitrate: int | None = None  # of video at most, in bits a second; None goes by the size
    ice_servers: Sequence[str] = ()
    turn_secret: str | None = field(default=None, repr=False)
    public_ip: str | None = None  # is told to WebRTC viewers in place of the host's own
    udp_ports: tuple[int, int] | None = None
    record_dir: Path | None = None
    record_max_bytes: int = 256 * 1024 * 1024  # of one session
    max_viewers: int = 64
    max_snapshot_bytes: int = 64 * 1024 * 1024  # 4 MB for a window at 832x480, more with a history
    first_message_timeout_s: float = 10.0
    send_timeout_s: float = 10.0  # a connection that takes nothing for so long is dropped
    attach_timeout_s: float = 30.0  # a session made over HTTP waits so long for its first viewer
    idle_timeout_s: float | None = 60.0  # a suspended session is kept so long
    max_session_s: float | None = None
