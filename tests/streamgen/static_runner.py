"""A runner on the CPU whose inputs are static, as they are on CUDA, and streams to run on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvcache import PageTable, WindowConfig, build
from streamgen.model_runner import ModelRunner, Row, RunnerConfig, StepBatch
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.parity.replay import GivenText
from streamgen.text import TextMix
from tests.oracle import random_weights
from tests.tape import TapeGraph

SHAPE = (4, 4, 4)
CHUNK = 3
WINDOW = WindowConfig(9, 2, rotary="relative")


def small_dit() -> CausalDiT:
    """Return a transformer with small random weights."""
    model = CausalDiT(
        DiTConfig(
            dim=24, ffn_dim=40, num_layers=2, num_heads=2, text_dim=6, text_len=5, in_dim=4,
            out_dim=4, freq_dim=16,
        )
    )  # fmt: skip
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    model.load_state_dict(random_weights(shapes, seed=2))
    return model


def new_runner(
    *,
    static: bool = True,
    device: str = "cpu",
    visible: int = 9,
    deterministic: bool = False,
    quantized_kv: bool = False,
    offload_layers: bool = False,
) -> ModelRunner:
    """Return a runner over small random weights; `static`: its inputs are, as on CUDA."""
    model = small_dit()
    config = RunnerConfig(
        latent_shape=SHAPE, chunk_frames=CHUNK, num_frames=80, max_rows=8, text_slots=4,
        device=torch.device(device), poison_freed=device == "cpu", deterministic=deterministic,
        attention_backend="sdpa", visible_frames=visible, turned_frames=WINDOW.sink_frames,
        quantized_kv=quantized_kv, offload_layers=offload_layers,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    prompts = tuple(torch.randn(5, 6, generator=generator) for _ in range(3))
    text = GivenText(prompts)
    runner = ModelRunner(model.requires_grad_(False), text, torch.float32, config)
    if static:
        limits, turn = runner.page_limits, runner.static_turn
        runner.static_attention = build("sdpa", runner.pool, limits, turn)
    return runner


class Stream:
    """A session's pages and latents; its passes come one after the other."""

    def __init__(self, runner: ModelRunner, seed: int, window: WindowConfig = WINDOW) -> None:
        self.table = PageTable(runner.pool, window, CHUNK)
        self.slot = runner.acquire_text(TextMix.of(str(seed % 3)))
        self.generator = torch.Generator().manual_seed(seed)
        self.commit: Row | None = None

    def rows(self, timestep: float) -> list[Row]:
        """Begin a chunk: its first pass, and the commit of the one before it."""
        row = Row(self.latents(), timestep, self.table.begin(CHUNK), self.slot)
        rows = [row] if self.commit is None else [self.commit, row]
        self.commit = Row(row.latents / 2, 0.0, row.staging, self.slot)
        return rows

    def done(self) -> None:
        """End the chunk, its pass being run: what it pushed out is gone."""
        self.table.commit()

    def latents(self) -> Tensor:
        return torch.randn(CHUNK, *SHAPE, generator=self.generator)


def run_streams(runner: ModelRunner, num_chunks: int = 7) -> list[list[Tensor]]:
    """Return the flows of forwards of 1 to 6 rows, windows filling and full, sessions joining."""
    streams: list[Stream] = []
    flows = []
    for chunk in range(num_chunks):
        if len(streams) < 3:
            streams.append(Stream(runner, len(streams)))
        rows = [row for i, s in enumerate(streams) for row in s.rows(900.0 - 100 * i - chunk)]
        flows.append(runner.run(StepBatch(tuple(rows))))
        assert all(flow.isfinite().all() for flow in flows[-1])
        for stream in streams:
            stream.done()
    return flows


def close(some: Sequence[Sequence[Tensor]], others: Sequence[Sequence[Tensor]]) -> None:
    for one, other in zip(some, others, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def captured(runner: ModelRunner) -> list[TapeGraph]:
    graphs: list[TapeGraph] = []

    def new_graph() -> TapeGraph:
        graphs.append(TapeGraph())
        return graphs[-1]

    runner.capture_graphs(new_graph)
    return graphs
