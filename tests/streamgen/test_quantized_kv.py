"""`--kv-cache-dtype fp8`: what it loses of a video, what it saves, and that all else holds."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from kvcache import AttentionFacts, WindowConfig
from kvcache.attention import choice
from streamgen import quantize, startup
from streamgen.account_cards import CARDS
from streamgen.account_causal import Load
from streamgen.account_memory import memory
from streamgen.card_memory import memory_parts
from streamgen.config import EngineConfig, engine_config
from streamgen.device_state import memory as held
from streamgen.errors import ConfigError
from streamgen.memory_check import running_need
from streamgen.messages import Chunk, Rewind, SetPrompt, Update
from streamgen.model_runner import ModelRunner
from streamgen.models.presets import POCKET, PRESETS, build
from streamgen.plan_models import served_model
from streamgen.quality import QualitySampler
from streamgen.startup import resolve, runner_config, start_engine
from tests.streamgen.planning import CAUSAL, planned, refused, text_of, with_clean_environment
from tests.streamgen.static_runner import new_runner, run_streams
from tests.streamgen.studio import Studio, assert_same, psnr_db
from tests.streamgen.tiny import TINY, tiny_config

CPU = torch.device("cpu")
SELF_FORCING = PRESETS["self-forcing"]
LEAST_DB = 35.0  # above, the gate finds no loss that the eye could; of the first 48 frames


def fp8(**options: object) -> Studio:
    return Studio(kv_cache_dtype="fp8", **options)


def made_alone(num_chunks: int, **options: object) -> list[Chunk]:
    with fp8(deterministic=True, **options) as studio:
        return studio.make(studio.open(), num_chunks)


def test_pocket_makes_the_same_video(caplog: pytest.LogCaptureFixture) -> None:
    clips = []
    with caplog.at_level(logging.INFO):
        for kind in ("auto", "fp8"):
            options = {"model": "pocket", "deterministic": True, "kv_cache_dtype": kind}
            with Studio(POCKET, **options) as studio:
                session = studio.open("a red ball bounces on the grass", 0)
                clips.append(studio.make(session, 4))
    losses = [psnr_db(*pair) for pair in zip(*clips, strict=True)]
    assert min(losses) > LEAST_DB
    assert max(losses) < 70  # it is on
    (figure,) = re.findall(
        r"fp8 K/V: latents of two chunks have a PSNR of ([\d.]+) dB", caplog.text
    )
    assert 40 < float(figure) < 70


def test_a_session_is_the_same_alone_and_in_company() -> None:
    expected = made_alone(4)
    with fp8(deterministic=True) as studio:
        sessions = [studio.open(), studio.open("a blue star", 7)]
        assert_same(studio.make(sessions[0], 4), expected)


def test_it_can_be_suspended_forked_and_rewound() -> None:
    """What is made again from latents that were never evicted is what was there, to the bit."""
    expected = made_alone(5)
    with fp8(deterministic=True) as studio:
        session = studio.open()
        studio.make(session, 1)
        studio.engine.suspend(session.id)
        studio.engine.resume(session.id)
        assert_same(studio.make(session, 2), expected[:2])
        studio.rest(session)
        child = studio.engine.fork(session.id)
        assert {*child.table.pages_of(0)} == {*session.table.pages_of(0)}
        [chunk] = studio.more(child, 1)
        assert_same([chunk], expected[chunk.index : chunk.index + 1])
        assert_same(studio.make(session, 5), expected)
        studio.engine.control(session.id, Rewind(2))
        again = studio.more(session, 3)
        assert any(np.array_equal(c.latents, expected[3].latents) for c in again)
        studio.engine.close(child.id)
        studio.engine.close(session.id)
        assert studio.audit() == studio.pool.num_pages


def test_a_recache_with_a_turned_sink_leaves_only_finite_values() -> None:
    """Pages that are read and were freed, or never written, are NaN and would fail the pass."""
    relative = dataclasses.replace(TINY, rotary="relative")
    with Studio(relative, kv_cache_dtype="fp8", sink=2) as studio:
        session = studio.open()
        studio.make(session, 5)
        studio.engine.control(session.id, SetPrompt("a blue star", "recache"))
        made = studio.more(session, 4)
        studio.engine.control(session.id, Update(reset="cache"))
        made += studio.more(session, 4)
        assert {chunk.prompt_revision for chunk in made} >= {1}
        assert all(np.isfinite(chunk.latents).all() for chunk in made)


def test_static_inputs_give_what_the_reference_gives() -> None:
    static = run_streams(new_runner(quantized_kv=True))
    eager = run_streams(new_runner(static=False, quantized_kv=True))
    for mine, theirs in zip(static, eager, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)
    plain = run_streams(new_runner(static=False))
    pairs = [(a, b) for x, y in zip(eager, plain, strict=True) for a, b in zip(x, y, strict=True)]
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_quality_is_sampled_against_unquantised_kv() -> None:
    with fp8(sample_quality=0.001) as studio:
        sampler = studio.engine.watch.sampler
        assert isinstance(sampler, QualitySampler)
        makers = [maker.engine.runner.pool.geometry for maker in (sampler.reference, sampler.again)]
        assert [geometry.is_quantized for geometry in makers] == [False, True]


@pytest.mark.parametrize("window", [WindowConfig(9), WindowConfig(4, 1), WindowConfig(None, 0, 30)])
def test_the_figures_sample_is_that_of_a_whole_runner(window: WindowConfig) -> None:
    config = resolve(tiny_config(window=4, sink=1, kv_cache_dtype="fp8"), TINY)
    one = runner_config(config, TINY, CPU, num_sessions=1)
    model = build(TINY, dummy=True)
    found = quantize.plain_sample(model, torch.float32, one, window)
    whole = dataclasses.replace(one, quantized_kv=False, num_frames=40)
    runner = ModelRunner(model.dit, model.text_encoder, torch.float32, whole)
    assert found is not None
    assert torch.equal(found, quantize.sample(runner, TINY, window))
    plain = dataclasses.replace(one, quantized_kv=False)
    assert quantize.plain_sample(model, torch.float32, plain, window) is None


# Bytes.


def test_the_account_counts_what_a_runner_allocates() -> None:
    options = {"model": "pocket", "max_sessions": 2, "kv_cache_dtype": "fp8"}
    config = resolve(tiny_config(**options), POCKET)
    sizes = runner_config(config, POCKET, CPU)
    parts = memory_parts(POCKET, sizes, 2, 4, graphs=False)
    with Studio(POCKET, **options) as studio:
        pool = studio.pool
        assert parts["K/V"] == pool.nbytes + pool.scratch_nbytes == held(studio.engine)["kv_cache"]
        model = dataclasses.replace(served_model(POCKET, config), element_bytes=4)
        load = Load(model, CARDS["h100"])
        assert load.kv_frame_bytes == pool.geometry.frame_bytes
        assert memory(load, 2).kv == pool.nbytes
        free = studio.engine.admissions.planner.capacity
        assert free.page_bytes == pool.nbytes
    runner = new_runner(quantized_kv=True, visible=9)
    scratch = runner.static_attention.scratch_nbytes  # type: ignore[union-attr]
    dit, tokens = runner.dit.config, runner.pool.geometry.tokens_per_frame
    shapes = dataclasses.replace(sizes, latent_shape=runner.config.latent_shape, visible_frames=9)
    tiny = dataclasses.replace(TINY, dit=dit)
    assert memory_parts(tiny, shapes, 2, 4, graphs=False)["gathered K/V"] == scratch
    assert scratch == 9 * tokens * dit.dim * (2 * 4 + 1)


def test_a_published_model_needs_half_and_the_refusal_counts_it() -> None:
    def need(**flags: object) -> dict[str, float]:
        config = resolve(engine_config(flags={"model": "self-forcing", **flags}), SELF_FORCING)
        return dict(running_need(config, SELF_FORCING, CPU, 2).parts)

    plain, small = need(), need(kv_cache_dtype="fp8")
    scales = 2 * 24 * 2 * 30 * 12 * 4
    assert small["K/V of 2 sessions"] == plain["K/V of 2 sessions"] / 2 + scales
    assert small["gathered K/V"] == 1.25 * plain["gathered K/V"]
    changed = {"K/V of 2 sessions", "gathered K/V"}
    assert {key for key in plain if plain[key] != small[key]} == changed


def test_a_plan_has_room_for_more_sessions_and_is_no_faster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_clean_environment(monkeypatch, tmp_path)
    plain = planned(capsys, *CAUSAL, "--sessions", "4")
    small = planned(capsys, *CAUSAL, "--sessions", "4", "--kv-cache-dtype", "fp8")
    assert small["memory"][0]["kv"] == pytest.approx(plain["memory"][0]["kv"] / 2, rel=1e-4)
    assert small["sessions_by_memory"] > 1.5 * plain["sessions_by_memory"]
    assert small["chunk_s"] == plain["chunk_s"]
    assert "K/V in 8 bits" in text_of(capsys, *CAUSAL, "--kv-cache-dtype", "fp8")
    assert "K/V in 8 bits" not in text_of(capsys, *CAUSAL)
    said = refused(capsys, "--reference", "flux-1-dev", "--kv-cache-dtype", "fp8")
    assert "kv_cache_dtype is of sessions" in said


# What cannot be.


def test_a_backend_that_cannot_read_them_is_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def card(geometry: object, device: torch.device) -> AttentionFacts:
        return AttentionFacts("cuda", (9, 0), torch.bfloat16, 128, {}, True)

    monkeypatch.setattr(choice, "facts_of", card)
    monkeypatch.setattr(startup, "build", lambda *a, **k: pytest.fail("weights are read"))
    config = tiny_config(device="cpu", kv_cache_dtype="fp8", attention_backend="flashinfer")
    with pytest.raises(ConfigError, match="'flashinfer' was asked for, but it reads pages") as told:
        start_engine(config, lambda *item: None, preset=TINY)
    assert told.value.param == "attention_backend"


def test_another_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype = 'fp7': expected one of auto, fp8"):
        engine_config(flags={"kv_cache_dtype": "fp7"})
    assert EngineConfig().kv_cache_dtype == "auto"
