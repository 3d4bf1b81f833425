"""Pages in 8 bits: what they lose, what they cost, and attention over them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvcache import (
    AttentionFacts,
    BackendError,
    KVGeometry,
    KVPool,
    PageLimits,
    Rotation,
    RowPages,
    SdpaAttention,
    WindowConfig,
    build,
    choose,
)
from kvcache.attention.choice import refusal
from kvcache.attention.gather import masked_kernel
from kvcache.attention.sdpa import explicit_kernel
from kvcache.pages import quantized
from tests.kvcache.test_static_attention import READS_OF_THE_DEVICE, TURN, values
from tests.kvcache.toy_model import (
    FRAME_TOKENS,
    HEAD_DIM,
    HEADS,
    LAYERS,
    DenseToy,
    Toy,
    turn,
)
from tests.tape import Tape, TapeGraph, storages

PAGE_TOKENS = 2
ROWS = (
    RowPages((4, 5), (9, 8, 4, 5), Rotation((1, 2), (9, 8), 3)),
    RowPages((20, 3), (3, 7, 30, 20, 0)),
    RowPages((6,), (6, 12)),
)


def geometry(dtype: torch.dtype = torch.float32) -> KVGeometry:
    return KVGeometry(LAYERS, HEADS, HEAD_DIM, FRAME_TOKENS, PAGE_TOKENS, dtype, True)


def filled_pool(dtype: torch.dtype = torch.float32) -> KVPool:
    pool = KVPool(geometry(dtype), 40, poison_freed=True)
    generator = torch.Generator().manual_seed(9)
    for kept in (*pool.k_pages, *pool.v_pages):
        shape = kept.values[:-1].shape
        kept.put(slice(0, 40), torch.randn(shape, generator=generator).to(dtype))
    return pool


def kept_bits(pool: KVPool) -> list[Tensor]:
    """Return a copy of all that pages hold, without the scratch page."""
    sides = (*pool.k_pages, *pool.v_pages)
    return [t[:-1].clone() for p in sides for t in (p.values.view(torch.uint8), p.scale)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_page_loses_three_bits_of_its_values_whatever_their_size(dtype: torch.dtype) -> None:
    pages = torch.randn(6, 5, 3, 16, generator=torch.Generator().manual_seed(0))
    pages *= torch.tensor([1e-5, 1.0, 700.0, 1e6])[torch.arange(18) % 4].view(6, 1, 3, 1)
    pages[3] = 0
    pages = pages.to(dtype)
    kept = KVPool(KVGeometry(1, 3, 16, 5, 5, dtype, True), 6).k_pages[0]
    kept.put(slice(0, 6), pages)
    again = kept.take(slice(0, 6))
    assert again.dtype == dtype
    # Four bits of mantissa: half a step is a sixteenth; below 2^-6 of the scale, half of 2^-9.
    bound = pages.float().abs() / 16 + kept.scale[:-1] * 2**-10
    assert ((again.float() - pages.float()).abs() <= bound).all()
    assert (again[3] == 0).all()
    assert (kept.scale[:-1].log2() % 1 == 0).all()
    kept.put(slice(0, 6), again)
    assert torch.equal(kept.take(slice(0, 6)), again)


def test_what_a_page_holds_depends_on_nothing_else() -> None:
    pages = torch.randn(4, 5, 3, 16, generator=torch.Generator().manual_seed(1))
    values, scale = quantized(pages)
    for i in range(4):
        alone = quantized(pages[i : i + 1] if i % 2 else pages[i : i + 1].clone())
        assert torch.equal(alone[0].view(torch.uint8), values[i : i + 1].view(torch.uint8))
        assert torch.equal(alone[1], scale[i : i + 1])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    """A pass that goes wrong must not look like one that did not."""
    kept = KVPool(geometry(), 2).v_pages[0]
    page = torch.ones(1, PAGE_TOKENS, HEADS, HEAD_DIM)
    page[0, 1, 0, 3] = bad
    kept.put(slice(0, 1), page)
    again = kept.take(slice(0, 1))
    assert not again[0, 1, 0, 3].isfinite()
    assert torch.equal(again[0, :, 1], page[0, :, 1])


def test_bytes_are_half_of_bfloat16_and_the_scales() -> None:
    plain = KVGeometry(30, 12, 128, 1560, 1560, torch.bfloat16)
    small = KVGeometry(30, 12, 128, 1560, 1560, torch.bfloat16, True)
    assert 2 * small.bytes_per_token == plain.bytes_per_token
    assert small.page_bytes == plain.page_bytes // 2 + 2 * 30 * 12 * 4
    assert small.frame_bytes / plain.frame_bytes < 0.50002
    pool = KVPool(geometry(torch.bfloat16), 10)
    allocated = sum(p.nbytes for p in (*pool.k_pages, *pool.v_pages))
    assert pool.nbytes + pool.scratch_nbytes == allocated
    assert KVPool.from_bytes(pool.geometry, 11 * pool.geometry.page_bytes).num_pages == 10


def test_freed_pages_are_poisoned_both_in_values_and_scales() -> None:
    pool = filled_pool()
    pool.forget([3])
    for kept in (*pool.k_pages, *pool.v_pages):
        assert kept.take(slice(3, 4)).isnan().all()
        assert kept.values[3].float().isnan().all()
        assert kept.scale[3].isnan().all()
        assert kept.take(torch.tensor([0, 2, 4])).isfinite().all()


def expected_rows(pool: KVPool, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Return what ROWS should give in layer 0, from dictionaries of rounded pages."""

    def rounded(page: Tensor) -> Tensor:
        bits, scale = quantized(page[None])
        return (bits.float() * scale)[0]

    everything = slice(0, 40)
    keys, vals = (dict(enumerate(p[0].take(everything))) for p in (pool.k_pages, pool.v_pages))
    for i, row in enumerate(ROWS):
        for j, page in enumerate(row.write_pages):
            tokens = slice(j * PAGE_TOKENS, (j + 1) * PAGE_TOKENS)
            keys[page], vals[page] = rounded(k[i, tokens]), rounded(v[i, tokens])
    for source, target in zip((1, 2), (9, 8), strict=True):
        keys[target], vals[target] = rounded(turn(3)(keys[source])), vals[source]
    return [
        explicit_kernel(
            q[i, : len(row.write_pages) * PAGE_TOKENS],
            torch.cat([keys[page] for page in row.visible_pages]),
            torch.cat([vals[page] for page in row.visible_pages]),
        )
        for i, row in enumerate(ROWS)
    ]


@pytest.mark.parametrize("static", [False, True])
def test_attention_is_that_over_rounded_pages(static: bool) -> None:
    pool = filled_pool()
    q, k, v = values(3, 4)
    expected = expected_rows(pool, q, k, v)
    backend = (
        build("sdpa", pool, PageLimits(8, 4), TURN) if static else SdpaAttention(pool, turn=turn)
    )
    found = backend.plan(ROWS, 4)(0, q, k, v)
    for i, rows in enumerate(expected):
        torch.testing.assert_close(found[i, : len(rows)], rows, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_static_inputs_leave_the_same_bits_as_the_reference(dtype: torch.dtype) -> None:
    pools = filled_pool(dtype), filled_pool(dtype)
    q, k, v = (x.to(dtype) for x in values(3, 4))
    SdpaAttention(pools[0], turn=turn).plan(ROWS, 4)(1, q, k, v)
    build("sdpa", pools[1], PageLimits(8, 4), TURN).plan(ROWS, 4)(1, q, k, v)
    for mine, theirs in zip(kept_bits(pools[1]), kept_bits(pools[0]), strict=True):
        assert torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7))


@pytest.mark.parametrize(
    "config", [WindowConfig(6), WindowConfig(7, 1), WindowConfig(9, 3, rotary="relative")]
)
@pytest.mark.parametrize("fused", [False, True])
def test_a_stream_is_close_to_that_of_the_dense_model(config: WindowConfig, fused: bool) -> None:
    toy = Toy.open(config, fused=fused, pool=KVPool(geometry(), 80, poison_freed=True))
    dense = DenseToy(config)
    for _ in range(6):
        found, expected = toy.chunk(), dense.chunk()
        error = (found - expected).norm() / expected.norm()
        assert 0.001 < error < 0.2


def test_a_sink_turned_for_ever_is_turned_from_what_was_written() -> None:
    """Its rounding does not add up: the sink's own pages keep their bits."""
    config = WindowConfig(6, 1, rotary="relative")
    toy = Toy.open(config, pool=KVPool(geometry(), 80, poison_freed=True))
    toy.chunk()
    pages = list(toy.table.pages_of(0))
    before = [t[pages].clone() for t in kept_bits(toy.table.pool)]
    for _ in range(12):
        toy.chunk()
    assert all(
        torch.equal(t[pages], old) for t, old in zip(kept_bits(toy.table.pool), before, strict=True)
    )


def test_a_fork_shares_values_and_scales_and_writes_its_own() -> None:
    pool = KVPool(geometry(), 80, poison_freed=True)
    toy = Toy.open(WindowConfig(6), pool=pool)
    for _ in range(3):
        toy.chunk()
    child = Toy(toy.table.fork(), toy.backend, prompt=1)
    other = Toy(toy.table.fork(), toy.backend, prompt=2)
    assert child.table.pages_of(5) == toy.table.pages_of(5)
    other.recache(3)
    assert torch.equal(child.chunk(), toy.chunk())


def test_padded_rows_change_nothing() -> None:
    results = []
    for padding in (0, 3):
        pool = filled_pool()
        plan = build("sdpa", pool, PageLimits(8, 4), TURN).plan(
            [*ROWS, *[RowPages((), ())] * padding], 4
        )
        q, k, v = values(3 + padding, 4)
        q[:3], k[:3], v[:3] = values(3, 4)
        out = plan(1, q, k, v)
        assert out.isfinite().all()
        results.append([out[:2], out[2, :2], *kept_bits(pool)])
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(*results, strict=True))


def test_a_replay_sees_the_next_rows_at_the_same_addresses() -> None:
    pools = filled_pool(), filled_pool()
    q, k, v = values(3, 4)
    backends = [build("sdpa", pool, PageLimits(8, 4), TURN) for pool in pools]
    captured = backends[0].plan([RowPages((), ())] * 3, 4)
    graph = TapeGraph()
    out = graph.capture(lambda: captured(2, q, k, v))
    scratch = [t.data_ptr() for t in backends[0].scratch.tensors]  # type: ignore[attr-defined]
    assert len(scratch) == 3
    for seed, rows in enumerate([ROWS, (ROWS[1], ROWS[2], RowPages((), ())), ROWS]):
        for x, new in zip((q, k, v), values(3, 4, seed), strict=True):
            x.copy_(new)
        backends[0].plan(rows, 4)
        graph.replay()
        assert torch.equal(out, backends[1].plan(rows, 4)(2, q, k, v))
        assert all(torch.equal(a, b) for a, b in zip(*map(kept_bits, pools), strict=True))
    assert [t.data_ptr() for t in backends[0].scratch.tensors] == scratch  # type: ignore[attr-defined]


def test_a_forward_asks_the_device_for_nothing_and_keeps_nothing() -> None:
    plan = build("sdpa", filled_pool(), PageLimits(8, 4), TURN).plan(ROWS, 4)
    inputs = values(3, 4)
    tape, before = Tape(record=False), storages()
    with tape:
        plan(0, *inputs)
    assert not [name for name in tape.names if any(read in name for read in READS_OF_THE_DEVICE)]
    assert tape.kept() <= before


def test_no_value_is_needed_to_run_a_forward() -> None:
    pool = KVPool(geometry(), 40, device="meta")
    plan = build("sdpa", pool, PageLimits(8, 4), TURN).plan(ROWS, 4)
    q, k, v = (x.to("meta") for x in values(3, 4))
    tape = Tape(record=False)
    with tape:
        assert plan(0, q, k, v).shape == q.shape
    assert tape.devices == {"meta"}


CARD = AttentionFacts("cuda", (9, 0), torch.bfloat16, 128, {}, True)


def test_backends_that_read_pages_in_place_are_refused() -> None:
    said = refusal("flashinfer", CARD)
    assert said is not None
    assert "those in 8 bits have to be converted" in said
    assert all(refusal(name, CARD) is None for name in ("varlen", "flash_attn", "sdpa"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_check_at_the_start_takes_what_is_right_and_nothing_else(dtype: torch.dtype) -> None:
    shape = KVGeometry(2, 3, 64, 12, 6, dtype, True)
    facts = AttentionFacts("cuda", (9, 0), dtype, 64, {}, True)
    device = torch.device("cpu")
    assert choose("sdpa", shape, device, facts=facts).name == "sdpa"

    def without_scales(name: str, pool: KVPool, limits: PageLimits) -> object:
        for kept in (*pool.k_pages, *pool.v_pages):
            kept.scale.fill_(1.0)  # type: ignore[attr-defined]
        return build(name, pool, limits)

    def coarse(q: Tensor, k: Tensor, v: Tensor, lengths: object) -> Tensor:
        return masked_kernel(q, k, v.to(torch.float8_e5m2).to(v.dtype), lengths)  # type: ignore[arg-type]

    def coarser(name: str, pool: KVPool, limits: PageLimits) -> object:
        backend = build(name, pool, limits)
        backend.kernel = coarse  # type: ignore[attr-defined]
        return backend

    for wrong in (without_scales, coarser):
        with pytest.raises(BackendError, match=r"off the reference|pages they belong to"):
            choose("sdpa", shape, device, facts=facts, make=wrong)  # type: ignore[arg-type]
