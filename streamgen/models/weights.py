"""Where the files of a published model are: in a folder that was named, or in the Hub's cache.

Nothing here uses the network: `streamgen download` does.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

import torch

from streamgen.config import EngineConfig
from streamgen.errors import CheckpointError, ConfigError
from streamgen.models.checkpoint_files import TORCH_SUFFIXES
from streamgen.models.lora import LoraSource
from streamgen.models.preset import HubFile, Preset, Published
from streamgen.models.taehv import TAEHVConfig

CPU: Final = torch.device("cpu")
ENDPOINT_VARIABLE: Final = "HF_ENDPOINT"
TextDevice = Literal["cpu", "cuda", "release"]

# Folders and files of diffusers' layout, where a model's folder may hold it.
DIFFUSERS_TRANSFORMER: Final = (
    "transformer",
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
)
DIFFUSERS_VAE: Final = ("vae",)
DIFFUSERS_TEXT: Final = ("text_encoder",)
DIFFUSERS_TOKENIZER: Final = ("tokenizer/tokenizer.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class WeightOptions:
    """What the engine's options say of the weights; None leaves it to the preset.

    `path` is a file, the transformer's, or a folder of files. `device` is the engine's: the text
    encoder goes there if `text_device` says so.
    """

    path: Path | None = None
    revision: str | None = None
    container: str | None = None
    loras: tuple[LoraSource, ...] = ()
    decoder: str | None = None
    text_device: TextDevice = "cpu"
    device: torch.device = CPU

    @classmethod
    def of(cls, config: EngineConfig, device: torch.device) -> WeightOptions:
        """Return what an engine on `device` was told."""
        return cls(
            path=config.weights,
            revision=config.revision,
            container=None if config.container == "auto" else config.container,
            loras=tuple(LoraSource(lora.path, lora.scale, lora.container) for lora in config.lora),
            decoder=config.decoder,
            text_device=cast(TextDevice, config.text_device),
            device=device,
        )


DEFAULT_WEIGHTS: Final = WeightOptions()


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a published model that are on this machine."""

    transformer: Path
    vae: Path
    text: Path
    tokenizer: Path
    lora: Path | None


def require_own_weights(preset: Preset, options: WeightOptions) -> None:
    """Raise ConfigError for options that mean nothing to a model that brings its own weights."""
    given = {
        "weights": options.path,
        "revision": options.revision,
        "container": options.container,
    }
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{name} {value}: {preset.name} brings its own weights; leave --{name} out",
                param=name,
            )
    preset.decoder(options.decoder)


def find_files(preset: Preset, published: Published, options: WeightOptions) -> ModelFiles:
    """Return where each file of a model is.

    Raises CheckpointError naming all that are missing, and the command that downloads them.
    """
    if options.path is not None and not options.path.exists():
        raise CheckpointError(f"weights {options.path}: there is no such file or folder")
    search = _Search(options)
    tiny = isinstance(preset.decoder(options.decoder), TAEHVConfig)
    transformer = search.transformer(published.transformer)
    vae = search.tiny_vae(published.tiny_vae) if tiny else search.find(published.vae, DIFFUSERS_VAE)
    text = search.find(published.text, DIFFUSERS_TEXT)
    tokenizer = search.find(published.tokenizer, DIFFUSERS_TOKENIZER)
    lora = search.find(published.lora) if published.lora else None
    search.require_all(preset.name)
    assert transformer is not None
    assert vae is not None
    assert text is not None
    assert tokenizer is not None
    return ModelFiles(transformer, vae, text, tokenizer, lora)


def cached_file(file: HubFile, revision: str | None = None) -> Path | None:
    """Return where the Hub's cache has a file, or None.

    Raises ConfigError as `require_hub_address` does.
    """
    require_hub_address()
    # It takes a moment to import, and bundled models have no use for it.
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(file.repository, file.name, revision=revision)
    return Path(found) if isinstance(found, str) else None


def require_hub_address() -> None:
    """Raise ConfigError when HF_ENDPOINT is no address: huggingface_hub may fail at its import."""
    address = os.environ.get(ENDPOINT_VARIABLE)
    if address is None:
        return
    try:
        parts = urllib.parse.urlsplit(address)
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets, or a port that is no number or too high
        is_one = False
    if not is_one:
        raise ConfigError(
            f"{ENDPOINT_VARIABLE} {address!r} is no address, as https://huggingface.co is one;"
            " unset it to ask that one"
        )


class _Search:
    """A search that remembers what it did not find."""

    def __init__(self, options: WeightOptions) -> None:
        self._revision = options.revision
        self._folder = options.path if options.path and options.path.is_dir() else None
        self._file = None if self._folder else options.path
        self._missing: list[str] = []

    def transformer(self, file: HubFile) -> Path | None:
        """Return the transformer's file: the one that was named, if it was no folder."""
        return self._file or self.find(file, DIFFUSERS_TRANSFORMER, self._revision)

    def find(
        self, file: HubFile, others: Iterable[str] = (), revision: str | None = None
    ) -> Path | None:
        """Return a file of the folder by its path on the Hub, its name or `others`; or a cached."""
        found = self._in_folder((*_names(file.name), *others)) or cached_file(file, revision)
        if found is None:
            self._missing.append(str(file))
        return found

    def tiny_vae(self, address: str) -> Path | None:
        """Return the tiny decoder's file, which only a folder can have."""
        name = address.rpartition("/")[2]
        found = self._in_folder(_names(name))
        if found is None:
            raise CheckpointError(
                f"decoder tiny needs {name}, which is not on the Hub: download {address} to a"
                " folder and name it with --weights; other files may stay in the Hub's cache"
            )
        return found

    def require_all(self, model: str) -> None:
        """Raise CheckpointError if any file was not found."""
        if self._missing:
            where = f"neither in {self._folder} nor" if self._folder else "not"
            raise CheckpointError(
                f"{model}: {len(self._missing)} files are {where} in the Hub's cache, first"
                f" {self._missing[0]}: run `streamgen download {model}`, or name their folder with"
                " --weights"
            )

    def _in_folder(self, names: Iterable[str]) -> Path | None:
        if self._folder is None:
            return None
        return next((p for name in names if (p := self._folder / name).exists()), None)


def _names(name: str) -> Iterator[str]:
    """Yield the names that a file may have in a folder, as safetensors before as a pickle."""
    for path in (Path(name), Path(Path(name).name)):
        if path.suffix in TORCH_SUFFIXES:
            yield str(path.with_suffix(".safetensors"))
        yield str(path)
