"""The Wan VAE streams what it decodes whole, and every stream owns its history."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from safetensors.torch import save_file
from torch import Tensor

from streamgen.models.loader import load_safetensors_strict
from streamgen.models.wan_vae import WanVAE, WanVAEConfig

MEAN, STD = (0.3, -0.2, 0.1, 0.5), (1.5, 0.8, 2.0, 1.1)
TINY = WanVAEConfig(
    dim=4,
    z_dim=4,
    dim_mult=(1, 2, 2),
    num_res_blocks=1,
    temporal_downsample=(True, True),
    latent_mean=MEAN,
    latent_std=STD,
)
CONFIGS = {
    "two stages": TINY,
    "published stages": WanVAEConfig(dim=4, z_dim=4, latent_mean=MEAN, latent_std=STD),
    "half the time factor": WanVAEConfig(
        dim=8,
        z_dim=4,
        dim_mult=(1, 1, 2),
        num_res_blocks=3,
        temporal_downsample=(False, True),
        latent_mean=MEAN,
        latent_std=STD,
    ),
}


@pytest.fixture(autouse=True)
def no_grad() -> object:
    with torch.no_grad():
        yield


def vae(config: WanVAEConfig = TINY) -> WanVAE:
    torch.manual_seed(0)
    return WanVAE(config)


def latents(num: int, seed: int = 1, config: WanVAEConfig = TINY) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, num, config.z_dim, 3, 4, generator=generator)


def streamed(model: WanVAE, z: Tensor, plan: list[int]) -> list[Tensor]:
    state, parts = model.decoder_state(), []
    for part in torch.split(z, plan, dim=1):
        frames, state = model.decode_step(part, state)
        parts.append(frames)
    return parts


@pytest.mark.parametrize("name", CONFIGS)
def test_decode_equals_diffusers(name: str) -> None:
    """The whole decode is bit for bit what diffusers decodes, in [0, 1] and frames first."""
    config = CONFIGS[name]
    model, z = vae(config), latents(5, config=config)
    scaled = z * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    expected = model.vae.decode(scaled.transpose(1, 2)).sample
    frames = model.decode(z)
    factor = config.spatial_factor
    assert frames.shape == (1, 1 + 4 * config.temporal_factor, 3, 3 * factor, 4 * factor)
    assert torch.equal(frames, (expected.transpose(1, 2) + 1) / 2)


@pytest.mark.parametrize("name", CONFIGS)
def test_encode_equals_diffusers(name: str) -> None:
    """The normalised mean of the posterior, no sampling; groups may differ in length."""
    config = CONFIGS[name]
    model, factor = vae(config), config.spatial_factor
    video = torch.rand(1, 9, 3, 2 * factor, 3 * factor)
    mean = model.vae.encode(video.transpose(1, 2) * 2 - 1).latent_dist.mode().transpose(1, 2)
    expected = (mean - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    encoded = model.encode(video)
    assert encoded.shape == (1, 1 + 8 // config.temporal_factor, 4, 2, 3)
    torch.testing.assert_close(encoded, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "plan", [[3] * 7, [1] * 21, [2, 5, 14], [21]], ids=["7x3", "21x1", "2,5,14", "21"]
)
def test_q28_streaming_decode_equals_one_shot(plan: list[int]) -> None:
    """81 frames however the 21 latents are cut: 9 then 12 a chunk in threes, no seam."""
    model, z = vae(), latents(21)
    parts = streamed(model, z, plan)
    whole = model.decode(z)
    assert whole.shape[1] == 81
    counts = [part.shape[1] for part in parts]
    assert counts == [4 * n - 3 * (i == 0) for i, n in enumerate(plan)]
    assert float((torch.cat(parts, dim=1) - whole).abs().max()) < 1e-5


def test_q28_a_kept_state_continues_the_stream() -> None:
    """Restored half-way, a stream goes on with the same frames, as often as one likes."""
    model, z = vae(), latents(9)
    whole = model.decode(z)
    _, saved = model.decode_step(z[:, :4], model.decoder_state())
    for _ in range(2):
        rest, _ = model.decode_step(z[:, 4:], saved)
        assert float((rest - whole[:, 13:]).abs().max()) < 1e-5


def test_q28_state_kept_after_the_first_latent_continues_too() -> None:
    """Up-samplings in time hold only a marker then."""
    model, z = vae(), latents(4)
    _, saved = model.decode_step(z[:, :1], model.decoder_state())
    rest, _ = model.decode_step(z[:, 1:], saved)
    assert float((rest - model.decode(z)[:, 1:]).abs().max()) < 1e-5


def test_q28_decode_memory_is_flat() -> None:
    """What a stream holds does not grow with its length."""
    model, state, sizes = vae(), None, []
    state = model.decoder_state()
    for latent in torch.split(latents(8), 1, dim=1):
        _, state = model.decode_step(latent, state)
        sizes.append(state.nbytes)
    assert len(set(sizes[2:])) == 1
    stored = {t.untyped_storage().nbytes() for t in state.history if isinstance(t, Tensor)}
    assert max(stored) <= max(t.nbytes for t in state.history if isinstance(t, Tensor))


def test_interleaved_streams_do_not_leak() -> None:
    """Two streams on one model, turn by turn, decode as each does alone."""
    model = vae()
    streams = {name: latents(6, seed=seed) for name, seed in (("a", 1), ("b", 2))}
    states = {name: model.decoder_state() for name in streams}
    parts: dict[str, list[Tensor]] = {name: [] for name in streams}
    for start in range(0, 6, 2):
        for name, z in streams.items():
            frames, states[name] = model.decode_step(z[:, start : start + 2], states[name])
            parts[name].append(frames)
    for name, z in streams.items():
        assert torch.equal(torch.cat(parts[name], dim=1), model.decode(z)), name


def test_diffusers_own_decode_in_between_does_not_leak() -> None:
    """diffusers clears the history it keeps in the model; ours is elsewhere."""
    model, z = vae(), latents(4)
    first, state = model.decode_step(z[:, :2], model.decoder_state())
    model.vae.decode(latents(3, seed=9).transpose(1, 2))
    rest, _ = model.decode_step(z[:, 2:], state)
    assert torch.equal(torch.cat([first, rest], dim=1), model.decode(z))


@pytest.mark.parametrize("plan", [[1] * 17, [17], [3, 1, 7, 6]])
def test_streaming_encode_equals_one_shot(plan: list[int]) -> None:
    """A latent appears with the last frame of its group, whatever the calls."""
    model = vae()
    video = torch.rand(1, 17, 3, 8, 8)
    state, parts = model.encoder_state(), []
    for part in torch.split(video, plan, dim=1):
        encoded, state = model.encode_step(part, state)
        parts.append(encoded)
    assert state.pending is None
    if plan == [1] * 17:
        assert [p.shape[1] for p in parts] == [1] + [0, 0, 0, 1] * 4
    assert float((torch.cat(parts, dim=1) - model.encode(video)).abs().max()) < 1e-5


def test_encode_refuses_unfinished_groups() -> None:
    """A whole clip must be 1 + 4k frames; nothing is padded or dropped in silence."""
    with pytest.raises(ValueError, match="16 frames are not 1 plus a multiple of 4"):
        vae().encode(torch.rand(1, 16, 3, 8, 8))


def test_half_precision_keeps_the_statistics() -> None:
    """Latents are scaled in float32 whatever the weights' type."""
    model, z = vae().to(torch.bfloat16), latents(2)
    scaled = z * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    expected = model.vae.post_quant_conv(scaled.transpose(1, 2).to(torch.bfloat16))
    assert torch.equal(model.decoder_input(z), expected)
    frames = model.decode(z)
    assert frames.dtype == torch.bfloat16
    assert bool(torch.isfinite(frames).all())


def test_original_names_are_those_diffusers_converts_from() -> None:
    """diffusers' converter takes our original names back to its own, all of them."""
    model = vae(CONFIGS["published stages"])
    names = model.original_keys()
    converted = convert_wan_vae_to_diffusers({original: ours for ours, original in names.items()})
    assert {f"vae.{name}": ours for name, ours in converted.items()} == {n: n for n in names}


def test_original_checkpoint_loads_strictly(tmp_path: Path) -> None:
    """A file under the original names fits; statistics are configuration, not weights."""
    model = vae()
    names = model.original_keys()
    tensors = {names[name]: t.clone() for name, t in model.state_dict().items()}
    assert len(tensors) == len(names)
    save_file(tensors, str(tmp_path / "vae.safetensors"))
    torch.manual_seed(5)
    other = WanVAE(TINY)
    load_safetensors_strict(other, tmp_path / "vae.safetensors", file_keys=other.original_keys())
    assert torch.equal(other.decode(latents(2)), model.decode(latents(2)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"temporal_downsample": (True,)}, "temporal_downsample has 1 entries, dim_mult 4"),
        ({"latent_mean": (0.0,)}, "latent_mean has 1 .* for 16 latent channels"),
    ],
)
def test_config_refuses_lengths_that_do_not_fit(
    changes: dict[str, tuple[float]], said: str
) -> None:
    """The message counts both sides."""
    with pytest.raises(ValueError, match=said):
        WanVAEConfig(**changes)  # type: ignore[arg-type]
