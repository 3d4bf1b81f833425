"""Attention over pages against attention without any cache."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kvcache import (
    KVGeometry,
    KVPool,
    PageTable,
    RowPages,
    SdpaAttention,
    Staging,
    WindowConfig,
)
from kvcache.attention import AttentionBackend
from kvcache.attention.sdpa import fused_kernel, segments

LAYERS, HEADS, HEAD_DIM, FRAME_TOKENS = 3, 2, 8, 4
CHUNK = 3
# Elementwise projections: unlike a matrix product, they round alike in every batch.
WEIGHTS = torch.randn(LAYERS, 3, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(0))


def new_pool(num_frames: int = 40, page_tokens: int = 2) -> KVPool:
    geometry = KVGeometry(LAYERS, HEADS, HEAD_DIM, FRAME_TOKENS, page_tokens, torch.float32)
    return KVPool(geometry, num_frames * geometry.pages_per_frame, poison_freed=True)


def pages(staging: Staging) -> RowPages:
    return RowPages(staging.write_pages, staging.visible_pages)


def chunk_input(seed: int, chunk: int, num_frames: int = CHUNK, pass_index: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + 10 * chunk + pass_index)
    return torch.randn(num_frames * FRAME_TOKENS, HEADS, HEAD_DIM, generator=generator)


def project(x: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (x * weight for weight in WEIGHTS[layer])
    return q, k, v


def forward(
    backend: AttentionBackend, rows: Sequence[RowPages], inputs: Sequence[Tensor]
) -> list[Tensor]:
    """Run a model of nothing but attention and residuals; pad ragged rows with garbage."""
    longest = max(len(x) for x in inputs)
    x = torch.full((len(rows), longest, HEADS, HEAD_DIM), 1e3)
    for row, tokens in enumerate(inputs):
        x[row, : len(tokens)] = tokens
    plan = backend.plan(rows, longest)
    assert plan.num_tokens == tuple(len(tokens) for tokens in inputs)
    for layer in range(LAYERS):
        x = x + plan(layer, *project(x, layer))
        assert x.isfinite().all()
    return [x[row, : len(tokens)] for row, tokens in enumerate(inputs)]


def run(
    table: PageTable, backend: AttentionBackend, seed: int, num_chunks: int, num_passes: int = 2
) -> list[Tensor]:
    """Generate chunks, several passes each, and return the last pass of every chunk."""
    outputs = []
    for chunk in range(num_chunks):
        staging = table.begin(CHUNK)
        for pass_index in range(num_passes):
            x = chunk_input(seed, chunk, pass_index=pass_index)
            [output] = forward(backend, [pages(staging)], [x])
        table.commit()
        outputs.append(output)
    return outputs


def assert_equal(left: Sequence[Tensor], right: Sequence[Tensor]) -> None:
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)


def dense_run(config: WindowConfig, seed: int, plan: Sequence[int]) -> list[Tensor]:
    """Generate the same chunks from a plain list of every K and V ever made, in float64."""
    history: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(LAYERS)]
    outputs = []
    for chunk, num_frames in enumerate(plan):
        x = chunk_input(seed, chunk, num_frames).double()
        for layer in range(LAYERS):
            q, k, v = (x * weight.double() for weight in WEIGHTS[layer])
            history[layer] += zip(k.split(FRAME_TOKENS), v.split(FRAME_TOKENS), strict=True)
            seen = history[layer]
            if config.window_frames is not None and len(seen) > config.window_frames:
                newest = config.window_frames - config.sink_frames
                seen = seen[: config.sink_frames] + seen[-newest:]
            keys, values = (torch.cat(side) for side in zip(*seen, strict=True))
            scores = torch.einsum("qhd,khd->hqk", q, keys) / HEAD_DIM**0.5
            x = x + torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        outputs.append(x.float())
    return outputs


@pytest.mark.parametrize("page_tokens", [1, 2, 4])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("config", "plan"),
    [
        (WindowConfig(6), [3] * 8),
        (WindowConfig(6, 3), [3] * 8),
        (WindowConfig(9, 3), [3] * 8),
        (WindowConfig(7, 2), [1, 3, 3, 3, 2, 3, 1, 3]),
        (WindowConfig(5, 1), [2] * 9),
        (WindowConfig(None, 0, 24), [3] * 8),
    ],
)
def test_cached_attention_is_dense_attention(
    config: WindowConfig, plan: list[int], fused: bool, page_tokens: int
) -> None:
    """Oracle 1 at the level of attention: a cache changes nothing but the cost."""
    pool = new_pool(page_tokens=page_tokens)
    table = PageTable(pool, config, max(plan), fused=fused)
    backend = SdpaAttention(pool)
    for chunk, expected in enumerate(dense_run(config, 5, plan)):
        staging = table.begin(plan[chunk])
        [output] = forward(backend, [pages(staging)], [chunk_input(5, chunk, plan[chunk])])
        table.commit()
        torch.testing.assert_close(output, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_permuting_physical_pages_changes_nothing(seed: int) -> None:
    """Oracle 2: the same session on pages scattered at random, equal to the last bit."""
    here, there = new_pool(), new_pool()
    homes = list(range(here.num_pages))
    random.Random(seed).shuffle(homes)
    table = PageTable(here, WindowConfig(7, 1), CHUNK)
    backends = SdpaAttention(here), SdpaAttention(there)
    for chunk in range(8):
        row = pages(table.begin(CHUNK))
        moved = RowPages(
            tuple(homes[page] for page in row.write_pages),
            tuple(homes[page] for page in row.visible_pages),
        )
        x = chunk_input(seed, chunk)
        assert_equal(forward(backends[0], [row], [x]), forward(backends[1], [moved], [x]))
        table.commit()


def test_the_order_of_visible_pages_means_nothing() -> None:
    pool = new_pool()
    table = PageTable(pool, WindowConfig(9), CHUNK)
    backend = SdpaAttention(pool)
    run(table, backend, seed=1, num_chunks=4)
    row = pages(table.begin(CHUNK))
    shuffled = list(row.visible_pages)
    random.Random(0).shuffle(shuffled)
    x = chunk_input(1, 4)
    [expected] = forward(backend, [row], [x])
    [output] = forward(backend, [RowPages(row.write_pages, tuple(shuffled))], [x])
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_company_changes_nothing() -> None:
    """Oracle 3: rows of other lengths, windows and empty ones beside a session, bit for bit."""
    alone_pool, pool = new_pool(), new_pool(60)
    alone = PageTable(alone_pool, WindowConfig(7, 1), CHUNK)
    neighbours = [PageTable(pool, config, 4) for config in (WindowConfig(4), WindowConfig(9, 2))]
    table = PageTable(pool, WindowConfig(7, 1), CHUNK)
    alone_backend, backend = SdpaAttention(alone_pool), SdpaAttention(pool)
    for chunk in range(8):
        x = chunk_input(2, chunk)
        expected = forward(alone_backend, [pages(alone.begin(CHUNK))], [x])
        stagings = [neighbours[0].begin(4), table.begin(CHUNK), neighbours[1].begin(1)]
        rows = [*map(pages, stagings), RowPages((), ())]
        inputs = [chunk_input(8, chunk, 4), x, chunk_input(9, chunk, 1), x[:0]]
        outputs = forward(backend, rows, inputs)
        assert_equal(outputs[1:2], expected)
        for each in (alone, table, *neighbours):
            each.commit()


def test_fused_commit_is_sequential_commit() -> None:
    """Oracle 6: commit of chunk n and first pass of n + 1, in one forward or in two."""
    fused_pool, plain_pool = new_pool(), new_pool()
    fused = PageTable(fused_pool, WindowConfig(7, 1), CHUNK)
    plain = PageTable(plain_pool, WindowConfig(7, 1), CHUNK, fused=False)
    fused_backend, plain_backend = SdpaAttention(fused_pool), SdpaAttention(plain_pool)
    staging = fused.begin(CHUNK)
    forward(fused_backend, [pages(staging)], [chunk_input(3, 0)])
    for chunk in range(10):
        clean, noise = chunk_input(3, chunk, pass_index=1), chunk_input(3, chunk + 1)
        [committed] = forward(plain_backend, [pages(plain.begin(CHUNK))], [clean])
        plain.commit()
        following_row = pages(plain.begin(CHUNK))
        [denoised] = forward(plain_backend, [following_row], [noise])
        plain.rollback()

        fused.commit()
        following = fused.begin(CHUNK)
        outputs = forward(fused_backend, [pages(staging), pages(following)], [clean, noise])
        for output, expected in zip(outputs, (committed, denoised), strict=True):
            torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
        staging = following


@pytest.mark.parametrize("abort_at", range(3))
def test_an_aborted_pass_leaves_history_as_it_was(abort_at: int) -> None:
    """Oracle 4, contents included: then the session goes on as if nothing had happened."""
    pools = new_pool(), new_pool()
    tables = [PageTable(pool, WindowConfig(7, 1), CHUNK) for pool in pools]
    backends = [SdpaAttention(pool) for pool in pools]
    for chunk in range(6):
        table, pool = tables[0], pools[0]
        held = [page for frame in table.frames for page in table.pages_of(frame)]
        before = [tensor[held].clone() for tensor in (*pool.k, *pool.v)]
        staging = table.begin(CHUNK)
        for pass_index in range(abort_at):
            forward(backends[0], [pages(staging)], [chunk_input(99, chunk, pass_index=pass_index)])
        table.rollback()
        assert_equal([tensor[held] for tensor in (*pool.k, *pool.v)], before)
        pairs = zip(tables, backends, strict=True)
        assert_equal(*(run(*pair, seed=4 + chunk, num_chunks=1) for pair in pairs))


def test_a_session_on_used_pages_is_a_session_on_new_ones() -> None:
    """A leaves or resets, B runs on what A wrote, and is equal to B alone to the last bit."""
    pool = new_pool(21)
    reference = run(PageTable(pool, WindowConfig(7, 1), CHUNK), SdpaAttention(pool), 6, 6)

    pool = new_pool(40)
    backend = SdpaAttention(pool)
    others = [PageTable(pool, WindowConfig(window), CHUNK) for window in (3, 6, 3)]
    for seed, other in enumerate(others):
        run(other, backend, seed, 5)
    others[0].release()
    others[2].release()
    table = PageTable(pool, WindowConfig(7, 1), CHUNK)
    assert_equal(run(table, backend, 6, 6), reference)
    run(table, backend, 7, 3)
    table.reset()
    assert_equal(run(table, backend, 6, 6), reference)


def test_a_session_on_fragments_is_a_session_on_one_run() -> None:
    reference_pool = new_pool(10)
    reference = run(
        PageTable(reference_pool, WindowConfig(7, 1), CHUNK), SdpaAttention(reference_pool), 6, 6
    )
    pool = new_pool(40)
    pool.reserve(60)
    held = pool.allocate(80)
    pool.free(held[::4])
    table = PageTable(pool, WindowConfig(7, 1), CHUNK)
    assert len(segments(table.begin(CHUNK).visible_pages)) > 2
    table.rollback()
    assert_equal(run(table, SdpaAttention(pool), 6, 6), reference)


def test_a_fork_continues_like_its_parent() -> None:
    pool = new_pool(40)
    backend = SdpaAttention(pool)
    parent = PageTable(pool, WindowConfig(7, 1), CHUNK)
    run(parent, backend, 1, 4)
    child = parent.fork()
    assert_equal(run(child, backend, 2, 4), run(parent, backend, 2, 4))


def test_recache_is_one_forward_over_the_window() -> None:
    """Oracle 5: rows of one session, each listing all frames, attend in both directions."""
    pool = new_pool()
    backend = SdpaAttention(pool)
    table = PageTable(pool, WindowConfig(6), CHUNK)
    run(table, backend, 1, 3)
    rows = [pages(staging) for staging in table.recache()]
    inputs = [chunk_input(7, chunk) for chunk in range(2)]
    outputs = forward(backend, rows, inputs)
    x = torch.cat(inputs)
    for layer in range(LAYERS):
        q, k, v = project(x, layer)
        x = x + fused_kernel(q, k, v)
    torch.testing.assert_close(torch.cat(outputs), x, atol=1e-5, rtol=1e-5)
