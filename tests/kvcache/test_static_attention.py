"""Attention whose inputs are static: equal to the reference, and fit to be captured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvcache import (
    GeometryError,
    KVGeometry,
    KVPool,
    PageLimits,
    Rotation,
    RowPages,
    SdpaAttention,
    StaticTurn,
    WindowConfig,
    build,
)
from kvcache.attention.gather import GatherAttention, masked_kernel
from tests.kvcache.toy_model import (
    CHUNK,
    FRAME_TOKENS,
    HEAD_DIM,
    HEADS,
    LAYERS,
    SPEEDS,
    DenseToy,
    Toy,
    new_pool,
    turn,
)
from tests.tape import Tape, TapeGraph, storages

PAGE_TOKENS = 2
PAGES = FRAME_TOKENS // PAGE_TOKENS  # of a frame
# Never, as in a real one, is there a value on the host that a replay could not see.
READS_OF_THE_DEVICE = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal")


def turned(keys: Tensor, tables: Tensor) -> Tensor:
    (cos, sin) = tables[:, None, None].unbind(-1)
    real, imag = keys.double().unflatten(-1, (-1, 2)).unbind(-1)
    pairs = torch.stack([real * cos - imag * sin, real * sin + imag * cos], dim=-1)
    return pairs.flatten(-2).to(keys.dtype)


def table(num_frames: int) -> Tensor:
    angles = num_frames * SPEEDS
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


TURN = StaticTurn(table, turned)


def static(pool: KVPool, visible: int = 24, turned_pages: int = 8) -> GatherAttention:
    return GatherAttention(pool, masked_kernel, PageLimits(visible, turned_pages), turn=TURN)


def values(num_rows: int, num_tokens: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, num_rows, num_tokens, HEADS, HEAD_DIM, generator=generator)
    return q, k, v


def filled_pool() -> KVPool:
    pool = new_pool(20)
    generator = torch.Generator().manual_seed(9)
    for tensor in (*pool.k, *pool.v):
        tensor[: pool.num_pages].copy_(torch.randn(tensor[:-1].shape, generator=generator))
    return pool


@pytest.mark.parametrize(
    "config",
    [WindowConfig(6), WindowConfig(7, 1), WindowConfig(9, 3, rotary="relative"), WindowConfig(3)],
)
@pytest.mark.parametrize("fused", [False, True])
def test_a_stream_is_that_of_the_dense_model(config: WindowConfig, fused: bool) -> None:
    """Filling and full windows, pages in any order, the sink rotated or not, one plan a shape."""
    toy = Toy.open(config, fused=fused)
    toy.backend = backend = static(toy.table.pool)  # type: ignore[assignment]
    dense = DenseToy(config)
    for length in (2, CHUNK, CHUNK, CHUNK, CHUNK, CHUNK):
        # Every processor adds in an order of its own.
        torch.testing.assert_close(toy.chunk(length), dense.chunk(length), atol=4e-5, rtol=1e-5)
    assert len(backend._plans) == 2


def test_a_recache_in_one_forward_is_that_of_the_dense_model() -> None:
    config = WindowConfig(9, 2, rotary="relative")
    toy, dense = Toy.open(config), DenseToy(config)
    toy.backend = static(toy.table.pool)  # type: ignore[assignment]
    for _ in range(5):
        toy.chunk()
        dense.chunk()
    for causal in (False, True):
        toy.recache(2, causal=causal)
        dense.recache(2, causal=causal)
        torch.testing.assert_close(toy.chunk(), dense.chunk(), atol=1e-3, rtol=1e-4)


ROWS = (
    RowPages((4, 5), (9, 8, 4, 5), Rotation((1, 2), (9, 8), 3)),
    RowPages((20, 3), (3, 7, 30, 20, 0)),
    RowPages((6,), (6, 12)),
)


def test_ragged_rows_are_those_of_the_reference() -> None:
    pools = filled_pool(), filled_pool()
    q, k, v = values(3, 2 * PAGE_TOKENS)
    reference = SdpaAttention(pools[0], turn=turn).plan(ROWS, q.shape[1])
    plan = static(pools[1]).plan(ROWS, q.shape[1])
    assert plan.num_tokens == reference.num_tokens == (4, 4, 2)
    for layer in range(LAYERS):
        expected, found = reference(layer, q, k, v), plan(layer, q, k, v)
        assert found.isfinite().all()
        for i, n in enumerate(plan.num_tokens):
            torch.testing.assert_close(found[i, :n], expected[i, :n], atol=1e-6, rtol=1e-6)
        for mine, theirs in zip((pools[1].k, pools[1].v), (pools[0].k, pools[0].v), strict=True):
            assert torch.equal(mine[layer][:-1], theirs[layer][:-1])


def test_padded_rows_change_nothing_and_give_finite_values() -> None:
    """To the last bit: a row is computed on its own."""
    results = []
    for padding in (0, 1, 4):
        pool = filled_pool()
        plan = static(pool).plan([*ROWS, *[RowPages((), ())] * padding], 4)
        q, k, v = values(3 + padding, 4)
        q[:3], k[:3], v[:3] = values(3, 4)
        out = plan(1, q, k, v)
        assert out.isfinite().all()
        kept = [out[:2], out[2, :2], pool.k[1][:-1], pool.v[1][:-1], pool.k[0], pool.v[2]]
        results.append([tensor.clone() for tensor in kept])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_plan_keeps_its_addresses() -> None:
    backend = static(filled_pool())

    def addresses() -> list[int]:
        plan = backend.plan(ROWS, 4)
        pages = plan.pages
        tensors = [pages.write, pages.read, pages.ends, pages.is_visible, pages.tables]
        tensors += [pages.turned_from, pages.turned_to, *backend.scratch.tensors]
        for lengths in plan.lengths:
            tensors += [lengths.query_ends, lengths.key_ends, lengths.is_visible]
        return [tensor.data_ptr() for tensor in tensors]

    first = addresses()
    backend.plan([RowPages((1,), (1,))] * 1, 2)
    backend.plan([RowPages((), ()), RowPages((0,), (0, 1)), RowPages((), ())], 4)
    assert addresses() == first


def test_a_replay_sees_the_next_rows_and_nothing_of_the_last() -> None:
    pools = filled_pool(), filled_pool()
    q, k, v = values(3, 4)
    backends = [static(pool) for pool in pools]
    blank = [RowPages((), ())] * 3
    captured = backends[0].plan(blank, 4)
    graph = TapeGraph()
    out = graph.capture(lambda: captured(2, q, k, v))
    other = (
        RowPages((2,), (2, 13, 14, 15, 16, 17, 18)),
        RowPages((), ()),
        RowPages((0, 1), (10, 11, 0, 1), Rotation((4, 5), (10, 11), 7)),
    )
    for seed, rows in enumerate([ROWS, other, blank, ROWS]):
        for x, new in zip((q, k, v), values(3, 4, seed), strict=True):
            x.copy_(new)
        backends[0].plan(rows, 4)
        graph.replay()
        expected = backends[1].plan(rows, 4)(2, q, k, v)
        assert torch.equal(out, expected)
        assert torch.equal(pools[0].k[2], pools[1].k[2])
        assert torch.equal(pools[0].v[2], pools[1].v[2])


def test_a_forward_asks_the_device_for_nothing_and_keeps_nothing() -> None:
    plan = static(filled_pool()).plan(ROWS, 4)
    inputs = values(3, 4)
    tape, before = Tape(record=False), storages()
    with tape:
        plan(0, *inputs)
    assert len(tape.names) > 20
    assert not [name for name in tape.names if any(read in name for read in READS_OF_THE_DEVICE)]
    assert tape.kept() <= before


def test_no_value_is_needed_to_run_a_forward() -> None:
    """On the meta device there are none."""
    geometry = KVGeometry(LAYERS, HEADS, HEAD_DIM, FRAME_TOKENS, PAGE_TOKENS, torch.float32)
    plan = static(KVPool(geometry, 40, device="meta")).plan(ROWS, 4)
    tape = Tape(record=False)
    with tape:
        q, k, v = (x.to("meta") for x in values(3, 4))
        tape.devices.clear()
        assert plan(0, q, k, v).shape == q.shape
    assert tape.devices == {"meta"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([RowPages((0,), (0,))], "1 rows are not the 3 planned for"),
        ([RowPages((0,), tuple(range(25)))] + [RowPages((), ())] * 2, "more pages than"),
        (
            [RowPages((0,), (0, *range(10, 13)), Rotation((1, 2, 3), (10, 11, 12), 1))]
            + [RowPages((), ())] * 2,
            "more pages than",
        ),
    ],
)
def test_rows_that_a_plan_has_no_room_for_are_refused(rows: list[RowPages], message: str) -> None:
    backend = static(filled_pool(), turned_pages=0)
    plan = backend.plan([RowPages((), ())] * 3, 4)
    with pytest.raises(GeometryError, match=message):
        plan.pages.update(rows)


def test_rotation_needs_the_models_word() -> None:
    with pytest.raises(GeometryError, match="turn=None"):
        build("sdpa", filled_pool(), PageLimits(4, 1)).plan([RowPages((0,), (0,))], 2)
