"""The WebRTC viewers of one server: how many there may be, and how each comes and goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from transport.broadcast import Broadcast
from transport.ice import check_ice_servers, check_public_ip, check_udp_ports, link_headers
from transport.metrics import Metrics
from transport.options import TransportOptions
from transport.rtc_candidates import Reach
from transport.rtc_patches import agree_to_delays, check_names, widen_ciphers
from transport.sdp_rules import read_offer
from transport.stream import StreamError
from transport.video import CODECS
from transport.webrtc import Peer

logger = logging.getLogger(__name__)

MAX_PEERS: Final = 64
MAX_CONNECTING: Final = 48  # offers that were answered and not followed by a connection
MAX_CONNECTING_TO_ONE: Final = 12  # of one session, so that its viewers leave room for others'


class Peers:
    """Answers offers and keeps their viewers until they leave.

    Raises ValueError when the options name no proper ICE servers, address or ports.
    """

    def __init__(self, options: TransportOptions, metrics: Metrics) -> None:
        check_names()
        widen_ciphers()
        agree_to_delays()
        self._servers = check_ice_servers(options.ice_servers, options.turn_secret)
        self._secret = options.turn_secret
        public_ip = options.public_ip and check_public_ip(options.public_ip)
        ports = options.udp_ports and check_udp_ports(*options.udp_ports)
        # A relay of its own would help this server only where it can send nothing at all.
        asked = tuple((one.host, one.port) for one in self._servers if one.scheme == "stun")
        self._reach = Reach(asked, public_ip, ports)
        self._codecs = CODECS[::-1] if options.encoder == "vp8" else CODECS
        self._failures = metrics.viewers.webrtc_ice_failures_total
        self._peers: dict[str, Peer] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._answering: list[Broadcast] = []

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[Peer]:
        return iter(tuple(self._peers.values()))

    def links(self) -> list[str]:
        """Return what a viewer is told of ICE servers, with credentials of its own."""
        return link_headers(self._servers, self._secret)

    def check_room(self, broadcast: Broadcast) -> None:
        """Raise StreamError when there are as many viewers, or answers without one, as may be."""
        if len(self._peers) + len(self._answering) >= MAX_PEERS:
            raise _full(f"all {MAX_PEERS} places for WebRTC viewers are taken", retry_after_s=10)
        connecting = [peer.broadcast for peer in self if not peer.connected] + self._answering
        to_this = connecting.count(broadcast)
        if to_this >= MAX_CONNECTING_TO_ONE:
            raise _full(f"{to_this} viewers are connecting to the session already", retry_after_s=2)
        if len(connecting) >= MAX_CONNECTING:
            raise _full(f"{len(connecting)} viewers are connecting already", retry_after_s=2)

    async def answer(self, broadcast: Broadcast, sdp: str) -> tuple[Peer, str]:
        """Let a viewer watch; return it and the answer to its offer.

        Raises StreamError for an offer that cannot be answered and when there is no room.
        """
        offer = read_offer(sdp, self._codecs)
        self.check_room(broadcast)
        if broadcast.stream.state == "queued":
            raise StreamError(
                "conflict",
                "the session still waits for its place: try again",
                retryable=True,
                retry_after_s=2,
            )
        peer = Peer(broadcast, offer, self._reach)
        self._answering.append(broadcast)
        try:
            await broadcast.attach(peer)
            answer = await peer.answer()
        except BaseException:
            await peer.close()
            raise
        finally:
            self._answering.remove(broadcast)
        self._peers[peer.id] = peer
        self._runs[peer.id] = asyncio.get_running_loop().create_task(self._run(peer))
        return peer, answer

    def find(self, session_id: str, peer_id: str) -> Peer:
        """Return a viewer of a session; raise StreamError when there is none of this name."""
        peer = self._peers.get(peer_id)
        if peer is None or peer.broadcast.id != session_id or peer.finished:
            raise StreamError("not_found", "there is no such viewer: it has left or never came")
        return peer

    async def remove(self, peer: Peer) -> None:
        """End a viewer's connection and wait until it is gone."""
        peer.leave()
        if run := self._runs.get(peer.id):
            await asyncio.wait({run})

    async def close(self) -> None:
        """End all connections."""
        for peer in self:
            peer.leave()
        if runs := set(self._runs.values()):
            await asyncio.wait(runs)

    async def _run(self, peer: Peer) -> None:
        logger.info("peer %s watches session %s as %s", peer.id, peer.broadcast.id, peer.codec)
        try:
            await peer.watch()
        finally:
            self._failures.inc(peer.never_connected)
            del self._peers[peer.id]
            try:
                await peer.close()
            finally:
                del self._runs[peer.id]
                logger.info("peer %s left", peer.id)


def _full(message: str, *, retry_after_s: float) -> StreamError:
    return StreamError("capacity", message, retryable=True, retry_after_s=retry_after_s)
