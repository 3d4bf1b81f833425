"""The kinds of `streamgen bench`: which module measures what."""

from __future__ import annotations

import dataclasses
from typing import Final

from streamgen import bench_report
from streamgen.command_options import BenchConfig
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError

# Options that only some kinds go by.
MEANT_FOR: Final = {
    "browser": ("transport",),
    "calibration": ("latency",),
    "max_utilisation": ("capacity", "live"),
}


def run(kind: str, engine: EngineConfig, options: BenchConfig, *, has_seconds: bool) -> int:
    """Measure, print, write the files and return 0.

    `has_seconds`: the length was asked for, and is not the default. Raises StreamgenError for what
    cannot be measured, before anything is.
    """
    bench_report.check_files(options)
    _check_meant(kind, engine, options)
    if kind == "live":
        from streamgen import bench_live

        return bench_live.run(engine, options)
    if kind == "transport":
        from streamgen import bench_transport

        return bench_transport.run(engine, _with(options, bench_transport.SECONDS, has_seconds))
    if kind == "capacity":
        from streamgen import bench_capacity

        return bench_capacity.run(engine, _with(options, bench_capacity.SECONDS, has_seconds))
    if kind == "latency":
        from streamgen import bench_latency

        return bench_latency.run(engine, options)
    from streamgen import bench

    return bench.run(engine, options)


def _check_meant(kind: str, engine: EngineConfig, options: BenchConfig) -> None:
    """Raise ConfigError for an option that would change nothing of what a kind measures."""
    given = {
        "browser": options.browser,
        "calibration": options.calibration is not None,
        "max_utilisation": engine.sources.get("max_utilisation", "default") != "default",
    }
    for key, kinds in MEANT_FOR.items():
        if given[key] and kind not in kinds:
            message = f"{key} changes nothing in bench {kind}; it is for {', '.join(kinds)}"
            raise ConfigError(message, param=key)


def _with(options: BenchConfig, seconds: float, has_seconds: bool) -> BenchConfig:
    """Return the options with the length that is usual for a kind, unless one was asked for."""
    return options if has_seconds else dataclasses.replace(options, seconds=seconds)
