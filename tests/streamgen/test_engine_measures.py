"""What an engine counts of itself: stages, batches, slack, memory, leaks, shapes, prompts."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import pytest
import torch

from streamgen.device_state import measures_of, pages_unowned, weight_bytes
from streamgen.measures import MOST_KEPT, DeviceState, Measures, Meter, Totals
from streamgen.messages import SetPrompt
from streamgen.session import SessionState
from streamgen.slack import slack_s
from tests.streamgen.studio import PASSES, Studio

QUIET = DeviceState(0.0, 0.0, 0, ())


def stages_of(measures: Measures) -> Counter[str]:
    return Counter(stage for stage, _ in measures.stage_s)


def test_a_video_is_measured_stage_by_stage() -> None:
    with Studio() as studio:
        session = studio.open(num_frames=45)
        while session.phase is not SessionState.CLOSED:
            assert studio.step()
        studio.step()
        measures = measures_of(studio.engine)
        stages = stages_of(measures)
        assert stages == {"denoise": 4, "decode": 4, "text": 1}
        assert all(seconds > 0 for _, seconds in measures.stage_s)
        # The commits of all but the last chunk ride with the next one's first pass.
        assert len(measures.batch_rows) == 4 * PASSES
        assert sum(measures.batch_rows) == 4 * PASSES + 3
        denoised = sum(s for stage, s in measures.stage_s if stage == "denoise")
        assert denoised == pytest.approx(measures.busy_s)
        assert (measures.prompt_misses, measures.prompt_hits) == (1, 6)  # each chunk and commit


def test_a_step_tells_only_what_is_new() -> None:
    with Studio() as studio:
        session = studio.open()
        studio.make(session, 2)
        first = measures_of(studio.engine)
        nothing = measures_of(studio.engine)
        assert nothing.stage_s == nothing.batch_rows == ()
        assert nothing.busy_s == nothing.prompt_misses == nothing.prompt_hits == 0
        studio.engine.control(session.id, SetPrompt("a star", "recache"))
        studio.make(session, 4)
        second = measures_of(studio.engine)
        assert first.prompt_misses == second.prompt_misses == 1
        assert stages_of(second)["recache"] == 1
        assert stages_of(first)["denoise"] == stages_of(second)["denoise"] == 2


def test_warm_up_is_not_counted_and_its_shapes_are_known() -> None:
    with Studio() as studio:
        assert measures_of(studio.engine).stage_s == ()
    meter = Meter()
    meter.shape(1, 3)
    meter.stage("text", 1.0)
    meter.begin(Totals(prompt_hits=4, prompt_misses=1))
    for shape in ((1, 3), (2, 3), (2, 3), (2, 1)):
        meter.shape(*shape)
    measures = meter.take(QUIET, Totals(prompt_hits=6, prompt_misses=4))
    assert (measures.num_new_shapes, measures.stage_s) == (2, ())
    assert (measures.prompt_hits, measures.prompt_misses) == (2, 3)


def test_what_nobody_asks_for_is_bounded() -> None:
    meter = Meter()
    for _ in range(MOST_KEPT + 10):
        meter.passed(1, 0.5)
    measures = meter.take(QUIET, Totals())
    assert len(measures.batch_rows) == MOST_KEPT
    assert measures.busy_s == 0.5 * (MOST_KEPT + 10)


def test_a_full_memory_is_counted_each_time() -> None:
    with Studio(faults="pass.denoise:oom@3,vae.decode:oom@2x2") as studio:
        session = studio.open()
        with pytest.raises(AssertionError):
            studio.make(session, 4)
        assert measures_of(studio.engine).num_oom == 3  # a pass, and a decode twice
        assert measures_of(studio.engine).num_oom == 0


def test_pages_belong_to_sessions_or_are_a_leak() -> None:
    with Studio(max_sessions=3) as studio:
        session, other = studio.open(), studio.open("b", seed=1)
        studio.make(session, 5)
        fork = studio.engine.fork(session.id)
        assert pages_unowned(studio.engine) == 0
        studio.make(fork, 2)
        studio.engine.suspend(other.id)
        assert pages_unowned(studio.engine) == 0
        assert session.table is not None
        with patch.object(session.table, "release"):  # a way out that forgets the pages
            studio.engine.close(session.id)
        leaked = pages_unowned(studio.engine)
        chunk_frames = studio.engine.runner.config.chunk_frames
        frames = session.config.window.reserved_frames(chunk_frames, fused=True)
        assert leaked == frames * studio.pool.geometry.pages_per_frame
        assert measures_of(studio.engine).device.pages_unowned == leaked


def test_memory_by_kind() -> None:
    with Studio() as studio:
        studio.make(studio.open(), 2)
        engine = studio.engine
        memory = dict(measures_of(engine).device.memory)
        pool = engine.runner.pool
        assert memory["kv_cache"] == (pool.num_pages + 1) * pool.geometry.page_bytes
        parameters = sum(p.nbytes for p in engine.runner.dit.parameters())
        assert parameters < memory["weights"] < memory["resident"]
        assert memory["decoder"] > 0
        assert memory["prompt_cache"] == engine.runner.text.nbytes
        assert "device" not in memory
        assert "reference" not in memory
    linear = torch.nn.Linear(3, 2)
    assert weight_bytes(linear, "no module") == 4 * (6 + 2)


def test_live_chunks_are_in_time_or_late() -> None:
    with Studio(max_utilisation="0.85") as studio:
        session = studio.open()
        studio.make(session, 6)
        slack = measures_of(studio.engine).slack_s
        assert len(slack) == 5  # the first has no deadline
        # The studio's viewers play all at once, so each chunk meets a buffer that has run dry.
        assert all(-1 < seconds < 1 / session.fps for seconds in slack)


class Playing:
    """A session of which frames 0 to 9 were shown, the last at 100 s."""

    num_played, played_at, fps, is_batch = 10, 100.0, 10, False


def test_slack_is_how_long_a_frame_waits_for_its_turn() -> None:
    session = Playing()
    assert slack_s(session, 10, 100.0) == pytest.approx(0.1)  # it is the next
    assert slack_s(session, 10, 100.3) == pytest.approx(-0.2)  # and it is late
    assert slack_s(session, 16, 100.0) == pytest.approx(0.7)
    assert slack_s(session, 16, 100.05) == pytest.approx(0.65)
    assert slack_s(session, 16, 160.0) == pytest.approx(0.6)  # the player stands
    session.is_batch = True
    assert slack_s(session, 10, 100.0) is None
