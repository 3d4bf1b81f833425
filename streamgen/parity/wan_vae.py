"""Fixtures of kind `wanvae_tiny`: the causal video VAE, whole and streaming."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from streamgen.models.loader import load_safetensors_strict
from streamgen.models.wan_vae import WanVAE, WanVAEConfig, WanVAEState
from streamgen.parity.check import Check, compare, count_differences
from streamgen.parity.fixture import Fixture, FixtureError, blaming

INPUTS: Final = r"latents|video"
_SLOTS: Final = "cache_slots_after_4_latents"


def check(fixture: Fixture) -> Iterator[Check]:
    """Decode and encode, whole and in every listed chunking, and compare.

    The fixture's layout is [batch, channel, frame, h, w].
    """
    model = _load(fixture)
    shape = (None, model.config.z_dim, None, None, None)
    latents = fixture.tensor("latents", *shape).transpose(1, 2)
    tolerance = fixture.number("tolerance", "frames", "max_abs_err")
    name = "debug.decoder_input"
    if name in fixture.tensors:
        yield compare(name, model.decoder_input(latents), fixture.tensor(name), tolerance)
    frames = fixture.tensor("frames").transpose(1, 2)
    whole, _ = model.decode_raw(latents, model.decoder_state())
    yield compare("frames", whole, frames, tolerance)
    for name in fixture.group("streaming", "checked_chunkings"):
        yield from _check_chunking(fixture, model, latents, frames, name)
    if fixture.has("streaming", _SLOTS):
        yield _check_slots(fixture, model.decode_raw(latents[:, :4], model.decoder_state())[1])
    yield from _check_encoder(fixture, model)


def _load(fixture: Fixture) -> WanVAE:
    if fixture.items("config", "attn_scales"):
        raise FixtureError("config.attn_scales must be empty, as in every published Wan VAE")
    with blaming("config"):
        config = WanVAEConfig(
            dim=fixture.size("config", "dim"),
            z_dim=fixture.size("config", "z_dim"),
            dim_mult=fixture.sizes("config", "dim_mult"),
            num_res_blocks=fixture.size("config", "num_res_blocks"),
            temporal_downsample=fixture.flags("config", "temperal_downsample"),
            latent_mean=fixture.numbers("config", "latent_mean"),
            latent_std=fixture.numbers("config", "latent_std"),
        )
    model = WanVAE(config)
    load_safetensors_strict(model, fixture.weights_path(), file_keys=model.original_keys())
    return model


def _check_chunking(
    fixture: Fixture, model: WanVAE, latents: Tensor, frames: Tensor, name: str
) -> Iterator[Check]:
    where = ("streaming", "checked_chunkings", name)
    plan = fixture.sizes(*where, "latents_per_chunk")
    if sum(plan) != latents.shape[1]:
        raise FixtureError(f"{'.'.join(where)} does not cut {latents.shape[1]} latents")
    state = model.decoder_state()
    parts = []
    for part in torch.split(latents, list(plan), dim=1):
        decoded, state = model.decode_raw(part, state)
        parts.append(decoded)
    tolerance = fixture.number("tolerance", "frames", "max_abs_err")
    yield compare(f"frames.{name}", torch.cat(parts, dim=1), frames, tolerance)
    lengths = [part.shape[1] for part in parts]
    expected = fixture.integers(*where, "pixel_frames_per_chunk")
    yield count_differences(f"pixel_frames_per_chunk.{name}", lengths, expected)


def _check_slots(fixture: Fixture, state: WanVAEState) -> Check:
    got = [
        [i, list(slot.shape) if isinstance(slot, Tensor) else "unused"]
        for i, slot in enumerate(state.history)
    ]
    expected = fixture.items("streaming", _SLOTS, "slots")
    # The reference has a slot for shortcut convolutions too, at the end and never used.
    expected = [slot for slot in expected if not str(slot).endswith("'unused']")]
    return count_differences(f"streaming.{_SLOTS}", got[: len(expected)], expected)


def _check_encoder(fixture: Fixture, model: WanVAE) -> Iterator[Check]:
    raw = fixture.tensor("video", None, 3, None, None, None)
    video = (raw.transpose(1, 2) + 1) / 2
    encoded = fixture.tensor("encoded").transpose(1, 2)
    tolerance = fixture.number("tolerance", "encoded", "max_abs_err")
    with blaming("video"):
        whole = model.encode(video)
    yield compare("encoded", whole, encoded, tolerance)
    state = model.encoder_state()
    parts = []
    for frame in torch.split(video, 1, dim=1):
        part, state = model.encode_step(frame, state)
        parts.append(part)
    yield compare("encoded.streaming", torch.cat(parts, dim=1), encoded, tolerance)
