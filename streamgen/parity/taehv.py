"""Fixtures of kind `taehv_tiny`: the tiny auto-encoder, whole and streaming, two widths."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from streamgen.models.loader import load_safetensors_strict
from streamgen.models.taehv import TAEHV, TAEHVConfig
from streamgen.parity.check import Check, compare, count_differences
from streamgen.parity.fixture import Fixture, FixtureError

INPUTS: Final = r"(full\.)?(latents|video)"
# The network's structure, which our TAEHV fixes.
_STRUCTURE: Final = {
    "patch_size": 1,
    "encoder_time_downscale": [True, True, False],
    "decoder_time_upscale": [False, True, True],
    "decoder_space_upscale": [True, True, True],
}
_PROBE_TOLERANCE: Final = 1e-6  # relative; the listed values have seven digits
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3


def check(fixture: Fixture) -> Iterator[Check]:
    """Decode and encode, whole and frame by frame, and compare."""
    for key, supported in _STRUCTURE.items():
        if fixture.value("config", key) != supported:
            raise FixtureError(f"config.{key} must be {supported}")
    encoder_width = fixture.size("config", "encoder_width")
    config = _config(fixture, encoder_width, fixture.sizes("config", "decoder_widths"))
    model = TAEHV(config)
    load_safetensors_strict(model, fixture.weights_path())
    tolerance = fixture.number("tolerance", "max_abs_err")
    yield from _check_decoder(fixture, model, tolerance)
    yield from _check_encoder(fixture, model, tolerance)
    if "full.latents" in fixture.tensors:
        yield from _check_full_width(fixture, tolerance)


def _config(fixture: Fixture, encoder_width: int, decoder_widths: tuple[int, ...]) -> TAEHVConfig:
    if len(decoder_widths) != 4:
        raise FixtureError(f"decoder widths {list(decoder_widths)} are not four")
    n0, n1, n2, n3 = decoder_widths
    return TAEHVConfig(
        latent_channels=fixture.size("config", "latent_channels"),
        image_channels=fixture.size("config", "image_channels"),
        encoder_width=encoder_width,
        decoder_widths=(n0, n1, n2, n3),
    )


def _latents(fixture: Fixture, model: TAEHV, name: str) -> Tensor:
    return fixture.tensor(name, None, None, model.config.latent_channels, None, None)


def _video(fixture: Fixture, model: TAEHV, name: str) -> Tensor:
    return fixture.tensor(name, None, None, model.config.image_channels, None, None)


def _check_decoder(fixture: Fixture, model: TAEHV, tolerance: float) -> Iterator[Check]:
    latents, frames = _latents(fixture, model, "latents"), fixture.tensor("frames")
    yield compare("frames", model.decode(latents), frames, tolerance)
    if "first_raw_frames" in fixture.tensors:
        raw, _ = model.decode_raw(latents, model.decoder_state())
        first = fixture.tensor("first_raw_frames")
        yield compare("first_raw_frames", raw[:, : first.shape[1]], first, tolerance)
    state = model.decoder_state()
    parts = []
    for latent in torch.split(latents, 1, dim=1):
        part, state = model.decode_step(latent, state)
        parts.append(part)
    yield compare("frames.streaming", torch.cat(parts, dim=1), frames, tolerance)
    lengths = [part.shape[1] for part in parts]
    expected = fixture.integers("streaming", "decode", "output_frames_per_latent")
    yield count_differences("streaming.output_frames_per_latent", lengths, expected)


def _check_encoder(fixture: Fixture, model: TAEHV, tolerance: float) -> Iterator[Check]:
    video, encoded = _video(fixture, model, "video"), fixture.tensor("encoded")
    yield compare("encoded", model.encode(video), encoded, tolerance)
    state = model.encoder_state()
    parts = []
    for frame in torch.split(video, 1, dim=1):
        part, state = model.encode_step(frame, state)
        parts.append(part)
    flushed = model.encode_flush(state)
    yield compare("encoded.streaming", torch.cat([*parts, flushed], dim=1), encoded, tolerance)
    emitted = [part.shape[1] for part in (*parts, flushed)]
    rule = ("streaming", "encode")
    expected = (
        *fixture.integers(*rule, "latent_emitted_after_frame (1 = yes)"),
        fixture.integer(*rule, "latents_from_flush"),
    )
    yield count_differences("streaming.latents_per_frame", emitted, expected)


def _check_full_width(fixture: Fixture, tolerance: float) -> Iterator[Check]:
    widths = ("config", "published_widths")
    encoder_width = fixture.size(*widths, "encoder")
    model = TAEHV(_config(fixture, encoder_width, fixture.sizes(*widths, "decoder")))
    seed = _rule_seed(fixture)
    for name, weight in model.state_dict().items():
        weight.copy_(_hashed_weight(name, weight.shape, seed))
    yield _check_probe(fixture, model)
    latents, video = _latents(fixture, model, "full.latents"), _video(fixture, model, "full.video")
    frames, encoded = fixture.tensor("full.frames"), fixture.tensor("full.encoded")
    yield compare("full.frames", model.decode(latents), frames, tolerance)
    yield compare("full.encoded", model.encode(video), encoded, tolerance)


def _check_probe(fixture: Fixture, model: TAEHV) -> Check:
    """Compare shape and first values of each generated weight with those listed."""
    weights = model.state_dict()
    wrong = sorted(weights.keys() ^ fixture.group("full_width", "probe").keys())
    for name in weights.keys() - wrong:
        where = ("full_width", "probe", name)
        shape, first = fixture.integers(*where, "shape"), fixture.numbers(*where, "first3")
        values = weights[name].flatten()[: len(first)].tolist()
        close = all(
            math.isclose(got, listed, rel_tol=_PROBE_TOLERANCE)
            for got, listed in zip(values, first, strict=False)
        )
        if tuple(weights[name].shape) != shape or not close:
            wrong.append(name)
    note = f"first {wrong[0]}" if wrong else ""
    return Check("full.probe", float(len(wrong)), 0.0, note)


def _rule_seed(fixture: Fixture) -> int:
    for line in fixture.items("full_width", "rule"):
        if found := re.fullmatch(r"seed = (\d+)", str(line).strip()):
            return int(found[1])
    raise FixtureError("full_width.rule names no 'seed = N'")


def _hashed_weight(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Make a weight by the fixture's rule: splitmix64 keyed by the FNV-1a hash of its name."""
    key = _FNV_OFFSET
    for byte in name.encode():
        key = (key ^ byte) * _FNV_PRIME % 2**64
    counter = np.arange(1, math.prod(shape) + 1, dtype=np.uint64)
    z = np.uint64(key ^ seed) + counter * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    u = 2 * ((z >> np.uint64(11)).astype(np.float64) * 2.0**-53) - 1
    if name.endswith("bias"):
        values = 0.1 * u + (0.5 if name == "decoder.22.bias" else 0.0)
    else:
        gain = 0.35 if name == "decoder.22.weight" else 0.6 if ".conv.4.weight" in name else 1.2
        values = u * math.sqrt(3) * gain / math.sqrt(math.prod(shape[1:]))
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)
