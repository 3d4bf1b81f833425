"""What there is to say of one model before a weight of it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

from torch import Tensor

from kvcache import Rotary
from streamgen.account_shapes import TextShape
from streamgen.errors import ConfigError
from streamgen.models.causal_dit import DiTConfig
from streamgen.models.taehv import TAEHVConfig
from streamgen.models.wan_vae import WanVAEConfig
from streamgen.sampler import FlowSchedule, Sampler, SamplerKind, chunk_noise
from streamgen.step import COMMIT_TIMESTEP, ChunkPlan

TRAIN_STEPS: Final = 1000


class TextEncoder(Protocol):
    """What a preset's text encoder can do."""

    def encode(self, prompts: list[str]) -> Tensor:
        """Return embeddings `[n, text_len, text_dim]`, each prompt computed on its own."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file on the Hugging Face Hub: its repository, and its path there."""

    repository: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} of {self.repository}"


@dataclass(frozen=True, slots=True)
class Published:
    """Where the files of a published model are, and what the facts in its preset rest on.

    `container` is the part of the transformer's file that its authors play, None where the file
    has no parts; so is `lora_container` of the LoRA that belongs to it. `tiny_vae` is the address
    of the tiny decoder's file, which is not on the Hub.
    """

    licence: str  # of the weights
    source: str
    transformer: HubFile
    container: str | None
    vae: HubFile
    tiny_vae: str
    text: HubFile
    tokenizer: HubFile
    text_shape: TextShape
    lora: HubFile | None = None
    lora_container: str | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """Everything that belongs to one model.

    `text_encoder(dummy)` builds the encoder, with random weights when `dummy`; that of a published
    model, which is read with its other files, only so. `weights` is the folder of
    `dit.safetensors` and `vae.safetensors`; with neither it nor `published` weights are random, as
    in tests.

    `timesteps` are what the model was trained at, one a pass; with none, any number of `step_range`
    is spaced evenly. Raises ValueError for settings that contradict one another.
    """

    name: str
    dit: DiTConfig
    vae: TAEHVConfig | WanVAEConfig
    text_encoder: Callable[[bool], TextEncoder]
    weights: Path | None
    shift: float
    sampler: SamplerKind
    steps: int  # denoise passes of a chunk
    step_range: tuple[int, int]  # what else the model was made for, ends included
    size: tuple[int, int]  # width, height in pixels
    max_pixels: int
    fps: int
    chunks: ChunkPlan = field(default_factory=ChunkPlan)
    window_frames: int = 21
    sink_frames: int = 0
    spatial_factor: int = 8
    transition: str = "cut"
    rotary: Rotary = "absolute"  # how far the sink is from the rest, see WindowConfig
    rebuilds_sink: bool = False  # a recache takes new frames for the sink
    suggestions: tuple[str, ...] = ()  # prompts that show what it can do
    timesteps: tuple[float, ...] | None = None
    first_timesteps: tuple[float, ...] | None = None  # of the first chunk, where it has its own
    opening_noise: Callable[[Tensor, int], Tensor] | None = None  # of first chunks, by the seed
    context_noise: float = COMMIT_TIMESTEP  # the timestep at which a chunk is committed
    tiny_vae: TAEHVConfig | None = None  # may decode in place of `vae`
    published: Published | None = None

    def __post_init__(self) -> None:
        fixed = self.timesteps
        if fixed is not None and (len(fixed),) * 3 != (self.steps, *self.step_range):
            raise ValueError(
                f"{self.name}: timesteps {list(fixed)} are not steps {self.steps}, the only number"
                f" of the range {self.step_range}"
            )
        if self.first_timesteps is not None and fixed is None:
            raise ValueError(f"{self.name}: first_timesteps without timesteps for later chunks")
        if self.context_noise != COMMIT_TIMESTEP:
            raise ValueError(
                f"{self.name}: context_noise {self.context_noise:g}, but chunks are committed at"
                f" t = {COMMIT_TIMESTEP:g}"
            )

    def make_sampler(self, steps: int, *, first_chunk: bool = False) -> Sampler:
        """Return the sampler of a chunk: at the model's timesteps, which may be others at first.

        A model without timesteps of its own gets `steps` of them, evenly spaced before the
        schedule's shift.
        """
        if self.timesteps is None:
            return _evenly_spaced(self.shift, self.sampler, steps)
        assert steps == self.steps, (self.name, steps)
        own = self.first_timesteps if first_chunk and self.first_timesteps else self.timesteps
        return _fixed(self.shift, self.sampler, own)

    def draw_noise(self, seed: int, chunk: int, pass_index: int, shape: Sequence[int]) -> Tensor:
        """Return the noise of one pass, as `chunk_noise` draws it.

        That of a stream's first pass is shaped by the model, if it was trained so.
        """
        noise = chunk_noise(seed, chunk, pass_index, shape)
        if chunk == pass_index == 0 and self.opening_noise is not None:
            return self.opening_noise(noise, seed)
        return noise

    def latent_shape(self, width: int, height: int) -> tuple[int, int, int]:
        """Return (channels, height, width) of one latent frame of a `width` x `height` video."""
        return self.dit.in_dim, height // self.spatial_factor, width // self.spatial_factor

    def decoder(self, name: str | None) -> TAEHVConfig | WanVAEConfig:
        """Return the decoder `full` or `tiny`, None for the model's usual one.

        Raises ConfigError when the model has no choice of decoders.
        """
        if name is not None and self.tiny_vae is None:
            raise ConfigError(
                f"decoder {name}: {self.name} has only its own decoder; leave --decoder out",
                param="decoder",
            )
        return self.tiny_vae if name == "tiny" and self.tiny_vae is not None else self.vae


@lru_cache(maxsize=64)
def _evenly_spaced(shift: float, kind: SamplerKind, steps: int) -> Sampler:
    schedule = FlowSchedule(shift, TRAIN_STEPS)
    requested = [round(TRAIN_STEPS * (steps - i) / steps) for i in range(steps)]
    return Sampler(schedule, schedule.warp(requested), kind)


@lru_cache(maxsize=64)
def _fixed(shift: float, kind: SamplerKind, timesteps: tuple[float, ...]) -> Sampler:
    return Sampler(FlowSchedule(shift, TRAIN_STEPS), timesteps, kind)
