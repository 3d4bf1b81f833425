"""Sessions that have the same past share what comes next, until they differ.

A lineage is a digest of all that decided a session's K/V so far. Who is about to make a chunk that
another session of the same lineage has just made takes its latents and pages instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from streamgen.chunk_spec import ChunkSpec
from streamgen.record import ChunkRecord
from streamgen.session import Session
from streamgen.work import ChunkWork


def new_lineage(session: Session) -> bytes:
    """Return the lineage of a session that has made nothing."""
    window = session.config.window
    return hashlib.sha256(repr((window, session.preset.name)).encode()).digest()


def next_lineage(session: Session, spec: ChunkSpec) -> bytes:
    """Return the lineage after a chunk."""
    assert session.table is not None
    before = b"" if spec.is_reset else session.lineage
    window = session.table.config  # shorter under overload
    decided = (spec.draw, spec.text, spec.seed, spec.steps, spec.is_recached, window)
    return hashlib.sha256(before + repr(decided).encode()).digest()


def find_twin(
    session: Session, spec: ChunkSpec, sessions: Iterable[Session]
) -> ChunkWork | tuple[Session, ChunkRecord] | None:
    """Return who makes or holds the chunk that a session is about to begin.

    That is the work to wait for, or a session that has it in its pages, with its record.
    """
    lineage = next_lineage(session, spec)
    for other in sessions:
        if other is session or other.table is None:
            continue
        work = other.work
        # A live session does not wait for a batch job, which is served last.
        waits = session.is_batch or not other.is_batch
        if isinstance(work, ChunkWork) and waits and next_lineage(other, work.spec) == lineage:
            return work
        record = other.made.get(lineage)
        if record is not None and _holds(other, record):
            return other, record
    return None


def _holds(session: Session, record: ChunkRecord) -> bool:
    assert session.table is not None
    frames = range(record.first_latent, record.first_latent + len(record.latents))
    if session.needs_rebuild or (session.work and not isinstance(session.work, ChunkWork)):
        return False
    return set(frames) <= set(session.table.frames)
