"""What a request may ask for: one rule for each field, used by every entry point.

Each check returns the accepted value or raises InvalidRequest with the value, the rule and, where
there is one, the nearest legal value. Nothing is rounded, snapped or truncated silently.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from streamgen.errors import InvalidPrompt, InvalidRequest
from streamgen.text import CURVES, TextMix

MAX_SEED: Final = 2**32 - 1
SIZE_GRID: Final = 16  # pixels: 8 of the VAE times 2 of the DiT's patch
MAX_PROMPT_CHARACTERS: Final = 2_000
UNLIMITED: Final = -1  # a window that keeps every frame
MAX_PROMPTS: Final = 16  # texts of one mix
MAX_WEIGHT: Final = 1000.0
PRIORITIES: Final = ("live", "batch")
TRANSITIONS: Final = ("cut", "blend", "recache", "reset")
DEFAULT_BLEND_CHUNKS: Final = 4
MAX_BLEND_CHUNKS: Final = 1000

_SIZE = re.compile(r"(\d{1,6})[xX](\d{1,6})")


def parse_size(value: object) -> tuple[int, int]:
    """Parse "WxH" (x or X) to (width, height); ValueError otherwise. The grid is not checked."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("expected WxH in pixels, as in 832x480")
    return int(match[1]), int(match[2])


def parse_steps(value: object) -> int:
    """Parse the number of denoise passes: a whole number from 1 up, or ValueError."""
    number = int(value) if isinstance(value, str) and value.strip().isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError("expected a whole number from 1 up")
    return number


def parse_window(value: object) -> int:
    """Parse a window in latent frames; "none" and -1 mean UNLIMITED. ValueError otherwise."""
    if value in ("none", "-1", UNLIMITED):
        return UNLIMITED
    return parse_steps(value)


def check_size(width: object, height: object, max_pixels: int) -> tuple[int, int]:
    """Return (width, height) when both are on the grid and the picture is not too large."""
    if not _is_int(width) or not _is_int(height):
        raise InvalidRequest(
            f"size {width!r} x {height!r}: width and height must be whole numbers of pixels",
            param="size",
        )
    assert isinstance(width, int)
    assert isinstance(height, int)
    nearest = _nearest_size(width, height, max_pixels)
    if (width, height) == nearest:
        return nearest
    rule = f"multiples of {SIZE_GRID}, at least {SIZE_GRID}, at most {max_pixels:,} pixels in all"
    raise InvalidRequest(
        f"size {width}x{height} is not possible: width and height must be {rule}; "
        f"the nearest legal size is {nearest[0]}x{nearest[1]}",
        param="size",
    )


def check_seed(seed: object) -> int:
    """Return the seed, or a random one for None."""
    if seed is None:
        return secrets.randbelow(MAX_SEED + 1)
    if not _is_int(seed) or not 0 <= int(seed) <= MAX_SEED:  # type: ignore[call-overload]
        raise InvalidRequest(
            f"seed {seed!r} must be a whole number in 0..{MAX_SEED}, or null for a random one",
            param="seed",
        )
    return int(seed)  # type: ignore[call-overload, no-any-return]


def check_num_frames(num_frames: object) -> int | None:
    """Return the number of pixel frames to deliver, None for an endless video.

    Exactly that many are delivered: chunks are made whole and the last one is cut.
    """
    return None if num_frames is None else _check_count("num_frames", num_frames, 1)


def check_chunk(number: object, param: str) -> int:
    """Return the number of a chunk, a whole number from 0 up."""
    return _check_count(param, number, 0)


def check_fps(fps: object) -> int:
    """Return the frame rate: a whole number in 1..60."""
    number = _check_count("fps", fps, 1)
    if number > 60:
        raise InvalidRequest(f"fps {number} is above 60, the fastest that is played", param="fps")
    return number


def check_steps(steps: object, legal: tuple[int, int], param: str = "num_inference_steps") -> int:
    """Return the number of denoise passes if the preset was made for it (`legal`: least, most)."""
    least, most = legal
    number = _check_count(param, steps, 1)
    if not least <= number <= most:
        raise InvalidRequest(
            f"{param} {number} is outside {least}..{most}, the range this model is for", param=param
        )
    return number


def check_window(window: object) -> int:
    """Return the window in latent frames, or UNLIMITED."""
    return UNLIMITED if window == UNLIMITED else _check_count("window", window, 1)


def check_sink(sink: object) -> int:
    """Return the number of sink frames, 0 for none."""
    return _check_count("sink", sink, 0)


def check_prompt(prompt: object) -> TextMix:
    """Return what a prompt says: a text, or up to 16 texts with weights, scaled to sum to 1.

    An entry of a list is a text, `{"text": ..., "weight": ...}` or a pair of both; without a weight
    it counts 1. Refused are blank texts, more than 2,000 characters, NUL, lone surrogates, which no
    UTF-8 message could carry back, and weights that are not finite numbers above 0.
    """
    if isinstance(prompt, TextMix):
        prompt = list(prompt.parts)
    if isinstance(prompt, str):
        return TextMix.of(_check_text(prompt))
    if not isinstance(prompt, (list, tuple)) or not prompt:
        raise InvalidPrompt(
            f"the prompt must be text, or a list of texts with weights, not {_brief(prompt)}",
            param="prompt",
        )
    if len(prompt) > MAX_PROMPTS:
        raise InvalidPrompt(
            f"the prompt is a list of {len(prompt):,} texts; at most {MAX_PROMPTS} are mixed",
            param="prompt",
        )
    weights: dict[str, float] = {}
    for entry in prompt:
        text, weight = _weighted(entry)
        weights[text] = weights.get(text, 0.0) + weight
    total = sum(weights.values())
    return TextMix(tuple((text, weight / total) for text, weight in weights.items()))


def _weighted(entry: object) -> tuple[str, float]:
    text: object = entry
    weight: object = 1.0
    if isinstance(entry, dict):
        if unknown := entry.keys() - {"text", "weight"}:
            raise InvalidPrompt(
                f"a text of the prompt has text and weight, not {_brief(sorted(unknown)[0])}",
                param="prompt",
            )
        text, weight = entry.get("text"), entry.get("weight", 1.0)
    elif isinstance(entry, (list, tuple)) and len(entry) == 2:
        text, weight = entry
    if not isinstance(text, str):
        raise InvalidPrompt(f"the prompt's entry must hold text: {_brief(entry)}", param="prompt")
    number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not number or not 0 < weight <= MAX_WEIGHT:  # type: ignore[operator]
        raise InvalidPrompt(
            f"the weight {_brief(weight)} must be a number above 0, at most {MAX_WEIGHT:g}",
            param="prompt",
        )
    return _check_text(text), float(weight)  # type: ignore[arg-type]


def _check_text(text: str) -> str:
    if not text.strip():
        raise InvalidPrompt("the prompt is empty; say what should be seen", param="prompt")
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise InvalidPrompt(
            f"the prompt has {len(text):,} characters; at most {MAX_PROMPT_CHARACTERS:,} are read",
            param="prompt",
        )
    if "\0" in text:
        raise InvalidPrompt("the prompt contains a NUL character; remove it", param="prompt")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidPrompt(
            "the prompt contains half of a surrogate pair, which is not text", param="prompt"
        )
    return text


def check_priority(priority: object) -> str:
    """Return the scheduling class: "live", also for None, or "batch"."""
    if priority is None:
        return "live"
    if priority not in PRIORITIES:
        raise InvalidRequest(
            f"priority {_brief(priority)} is none of {', '.join(PRIORITIES)}", param="priority"
        )
    return str(priority)


def check_transition(
    transition: object, chunks: object = None, curve: object = None
) -> tuple[str, int, str]:
    """Return (transition, chunks it takes, curve) of a change of prompt.

    A blend takes 4 chunks along a line unless it is told otherwise; the others take one.
    """
    if transition not in TRANSITIONS:
        raise InvalidRequest(
            f"transition {_brief(transition)} is none of {', '.join(TRANSITIONS)}",
            param="transition",
        )
    if curve not in (None, *CURVES):
        raise InvalidRequest(
            f"curve {_brief(curve)} is none of {', '.join(CURVES)}", param="transition.curve"
        )
    if transition != "blend":
        if chunks not in (None, 1) or curve is not None:
            raise InvalidRequest(
                f"a {transition} takes over at once: it has no chunks ({_brief(chunks)}) and no "
                f"curve ({_brief(curve)}); leave them out, or ask for a blend",
                param="transition.chunks" if chunks not in (None, 1) else "transition.curve",
            )
        return str(transition), 1, "lerp"
    number = DEFAULT_BLEND_CHUNKS if chunks is None else _check_count("chunks", chunks, 1)
    if number > MAX_BLEND_CHUNKS:
        raise InvalidRequest(
            f"a blend over {number} chunks is longer than {MAX_BLEND_CHUNKS}",
            param="transition.chunks",
        )
    return "blend", number, str(curve or "lerp")


def _check_count(param: str, value: object, least: int) -> int:
    if not _is_int(value) or int(value) < least:  # type: ignore[call-overload]
        raise InvalidRequest(
            f"{param} {_brief(value)} must be a whole number from {least} up", param=param
        )
    return int(value)  # type: ignore[call-overload, no-any-return]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _nearest_size(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Return the legal size closest to the given one, its shape kept as the grid allows."""
    width = max(SIZE_GRID, round(width / SIZE_GRID) * SIZE_GRID)
    height = max(SIZE_GRID, round(height / SIZE_GRID) * SIZE_GRID)
    if width * height <= max_pixels:
        return width, height
    scale = (max_pixels / (width * height)) ** 0.5
    width = max(SIZE_GRID, int(width * scale) // SIZE_GRID * SIZE_GRID)
    height = min(height, max(SIZE_GRID, max_pixels // width // SIZE_GRID * SIZE_GRID))
    return width, height
