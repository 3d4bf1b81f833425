"""The engine's options, and how options of any part are read.

An option is a field of a frozen dataclass. From that one line follow its flag (`--kv-cache-dtype`),
its key in the YAML file (`kv_cache_dtype` or `kv-cache-dtype`) and its environment variable
(`STREAMGEN_KV_CACHE_DTYPE`). Flags win over the environment, the environment over the file, the
file over the default; a name that no option has is an error, and every value knows its origin.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from streamgen.errors import ConfigError
from streamgen.faults import fault_rules
from streamgen.limits import parse_size, parse_steps, parse_window
from streamgen.model_options import LoraFile, lora_files, weights_path

ENV_PREFIX: Final = "STREAMGEN_"
MAX_THREADS: Final = 256
NOT_OPTIONS: Final = frozenset({"sources"})

T = TypeVar("T")


def option(
    default: object, parse: Callable[[object], object], text: str, *, secret: bool = False
) -> Any:
    """Declare a dataclass field as an option.

    `parse` maps a string (flag, environment) or a YAML value to the field's type and raises
    ValueError with the legal values, which may not hold the value if it is `secret`: such a one is
    never shown. `text` is the help line.
    """
    metadata = {"parse": parse, "help": text, "secret": secret}
    return field(default=default, metadata=metadata, repr=not secret)


def choice(*names: str) -> Callable[[object], str]:
    """Return a parser that accepts exactly these names."""

    def parse(value: object) -> str:
        if value not in names:
            raise ValueError(f"expected one of {', '.join(names)}")
        return str(value)

    return parse


def whole(least: int, *words: str, most: int | None = None) -> Callable[[object], int | str]:
    """Return a parser of whole numbers from `least` up, or to `most`, or of one of `words`."""
    rule = f"a whole number from {least} " + ("up" if most is None else f"to {most}")

    def parse(value: object) -> int | str:
        if value in words:
            return str(value)
        if isinstance(value, str) and value.strip().isdigit():
            value = int(value)
        whole_number = isinstance(value, int) and not isinstance(value, bool)
        if not whole_number or not least <= value <= (most or value):  # type: ignore[operator]
            raise ValueError("expected " + " or ".join([rule, *words]))
        assert isinstance(value, int)
        return value

    return parse


def seconds(value: object) -> float | None:
    """Parse a positive number of seconds; "none" means no limit."""
    if value is None or value == "none":
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number < float("inf"):
        raise ValueError("expected a positive number of seconds, or none")
    return number


def share(value: object) -> float | None:
    """Parse a number above 0 and up to 1; "none" means no limit."""
    try:
        number = seconds(value)
    except ValueError:
        number = 0.0
    if number is not None and not 0 < number <= 1:
        raise ValueError("expected a number above 0 and up to 1, or none")
    return number


def switch(value: object) -> bool:
    """Parse an on/off option."""
    words = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
    key = str(value).lower()
    if key not in words:
        raise ValueError("expected true or false")
    return words[key]


def name(value: object) -> str:
    """Parse a name, which may be anything but empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a name")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine is started with. None means that the model's preset decides."""

    model: str = option("pocket", name, "the model to serve")
    size: tuple[int, int] | None = option(None, parse_size, "WxH of every session, in pixels")
    fps: int | None = option(None, whole(1), "frames a second of the video")
    steps: int | None = option(None, parse_steps, "denoise passes a chunk")
    window: int | None = option(
        None, parse_window, "latent frames that stay visible, or none for all of them"
    )
    sink: int | None = option(None, whole(0), "first latent frames that stay visible for ever")
    dtype: str = option("auto", choice("auto", "bf16", "fp32"), "number format; auto measures")
    device: str = option("auto", name, "auto, cpu, cuda or cuda:N")
    pixel_format: str = option("auto", choice("auto", "rgb", "i420"), "of frames; auto: by device")
    attention_backend: str = option(
        "auto",
        choice("auto", "sdpa", "varlen", "flashinfer", "flash_attn"),
        "attention kernel; auto is the first that works here, and is checked",
    )
    enforce_eager: bool = option(False, switch, "run passes without CUDA graphs")
    compile: bool = option(False, switch, "compile the transformer's blocks (CUDA)")
    quantization: str = option(
        "none", choice("none", "fp8"), "fp8: the blocks' matrix products in 8 bits (CUDA, Ada on)"
    )
    kv_cache_dtype: str = option(
        "auto",
        choice("auto", "fp8"),
        "fp8: K/V in 8 bits, half of bf16, converted as they are read",
    )
    offload_layers: bool = option(
        False, switch, "blocks' weights stay in main memory and come as their turn does (CUDA)"
    )
    max_sessions: int = option(8, whole(1), "sessions that hold cache pages at the same time")
    max_queue: int = option(16, whole(0), "sessions that may wait for a place")
    max_utilisation: float | None = option(
        0.85, share, "most that live sessions may need of the device; none: memory alone decides"
    )
    history_seconds: float | None = option(
        30.0, seconds, "seconds of latents kept for rewinding; none: what the window needs"
    )
    fused: bool = option(True, switch, "commit a chunk together with the next one's first pass")
    max_session_seconds: float | None = option(None, seconds, "longest life of a session")
    deterministic: bool = option(False, switch, "make results independent of the batch, bit by bit")
    gate: bool = option(
        False, switch, "compare lossy options with the same video without them, at the start"
    )
    load_format: str = option("auto", choice("auto", "dummy"), "dummy: random weights")
    weights: Path | None = option(  # noqa: RUF009 - it returns a field
        None, weights_path, "file or folder of a published model; default: what was downloaded"
    )
    revision: str | None = option(None, name, "commit, tag or branch of the downloaded weights")
    container: str = option(
        "auto", name, "part of the weights' file to load, as in generator; auto: the preset's"
    )
    lora: tuple[LoraFile, ...] = option(
        (), lora_files, "LoRA merged at the start, FILE[#PART][:SCALE]"
    )
    decoder: str | None = option(
        None, choice("full", "tiny"), "decoder of a published model: its own, or the tiny one"
    )
    text_device: str = option(
        "cpu",
        choice("cpu", "cuda", "release"),
        "where a published model's text encoder runs; release: on the device, for a text at a time",
    )
    threads: int | None = option(
        None, whole(1, most=MAX_THREADS), "threads of a pass; default: the cores but one"
    )
    stall_timeout: float | None = option(
        60.0, seconds, "seconds without a sign of life after which the engine is replaced"
    )
    sample_quality: float | None = option(
        None, seconds, "seconds between chunks made again in float32, in idle time, and compared"
    )
    # Test hooks, off the network. What reads a freed page meets NaN, and the pass is refused.
    poison_freed_pages: bool = option(False, switch, "fill freed cache pages with NaN")
    faults: str | None = option(
        None, fault_rules, "failures on purpose, as in vae.decode:oom@3,worker.stall:30@10"
    )
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def resolved(self, defaults: Mapping[str, object]) -> EngineConfig:
        """Return a copy in which options that were left to the preset have its values."""
        missing = {k: v for k, v in defaults.items() if getattr(self, k) is None}
        sources = {**self.sources, **dict.fromkeys(missing, "preset")}
        return dataclasses.replace(self, **missing, sources=sources)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Settings:
    """Option values by key, as the layers gave them, and the layer each came from."""

    values: Mapping[str, object]
    sources: Mapping[str, str]

    def build(self, section: type[T]) -> T:
        """Return the given options dataclass; it gets `sources` too when it has such a field."""
        names = {f.name for f in dataclasses.fields(section)}  # type: ignore[arg-type]
        chosen = {k: v for k, v in self.values.items() if k in names}
        if "sources" in names:
            origin = {k: self.sources.get(k, "default") for k in names - NOT_OPTIONS}
            chosen["sources"] = origin
        return section(**chosen)


def read_settings(
    sections: Sequence[type],
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Merge the layers for all `sections` (options dataclasses whose keys share one namespace).

    `flags` holds only what the user gave. Raises ConfigError naming the layer for an unknown key,
    a value that does not parse, or a file that is not a YAML mapping.
    """
    options = {
        f.name: f
        for section in sections
        for f in dataclasses.fields(section)
        if f.name not in NOT_OPTIONS
    }
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for source, key, value in _layers(flags or {}, environ or {}, file):
        if key not in options:
            raise ConfigError(_unknown(source, key, options), param=key)
        try:
            values[key] = options[key].metadata["parse"](value)
        except ValueError as error:
            if options[key].metadata["secret"]:  # nor may the cause be shown
                raise ConfigError(f"{source}: {key}: {error}", param=key) from None
            raise ConfigError(f"{source}: {key} = {value!r}: {error}", param=key) from error
        sources[key] = source
    return Settings(values, sources)


def engine_config(
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> EngineConfig:
    """Read the engine's options alone; the same errors as `read_settings`."""
    return read_settings([EngineConfig], flags=flags, environ=environ, file=file).build(
        EngineConfig
    )


def _layers(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> Iterable[tuple[str, str, object]]:
    """Yield (source, key, value), weakest layer first."""
    if file is not None:
        for key, value in _read_yaml(file).items():
            yield f"file {file.name}", str(key).replace("-", "_"), value
    for variable, text in environ.items():
        if variable.startswith(ENV_PREFIX):
            yield f"env {variable}", variable.removeprefix(ENV_PREFIX).lower(), text
    for key, value in flags.items():
        yield f"flag --{key.replace('_', '-')}", key, value


def _read_yaml(file: Path) -> Mapping[object, object]:
    try:
        content = yaml.safe_load(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", param="config") from error
    except yaml.MarkedYAMLError as error:  # its own text shows the line, which may hold a secret
        mark = error.problem_mark
        where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(f"{file} is not YAML: {error.problem}{where}", param="config") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not YAML: {error}", param="config") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must be a mapping of option to value", param="config")
    return content


def _unknown(source: str, key: str, options: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(options), n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(options))}"
    return f"{source}: no option is called {key!r}; {hint}"
