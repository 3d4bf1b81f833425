"""Relative rotary positions: the sink lies right before the window, however far the stream is."""

import dataclasses
from itertools import pairwise

import pytest
import torch

from kvcache import (
    GeometryError,
    PageTable,
    Rotation,
    RowPages,
    SdpaAttention,
    WindowConfig,
    WindowError,
)
from kvcache.attention.sdpa import segments
from tests.kvcache.toy_model import (
    CHUNK,
    HEAD_DIM,
    HEADS,
    DenseToy,
    Toy,
    forward,
    model_input,
    new_pool,
    rotate,
    turn,
)

RELATIVE = [
    WindowConfig(9, 3, rotary="relative"),
    WindowConfig(6, 3, rotary="relative"),
    WindowConfig(7, 2, rotary="relative"),
    WindowConfig(8, 1, rotary="relative"),
    WindowConfig(7, 4, rotary="relative"),
]


def test_pages_of_the_rotated_sink_are_reserved() -> None:
    """Once for a row at a time, twice for the two rows of a fused forward, never without a sink."""
    relative = WindowConfig(21, 3, rotary="relative")
    assert relative.reserved_frames(3, fused=False) == 21 + 3
    assert relative.reserved_frames(3, fused=True) == 21 + 3 + 2 * 3
    assert WindowConfig(21, 0, rotary="relative").reserved_frames(3, fused=True) == 24
    assert WindowConfig(21, 3).reserved_frames(3, fused=True) == 24
    pool = new_pool(30)
    table = PageTable(pool, relative, 3)
    assert pool.num_reserved == 30 * pool.geometry.pages_per_frame
    table.release()
    assert (pool.num_reserved, pool.allocator.num_used) == (0, 0)


def test_unknown_policy_is_refused() -> None:
    wrong = dataclasses.replace(RELATIVE[0], rotary="relativ")  # type: ignore[arg-type]
    with pytest.raises(WindowError, match="must be absolute or relative, not 'relativ'"):
        wrong.validate(CHUNK)


@pytest.mark.parametrize("fused", [False, True])
def test_the_sink_is_moved_by_what_is_missing(fused: bool) -> None:
    """Nothing while the stream is whole; then the gap, with the chunk. Slots stay neighbours."""
    config = WindowConfig(9, 3, rotary="relative")
    table = PageTable(new_pool(20), config, CHUNK, fused=fused)
    moved, used = [], []
    for _ in range(7):
        staging = table.begin(CHUNK)
        table.commit()
        rotation = staging.rotation
        moved.append(rotation.num_frames if rotation else 0)
        if rotation is not None:
            sink = sum((table.pages_of(frame) for frame in range(3)), ())
            assert rotation.source_pages == sink
            assert not set(staging.visible_pages) & set(sink)
            assert set(rotation.target_pages) < set(staging.visible_pages)
            used.append(rotation.target_pages)
            assert len(segments(staging.visible_pages)) <= 1 + 2 * fused
    assert moved == [0, 0, 0, 3, 6, 9, 12]
    assert len(set(used)) == (2 if fused else 1)
    assert all((a == b) != fused for a, b in pairwise(used))


@pytest.mark.parametrize("config", RELATIVE)
def test_relative_attention_is_dense_attention(config: WindowConfig) -> None:
    """Far beyond the window, on shared chunks and short ones."""
    toy, dense = Toy.open(config), DenseToy(config)
    for num_frames in (3, 3, 3, 2, 3, 1, 3, 3, 3, 3):
        output = toy.chunk(num_frames)
        torch.testing.assert_close(output, dense.chunk(num_frames), atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(toy.sink(), dense.sink(), atol=5e-5, rtol=1e-5)


def test_without_a_sink_relative_is_absolute() -> None:
    toys = [Toy.open(WindowConfig(6, 0, rotary=rotary)) for rotary in ("absolute", "relative")]
    for _ in range(6):
        assert torch.equal(*(toy.chunk() for toy in toys))


def test_with_a_sink_relative_is_not_absolute() -> None:
    toys = [Toy.open(WindowConfig(9, 3, rotary=rotary)) for rotary in ("absolute", "relative")]
    for chunk in range(6):
        left, right = (toy.chunk() for toy in toys)
        assert ((left - right).abs().max() > 0.01) == (chunk >= 3)


@pytest.mark.parametrize("config", RELATIVE)
def test_fused_rows_see_the_sink_at_two_distances(config: WindowConfig) -> None:
    """Oracle 6; with (7, 4) the commit row writes a key that the other row reads rotated."""
    dense, pool = DenseToy(config), new_pool(40)
    table = PageTable(pool, config, CHUNK, fused=True)
    backend = SdpaAttention(pool, turn=turn)
    staging = table.begin(CHUNK)
    noisy = model_input(range(CHUNK), 1, noise=1.0)
    [output] = forward(backend, [staging], [noisy])
    for chunk in range(9):
        torch.testing.assert_close(output, dense.chunk(), atol=5e-5, rtol=1e-5)
        table.commit()
        following = table.begin(CHUNK)
        frames = range(chunk * CHUNK, (chunk + 2) * CHUNK)
        noisy = model_input(frames[CHUNK:], 1, noise=1.0)
        inputs = [model_input(frames[:CHUNK], 1), noisy]
        _, output = forward(backend, [staging, following], inputs)
        staging = following


def test_errors_do_not_add_up() -> None:
    """In bf16, after 10,000 frames, a rotated key is one rounding away from the kept one's."""
    pool = new_pool(12, dtype=torch.bfloat16)
    table = PageTable(pool, WindowConfig(9, 3, rotary="relative"), CHUNK, fused=False)
    backend = SdpaAttention(pool, turn=turn)
    generator = torch.Generator().manual_seed(0)
    canonical = torch.zeros(0)
    for chunk in range(3400):
        staging = table.begin(CHUNK)
        if chunk and chunk < 3390:
            table.commit()
            continue
        plan = backend.plan(
            [RowPages(staging.write_pages, staging.visible_pages, staging.rotation)], CHUNK * 4
        )
        q, k, v = (
            torch.randn(1, CHUNK * 4, HEADS, HEAD_DIM, generator=generator).bfloat16()
            for _ in range(3)
        )
        if chunk == 0:
            canonical = k[0]
        plan(0, q, k, v)
        table.commit()
    assert staging.rotation is not None
    assert staging.rotation.num_frames == 3400 * CHUNK - 9
    moved = torch.full((CHUNK * 4,), float(staging.rotation.num_frames))
    expected = rotate(canonical.double(), moved).float()
    got = pool.k[0][list(staging.rotation.target_pages)].flatten(0, 1).float()
    assert (got - expected).abs().max() <= expected.abs().max() * 2**-8
    assert torch.equal(pool.k[0][list(staging.rotation.source_pages)].flatten(0, 1), canonical)


def test_rotations_that_cannot_be_done_are_refused() -> None:
    """Without the model's turn, onto a page that is written, or two onto one page."""
    pool = new_pool(10)
    rotation = Rotation((0, 1), (4, 5), 7)
    row = RowPages((6, 7), (4, 5, 6, 7), rotation)
    backend = SdpaAttention(pool, turn=turn)
    with pytest.raises(GeometryError, match=r"no model said how \(turn=None\)"):
        SdpaAttention(pool).plan([row], 4)
    written = dataclasses.replace(row, rotation=Rotation((0, 1), (5, 6), 7))
    short = dataclasses.replace(row, rotation=Rotation((0, 1), (4,), 7))
    itself = dataclasses.replace(row, rotation=Rotation((4, 5), (4, 5), 7))
    for wrong in (written, short, itself):
        with pytest.raises(GeometryError, match="does not bring keys to as many pages"):
            backend.plan([wrong], 4)
    other = RowPages((8, 9), (4, 5, 8, 9), Rotation((0, 1), (4, 5), 8))
    with pytest.raises(GeometryError, match="different keys on the same pages"):
        backend.plan([row, other], 4)
    assert len(backend.plan([row, dataclasses.replace(other, rotation=rotation)], 4).rotations) == 1
