"""Entity tags in the headers of conditional requests, RFC 9110, 8.8.3 and 13.1."""

from __future__ import annotations

import re
from typing import Final

_TAG: Final = re.compile(r'(W/)?"[\x21\x23-\x7e\x80-\xff]*"')
_LIST: Final = re.compile(rf"[ \t,]*(?:{_TAG.pattern}(?:[ \t]*,[ \t,]*|[ \t]*$))+")


def names_strongly(header: str, tag: str) -> bool:
    """Return whether a header, a list of tags or `*`, names this strong tag; a weak one never."""
    return header.strip() == "*" or tag in _tags(header)


def names_weakly(header: str, tag: str) -> bool:
    """Return whether a header, a list of tags or `*`, names this tag, weak or not."""
    opaque = tag.removeprefix("W/")
    return header.strip() == "*" or opaque in (one.removeprefix("W/") for one in _tags(header))


def _tags(header: str) -> list[str]:
    """Return the tags of a list, none of one that is malformed."""
    if _LIST.fullmatch(header) is None:
        return []
    return [match[0] for match in _TAG.finditer(header)]
