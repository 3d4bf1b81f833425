"""`streamgen parity` derives everything from the fixture: other shapes pass as well."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from streamgen.models.taehv import TAEHV, TAEHVConfig
from streamgen.models.wan_vae import WanVAE, WanVAEConfig
from streamgen.parity import run
from tests.reference_fixtures import (
    StreamShape,
    golden,
    reported,
    stream_fixture,
    write_fixture,
)

SHAPES = {
    "chunk of 2": StreamShape(chunk=2, size=(6, 4), heads=3, head_dim=14, layers=1),
    "shift 3, one step": StreamShape(shift=3.0, steps=(1000,), layers=3),
    "five steps": StreamShape(steps=(1000, 800, 550, 300, 100), head_dim=18),
    "windows": StreamShape(
        runs={"local5_sink0": (5, 0), "local8_sink2": (8, 2), "local6_sink3": (6, 3)},
        chunks=6,
    ),
    "windows, chunk of 2": StreamShape(
        runs={"local5_sink1": (5, 1), "local7_sink3": (7, 3), "global": (-1, 0)},
        chunk=2,
        chunks=7,
        size=(2, 10),
    ),
    "relative": StreamShape(
        runs={"local6_sink3": (6, 3), "local7_sink4": (7, 4), "local8_sink1": (8, 1)},
        relative=True,
        chunks=6,
    ),
    "relative, chunk of 2": StreamShape(
        runs={"local5_sink3": (5, 3), "local7_sink2": (7, 2)},
        relative=True,
        chunk=2,
        chunks=7,
        heads=3,
        head_dim=14,
    ),
    "switches": StreamShape(
        scenarios={
            "kept": ((9,), True, False),
            "rebuilt": ((9,), False, False),
            "early_then_late": ((2, 13), True, False),
            "rebuilt_twice": ((10, 13), False, True),
            "relative": ((10, 15), True, True),
        },
        window=(7, 2),
        chunks=7,
        layers=3,
    ),
    "switches, chunk of 2": StreamShape(
        scenarios={"kept": ((7, 11), True, True), "rebuilt": ((7, 11), False, True)},
        window=(5, 3),
        chunk=2,
        chunks=8,
        steps=(1000,),
    ),
    "switches, no sink": StreamShape(
        scenarios={"kept": ((3, 6), True, False), "rebuilt": ((0, 12), False, False)},
        window=(6, 0),
        chunks=6,
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_streams_of_other_shapes_pass(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Heads, layers, resolutions, chunks, windows, sinks, shifts and step lists are data."""
    shape = SHAPES[name]
    directory = stream_fixture(tmp_path / "variant", shape)
    assert run([directory]) == 0
    lines, last, _ = reported(capsys)
    assert all(words[3] == "ok" for words in lines)
    num_runs = len(shape.runs or shape.scenarios or [None])
    assert sum("output" in words[0] for words in lines) == 2 * num_runs
    assert last == f"{len(lines)} passed, 0 failed"


@torch.no_grad()
def test_wan_vae_of_other_widths_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Widths, stages and latent channels are data; the reference is diffusers' whole decode."""
    config = WanVAEConfig(
        dim=6,
        z_dim=3,
        dim_mult=(1, 2, 3),
        num_res_blocks=1,
        temporal_downsample=(False, True),
        latent_mean=(0.1, 0.2, -0.3),
        latent_std=(1.5, 0.7, 2.0),
    )
    torch.manual_seed(6)
    model = WanVAE(config)
    model.vae.decoder.conv_out.weight.mul_(0.1)  # diffusers clamps, the reference does not
    names = model.original_keys()
    latents = torch.randn(1, 3, 5, 4, 2)
    video = torch.rand(1, 3, 9, 16, 8) * 2 - 1
    mean, std = (
        torch.tensor(v)[:, None, None, None] for v in (config.latent_mean, config.latent_std)
    )
    tensors = {
        "latents": latents,
        "video": video,
        "frames": model.vae.decode(latents * std + mean).sample,
        "encoded": (model.vae.encode(video).latent_dist.mode() - mean) / std,
    }
    assert float(tensors["frames"].abs().max()) < 1
    written = dataclasses.asdict(config) | {"attn_scales": []}
    written["temperal_downsample"] = written.pop("temporal_downsample")
    description = {
        "fixture": "wanvae_tiny",
        "config": written,
        "weights": "weights.safetensors: all parameters, original Wan VAE key names",
        "streaming": {
            "checked_chunkings": {
                "2+2+1": {"latents_per_chunk": [2, 2, 1], "pixel_frames_per_chunk": [3, 4, 2]}
            }
        },
        "tolerance": {"frames": {"max_abs_err": 1e-4}, "encoded": {"max_abs_err": 5e-5}},
    }
    weights = {names[name]: t for name, t in model.state_dict().items()}
    directory = write_fixture(tmp_path / "vae", description, tensors, weights)
    assert run([directory]) == 0
    assert reported(capsys)[1] == "5 passed, 0 failed"


@torch.no_grad()
def test_taehv_of_other_widths_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Widths and latent channels are data, and the published width is optional."""
    torch.manual_seed(7)
    model = TAEHV(TAEHVConfig(latent_channels=6, encoder_width=5, decoder_widths=(9, 7, 5, 4)))
    latents, video = torch.randn(1, 3, 6, 2, 3), torch.rand(1, 6, 3, 16, 24)
    description = json.loads((golden("taehv_tiny") / "fixture.json").read_text())
    description["config"] |= {
        "latent_channels": 6,
        "encoder_width": 5,
        "decoder_widths": [9, 7, 5, 4],
    }
    description["streaming"]["decode"]["output_frames_per_latent"] = [1, 4, 4]
    description["streaming"]["encode"]["latent_emitted_after_frame (1 = yes)"] = [0, 0, 0, 1, 0, 0]
    tensors = {"latents": latents, "video": video}
    tensors |= {"frames": model.decode(latents), "encoded": model.encode(video)}
    directory = write_fixture(tmp_path / "taehv", description, tensors, model.state_dict())
    assert run([directory]) == 0
    assert reported(capsys)[1] == "6 passed, 0 failed"


def test_schedule_of_another_shift_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shifts need not be whole and tables need not have 1000 steps."""
    s = torch.linspace(1, 0, 501)[:-1]
    sigmas = 2.5 * s / (1 + 1.5 * s)
    tensors = {"shift2.5.sigmas": sigmas, "shift2.5.timesteps": sigmas * 500}
    tensors |= {"shift2.5.warped0": (sigmas * 500)[[0, 250]], "sample.x0": torch.randn(2, 3)}
    description = {
        "fixture": "schedule",
        "warped_lists": {
            "shift2.5.warped0": {"requested": [500, 250], "sigmas": sigmas[[0, 250]].tolist()}
        },
        "lookups [t, index, sigma]": [
            {"shift": 2.5, "lookup": [[500.0, 0, 1.0], [0.0, 499, float(sigmas[-1])]]}
        ],
        "tolerance": {
            "tables": {"max_abs_err": 1e-4},
            "add_noise and x0_from_flow": {"max_abs_err": 1e-6},
        },
    }
    assert run([write_fixture(tmp_path / "schedule", description, tensors)]) == 0
    assert reported(capsys)[1] == "5 passed, 0 failed"
