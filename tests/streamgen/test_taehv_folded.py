"""The decoder that is served equals the one that was trained, stream by stream."""

import copy

import pytest
import torch

from streamgen.models.taehv import TAEHV, TAEHVConfig
from streamgen.models.taehv_folded import FoldedTAEHV

WIDTHS = [(24, 16, 8, 8), (8, 16, 24, 32), (16, 16, 16, 8)]


def random_vae(widths: tuple[int, int, int, int]) -> TAEHV:
    torch.manual_seed(0)
    config = TAEHVConfig(latent_channels=4, encoder_width=8, decoder_widths=widths)
    return TAEHV(config).eval().requires_grad_(False)


@pytest.mark.parametrize("widths", WIDTHS)
@torch.inference_mode()
def test_a_folded_decoder_gives_the_frames_of_the_original(
    widths: tuple[int, int, int, int],
) -> None:
    vae = random_vae(widths)
    folded = FoldedTAEHV(vae)
    latents = torch.randn(2, 6, 4, 6, 10)
    state, other = vae.decoder_state(), folded.decoder_state()
    for part in latents.split([1, 3, 2], dim=1):
        expected, state = vae.decode_step(part, state)
        frames, other = folded.decode_step(part, other)
        assert frames.shape == expected.shape
        assert frames.std() > 0.01  # there is something to compare
        torch.testing.assert_close(frames, expected, atol=2e-6, rtol=0)
    assert other.nbytes == state.nbytes


@torch.inference_mode()
def test_a_stream_may_go_on_in_the_other_decoder() -> None:
    vae = random_vae(WIDTHS[0])
    first, second = torch.randn(1, 2, 4, 4, 4), torch.randn(1, 3, 4, 4, 4)
    _, state = FoldedTAEHV(vae).decode_step(first, vae.decoder_state())
    frames, _ = vae.decode_step(second, state)
    whole = vae.decode(torch.cat([first, second], dim=1))
    torch.testing.assert_close(frames, whole[:, -12:], atol=2e-6, rtol=0)


@torch.inference_mode()
def test_folding_leaves_the_original_as_it_was() -> None:
    vae = random_vae(WIDTHS[0])
    before = copy.deepcopy(vae.state_dict())
    FoldedTAEHV(vae).to(torch.bfloat16).decode_step(
        torch.randn(1, 1, 4, 4, 4).bfloat16(), vae.decoder_state()
    )
    after = vae.state_dict()
    assert all(
        torch.equal(tensor, after[name]) and tensor.dtype == after[name].dtype
        for name, tensor in before.items()
    )
