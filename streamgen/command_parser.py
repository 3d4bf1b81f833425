"""How a command line is read, and how a mistake in it is answered."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from streamgen.command_options import REPEATABLE

WRONG_USAGE: Final = 2


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations and answers a mistake in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end."""
        self.exit(WRONG_USAGE, f"{self.prog}: {message}\nSee {self.prog} --help.\n")


def explain_unknown(unknown: Sequence[str], flags: Sequence[str]) -> str:
    """Return what is wrong with arguments that no option took, and what was meant perhaps."""
    word = unknown[0].partition("=")[0]
    if not word.startswith("-"):
        return f"there is no place for the argument {word!r}"
    near = difflib.get_close_matches(word, flags, n=1)
    return f"no option is called {word!r}" + (f"; did you mean {near[0]}?" if near else "")


def add_flag(parser: argparse.ArgumentParser, option: dataclasses.Field[Any]) -> str:
    """Give a parser the flag of an option, and return the flag."""
    flag = f"--{option.name.replace('_', '-')}"
    details: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS}
    if isinstance(option.default, bool):
        details["action"] = argparse.BooleanOptionalAction
        legal = ""
    else:
        details["metavar"] = option.name.rpartition("_")[2].upper()
        legal = f" ({_legal_values(option)})"
    if option.name in REPEATABLE:
        details["action"] = "append"
    text = f"{option.metadata['help']}{legal}"
    parser.add_argument(flag, help=text.replace("%", "%%"), **details)
    return flag


def _legal_values(option: dataclasses.Field[Any]) -> str:
    """Return what an option accepts, in the words with which it refuses anything else."""
    value = option.default
    written = ",".join(map(str, value)) if isinstance(value, tuple) else value
    default = "" if value in (None, (), "") else f"; default {written}"
    try:
        option.metadata["parse"](object())
    except ValueError as error:
        return f"{str(error).removeprefix('expected ')}{default}"
    raise AssertionError(f"{option.name} accepts anything")
