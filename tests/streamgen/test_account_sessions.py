"""The account of sessions: time, memory, the exchanges that are left, and cards."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from streamgen import account, account_causal, account_memory
from streamgen.account_cards import CARDS, COMPILED, EAGER, GIB, Card, Measured, card_from
from streamgen.account_causal import Load
from streamgen.account_exchanges import ORDER, causal_exchanges, next_best, reference_exchanges
from streamgen.account_options import (
    quantized_speed_up,
    refuse_dead_options,
    request_cost,
)
from streamgen.account_shapes import (
    CAUSAL_MODELS,
    REFERENCES,
    TinyVAE,
)
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError, Unsupported
from streamgen.model_runner import RunnerConfig
from streamgen.models.presets import POCKET
from streamgen.plan_models import causal_model
from streamgen.planner import RECACHE_PERIOD_S
from streamgen.startup import resolve, runner_config

FLUX = REFERENCES["flux-1-dev"]
H100 = CARDS["h100"]


# Sessions and memory.


def test_a_small_pass_is_bound_by_memory() -> None:
    model = dataclasses.replace(CAUSAL_MODELS["causal-wan-14b"], size=(64, 64), window_frames=3)
    bounds = {s.name: s.bound for s in account_causal.chunk_stages(Load(model, H100))}
    assert bounds["linear"] == "memory"
    larger = {
        s.name: s.bound
        for s in account_causal.chunk_stages(Load(CAUSAL_MODELS["causal-wan-14b"], H100))
    }
    assert larger["linear"] == "arithmetic"


def test_memory_bound_passes_gain_by_batching() -> None:
    model = dataclasses.replace(CAUSAL_MODELS["causal-wan-14b"], size=(64, 64), window_frames=3)
    load = Load(model, H100)
    assert account_causal.pass_s(load, 4) < 1.5 * account_causal.pass_s(load, 1)
    assert account_causal.utilisation(load, 4) < 4 * account_causal.utilisation(load, 1)


def test_sessions_by_time_are_those_admission_lets_in() -> None:
    model = dataclasses.replace(CAUSAL_MODELS["causal-wan-1.3b"], size=(416, 240), vae=TinyVAE())
    load = Load(model, CARDS["b200"])
    inside = account_causal.sessions_by_time(load)
    assert 1 < inside < account_causal.MOST_SESSIONS
    used = [account_causal.utilisation(load, n) for n in (inside, inside + 1)]
    assert used[0] <= load.bound
    # What is kept for changes of prompt is a session's, too.
    recache_s = account_causal.cost_table(load).recache_s
    assert used[1] + (inside + 1) * recache_s / RECACHE_PERIOD_S > load.bound
    price = account_causal.price_an_hour(load)
    assert price == pytest.approx(CARDS["b200"].price * used[0] / inside)  # type: ignore[operator]


def test_one_session_that_is_too_slow_is_none() -> None:
    load = Load(CAUSAL_MODELS["causal-wan-14b"], CARDS["4090"])
    assert account_causal.sessions_by_time(load) == 0
    assert account_memory.sessions_by_memory(load) == 0


def test_sessions_by_memory_fit_and_one_more_does_not() -> None:
    load = Load(CAUSAL_MODELS["causal-wan-1.3b"], H100)
    count = account_memory.sessions_by_memory(load)
    room = account_memory.USABLE_MEMORY * H100.memory_bytes
    assert account_memory.memory(load, count).total <= room
    assert account_memory.memory(load, count + 1).total > room


def test_quantised_weights_are_smaller_and_k_v_is_not() -> None:
    load = Load(CAUSAL_MODELS["causal-wan-14b"], H100)
    plain = account_memory.memory(load, 1)
    fp8 = account_memory.memory(dataclasses.replace(load, quantize="fp8"), 1)
    assert 2 * fp8.weights == plain.weights
    assert fp8.kv == plain.kv


def test_a_fused_commit_is_a_forward_less() -> None:
    load = Load(CAUSAL_MODELS["causal-wan-1.3b"], H100)
    alone = dataclasses.replace(load, fused=False)
    stages = {s.name: s for s in account_causal.chunk_stages(load)}
    apart = {s.name: s for s in account_causal.chunk_stages(alone)}
    assert stages["linear"].flops == apart["linear"].flops
    assert 5 * stages["linear"].bytes == 4 * apart["linear"].bytes
    assert sum(s.seconds for s in stages.values()) == pytest.approx(account_causal.chunk_s(load))


# Exchanges.


def test_the_order_of_exchanges() -> None:
    load = Load(CAUSAL_MODELS["causal-wan-1.3b"], H100, eta=EAGER)
    exchanges = causal_exchanges(load)
    assert next_best(exchanges).kind == "lossless on one card"
    compiled = causal_exchanges(dataclasses.replace(load, eta=COMPILED))
    assert next_best(compiled).name == "tiny VAE"
    tiny = dataclasses.replace(load.model, vae=TinyVAE())
    names = {e.name for e in causal_exchanges(dataclasses.replace(load, model=tiny))}
    assert "tiny VAE" not in names
    refused = {e.name for e in exchanges if e.refused}
    assert refused == {"step cache", "PipeFusion", "CFG parallel"}
    assert all(e.gain is None for e in exchanges if e.refused)
    assert {e.kind for e in exchanges} == set(ORDER)


def test_what_was_taken_is_not_offered_again() -> None:
    cost = request_cost(FLUX, H100, eta=COMPILED, quantize="fp8", steps=16)
    left = reference_exchanges(
        FLUX, H100, cost, eta=COMPILED, quantize="fp8", step_cache=True, sparsity=2.0
    )
    assert not {"FP8 weights", "step cache", "sparse attention"} & {e.name for e in left}
    assert next_best(left).kind == "more cards"


# Cards.


MEASURED = Measured(((1e9, 0.010), (2e9, 0.016), (4e9, 0.030)), (5e9, 0.02), False, 0.0, 1, (4, 4))


@pytest.mark.parametrize(
    ("flops", "seconds"), [(1e9, 0.010), (1.5e9, 0.013), (3e9, 0.023), (8e9, 0.058), (0.5e9, 0.007)]
)
def test_measured_passes_lie_on_a_line(flops: float, seconds: float) -> None:
    assert MEASURED.pass_s(flops) == pytest.approx(seconds)


def test_measured_costs_never_fall() -> None:
    noisy = dataclasses.replace(MEASURED, pass_points=((1e9, 0.02), (2e9, 0.01)))
    assert noisy.pass_s(3e9) >= 0.01
    assert noisy.pass_s(0.5e9) >= 0.01
    single = dataclasses.replace(MEASURED, pass_points=((1e9, 0.02),))
    assert single.pass_s(2e9) == pytest.approx(0.04)
    assert single.decode_s(2.5e9) == pytest.approx(0.01)


POINTS = {
    "pass_points": [[1e9, 0.01]], "decode_point": [1e9, 0.01], "decode_shares_device": False,
    "host_s": 0.0, "runtime_bytes": 0, "element_bytes": [4, 4],
}  # fmt: skip
FACTS = {"name": "mine", "peak_flops": 1e14, "bandwidth": 1e12, "memory_bytes": 1e10}


def test_a_card_from_a_file() -> None:
    card = card_from({**FACTS, "price": 1.5}, "card.json")
    assert card == Card("mine", 1e14, 1e12, 10**10, 1.5)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ([], "must be an object"),
        ({**FACTS, "flops": 1}, "no fact is called 'flops'"),
        ({**FACTS, "name": ""}, "name = ''"),
        ({**FACTS, "bandwidth": -1}, "bandwidth = -1: expected a number from 1e\\+06 to 1e\\+18"),
        ({**FACTS, "peak_flops": 1e-300}, "peak_flops = 1e-300: expected a number"),
        ({**FACTS, "memory_bytes": 0.5}, "memory_bytes = 0.5: expected a number"),
        ({**FACTS, "name": "two\nlines"}, "expected a name"),
        ({**FACTS, "measured": {}}, "not as `plan --calibrate` writes it"),
        ({**FACTS, "measured": {**POINTS, "host_s": -1}}, "host_s = -1.0: expected a number"),
        ({**FACTS, "measured": {**POINTS, "runtime_bytes": float("inf")}}, "not as `plan --cal"),
        ({**FACTS, "measured": {**POINTS, "element_bytes": [2, 7]}}, "expected 2 or 4 each"),
        ({**FACTS, "measured": {**POINTS, "decode_point": [1e9, float("nan")]}}, "seconds of a me"),
        ({**FACTS, "measured": {**POINTS, "pass_points": [[2, 1], [1, 1]]}}, "by rising FLOPs"),
        ({**FACTS, "peak_flops": "fast"}, "peak_flops = 'fast'"),
        ({k: v for k, v in FACTS.items() if k != "memory_bytes"}, "memory_bytes = None"),
        ({**FACTS, "measured": {"pass_points": [[1, 2]]}}, "not as `plan --calibrate` writes it"),
        ({**FACTS, "measured": 3}, "not as `plan --calibrate` writes it"),
    ],
)
def test_a_wrong_card_is_refused(facts: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        card_from(facts, "card.json")


def test_the_pools_of_a_plan_are_the_engines() -> None:
    load = Load(causal_model(POCKET), H100)
    for sessions in (1, 8):
        config = resolve(EngineConfig(max_sessions=sessions), POCKET)
        sizes: RunnerConfig = runner_config(config, POCKET, torch.device("cpu"))
        ledger = account_memory.memory(load, sessions)
        assert ledger.kv == sizes.num_frames * load.kv_frame_bytes
        assert ledger.cross_kv == sizes.text_slots * account.cross_kv_bytes(POCKET.dit)


@pytest.mark.parametrize(
    ("step_cache", "parallel", "why"),
    [
        ("0.4", "ulysses", "would hit none"),
        (None, "pipefusion", "too unlike"),
        (None, "cfg", "no second pass"),
    ],
)
def test_what_few_steps_have_killed(step_cache: str | None, parallel: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        refuse_dead_options(True, step_cache, parallel)
    refuse_dead_options(False, step_cache, parallel)


def test_few_steps_keep_what_still_saves() -> None:
    for parallel in ("ulysses", "tensor"):
        refuse_dead_options(True, None, parallel)


def test_four_bits_save_time_only_where_there_are_tensor_cores_for_them() -> None:
    assert quantized_speed_up("int4", CARDS["4090"]) == 6
    assert quantized_speed_up("int4", H100) == 1
    plain = Card("old", 1e14, 1e12, GIB, None)
    with pytest.raises(ConfigError, match="old has no FP8"):
        quantized_speed_up("fp8", plain)
