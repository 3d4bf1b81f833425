"""What only a card can show: graphs, kernels, and decodes beside passes. See docs/gpu.md.

Their contracts are tested without one in test_graphs.py, test_decode_lane.py and tests/kvcache.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import Tensor

from kvcache import KVGeometry, PageTable, WindowConfig, choose
from kvcache.attention.choice import MODULES, facts_of, import_problem, refusal
from streamgen.account_memory import GRAPH_ROWS, resident_parameters
from streamgen.cuda_graph import compile_blocks, cuda_graphs
from streamgen.decode_lane import CudaLane
from streamgen.decoder import StreamingDecoder
from streamgen.device_state import weight_bytes
from streamgen.gpu_bench import Sweep, measure
from streamgen.model_runner import ModelRunner, Row, RunnerConfig, StepBatch
from streamgen.models.causal_dit import CausalDiT, DiTConfig
from streamgen.models.taehv import TAEHV, TAEHVConfig
from streamgen.offload import OffloadedBlocks
from streamgen.parity.replay import GivenText
from streamgen.pass_clock import CudaClock
from streamgen.text import TextMix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SHAPE = (16, 16, 24)
CHUNK = 3
WINDOW = WindowConfig(9, 2, rotary="relative")
DIT = DiTConfig(
    dim=512, ffn_dim=1024, num_layers=3, num_heads=4, text_dim=64, text_len=32, freq_dim=64
)


def new_runner(
    dtype: torch.dtype = torch.bfloat16,
    backend: str = "auto",
    device: str = "cuda",
    quantized_kv: bool = False,
    offload_layers: bool = False,
) -> ModelRunner:
    torch.manual_seed(0)
    model = CausalDiT(DIT).requires_grad_(False).eval()
    config = RunnerConfig(
        latent_shape=SHAPE, chunk_frames=CHUNK, num_frames=100, max_rows=8, text_slots=4,
        device=torch.device(device), attention_backend=backend,
        visible_frames=9, turned_frames=WINDOW.sink_frames, quantized_kv=quantized_kv,
        offload_layers=offload_layers,
    )  # fmt: skip
    prompts = (torch.randn(32, 64, generator=torch.Generator().manual_seed(1)),)
    return ModelRunner(model, GivenText(prompts), dtype, config)


def run(runner: ModelRunner, num_sessions: int = 2, num_chunks: int = 7) -> list[Tensor]:
    """Return the flows of sessions that share each forward, windows filling and full."""
    slot = runner.acquire_text(TextMix.of("0"))
    tables = [PageTable(runner.pool, WINDOW, CHUNK) for _ in range(num_sessions)]
    generator = torch.Generator().manual_seed(2)
    flows, commits = [], []
    for chunk in range(num_chunks):
        rows, commits = commits, []
        for table in tables:
            latents = torch.randn(CHUNK, *SHAPE, generator=generator).to(runner.config.device)
            row = Row(latents, 900.0 - 10 * chunk, table.begin(CHUNK), slot)
            rows.append(row)
            commits.append(Row(latents / 2, 0.0, row.staging, slot))
        flows += runner.run(StepBatch(tuple(rows)))
        for table in tables:
            table.commit()
    return [flow.cpu() for flow in flows]


def off(some: list[Tensor], others: list[Tensor]) -> float:
    """Return the largest distance, in standard deviations of the values."""
    scale = torch.stack([x.std() for x in others]).mean()
    pairs = zip(some, others, strict=True)
    return float(torch.stack([(a - b).abs().max() for a, b in pairs]).max() / scale)


def test_oracle_11_a_replay_is_the_eager_pass_to_the_last_bit() -> None:
    """As long as both have the same number of rows: 2 and 4 are captured."""
    runner, eager = new_runner(), new_runner()
    runner.capture_graphs(cuda_graphs())
    assert runner.graphs.sizes == GRAPH_ROWS
    found, expected = run(runner), run(eager)
    assert runner.num_eager == 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_padded_rows_change_nothing_that_is_seen() -> None:
    """Five sessions: forwards of five rows take the graph of six, and of ten run eagerly."""
    runner, eager = new_runner(), new_runner()
    runner.capture_graphs(cuda_graphs())
    assert off(run(runner, 3, 1), run(eager, 3, 1)) == 0
    assert off(run(runner, 5, 1), run(eager, 5, 1)) < 0.05


def test_a_pass_on_the_card_is_the_one_on_the_cpu() -> None:
    on_card, on_cpu = (new_runner(torch.float32, "sdpa", device) for device in ("cuda", "cpu"))
    assert off(run(on_card), run(on_cpu)) < 1e-3


@pytest.mark.parametrize("backend", MODULES)
def test_each_backend_gives_what_the_reference_gives(backend: str) -> None:
    missing = import_problem(MODULES[backend])
    if missing is not None:
        pytest.skip(missing)
    runner = new_runner(backend=backend)
    runner.capture_graphs(cuda_graphs())
    assert runner.graphs.sizes == GRAPH_ROWS
    assert off(run(runner), run(new_runner(torch.float32, "sdpa"))) < 0.2


@pytest.mark.parametrize("page_tokens", [1560, 920, 448])
@pytest.mark.parametrize("backend", MODULES)
def test_each_backend_reads_pages_of_the_sizes_that_are_served(
    backend: str, page_tokens: int
) -> None:
    """832x480, 640x368 and 448x256; what is not installed is left out, what is wrong is not."""
    geometry = KVGeometry(1, 12, 128, page_tokens, page_tokens, torch.bfloat16)
    device = torch.device("cuda")
    missing = refusal(backend, facts_of(geometry, device))
    if missing is not None:
        pytest.skip(missing)
    assert choose(backend, geometry, device).name == backend


@pytest.mark.parametrize("backend", ["varlen", "flash_attn", "sdpa"])
def test_8_bit_kv_replay_to_the_last_bit_and_are_those_of_the_cpu(backend: str) -> None:
    missing = import_problem(MODULES[backend])
    if missing is not None:
        pytest.skip(missing)
    runner, eager = (new_runner(backend=backend, quantized_kv=True) for _ in range(2))
    runner.capture_graphs(cuda_graphs())
    assert runner.graphs.sizes == GRAPH_ROWS
    found = run(runner)
    assert all(torch.equal(a, b) for a, b in zip(found, run(eager), strict=True))
    assert off(found, run(new_runner(torch.float32, "sdpa", "cpu", quantized_kv=True))) < 0.3


def test_layers_in_main_memory_give_the_same_bits_from_two_blocks_on_the_card() -> None:
    runner, whole = new_runner(offload_layers=True), new_runner()
    pairs = zip(run(runner), run(whole), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    blocks = runner.dit.blocks
    assert isinstance(blocks, OffloadedBlocks)
    assert len(blocks) == 3
    assert all(piece.is_pinned() for pieces in blocks._pieces for piece in pieces)
    assert weight_bytes(runner.dit) == 2 * resident_parameters(DIT, True) < weight_bytes(whole.dit)


def test_compiled_blocks_give_what_eager_ones_give() -> None:
    runner = new_runner()
    compile_blocks(runner.dit)
    assert off(run(runner), run(new_runner())) < 0.2


def test_a_pass_waits_for_no_device() -> None:
    """From latents on the card to flows on the card, nothing synchronises."""
    runner = new_runner()
    runner.capture_graphs(cuda_graphs())
    run(runner, 1, 4)
    slot = runner.acquire_text(TextMix.of("0"))
    table = PageTable(runner.pool, WINDOW, CHUNK)
    latents = torch.zeros(CHUNK, *SHAPE, device="cuda")
    batch = StepBatch((Row(latents, 500.0, table.begin(CHUNK), slot),))
    runner.run(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        runner.run(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_is_flat_over_two_hundred_passes() -> None:
    runner = new_runner()
    runner.capture_graphs(cuda_graphs())
    slot = runner.acquire_text(TextMix.of("0"))
    table = PageTable(runner.pool, WINDOW, CHUNK)
    taken = set()
    for chunk in range(200):
        row = Row(torch.zeros(CHUNK, *SHAPE, device="cuda"), 500.0, table.begin(CHUNK), slot)
        runner.run(StepBatch((row,)))
        table.commit()
        if chunk > 10:
            torch.cuda.synchronize()
            taken.add(torch.cuda.memory_allocated())
    assert len(taken) == 1


def test_a_clock_of_events_tells_the_devices_seconds() -> None:
    clock, seconds = CudaClock(), []
    x = torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        started = clock.start()
        for _ in range(20):
            x = (x @ x).tanh()
        clock.stop(started, seconds.append)
    torch.cuda.synchronize()
    clock.stop(clock.start(), seconds.append)
    assert len(seconds) >= 3
    assert min(seconds[:3]) > 1e-4


def test_decodes_run_beside_passes_and_give_the_same_pixels() -> None:
    """The same frames as with the device to themselves; and the passes do not wait for them."""
    torch.manual_seed(0)
    vae = TAEHV(TAEHVConfig()).requires_grad_(False).eval().to("cuda", torch.bfloat16)
    latents = torch.randn(6, 16, 60, 104, device="cuda")
    device = torch.device("cuda")
    runner = new_runner()
    runner.capture_graphs(cuda_graphs())
    results = []
    for is_busy in (False, True):
        lane = CudaLane(device)
        decoder = StreamingDecoder(vae, device, torch.bfloat16, num_threads=1, lane=lane)
        try:
            stream = decoder.open()
            waiting = [decoder.submit(stream, latents[i : i + 3], 12) for i in (0, 3)]
            if is_busy:
                run(runner)
            results.append([future.result() for future in waiting])
        finally:
            decoder.close()
    for alone, beside in zip(*results, strict=True):
        np.testing.assert_array_equal(alone, beside)


def test_the_benchmark_fills_its_table() -> None:
    dit = DiTConfig(dim=512, ffn_dim=1024, num_layers=2, num_heads=4)
    sweep = Sweep(dit, sizes=((128, 128),), windows=(6,), decoders={"tiny": TAEHVConfig()})
    start = time.perf_counter()
    rows = measure(sweep, torch.device("cuda"), lambda row: None)
    assert len(rows) == 4 * 4
    assert not any(row.note for row in rows)
    assert all(row.fps > 0 and row.pass_ms < 1000 * (time.perf_counter() - start) for row in rows)
