"""What a request may ask for: one rule for each field, used by every entry point.

Each check returns the accepted value or raises InvalidRequest with the value, the rule and, where
there is one, the nearest legal value. Nothing is rounded, snapped or truncated silently.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from streamgen.errors import InvalidPrompt, InvalidRequest, Unsupported

MAX_SEED: Final = 2**32 - 1
SIZE_GRID: Final = 16  # pixels: 8 of the VAE times 2 of the DiT's patch
MAX_PROMPT_CHARACTERS: Final = 2_000
UNLIMITED: Final = -1  # a window that keeps every frame

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


def check_prompt(prompt: object) -> str:
    """Return the prompt's text as it was given.

    A prompt is a string, or a list with one weighted text. Refused are blank prompts, more than
    2,000 characters, NUL, and lone surrogates, which no UTF-8 message could carry back.
    """
    text = _single_text(prompt)
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


def _single_text(prompt: object) -> str:
    """Unwrap a weighted list of one; several weighted texts are not offered yet."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, (list, tuple)) or not prompt:
        raise InvalidPrompt(f"the prompt must be text, not {_brief(prompt)}", param="prompt")
    if len(prompt) > 1:
        raise Unsupported(
            f"the prompt is a list of {len(prompt)} texts; one is supported", param="prompt"
        )
    entry = prompt[0]
    text = entry.get("text") if isinstance(entry, dict) else entry
    if isinstance(text, (list, tuple)) and len(text) == 2:  # (text, weight)
        text = text[0]
    if not isinstance(text, str):
        raise InvalidPrompt(f"the prompt's entry must hold text: {_brief(entry)}", param="prompt")
    return text


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
