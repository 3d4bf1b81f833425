"""What a forward holds at most, by the account and as it is held: shapes without values."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kvcache.attention.gather import GatherAttention
from streamgen import account_memory
from streamgen.account_cards import CARDS
from streamgen.account_causal import MAX_SESSIONS_A_PASS, Load
from streamgen.account_memory import eager_rows, graph_bytes, pass_bytes
from streamgen.account_shapes import CAUSAL_MODELS, TinyVAE
from streamgen.model_runner import ModelRunner, RunnerConfig
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.parity.replay import GivenText
from streamgen.startup import MAX_SESSIONS_A_PASS as SESSIONS_OF_THE_ENGINE
from tests.alive import AliveBytes

WAN_1_3B = DiTConfig(dim=1536, ffn_dim=8960, num_layers=2, num_heads=12)
WAN_14B = DiTConfig(dim=5120, ffn_dim=13824, num_layers=2, num_heads=40)
CHUNK, LARGE, SMALL = 3, (16, 60, 104), (16, 32, 56)


def held_bytes(
    dit: DiTConfig, rows: int, latent_shape: tuple[int, int, int], dtype: torch.dtype
) -> int:
    """Return the most that a forward over static inputs holds at a time, but for its kernels."""
    with torch.device("meta"):
        model = CausalDiT(dit).requires_grad_(False)
    config = RunnerConfig(
        latent_shape=latent_shape, chunk_frames=CHUNK, num_frames=21, max_rows=rows,
        text_slots=rows, device=torch.device("meta"), visible_frames=21,
    )  # fmt: skip
    runner = ModelRunner(model, GivenText(()), dtype, config)
    attention = GatherAttention(
        runner.pool, lambda q, *rest: torch.empty_like(q), runner.page_limits
    )
    with torch.inference_mode():
        inputs = runner.inputs.fill((), rows, CHUNK, attention, is_static=True)
        with AliveBytes() as alive:
            runner._flow(inputs)
    return int(alive.most)


@pytest.mark.parametrize(
    ("dit", "rows", "latent_shape", "dtype"),
    [
        (WAN_1_3B, 8, LARGE, torch.bfloat16),
        (WAN_1_3B, 1, LARGE, torch.bfloat16),
        (WAN_1_3B, 4, SMALL, torch.float32),
        (WAN_14B, 2, LARGE, torch.bfloat16),
    ],
)
def test_a_forward_holds_what_the_account_says(
    dit: DiTConfig, rows: int, latent_shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    tokens = CHUNK * dit.tokens_per_frame(*latent_shape[1:])
    expected = pass_bytes(dit, rows, tokens, dtype.itemsize)
    assert held_bytes(dit, rows, latent_shape, dtype) == pytest.approx(expected, rel=0.03)


def test_the_account_captures_what_the_engine_does() -> None:
    assert MAX_SESSIONS_A_PASS == SESSIONS_OF_THE_ENGINE
    assert eager_rows(8, graphs=True) == 1
    assert eager_rows(16, graphs=True) == eager_rows(16, graphs=False) == 16
    tokens = CHUNK * 1560
    result = 3 * 16 * 60 * 104 * 2
    largest = pass_bytes(WAN_1_3B, 6, tokens, 2)
    assert graph_bytes(WAN_1_3B, 7, tokens, 2) == largest + (1 + 2 + 3 + 4 + 6) * result


def test_graphs_and_gathered_k_v_are_in_the_sum_where_there_are_any() -> None:
    """Gathered is K and V of one layer's window, 201 MB for the 1.3B."""
    model = dataclasses.replace(CAUSAL_MODELS["causal-wan-1.3b"], vae=TinyVAE())
    load = Load(model, CARDS["4090"])
    captured = account_memory.memory(load, 1)
    eager = account_memory.memory(dataclasses.replace(load, graphs=False), 1)
    assert captured.gathered_kv == 2 * 21 * 1560 * 1536 * 2
    assert captured.graphs == pytest.approx(2.44e9, rel=0.01)
    assert eager.graphs == 0
    assert captured.total == captured.kept + captured.gathered_kv + captured.graphs + (
        captured.runtime
    )
    # Where nothing is captured, the largest pass takes its memory when it runs.
    assert eager.runtime - account_memory.CONTEXT_BYTES == pass_bytes(model.dit, 8, 3 * 1560, 2)


@pytest.mark.parametrize("room", [0.0, 9.9, 10.0, 24.9, 25.0, 1e4])
def test_the_most_sessions_that_fit(room: float) -> None:
    def total(sessions: int) -> float:
        return 5.0 + 5.0 * sessions

    count = account_memory.most_sessions(total, room)
    assert count == max(0, int((room - 5) // 5))
