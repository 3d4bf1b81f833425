import pytest
import torch

from kvcache import GeometryError, KVGeometry


def test_published_sizes_of_wan_1_3b() -> None:
    """Width 1536, 30 layers, bf16, 832x480: the figures the design quotes."""
    geometry = KVGeometry(30, 12, 128, 1560, 1560, torch.bfloat16)
    assert geometry.bytes_per_token == 184_320
    assert geometry.bytes_for(3) / 1e9 == pytest.approx(0.863, abs=1e-3)
    assert geometry.bytes_for(21) / 1e9 == pytest.approx(6.04, abs=1e-2)
    assert geometry.bytes_for(24) / 1e9 == pytest.approx(6.90, abs=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("page_tokens", [1, 4, 6, 24])
def test_bytes_are_two_d_l_itemsize(dtype: torch.dtype, page_tokens: int) -> None:
    geometry = KVGeometry(3, 4, 32, 24, page_tokens, dtype)
    token_bytes = 2 * (4 * 32) * 3 * dtype.itemsize
    assert geometry.bytes_per_token == token_bytes
    assert geometry.page_bytes == page_tokens * token_bytes
    assert geometry.pages_per_frame == 24 // page_tokens
    assert geometry.frame_bytes == geometry.pages_per_frame * geometry.page_bytes
    assert geometry.bytes_for(7) == 7 * 24 * token_bytes


def test_a_page_must_divide_a_frame() -> None:
    with pytest.raises(GeometryError, match="page_tokens 16 does not divide tokens_per_frame 24"):
        KVGeometry(3, 4, 32, 24, 16, torch.float32)


@pytest.mark.parametrize("position", range(5))
def test_sizes_must_be_positive(position: int) -> None:
    layers, heads, head_dim, frame, page = (0 if i == position else 24 for i in range(5))
    with pytest.raises(GeometryError, match="must be positive, not 0"):
        KVGeometry(layers, heads, head_dim, frame, page, torch.float32)
