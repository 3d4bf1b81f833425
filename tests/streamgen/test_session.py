"""The state of one video: numbers, clock, controls. No model is involved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from streamgen.chunk_spec import ChunkSpec
from streamgen.errors import InvalidPrompt, InvalidRequest, NotFound, StreamgenError
from streamgen.history import History
from streamgen.messages import Control, Receipt, Rewind, SetPrompt, Superseded, Update
from streamgen.models.presets import Preset
from streamgen.next_chunk import go_back, next_spec
from streamgen.record import ChunkRecord
from streamgen.session import Session, SessionState
from streamgen.session_config import SessionRequest
from streamgen.startup import resolve
from streamgen.text import TextMix
from tests.streamgen.tiny import TINY, tiny_config, with_chunks


def new_session(preset: Preset = TINY, now: float = 100.0, **fields: Any) -> Session:
    request = SessionRequest(**({"prompt": "scene 00", "seed": 1} | fields))
    config = request.resolve(preset, resolve(tiny_config(), preset))
    table = cast(Any, SimpleNamespace())  # any table will do: a session only asks if there is one
    return Session("s", config, preset, now, History(config.window, 0), table=table)


def denoise(session: Session) -> ChunkRecord:
    """Let the session's next chunk be made."""
    spec = next_spec(session)
    latents = np.zeros((spec.num_latents, 1, 1, 1), np.float32)
    return session.keep(spec, latents, lineage=b"")


def make_chunk(session: Session) -> ChunkSpec:
    """Let the session's next chunk be made and played."""
    spec = next_spec(session)
    denoise(session)
    session.mark_played(spec.first_frame_index + spec.num_frames - 1, 100.0)
    return spec


def accept(session: Session, control: Control) -> tuple[Receipt, list[Superseded]]:
    return session.accept(control, 100.0)


def test_frames_and_chunks_are_numbered_without_gaps() -> None:
    specs = [make_chunk(s) for s in [new_session()] for _ in range(4)]
    assert [s.index for s in specs] == [0, 1, 2, 3]
    assert [s.first_latent for s in specs] == [0, 3, 6, 9]
    assert [s.num_frames for s in specs] == [9, 12, 12, 12]
    assert [s.first_frame_index for s in specs] == [0, 9, 21, 33]


def test_a_shorter_first_chunk_gives_one_frame_less_for_each_latent_it_lacks() -> None:
    session = new_session(with_chunks(chunk_frames=3, first_chunk_frames=1))
    specs = [make_chunk(session) for _ in range(3)]
    assert [s.first_latent for s in specs] == [0, 1, 4]
    assert [s.num_frames for s in specs] == [1, 12, 12]


def test_a_reset_starts_the_models_numbers_again_and_no_others() -> None:
    session = new_session()
    make_chunk(session)
    make_chunk(session)
    accept(session, Update(reset="cache", event_id="e"))
    spec = make_chunk(session)
    assert spec.is_reset
    assert (spec.index, spec.first_frame_index) == (2, 21)
    assert (spec.draw, spec.first_latent, spec.num_frames) == (0, 0, 9)
    assert spec.event_ids == ("e",)
    assert not make_chunk(session).is_reset


def test_a_reset_before_the_first_chunk_has_nothing_to_do_and_is_answered() -> None:
    session = new_session()
    accept(session, Update(reset="cache", event_id="e"))
    spec = make_chunk(session)
    assert not spec.is_reset
    assert spec.event_ids == ("e",)


@pytest.mark.parametrize("wanted", [1, 2, 9, 10, 21, 22, 80, 81, 82, 83])
def test_q27_exactly_the_frames_asked_for_are_laid_out(wanted: int) -> None:
    session = new_session(num_frames=wanted)
    specs = []
    while session.may_begin:
        specs.append(make_chunk(session))
    assert sum(spec.num_frames for spec in specs) == wanted
    assert [spec.is_last for spec in specs] == [False] * (len(specs) - 1) + [True]


def test_a_chunk_may_begin_while_the_lead_is_at_most_a_chunk_and_two_frames() -> None:
    session = new_session()
    for _ in range(2):
        denoise(session)
    assert session.lead_frames == 21
    assert not session.may_begin
    session.mark_played(5, 100.0)
    assert (session.lead_frames, session.may_begin) == (15, False)
    session.mark_played(6, 100.1)
    assert (session.lead_frames, session.may_begin) == (14, True)


def test_reports_of_frames_not_made_or_played_before_change_nothing() -> None:
    session = new_session()
    make_chunk(session)
    session.mark_played(400, 200.0)
    session.mark_played(3, 200.0)
    assert (session.num_played, session.played_at) == (9, 100.0)


def test_missing_cache_contents_are_made_whatever_the_lead() -> None:
    session = new_session()
    for _ in range(2):
        denoise(session)
    assert (session.lead_frames, session.may_begin) == (21, False)
    session.needs_rebuild = True
    assert session.may_begin
    session.paused = True
    assert session.may_begin


def test_the_deadline_is_when_playout_runs_dry() -> None:
    session = new_session(now=50.0)
    assert session.deadline_s(50.2) == 51.0  # arrival and the target
    denoise(session)
    session.mark_played(0, 51.0)
    assert session.deadline_s(51.0) == 51.0 + 8 / 16


def test_a_player_that_stands_still_is_not_more_urgent_every_second() -> None:
    session = new_session(now=50.0)
    denoise(session)
    session.mark_played(0, 51.0)
    assert session.deadline_s(80.0) == 80.0 + 7 / 16
    session.mark_played(8, 81.0)  # nothing left: dry since then
    assert session.deadline_s(90.0) == 81.0


def test_q22_of_sixty_prompts_the_last_one_wins_and_the_others_are_told() -> None:
    """Sixty prompts in three seconds; a chunk begins after every tenth."""
    session = new_session()
    superseded: list[str] = []
    seen = [make_chunk(session).revision]
    for n in range(1, 61):
        receipt, events = accept(session, SetPrompt(f"scene {n:02}", event_id=f"e{n}"))
        assert receipt.prompt_revision == n
        superseded += [event.event_id for event in events]
        if n % 10 == 0:
            spec = make_chunk(session)
            assert spec.event_ids == (f"e{n}",)
            seen.append(spec.revision)
    assert seen == [0, 10, 20, 30, 40, 50, 60]
    assert str(session.text) == "scene 60"
    assert superseded == [f"e{n}" for n in range(1, 61) if n % 10]
    assert [(c.index, c.revision) for c in session.history] == list(enumerate(seen))[-3:]


def test_newest_wins_field_by_field() -> None:
    session = new_session()
    accept(session, Update(seed=5, steps=3, event_id="both"))
    _, events = accept(session, Update(seed=6, event_id="seed"))
    assert events == []  # `both` still has the steps to say
    _, events = accept(session, Update(steps=4, event_id="steps"))
    assert events == [Superseded("both")]
    spec = make_chunk(session)
    assert (spec.seed, spec.steps) == (6, 4)
    assert sorted(spec.event_ids) == ["seed", "steps"]


def test_a_prompt_that_is_replaced_takes_its_reset_along() -> None:
    session = new_session()
    make_chunk(session)
    accept(session, SetPrompt("a", "reset", event_id="first"))
    _, events = accept(session, SetPrompt("b", "cut", event_id="second"))
    assert events == [Superseded("first")]
    spec = make_chunk(session)
    assert (spec.is_reset, str(spec.text)) == (False, "b")


def test_a_reset_of_its_own_outlives_later_prompts() -> None:
    session = new_session()
    make_chunk(session)
    accept(session, Update(reset="cache", event_id="r"))
    accept(session, SetPrompt("b", event_id="p"))
    spec = make_chunk(session)
    assert spec.is_reset
    assert set(spec.event_ids) == {"r", "p"}


def test_a_control_waits_for_the_chunk_after_the_one_that_has_begun() -> None:
    session = new_session()
    spec = next_spec(session)
    accept(session, SetPrompt("late", event_id="e"))
    assert next_spec(session) is spec  # begun again after a rollback, as it was
    denoise(session)
    assert next_spec(session).text == TextMix.of("late")


@pytest.mark.parametrize(
    ("control", "error"),
    [
        (SetPrompt(""), InvalidPrompt),
        (SetPrompt("x", "nonsense"), InvalidRequest),
        (SetPrompt("x", "blend", 0), InvalidRequest),
        (SetPrompt("x", "blend", 1001), InvalidRequest),
        (SetPrompt("x", "blend", 2, "zigzag"), InvalidRequest),
        (SetPrompt("x", "cut", 2), InvalidRequest),
        (SetPrompt("x", "recache", None, "slerp"), InvalidRequest),
        (Update(seed=-1), InvalidRequest),
        (Update(steps=9), InvalidRequest),
        (Update(steps=3, seed=2**32), InvalidRequest),
        (Update(fps=0), InvalidRequest),
        (Update(fps=61), InvalidRequest),
        (Update(paused=True, reset="nonsense"), InvalidRequest),
        (Rewind(7), NotFound),
        (Rewind(-1), InvalidRequest),
        (Rewind(True), InvalidRequest),
        (Rewind("0"), InvalidRequest),  # type: ignore[arg-type]
    ],
)
def test_q18_a_refused_control_changes_nothing(
    control: Control, error: type[StreamgenError]
) -> None:
    session = new_session()
    make_chunk(session)
    with pytest.raises(error):
        accept(session, control)
    assert (session.revision, session.paused) == (0, False)
    spec = make_chunk(session)
    assert (spec.revision, spec.seed, spec.steps, spec.fps, spec.event_ids) == (0, 1, 2, 16, ())
    assert session.state is SessionState.QUEUED


def test_pause_holds_the_next_chunk_and_shows_in_the_state() -> None:
    session = new_session()
    session.phase = SessionState.RUNNING
    accept(session, Update(paused=True))
    assert (session.state, session.may_begin) == (SessionState.PAUSED, False)
    accept(session, Update(paused=False))
    assert (session.state, session.may_begin) == (SessionState.RUNNING, True)


def test_a_pause_is_answered_with_the_chunk_after_it() -> None:
    session = new_session()
    accept(session, Update(paused=True, event_id="pause"))
    _, events = accept(session, Update(paused=False, event_id="go on"))
    assert events == [Superseded("pause")]
    assert make_chunk(session).event_ids == ("go on",)
    assert make_chunk(session).event_ids == ()


def test_latents_are_kept_for_window_and_sink_and_no_longer() -> None:
    session = new_session(window=6, sink=1)
    for _ in range(10):
        make_chunk(session)
    # The sink's chunk, and what the last max(6, 8) latent frames touch.
    assert [chunk.first_latent for chunk in session.history] == [0, 21, 24, 27]


@pytest.mark.parametrize("ended_by", [SetPrompt("b", event_id="b"), Rewind(0, "b")])
def test_a_blend_that_is_cut_short_is_not_superseded(
    ended_by: Control,
) -> None:
    session = new_session()
    make_chunk(session)
    accept(session, SetPrompt("a", "blend", 4, event_id="a"))
    make_chunk(session)
    _, events = accept(session, ended_by)
    assert events == []
    assert accept(session, Update(seed=3))[1] == []
    assert accept(session, Update(paused=True))[1] == []
    assert accept(session, SetPrompt("c"))[1] == (
        [Superseded("b")] * isinstance(ended_by, SetPrompt)
    )


def test_a_blend_whose_chunk_failed_is_told_once_at_a_rewind() -> None:
    session = new_session()
    make_chunk(session)
    accept(session, SetPrompt("a", "blend", 4, event_id="a"))
    accept(session, Update(seed=3, event_id="u"))
    next_spec(session)  # its pass failed, and it would be tried again
    told = accept(session, Rewind(0))[1] + go_back(session, 100.0)
    assert sorted(event.event_id for event in told) == ["a", "u"]
