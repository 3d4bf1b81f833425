"""The kinds of `streamgen bench`: which module measures what."""

from __future__ import annotations

import dataclasses

from streamgen import bench_report
from streamgen.command_options import BenchConfig
from streamgen.config import EngineConfig


def run(kind: str, engine: EngineConfig, options: BenchConfig, *, has_seconds: bool) -> int:
    """Measure, print, write the files and return 0.

    `has_seconds`: the length was asked for, and is not the default. Raises StreamgenError for what
    cannot be measured, before anything is.
    """
    bench_report.check_files(options)
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


def _with(options: BenchConfig, seconds: float, has_seconds: bool) -> BenchConfig:
    """Return the options with the length that is usual for a kind, unless one was asked for."""
    return options if has_seconds else dataclasses.replace(options, seconds=seconds)
