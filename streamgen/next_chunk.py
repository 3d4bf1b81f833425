"""How a session comes to its next chunk: going back, following its script, taking its controls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from streamgen.chunk_spec import ChunkSpec
from streamgen.messages import Control, Rewind, SetPrompt, Superseded, Update
from streamgen.pending import Blend, Pending
from streamgen.record import LogEntry, SessionRecord
from streamgen.session import Session
from streamgen.text import as_mix


def follow_script(session: Session, now: float) -> list[Superseded]:
    """Accept what the script has for the next chunk; return what that took the place of.

    The control of an entry may be None: then K/V are made again, as after a suspension.
    """
    superseded: list[Superseded] = []
    while session.spec is None and session.script:
        entry = session.script[0]
        if not entry.is_due(session.num_chunks, session.pts_s):
            break
        session.script.popleft()
        if entry.control is None:
            session.needs_rebuild = len(session.history) > 0
        else:
            superseded += session.accept(entry.control, now)[1]
            session.pending.is_exact |= isinstance(entry.control, SetPrompt)
    return superseded


def go_back(session: Session, now: float) -> list[Superseded]:
    """Do the rewind that is pending, now that no chunk is in work; return what it called off.

    Its event stays pending, for the next chunk to answer. Raises NotFound, and changes nothing,
    when the chunk is not kept any more.
    """
    rewind = session.pending.rewind
    assert rewind is not None
    assert session.work is None
    chunk = session.history.go_back(rewind.to_chunk)
    session.pending.is_rewound = True
    session.blend = None
    session.text, session.seed, session.steps = as_mix(chunk.text), chunk.seed, chunk.steps
    session.fps = chunk.fps
    session.epoch, session.num_model_chunks = chunk.epoch, chunk.draw + 1
    session.num_played, session.played_at = session.num_generated, None
    session.started_at = now
    session.needs_rebuild = True
    spec, session.spec = session.spec, None
    if spec is None:
        return []
    session.num_chunks -= 1  # it failed, and is not tried again
    return [Superseded(event_id) for event_id in spec.event_ids]


def next_spec(
    session: Session, trade: Callable[[Session, ChunkSpec], ChunkSpec] = lambda _, spec: spec
) -> ChunkSpec:
    """Return the next chunk, with all pending controls taken into it.

    Until that chunk is denoised it stays the next one, and controls wait for the one after. `trade`
    makes of what was asked for what the device can do.
    """
    if session.spec is not None:
        return session.spec
    taken, session.pending = session.pending.split()
    controls = tuple(taken.controls())
    session.seed = _value(taken.seed, "seed", session.seed)
    session.steps = _value(taken.steps, "steps", session.steps)
    session.fps = _value(taken.fps, "fps", session.fps)
    is_reset = taken.is_reset and session.num_model_chunks > 0
    if is_reset:
        session.epoch, session.num_model_chunks = session.epoch + 1, 0
    _turn_to(session, taken)
    recaches = taken.prompt is not None and taken.prompt.transition == "recache"
    recaches = recaches and session.num_model_chunks > 0
    session.spec = trade(session, _lay_out(session, is_reset, recaches, controls))
    session.num_chunks += 1
    session.num_model_chunks += 1
    return session.spec


def _value(update: Update | None, name: str, otherwise: int) -> int:
    return otherwise if update is None else int(getattr(update, name))


def _turn_to(session: Session, taken: Pending) -> None:
    """Let the prompt that was taken, or the blend that is under way, decide the text."""
    change = taken.prompt
    if taken.rewind is not None or change is not None:
        session.shown_revision = session.revision
    if change is None:
        if session.blend is not None:
            done = session.blend.num_done + 1
            session.blend = dataclasses.replace(session.blend, num_done=done)
        return
    shown = as_mix(session.blend.text) if session.blend is not None else session.text
    session.text, session.blend = change.text, None
    if change.transition == "blend" and session.num_model_chunks > 0:
        session.blend = Blend(shown, change, 1)


def _lay_out(
    session: Session, is_reset: bool, is_recached: bool, controls: tuple[Control, ...]
) -> ChunkSpec:
    layout, draw, blend = session.preset.chunks, session.num_model_chunks, session.blend
    num_frames = layout.first_pixel_frame(draw + 1) - layout.first_pixel_frame(draw)
    wanted = session.config.num_frames
    left = num_frames if wanted is None else wanted - session.num_generated
    blending = () if blend is None else (blend.event_id,)
    begun = (c.event_id for c in controls if c.event_id is not None)
    active = tuple(dict.fromkeys((*blending, *begun)))
    goes_on = blending if blend is not None and not blend.is_done else ()
    return ChunkSpec(
        index=session.num_chunks,
        first_frame_index=session.num_generated,
        num_frames=min(num_frames, left),
        pts_s=session.pts_s,
        fps=session.fps,
        epoch=session.epoch,
        draw=draw,
        first_latent=layout.first_frame(draw),
        num_latents=layout.num_frames(draw),
        text=session.text if blend is None else blend.text,
        revision=session.shown_revision,
        seed=session.seed,
        steps=session.steps,
        is_reset=is_reset,
        is_recached=is_recached,
        is_last=wanted is not None and left <= num_frames,
        controls=controls,
        active_event_ids=active,
        completed_event_ids=tuple(e for e in active if e not in goes_on),
    )


def record_of(session: Session) -> SessionRecord:
    """Return the durable state as it was after the newest chunk; what is in work is pending again.

    A blend that is under way is pending too, with the chunks that it has left.
    """
    config, chunks = session.config, tuple(session.history)
    newest = chunks[-1] if chunks else None
    unmade = session.spec is not None
    taken = () if session.spec is None else session.spec.controls
    pending = (*_blend_left(session, taken), *taken, *session.pending.controls())
    return SessionRecord(
        config=config,
        chunks=chunks,
        text=config.prompt if newest is None else as_mix(newest.text),
        revision=session.revision,
        seed=config.seed if newest is None else newest.seed,
        steps=config.steps if newest is None else newest.steps,
        fps=config.fps if newest is None else newest.fps,
        epoch=0 if newest is None else newest.epoch,
        num_chunks=session.num_chunks - unmade,
        num_model_chunks=0 if newest is None else newest.draw + 1,
        num_generated=session.num_generated,
        pts_s=session.pts_s,
        pending=pending,
        paused=session.paused,
        script=tuple(session.script),
        log=tuple(session.log),
    )


def past_of(session: Session, at_chunk: int | None) -> SessionRecord:
    """Return what a fork begins with: the past up to a chunk, by default the newest.

    What was asked of the parent since is the parent's, but for a blend that is under way, and for
    what the script has for later than that chunk. Numbers go on after it. Raises NotFound when it
    is not kept.
    """
    record = record_of(session)
    newest = record.chunks[-1] if record.chunks else None
    if newest is None or at_chunk in (None, newest.index):
        pending = tuple(
            dataclasses.replace(control, event_id=None) for control in _blend_left(session, ())
        )
        revision = (0 if newest is None else newest.revision) + len(pending)
        went_back = newest is not None and newest.index + 1 != record.num_chunks
        log = record.log
        if newest is not None and went_back:  # and made nothing since, so no log tells of it
            log = (*log, LogEntry(record.num_chunks, Rewind(newest.index)))
        return dataclasses.replace(record, pending=pending, revision=revision, log=log)
    assert at_chunk is not None
    last = session.history.find(at_chunk)
    chunks = record.chunks[: record.chunks.index(last) + 1]
    rebuilt = LogEntry(last.index + 1, None)
    given = session.config.script  # more of it is to come again than is left of it here
    return dataclasses.replace(
        record,
        chunks=chunks,
        script=tuple(e for e in given if not e.is_due(last.index, last.pts_s)),
        text=as_mix(last.text),
        revision=last.revision,
        seed=last.seed,
        steps=last.steps,
        fps=last.fps,
        epoch=last.epoch,
        num_chunks=last.index + 1,
        num_model_chunks=last.draw + 1,
        num_generated=last.first_frame_index + last.num_frames,
        pts_s=last.pts_s + last.num_frames / last.fps,
        pending=(),
        log=(*(e for e in record.log if e.chunk_index <= last.index), rebuilt),
    )


def _blend_left(session: Session, taken: tuple[Control, ...]) -> tuple[Control, ...]:
    blend = session.blend
    if blend is None or blend.change.control in taken:
        return ()
    left = blend.change.num_chunks - blend.num_done + (session.spec is not None)
    return (SetPrompt(blend.change.text, "blend", left, blend.change.curve, blend.event_id),)


def take_up(session: Session, record: SessionRecord) -> None:
    """Go on where a record was made; its chunks are in the session's history already."""
    session.text, session.seed = record.text, record.seed
    session.steps, session.fps = record.steps, record.fps
    session.epoch, session.num_chunks = record.epoch, record.num_chunks
    session.num_model_chunks = record.num_model_chunks
    session.num_generated = session.num_played = record.num_generated
    session.pts_s = record.pts_s
    session.needs_rebuild = bool(record.chunks)
    session.log = [*record.log]
    session.script.clear()
    session.script.extend(record.script)
    # Every pending prompt or rewind counts one: afterwards the newest has the number it was told.
    bumps = sum(not isinstance(control, Update) for control in record.pending)
    session.revision = record.revision - bumps
    session.shown_revision = record.chunks[-1].revision if record.chunks else 0
    for control in record.pending:
        session.accept(control, session.opened_at, again=True)
    session.paused = record.paused
