"""The models that can be served, each as one row of facts, and those that cannot, with the reason.

A preset is configuration only; `build` turns it into modules. What the engine's options leave open,
the preset decides. Facts of published models were read in their authors' repositories, as each
row's `source` says; what could not be seen is named there, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from streamgen.account_shapes import UMT5_XXL
from streamgen.errors import ConfigError, Unsupported
from streamgen.models.build import Model, build, check_weights, served
from streamgen.models.causal_dit import DiTConfig
from streamgen.models.preset import HubFile, Preset, Published, TextEncoder
from streamgen.models.random_text import random_text
from streamgen.models.taehv import TAEHVConfig
from streamgen.models.wan_vae import WanVAEConfig
from streamgen.pocket import config as pocket
from streamgen.pocket.openings import opening_noise
from streamgen.pocket.text_encoder import ConceptEncoder
from streamgen.step import ChunkPlan

__all__ = [
    "NOT_SUPPORTED", "POCKET", "PRESETS", "Model", "NotSupported", "Preset", "TextEncoder",
    "build", "check_weights", "find_preset", "served",
]  # fmt: skip

WAN_1_3B: Final = DiTConfig(dim=1536, ffn_dim=8960, num_layers=30, num_heads=12)
WAN_REPOSITORY: Final = "Wan-AI/Wan2.1-T2V-1.3B"
TINY_VAE: Final = "https://github.com/madebyollin/taehv/raw/main/taew2_1.pth"

# Steps 1000, 750, 500, 250 of the unshifted scale, in a schedule of shift 5.
SHIFT_5_STEPS: Final = (1000.0, 937.5, 833.3333129882812, 625.0)


@dataclass(frozen=True, slots=True)
class NotSupported:
    """A published model that this engine cannot play, and why."""

    name: str
    licence: str
    source: str
    reason: str


def find_preset(name: str) -> Preset:
    """Return the preset of a model name.

    Raises Unsupported, with the reason, for a model that is known not to work here, and ConfigError
    with the names there are for any other.
    """
    if name in NOT_SUPPORTED:
        raise Unsupported(f"{name} is not supported: {NOT_SUPPORTED[name].reason}", param="model")
    if name not in PRESETS:
        raise ConfigError(
            f"no model is called {name!r}; there is {', '.join(PRESETS)}", param="model"
        )
    return PRESETS[name]


def _concept_encoder(dummy: bool) -> TextEncoder:
    return ConceptEncoder().eval() if dummy else ConceptEncoder.load()


POCKET: Final = Preset(
    name="pocket",
    dit=pocket.DIT,
    vae=pocket.VAE,
    text_encoder=_concept_encoder,
    weights=Path(pocket.__file__).parent / "weights",
    shift=5.0,
    sampler="euler",
    steps=4,
    step_range=(2, 8),
    size=(128, 128),
    max_pixels=256 * 256,
    fps=16,
    chunks=ChunkPlan(pocket.CHUNK_FRAMES),
    window_frames=pocket.WINDOW_FRAMES,
    opening_noise=opening_noise,
    suggestions=(
        "a red ball bounces on the grass at night",
        "a blue star drifts over the sea",
        "a yellow box bounces in the desert at sunset",
        "a purple heart rests in the falling snow",
    ),
)


def _files(
    transformer: HubFile, container: str, *, licence: str, source: str, lora: HubFile | None = None,
    lora_container: str | None = None,
) -> Published:  # fmt: skip
    """Return the files of a model that was made from Wan 2.1's 1.3B."""
    return Published(
        licence=licence,
        source=source,
        transformer=transformer,
        container=container,
        vae=HubFile(WAN_REPOSITORY, "Wan2.1_VAE.pth"),
        tiny_vae=TINY_VAE,
        text=HubFile(WAN_REPOSITORY, "models_t5_umt5-xxl-enc-bf16.pth"),
        tokenizer=HubFile(WAN_REPOSITORY, "google/umt5-xxl/tokenizer.json"),
        text_shape=UMT5_XXL,
        lora=lora,
        lora_container=lora_container,
    )


def _wan(
    name: str,
    published: Published,
    *,
    timesteps: tuple[float, ...] = SHIFT_5_STEPS,
    first_timesteps: tuple[float, ...] | None = None,
    shift: float = 5.0,
    chunk_frames: int = 3,
    window_frames: int = 21,
    sink_frames: int = 0,
    transition: str = "cut",
) -> Preset:
    """Return the preset of a model of Wan 2.1's 1.3B, which mixes new noise in between passes."""
    return Preset(
        name=name,
        dit=WAN_1_3B,
        vae=WanVAEConfig(),
        tiny_vae=TAEHVConfig(),
        text_encoder=partial(random_text, WAN_1_3B.text_len, WAN_1_3B.text_dim),
        weights=None,
        shift=shift,
        sampler="renoise",
        steps=len(timesteps),
        step_range=(len(timesteps), len(timesteps)),
        size=(832, 480),
        max_pixels=832 * 480,
        fps=16,
        chunks=ChunkPlan(chunk_frames),
        window_frames=window_frames,
        sink_frames=sink_frames,
        transition=transition,
        suggestions=CAPTIONS,
        timesteps=timesteps,
        first_timesteps=first_timesteps,
        published=published,
    )


# They were trained on captions of this length.
CAPTIONS: Final = (
    "A red fox trots through a snowy birch forest at dawn. Its fur is thick and bright against the"
    " white ground, and its breath shows in the cold air. Low golden light falls between the"
    " trunks, and powder snow rises with each step. The camera moves beside it, low and close.",
    "A small wooden sailing boat crosses a turquoise bay under tall clouds. Its cream sail is full,"
    " and white foam curls from the bow. Seabirds circle behind it, and green cliffs pass slowly in"
    " the distance. A wide, steady shot from the air in warm afternoon light.",
    "A baker lifts round loaves from a brick oven with a long wooden peel. Flour hangs in the air,"
    " the crusts crackle and steam, and the fire paints the room orange. A close shot with a"
    " shallow depth of field, quiet and detailed.",
)

_SELF_FORCING: Final = _wan(
    "self-forcing",
    _files(
        HubFile("gdhe17/Self-Forcing", "checkpoints/self_forcing_dmd.pt"),
        "generator_ema",
        licence="CC-BY-NC-SA-4.0",
        source="github.com/guandeh17/Self-Forcing, configs/self_forcing_dmd.yaml and README;"
        " licence from a copy of the model card",
    ),
)
_CAUSAL_FORCING: Final = "zhuhz22/Causal-Forcing"
_CAUSAL_FORCING_SOURCE: Final = (
    "github.com/thu-ml/Causal-Forcing, configs/causal_forcing_dmd_{} and README; licence from a"
    " copy of the model card"
)


def _causal_forcing(
    name: str, file: str, container: str, config: str, *, chunk_frames: int = 1, steps: int = 4
) -> Preset:
    few = steps < len(SHIFT_5_STEPS)
    spacing = len(SHIFT_5_STEPS) // steps
    return _wan(
        name,
        _files(
            HubFile(_CAUSAL_FORCING, file),
            container,
            licence="Apache-2.0",
            source=_CAUSAL_FORCING_SOURCE.format(config),
        ),
        chunk_frames=chunk_frames,
        timesteps=SHIFT_5_STEPS[::spacing],
        first_timesteps=SHIFT_5_STEPS if few else None,
    )


_PUBLISHED: Final = (
    _SELF_FORCING,
    _causal_forcing(
        "causal-forcing", "chunkwise/causal_forcing.pt", "generator", "chunkwise.yaml",
        chunk_frames=3,
    ),
    _causal_forcing(
        "causal-forcing-frame", "framewise/causal_forcing.pt", "generator_ema", "framewise.yaml"
    ),
    _causal_forcing(
        "causal-forcing-frame-2", "causal-forcing++/framewise-2step.pt", "generator_ema",
        "framewise_2step.yaml", steps=2,
    ),
    _causal_forcing(
        "causal-forcing-frame-1", "causal-forcing++/framewise-1step.pt", "generator_ema",
        "framewise_1step.yaml", steps=1,
    ),
    _wan(
        "longlive",
        _files(
            HubFile("Efficient-Large-Model/LongLive-1.3B", "models/longlive_base.pt"),
            "generator",
            lora=HubFile("Efficient-Large-Model/LongLive-1.3B", "models/lora.pt"),
            lora_container="generator_lora",
            licence="CC-BY-NC-4.0",
            source="github.com/NVlabs/LongLive, branch v1.0, configs/longlive_inference.yaml and"
            " inference.py; licence of the weights from an earlier README, the model card was not"
            " seen",
        ),
        window_frames=12,
        sink_frames=3,
        transition="recache",
    ),
    _wan(
        "causvid",
        _files(
            HubFile("tianweiy/CausVid", "autoregressive_checkpoint/model.pt"),
            "generator",
            licence="CC-BY-NC-SA-4.0",
            source="github.com/tianweiy/CausVid, configs/wan_causal_dmd.yaml and"
            " minimal_inference/autoregressive_inference.py; licence is that of the repository, the"
            " model card names none",
        ),
        timesteps=(1000.0, 757.0, 522.0),
        shift=8.0,
    ),
)  # fmt: skip

PRESETS: Final = {preset.name: preset for preset in (POCKET, *_PUBLISHED)}

NOT_SUPPORTED: Final = {
    model.name: model
    for model in (
        NotSupported(
            "krea-realtime-14b",
            "CC-BY-NC-SA-4.0 (code); the model card was not seen",
            "github.com/krea-ai/realtime-video, release_server.py",
            "before each chunk it makes the K/V of its whole context again, with the oldest frame"
            " encoded anew from pixels, and this engine keeps K/V from chunk to chunk and has no"
            " encoder in its loop",
        ),
        NotSupported(
            "longlive-2-5b",
            "Apache-2.0 (code); the model card was not seen",
            "github.com/NVlabs/LongLive, configs/inference.yaml",
            "it is made from Wan 2.2's 5B, whose VAE (48 channels, 16 pixels a latent) is not"
            " here, and it shifts positions and pins frames at each cut",
        ),
    )
}
