"""What a command takes beside its options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and the file of options."""
    suppressed: Mapping[str, Any] = {"default": argparse.SUPPRESS}
    parser.add_argument("model", metavar="MODEL", nargs="?", help="the model", **suppressed)
    parser.add_argument("--config", metavar="FILE", help="YAML file of options, key by key")


def generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the prompt and the file to write."""
    parser.add_argument("prompt", metavar="PROMPT", help="what should be seen")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="video file to write"
    )


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the replay and the file to write."""
    parser.add_argument("file", metavar="FILE", type=Path, help="replay that a server wrote")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="video file to write"
    )


def bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is measured."""
    parser.add_argument(
        "kind",
        nargs="?",
        default="sessions",
        choices=("latency", "sessions", "capacity", "live", "transport"),
        help="one session and its first frame; more and more of them (default); people who come "
        "and go, more and more of them; as many as are admitted, played in real time; or what "
        "viewers cost the server and how old frames arrive",
    )


def parity_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the fixtures."""
    parser.add_argument("directories", metavar="DIR", nargs="+", help="fixture to replay")


def download_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, its revision, and whether the network may be used."""
    parser.add_argument("model", metavar="MODEL", help="a published model, see `streamgen models`")
    parser.add_argument(
        "--revision", metavar="NAME", help="commit, tag or branch of the transformer's repository"
    )
    parser.add_argument(
        "--offline", action="store_true", help="use no network: say what is in the cache"
    )
