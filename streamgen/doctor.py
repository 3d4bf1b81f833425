"""`streamgen doctor`: what is installed here, and whether it works."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

import av
import torch

from kvcache import BackendError, KVGeometry, KVPool, RowPages, SdpaAttention, choose
from streamgen import machine
from streamgen.device import VISIBLE, DeviceFacts, card_problem, find_device, idle_card
from streamgen.errors import StreamgenError
from streamgen.frame_ring import SHARED_MEMORY
from streamgen.model_list import weights_state
from streamgen.models.fused import has_products
from streamgen.models.presets import PRESETS, Preset, build
from streamgen.startup import num_cores
from streamgen.video_file import CODEC

DISTRIBUTIONS: Final = (
    "torch", "numpy", "safetensors", "diffusers", "transformers", "huggingface_hub", "fastapi",
    "uvicorn", "websockets", "av", "simplejpeg",
)  # fmt: skip
TOLERANCE: Final = 1e-5  # float32
WAN_PAGES: Final = KVGeometry(1, 12, 128, 1560, 1560, torch.bfloat16)  # 832x480


def run() -> int:
    """Print facts and checks; return 0, or 1 when a check failed."""
    for name, value in facts().items():
        print(f"{name:<14} {value}")
    checks: dict[str, Callable[[], str]] = {
        "device": check_device,
        "attention": check_attention,
        "video file": check_video_encoder,
    }
    for preset in PRESETS.values():
        checks[f"model {preset.name}"] = partial(check_model, preset)
    failed = 0
    for name, check in checks.items():
        try:
            print(f"{name:<14} ok: {check()}")
        except (CheckFailed, StreamgenError) as error:
            failed += 1
            print(f"{name:<14} FAIL: {error}")
    return 1 if failed else 0


class CheckFailed(Exception):
    """Something here does not work; the message says what."""


def facts() -> dict[str, str]:
    """Return versions and hardware, as a bug report needs them."""
    device = DeviceFacts.here()
    visible = "" if device.visible is None else f", {VISIBLE}={device.visible!r}"
    kernels = f", kernels for {', '.join(device.architectures)}" if device.architectures else ""
    shared = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    return {
        "streamgen": f"{machine.installed_version()}, commit {machine.commit() or 'unknown'}",
        "python": f"{platform.python_version()} at {sys.executable}",
        "system": platform.platform(),
        "cpu": f"{machine.cpu_name()}, {num_cores()} cores for this process, "
        f"{'bf16 and fp32' if has_products(torch.bfloat16) else 'fp32 (no products of bf16)'}",
        "cuda": f"{device.cuda_version or 'not in this torch'}{kernels}{visible}, "
        f"{len(device.cards)} devices",
        **{f"cuda:{index}": str(card) for index, card in enumerate(device.cards)},
        "shared memory": f"{shared / 2**20:.0f} MiB free",
        **{name: machine.installed_version(name) for name in DISTRIBUTIONS},
    }


def check_device() -> str:
    """Look for what keeps a card of this machine from being used."""
    device = DeviceFacts.here()
    problems = [idle_card(device), *(card_problem(i, device) for i in range(len(device.cards)))]
    for problem in problems:
        if problem is not None:
            raise CheckFailed(problem)
    return f"{find_device('auto', device)} is what auto takes"


def check_attention() -> str:
    """Compare attention over scattered pages with a dense product; on a card, choose a backend."""
    pages, tokens, heads, width = 6, 8, 2, 16
    pool = KVPool(KVGeometry(1, heads, width, tokens, tokens, torch.float32), pages)
    order = (4, 0, 3)
    k, v = torch.randn(2, 1, len(order) * tokens, heads, width).unbind()
    q = torch.randn_like(k)
    plan = SdpaAttention(pool).plan([RowPages(order, order)], len(order) * tokens)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * width**-0.5
    dense = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    error = float((plan(0, q, k, v) - dense).abs().max())
    if not error <= TOLERANCE:
        raise CheckFailed(f"sdpa is {error:.2g} off the dense product, {TOLERANCE:g} allowed")
    said = f"sdpa, {error:.1g} off the dense product"
    if not torch.cuda.is_available():
        return said
    try:
        choice = choose("auto", WAN_PAGES, torch.device("cuda"))
    except BackendError as problem:
        raise CheckFailed(str(problem)) from problem
    return f"{said}; on the card {choice.name} ({choice.reason})"


def check_video_encoder() -> str:
    """Look for the H.264 encoder that `generate` uses."""
    if CODEC not in av.codecs_available:
        raise CheckFailed(f"this PyAV has no {CODEC}; `streamgen generate` cannot write files")
    return f"{CODEC} in ffmpeg's libavcodec {'.'.join(map(str, av.library_versions['libavcodec']))}"


def check_model(preset: Preset) -> str:
    """Load a bundled model's weights; look for those of a published one, which take minutes."""
    if preset.published is None:
        build(preset)
    return weights_state(preset)
